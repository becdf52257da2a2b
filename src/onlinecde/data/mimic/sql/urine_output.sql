-- urine_output: millilitres of urine in 24 hours, at each time urine was charted.
-- A volume was collected since the volume before it (the first: since ICU admission). Those charted
-- in the last 23 hours count if they cover 22 to 30 hours together, scaled to 24.
create table urine_output as
with volumes as (
    select out.stay_id, out.charttime as time,
           sum(case when item.name = 'irrigant' then -abs(out.value) else out.value end) as ml
    from mimic.outputevents as out
    join items as item on item.source = 'output' and item.itemid = out.itemid
    where out.stay_id in (select stay_id from stays)
    group by out.stay_id, out.charttime
),
collected as (
    select volumes.*,
           date_diff('minute',
               coalesce(lag(time) over (partition by stay_id order by time), stays.intime),
               time) / 60.0 as hours
    from volumes
    join stays using (stay_id)
),
summed as (
    select stay_id, time, ml, sum(ml) over day as total, sum(hours) over day as covered
    from collected
    window day as (
        partition by stay_id order by time
        range between interval 23 hours preceding and current row
    )
)
select stay_id, time, ml,
       case when covered between 22 and 30 then 24 * total / covered end as ml_24h
from summed;
