-- antibiotics: courses of antibiotics. A course is one drug given again within `doses_hours`; it
-- counts (`repeated`) if any of its doses is followed by a dose of any antibiotic in that time. An
-- order of the hospital that runs for a day or more holds several doses itself.
create table antibiotics as
with given as (
    select stays.hadm_id, input.starttime, input.endtime,
           coalesce(lower(d.label), item.itemid::varchar) as drug, 'inputevents' as source, false as several
    from mimic.inputevents as input
    join stays using (stay_id)
    left join items as item on item.source = 'input' and item.itemid = input.itemid
                           and item.name in ('antibiotic', 'antiviral')
    left join mimic.d_items as d on d.itemid = input.itemid
    where (item.name = 'antibiotic'
           or getvariable('antivirals') and (item.name = 'antiviral' or d.category ilike '%antibiotic%')
           -- New items of later releases: in the category, and not known to be an antiviral.
           or d.category ilike '%antibiotic%' and item.name is null)
      and input.statusdescription is distinct from 'Rewritten'
      and getvariable('antibiotics_from') in ('inputevents', 'both')
),
ordered as (
    select hadm_id, starttime, greatest(coalesce(stoptime, starttime), starttime) as endtime,
           lower(drug) as drug, 'prescriptions' as source,
           stoptime >= starttime + interval 24 hours as several
    from mimic.prescriptions
    where starttime is not null and hadm_id in (select hadm_id from stays)
      and drug_type is distinct from 'BASE'
      and (route is null or not (upper(route) in ('OU', 'OS', 'OD', 'AU', 'AS', 'AD', 'TP')
                                 or route ilike '%EYE%' or route ilike '%EAR%'))
      and not regexp_matches(lower(drug), 'cream|ointment|ophth|gel\b|desensitization|lock|enema')
      and (regexp_matches(lower(drug),
              'cillin|^cef|^ceph|penem|bactam|aztreonam|floxacin|cipro|levaquin|mycin|micin|amikacin'
              || '|tobra|cycline|metronidazole|flagyl|linezolid|sulfameth|trimethoprim|smx|bactrim'
              || '|nitrofurantoin|macrobid|colisti|polymyxin|rifampin|rifabutin|isoniazid|ethambutol'
              || '|pyrazinamide|zosyn|unasyn|augmentin|synercid|chloramphenicol|fosfomycin|keflex')
           and not regexp_matches(lower(drug), 'rifaximin|mitomycin|bleomycin|dactinomycin|plicamycin')
           or getvariable('antivirals') and regexp_matches(lower(drug),
              'clovir|oseltamivir|tamiflu|foscarnet|fluconazole|voriconazole|posaconazole|fungin'
              || '|amphotericin|ambisome|atovaquone'))
      and getvariable('antibiotics_from') in ('prescriptions', 'both')
),
doses as (
    select *,
           coalesce(starttime > lag(endtime) over same_drug + to_seconds(3600 * getvariable('doses_hours')),
                    true)::int as begins,
           coalesce(lead(starttime) over any_drug
                    <= endtime + to_seconds(3600 * getvariable('doses_hours')), false)
               or several as followed
    from (from given union all from ordered)
    window same_drug as (partition by hadm_id, drug, source order by starttime, endtime),
           any_drug as (partition by hadm_id order by starttime, endtime)
),
courses as (
    select *, sum(begins) over (
        partition by hadm_id, drug, source order by starttime, endtime rows unbounded preceding) as course
    from doses
)
select hadm_id, drug, source, min(starttime) as starttime, max(endtime) as endtime,
       count(*) as doses, bool_or(followed) as repeated
from courses
group by hadm_id, drug, source, course;
