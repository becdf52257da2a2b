-- coma_scale: the Glasgow Coma Scale, 3 to 15. A part not charted now is the one charted at the
-- time before (within 6 hours), else normal. Who cannot speak for a tube counts as 15. Where texts
-- are absent, a verbal response of 1 under invasive ventilation is taken for a tube.
create table coma_scale as
with texts as (
    select count(*) > 0 as there from charted
    where itemid = 223900 and words is not null and try_cast(words as double) is null
),
parts as (
    select charted.stay_id, charted.time,
           max(number) filter (where item.name = 'gcs_eyes') as eyes,
           max(number) filter (where item.name = 'gcs_motor') as motor,
           max(number) filter (where item.name = 'gcs_verbal') as verbal,
           bool_or(item.name = 'gcs_verbal' and words = 'No Response-ETT') as tube_charted
    from charted
    join items as item on item.source = 'chart' and item.itemid = charted.itemid
    where item.name in ('gcs_eyes', 'gcs_verbal', 'gcs_motor')
    group by charted.stay_id, charted.time
),
tubes as (
    select parts.* exclude (tube_charted),
           case
               when verbal is null and not coalesce(tube_charted, false) then null
               when texts.there then coalesce(tube_charted, false)
               else verbal = 1 and exists (
                   select 1 from ventilation
                   where ventilation.stay_id = parts.stay_id and ventilation.status = 'invasive'
                     and parts.time between ventilation.starttime and ventilation.endtime)
           end as tube
    from parts, texts
),
carried as (
    select stay_id, time, eyes, motor, verbal, tube,
           case when recent then lag(eyes) over before end as eyes_before,
           case when recent then lag(motor) over before end as motor_before,
           case when recent then lag(verbal) over before end as verbal_before,
           coalesce(recent and lag(tube) over before, false) as tube_before
    from (
        select *, lag(time) over (partition by stay_id order by time) > time - interval 6 hours as recent
        from tubes
    )
    window before as (partition by stay_id order by time)
)
select stay_id, time,
       case
           when coalesce(tube, tube_before) then 15
           when tube_before then coalesce(motor, 6) + coalesce(verbal, 5) + coalesce(eyes, 4)
           else coalesce(motor, motor_before, 6) + coalesce(verbal, verbal_before, 5)
                + coalesce(eyes, eyes_before, 4)
       end as gcs
from carried;
