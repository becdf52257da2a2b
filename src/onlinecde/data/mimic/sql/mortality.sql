-- mortality: death in hospital, from all readings of the stay.
create table mortality as
select stay_id, stays.subject_id, stays.died as label, cohort.rows, true as chosen
from cohort
join stays using (stay_id)
where cohort.chosen;
