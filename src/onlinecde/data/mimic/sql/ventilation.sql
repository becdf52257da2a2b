-- ventilation: from when to when a patient had which help with breathing.
-- Charted: a status lasts from its first charting to the next charting of another status; 14 hours
-- without a word end it. Procedures: invasive (225792) and non-invasive (225794) ventilation as
-- documented with start and end. Without charted texts the procedures are used whatever is asked.
create table ventilation as
with charts as (
    select charted.stay_id, charted.time,
           -- Several statuses at one time: the most invasive.
           max(case
               when words in ('Tracheostomy tube', 'Trach mask ', 'Trach mask') then 6
               when words = 'Endotracheal tube' then 5
               when words ilike '%bipap%' or words ilike '%cpap mask%' or words in ('NIV', 'NIV-ST', 'DuoPaP')
                   then 4
               when item.name = 'ventilator_mode' and words <> 'Standby'
                   and try_cast(words as double) is null then 5
               when words = 'High flow nasal cannula' then 3
               when words = 'None' then 1
               when item.name = 'o2_device' and words <> 'Other'
                   and try_cast(words as double) is null then 2
           end) as level
    from charted
    join items as item on item.source = 'chart' and item.itemid = charted.itemid
    where item.name in ('o2_device', 'ventilator_mode') and words is not null
    group by charted.stay_id, charted.time
),
marked as (
    select stay_id, time, level,
           lead(time) over next_charting as next_time,
           (level is distinct from lag(level) over next_charting
            or time >= lag(time) over next_charting + interval 14 hours)::int as begins
    from charts
    where level is not null
    window next_charting as (partition by stay_id order by time)
),
spells as (
    select stay_id, level, min(time) as starttime,
           max(case when next_time < time + interval 14 hours then next_time else time end) as endtime
    from (
        select *, sum(begins) over (partition by stay_id order by time) as spell from marked
    )
    group by stay_id, spell, level
)
select stay_id, starttime, endtime, 'charts' as source,
       case level
           when 6 then 'tracheostomy'
           when 5 then 'invasive'
           when 4 then 'non-invasive'
           when 3 then 'high flow'
           when 2 then 'oxygen'
           else 'none'
       end as status
from spells
where starttime < endtime and getvariable('ventilation_from') in ('charts', 'both')
union all
select stay_id, starttime, endtime, 'procedures' as source,
       case itemid when 225792 then 'invasive' else 'non-invasive' end as status
from mimic.procedureevents
where itemid in (225792, 225794) and starttime < endtime
  and stay_id in (select stay_id from stays)
  and (getvariable('ventilation_from') in ('procedures', 'both')
       or not exists (select 1 from charts where level is not null));
