-- body: the first plausible height (cm) and weight (kg) charted in the stay.
create table body as
with readings as (
    select charted.stay_id, item.name, charted.time,
           case charted.itemid when 226707 then 2.54 else 1.0 end * charted.number as value
    from charted
    join items as item on item.source = 'chart' and item.itemid = charted.itemid
    join stays using (stay_id)
    where item.name in ('height', 'weight')
      and charted.number > item.above and charted.number <= item.up_to
      and charted.time <= stays.intime + to_seconds(3600 * getvariable('static_hours'))
)
select stays.stay_id,
       arg_min(value, (time, value)) filter (where name = 'height') as height,
       arg_min(value, (time, value)) filter (where name = 'weight') as weight
from stays
left join readings using (stay_id)
group by stays.stay_id;
