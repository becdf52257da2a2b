-- cohort: every stay with the answers to the questions of the paper's exclusion flow.
create table cohort as
with lengths as (
    select stay_id, count(*) as rows, max(hours) as last_hours from rows group by stay_id
),
monitored as (
    -- The longest run of gaps under `merge_minutes`: a monitor that charts every minute.
    select stay_id, max(moments) - 1 as run
    from (select stay_id, chain, count(*) as moments from moments group by all)
    group by stay_id
),
before_icu as (
    select distinct stays.stay_id
    from stays
    join antibiotics on antibiotics.hadm_id = stays.hadm_id and antibiotics.starttime < stays.intime
)
select stays.stay_id, stays.subject_id,
       coalesce(lengths.rows, 0) as rows, lengths.last_hours,
       lengths.rows is not null as observed,
       case getvariable('length_by') when 'stay' then stays.hours else lengths.last_hours end
           between getvariable('hours_least') and getvariable('hours_most') as right_length,
       coalesce(lengths.rows >= getvariable('rows_least'), false) as enough_rows,
       getvariable('monitored_run') = 0 or monitored.run < getvariable('monitored_run') as not_monitored,
       stays.stay_id not in (select stay_id from before_icu) as no_antibiotics_before,
       observed and right_length and enough_rows and not_monitored as chosen
from stays
left join lengths using (stay_id)
left join monitored using (stay_id);
