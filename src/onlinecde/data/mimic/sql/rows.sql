-- rows: the times of a stay's series, in hours from ICU admission; cells: the values at them.
-- Readings under `merge_minutes` apart become one row, at the time of the last, with their mean.
create table readings as
select stay_id, channel, value, date_diff('second', stays.intime, time) as second
from (
    select stay_id, time, channel, value from vital_signs
    union all
    select stay_id, time, channel, value from laboratory
)
join stays using (stay_id)
where time >= stays.intime
  and time <= stays.outtime + to_seconds(3600 * getvariable('hours_after_discharge'));

create table moments as
with gaps as (
    select stay_id, second,
           second - lag(second) over (partition by stay_id order by second)
               < 60 * getvariable('merge_minutes') as close
    from (select distinct stay_id, second from readings)
),
chains as (
    select *, sum((close is not true)::int) over (partition by stay_id order by second) as chain
    from gaps
),
groups as (
    select *,
           case getvariable('merge_span')
               when 'chain' then 0
               else floor((second - min(second) over (partition by stay_id, chain))
                          / (60 * getvariable('merge_minutes')))
           end as part
    from chains
)
select stay_id, second, chain,
       max(second) over (partition by stay_id, chain, part) / 3600.0 as hours,
       dense_rank() over (partition by stay_id order by chain, part) - 1 as row
from groups;

create table rows as
select distinct stay_id, row, hours from moments;

create table cells as
select stay_id, row, list_position(getvariable('channels'), channel) - 1 as channel,
       avg(value) as value
from readings
join moments using (stay_id, second)
group by all;
