-- sepsis_stays, sepsis_rows: the risk of sepsis at every row. A row's label is 1 from 12 hours before
-- the onset to 6 hours after it, where the stay is cut; rows of stays without sepsis are 0.
create table sepsis_stays as
with nearest as (
    select rows.stay_id, arg_min(rows.hours, (abs(rows.hours - sepsis.hours), rows.hours)) as hours
    from rows
    join sepsis using (stay_id)
    group by rows.stay_id
),
onsets as (
    select sepsis.stay_id,
           case getvariable('onset_at') when 'exact' then sepsis.hours else nearest.hours end as onset
    from sepsis
    join nearest using (stay_id)
),
seen as (
    select rows.stay_id, count(*) as rows
    from rows
    left join onsets using (stay_id)
    where onset is null or rows.hours <= onset + getvariable('sepsis_hours_after')
    group by rows.stay_id
),
asked as (
    select cohort.stay_id, cohort.subject_id, onsets.onset, coalesce(seen.rows, 0) as rows,
           cohort.no_antibiotics_before or not getvariable('drop_antibiotics_before_icu') as untreated,
           coalesce(onsets.onset >= getvariable('onset_least_hours'), true) as onset_later,
           coalesce(seen.rows >= getvariable('rows_least'), false) as long_enough
    from cohort
    left join onsets using (stay_id)
    left join seen using (stay_id)
    where cohort.chosen
)
select *, untreated and onset_later and long_enough as chosen from asked;

create table sepsis_rows as
select rows.stay_id, rows.row,
       coalesce(rows.hours >= onset - getvariable('sepsis_hours_before'), false)::int as label
from rows
join sepsis_stays using (stay_id)
where chosen and rows.row < sepsis_stays.rows;
