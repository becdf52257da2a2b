-- measured: the rows of labevents that mean something here, of patients with an ICU stay.
create table measured as
select subject_id, itemid, charttime as time, valuenum as number,
       case when itemid in (select itemid from items where is_text) then value end as words,
       coalesce(specimen_id::varchar, subject_id || ' ' || charttime) as specimen
from mimic.labevents
where itemid in (select itemid from items where source = 'lab')
  and subject_id in (select subject_id from stays);
