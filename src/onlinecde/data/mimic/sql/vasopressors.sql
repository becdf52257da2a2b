-- vasopressors: infusions with their rate in micrograms per kilogram and minute.
-- Rates without a unit are taken for that. Rates not by weight are divided by the weight documented
-- with the infusion, else by the charted one.
create table vasopressors as
select input.stay_id, item.name as agent, input.starttime, input.endtime,
       coalesce(nullif(nullif(input.patientweight, 0), 1), body.weight) as kg,
       input.rate * case
           when input.rateuom = 'mg/kg/min' and input.patientweight = 1 then 1
           when input.rateuom = 'mg/kg/min' then 1000
           when input.rateuom = 'mcg/kg/hour' then 1 / 60.0
           when input.rateuom = 'mcg/min' then 1 / kg
           when input.rateuom = 'mg/hour' then 1000 / 60.0 / kg
           when input.rateuom = 'mcg/hour' then 1 / 60.0 / kg
           else 1
       end as rate
from mimic.inputevents as input
join items as item on item.source = 'input' and item.itemid = input.itemid
join body using (stay_id)
where item.name in ('norepinephrine', 'epinephrine', 'dopamine', 'dobutamine')
  and input.rate > 0 and input.starttime < input.endtime
  and input.statusdescription is distinct from 'Rewritten';
