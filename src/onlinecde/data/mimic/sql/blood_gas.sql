-- blood_gas: PaO2 / FiO2 (mmHg) of each arterial blood gas, and whether the patient was ventilated.
-- FiO2 is that of the analyser, or the last charted in the 4 hours before. Without the text of the
-- specimen (where no specimen at all says what it is), every blood gas is taken for arterial.
create table blood_gas as
with gases as (
    select measured.subject_id, measured.specimen, min(measured.time) as time,
           max(number) filter (where item.name = 'po2' and number > 0) as pao2,
           max(case when number > 20 and number <= 100 then number
                    when number > 0.2 and number <= 1 then 100 * number end)
               filter (where item.name = 'fio2_bg') as fio2,
           max(words) filter (where item.name = 'specimen') as kind
    from measured
    join items as item on item.source = 'lab' and item.itemid = measured.itemid
    where item.name in ('po2', 'fio2_bg', 'specimen')
    group by measured.subject_id, measured.specimen
    having pao2 is not null
),
arterial as (
    select stays.stay_id, gases.time, gases.pao2, gases.fio2
    from gases
    join stays on stays.subject_id = gases.subject_id
              and gases.time > stays.intime - interval 24 hours and gases.time <= stays.outtime
    where gases.kind = 'ART.' or not exists (select 1 from gases where kind is not null)
),
with_oxygen as (
    select arterial.*,
           coalesce(arterial.fio2,
                    case when charted.time >= arterial.time - interval 4 hours then charted.value end
           ) as percent
    from arterial
    asof left join (from vital_signs where channel = 'fio2') as charted
        on charted.stay_id = arterial.stay_id and charted.time <= arterial.time
)
select stay_id, time, pao2, percent as fio2, 100 * pao2 / percent as ratio,
       exists (
           select 1 from ventilation
           where ventilation.stay_id = with_oxygen.stay_id and ventilation.status = 'invasive'
             and with_oxygen.time between ventilation.starttime and ventilation.endtime
       ) as ventilated
from with_oxygen
where percent is not null;
