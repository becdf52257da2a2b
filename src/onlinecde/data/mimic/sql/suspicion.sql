-- suspicion: times of suspected infection of a stay's admission: a culture and a repeated antibiotic,
-- the antibiotic from 24 hours before to 72 hours after the culture, at the earlier of the two.
-- A culture with a day only may have been taken at any time of that day.
create table suspicion as
select distinct stays.stay_id, least(drug.starttime, culture.time) as time
from stays
join antibiotics as drug on drug.hadm_id = stays.hadm_id and drug.repeated
join cultures as culture
    on culture.subject_id = stays.subject_id
   and drug.starttime >= culture.time
                         - to_seconds(3600 * getvariable('antibiotic_hours_before_culture'))
   and drug.starttime <= culture.time
                         + to_seconds(3600 * getvariable('antibiotic_hours_after_culture'))
                         + case when culture.timed then interval 0 hours else interval 24 hours end
where getvariable('cultures_of') = 'subject' or culture.hadm_id = stays.hadm_id;
