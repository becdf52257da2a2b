-- stays: one line for each ICU stay, with what is known of the patient on admission.
-- Age: MIMIC-IV moves all dates of a patient together, so the years since the anchor year are real.
create table stays as
select stay.stay_id, stay.subject_id, stay.hadm_id, stay.intime, stay.outtime,
       date_diff('second', stay.intime, stay.outtime) / 3600.0 as hours,
       case patient.gender when 'M' then 1.0 when 'F' then 0.0 end as male,
       patient.anchor_age + year(stay.intime) - patient.anchor_year as age,
       admission.race as race,
       case
           when admission.race ilike 'WHITE%' or admission.race = 'PORTUGUESE' then 'white'
           when admission.race ilike 'BLACK%' then 'black'
           when admission.race ilike '%HISPANIC%' or admission.race = 'SOUTH AMERICAN' then 'hispanic'
           when admission.race ilike 'ASIAN%' then 'asian'
           when admission.race is null or admission.race ilike 'UNKNOWN%'
               or admission.race ilike 'UNABLE%' or admission.race ilike 'PATIENT DECLINED%'
               then 'unknown'
           else 'other'
       end as race_group,
       admission.hospital_expire_flag as died
from mimic.icustays as stay
left join mimic.admissions as admission on admission.hadm_id = stay.hadm_id
left join mimic.patients as patient on patient.subject_id = stay.subject_id;
