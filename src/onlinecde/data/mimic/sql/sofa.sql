-- sofa: the SOFA score of every hour of a stay. Hour h ends h hours after ICU admission and holds
-- what came after the hour before it. Each of the six parts is the worst of the last 24 hours;
-- nothing known of a part counts as 0. (Vincent et al. 1996; Sepsis-3: Seymour et al. 2016.)
create table sofa as
with grid as (
    select stay_id, intime, unnest(generate_series(-23, ceil(hours)::bigint)) as hour from stays
),
hourly_blood as (
    select stay_id, ceil(date_diff('second', intime, time) / 3600.0)::bigint as hour,
           min(value) filter (where channel = 'platelet') as platelet,
           max(value) filter (where channel = 'bilirubin_total') as bilirubin,
           max(value) filter (where channel = 'creatinine') as creatinine
    from laboratory
    join stays using (stay_id)
    where channel in ('platelet', 'bilirubin_total', 'creatinine')
    group by all
),
hourly_gas as (
    select stay_id, ceil(date_diff('second', intime, time) / 3600.0)::bigint as hour,
           min(ratio) filter (where ventilated) as ratio_ventilated,
           min(ratio) filter (where not ventilated) as ratio_alone
    from blood_gas
    join stays using (stay_id)
    group by all
),
hourly_pressure as (
    select stay_id, ceil(date_diff('second', intime, time) / 3600.0)::bigint as hour,
           min(value) as mbp
    from vital_signs
    join stays using (stay_id)
    where channel = 'mbp'
    group by all
),
hourly_coma as (
    select stay_id, ceil(date_diff('second', intime, time) / 3600.0)::bigint as hour,
           min(gcs) as gcs
    from coma_scale
    join stays using (stay_id)
    group by all
),
hourly_urine as (
    select stay_id, ceil(date_diff('second', intime, time) / 3600.0)::bigint as hour,
           max(ml_24h) as urine
    from urine_output
    join stays using (stay_id)
    group by all
),
-- An infusion counts in the hours at whose end it runs.
running as (
    select stay_id, agent, rate,
           unnest(generate_series(
               floor(date_diff('second', intime, starttime) / 3600.0)::bigint + 1,
               floor(date_diff('second', intime, endtime) / 3600.0)::bigint)) as hour
    from vasopressors
    join stays using (stay_id)
),
hourly_agents as (
    select stay_id, hour,
           max(rate) filter (where agent = 'dopamine') as dopamine,
           max(rate) filter (where agent = 'dobutamine') as dobutamine,
           max(rate) filter (where agent in ('epinephrine', 'norepinephrine')) as epinephrine
    from running
    group by all
),
scored as (
    select stay_id, intime, hour,
           case
               when ratio_ventilated < 100 then 4
               when ratio_ventilated < 200 then 3
               when least(ratio_ventilated, ratio_alone) < 300 then 2
               when least(ratio_ventilated, ratio_alone) < 400 then 1
               when least(ratio_ventilated, ratio_alone) is not null then 0
           end as respiration,
           case
               when platelet < 20 then 4
               when platelet < 50 then 3
               when platelet < 100 then 2
               when platelet < 150 then 1
               when platelet is not null then 0
           end as coagulation,
           case
               when bilirubin >= 12 then 4
               when bilirubin >= 6 then 3
               when bilirubin >= 2 then 2
               when bilirubin >= 1.2 then 1
               when bilirubin is not null then 0
           end as liver,
           case
               when dopamine > 15 or epinephrine > 0.1 then 4
               when dopamine > 5 or epinephrine > 0 then 3
               when dopamine > 0 or dobutamine > 0 then 2
               when mbp < 70 then 1
               when mbp is not null then 0
           end as cardiovascular,
           case
               when gcs < 6 then 4
               when gcs < 10 then 3
               when gcs < 13 then 2
               when gcs < 15 then 1
               when gcs is not null then 0
           end as nerves,
           case
               when creatinine >= 5 or urine < 200 then 4
               when creatinine >= 3.5 or urine < 500 then 3
               when creatinine >= 2 then 2
               when creatinine >= 1.2 then 1
               when creatinine is not null or urine is not null then 0
           end as renal
    from grid
    left join hourly_blood using (stay_id, hour)
    left join hourly_gas using (stay_id, hour)
    left join hourly_pressure using (stay_id, hour)
    left join hourly_coma using (stay_id, hour)
    left join hourly_urine using (stay_id, hour)
    left join hourly_agents using (stay_id, hour)
),
worst as (
    select stay_id, intime, hour,
           coalesce(max(respiration) over day, 0) as respiration,
           coalesce(max(coagulation) over day, 0) as coagulation,
           coalesce(max(liver) over day, 0) as liver,
           coalesce(max(cardiovascular) over day, 0) as cardiovascular,
           coalesce(max(nerves) over day, 0) as nerves,
           coalesce(max(renal) over day, 0) as renal
    from scored
    window day as (partition by stay_id order by hour rows between 23 preceding and current row)
)
select stay_id, hour, intime + to_hours(hour - 1) as starttime, intime + to_hours(hour) as endtime,
       respiration, coagulation, liver, cardiovascular, nerves, renal,
       respiration + coagulation + liver + cardiovascular + nerves + renal as score
from worst
where hour >= 0;
