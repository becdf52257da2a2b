-- laboratory: values of the patient's blood, one line for each stay, channel and time. A stay has
-- those drawn from 24 hours before it (for SOFA; the series start at admission) to its end.
create table laboratory as
select stays.stay_id, measured.time,
       case when item.name like 'troponin%' then 'troponin' else item.name end as channel,
       avg(measured.number) as value
from measured
join items as item on item.source = 'lab' and item.itemid = measured.itemid
join stays on stays.subject_id = measured.subject_id
          and measured.time > stays.intime - interval 24 hours
          and measured.time <= stays.outtime
                               + to_seconds(3600 * getvariable('hours_after_discharge'))
where measured.number > item.above and measured.number <= item.up_to
  and (item.name not like 'troponin%' or item.name = 'troponin_' || getvariable('troponin'))
  and item.name <> 'fio2_bg'
group by all;
