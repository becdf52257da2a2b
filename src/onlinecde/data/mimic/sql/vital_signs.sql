-- vital_signs: charted readings of the stay, one line for each channel and time (equal times: mean).
-- FiO2 and glucose are charted too; the paper counts them among the laboratory values.
create table vital_signs as
with plausible as (
    select charted.stay_id, charted.time, item.name,
           case
               when charted.itemid = 223761 then (charted.number - 32) / 1.8
               when item.name = 'fio2' and charted.number <= 1 then 100 * charted.number
               else charted.number
           end as value
    from charted
    join items as item on item.source = 'chart' and item.itemid = charted.itemid
    where charted.number > item.above and charted.number <= item.up_to
      and list_contains(getvariable('channels'), item.name)
      -- Above 1 and under 20 is a flow in litres, not a fraction of oxygen.
      and (item.name <> 'fio2' or charted.number >= 20 or charted.number between 0.2 and 1)
)
select stay_id, time, name as channel, avg(value) as value
from plausible
group by all;
