-- sepsis: the first time a stay meets Sepsis-3: around a suspicion of infection, SOFA rises by 2.
-- `onset` is that time by `onset_rule`; `suspicion` and `sofa` are the two times it is made of.
create table sepsis as
with scores as (
    select suspicion.stay_id, suspicion.time as suspicion, sofa.score,
           case getvariable('sofa_stamp') when 'start' then sofa.starttime else sofa.endtime end as time
    from suspicion
    join sofa using (stay_id)
),
near as (
    select *,
           case getvariable('sofa_baseline')
               when 'zero' then 0
               when 'lowest' then min(score) over so_far
               else first_value(score) over so_far
           end as baseline
    from scores
    where time >= suspicion - to_seconds(3600 * getvariable('sofa_hours_before'))
      and time <= suspicion + to_seconds(3600 * getvariable('sofa_hours_after'))
    window so_far as (
        partition by stay_id, suspicion order by time rows between unbounded preceding and current row)
),
rises as (
    select stay_id, suspicion, min(time) as sofa
    from near
    where score - baseline >= getvariable('sofa_rise')
    group by stay_id, suspicion
),
onsets as (
    select *,
           case getvariable('onset_rule')
               when 'earlier' then least(suspicion, sofa)
               when 'later' then greatest(suspicion, sofa)
               when 'sofa' then sofa
               else suspicion
           end as onset
    from rises
)
select stay_id, min(onset) as onset, arg_min(suspicion, (onset, suspicion)) as suspicion,
       arg_min(sofa, (onset, sofa)) as sofa,
       date_diff('second', any_value(stays.intime), min(onset)) / 3600.0 as hours
from onsets
join stays using (stay_id)
group by stay_id;
