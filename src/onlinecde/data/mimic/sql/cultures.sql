-- cultures: specimens sent to microbiology, one line each, with the time they were taken. Where
-- only the day is known, `timed` is false and the time is the start of that day.
create table cultures as
select micro_specimen_id, min(subject_id) as subject_id, min(hadm_id) as hadm_id,
       min(coalesce(charttime, chartdate)) as time, bool_or(charttime is not null) as timed,
       min(spec_type_desc) as specimen
from mimic.microbiologyevents
where coalesce(charttime, chartdate) is not null and subject_id in (select subject_id from stays)
group by micro_specimen_id;
