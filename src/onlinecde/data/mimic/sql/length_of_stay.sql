-- length_of_stay: days in the ICU, from the readings of the first 24 hours.
-- The text: stays of 24 to 72 hours. The paper's code: stays with no reading after 24 hours.
create table length_of_stay as
with seen as (
    select stay_id, count(*) as rows from rows where hours <= getvariable('los_hours') group by stay_id
),
asked as (
    select stay_id, stays.subject_id, stays.hours / 24 as label, coalesce(seen.rows, 0) as rows,
           case getvariable('los_rule')
               when 'ended by 24 h' then cohort.last_hours <= getvariable('los_hours')
               else stays.hours between getvariable('los_hours') and getvariable('hours_most')
           end as of_length
    from cohort
    join stays using (stay_id)
    left join seen using (stay_id)
    where cohort.chosen
)
select *, rows >= getvariable('los_rows_least') as long_enough, of_length and long_enough as chosen
from asked;
