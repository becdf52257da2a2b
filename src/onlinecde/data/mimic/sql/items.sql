-- items: what the item numbers of chartevents, labevents, inputevents and outputevents mean here.
-- A value counts if above < value <= up_to, in the unit it is charted in. `is_text`: its text is read.
-- An item may mean two things.
create table items as
select source, itemid::integer as itemid, name, above::double as above, up_to::double as up_to,
       coalesce(is_text, false) as is_text
from (values
    -- Vital signs (the paper's 10).
    ('chart', 220045, 'heart_rate', 0, 300, null),
    ('chart', 220050, 'sbp', 0, 400, null),              -- arterial line
    ('chart', 225309, 'sbp', 0, 400, null),              -- arterial line, second
    ('chart', 220051, 'dbp', 0, 300, null),
    ('chart', 225310, 'dbp', 0, 300, null),
    ('chart', 220052, 'mbp', 0, 300, null),
    ('chart', 225312, 'mbp', 0, 300, null),
    ('chart', 220181, 'mbp', 0, 300, null),              -- cuff: the mean pressure either way,
    ('chart', 220181, 'mbp_ni', 0, 300, null),           -- and on its own
    ('chart', 220180, 'dbp_ni', 0, 300, null),
    ('chart', 220210, 'resp_rate', 0, 70, null),
    ('chart', 224690, 'resp_rate', 0, 70, null),         -- total, on the ventilator
    ('chart', 220277, 'spo2', 0, 100, null),
    ('chart', 223762, 'temperature', 10, 50, null),      -- Celsius
    ('chart', 223761, 'temperature', 70, 120, null),     -- Fahrenheit
    ('chart', 223834, 'o2_flow', -1, 100, null),
    ('chart', 227582, 'o2_flow', -1, 100, null),         -- with a BiPAP mask

    -- Laboratory values (the paper's 27): two of them are charted at the bedside.
    ('chart', 223835, 'fio2', 0, 100, null),             -- a fraction or per cent
    ('chart', 225664, 'glucose', 0, 10000, null),        -- finger stick
    ('chart', 220621, 'glucose', 0, 10000, null),        -- serum
    ('chart', 226537, 'glucose', 0, 10000, null),        -- whole blood
    ('lab', 50863, 'alp', 0, 100000, null),
    ('lab', 50878, 'ast', 0, 100000, null),
    ('lab', 50802, 'baseexcess', -100, 100, null),
    ('lab', 50803, 'bicarbonate_bg', 0, 10000, null),
    ('lab', 50883, 'bilirubin_direct', 0, 1000, null),
    ('lab', 50885, 'bilirubin_total', 0, 1000, null),
    ('lab', 51006, 'bun', 0, 300, null),
    ('lab', 50893, 'calcium', 0, 10000, null),
    ('lab', 50902, 'chloride', 0, 10000, null),
    ('lab', 50912, 'creatinine', 0, 150, null),
    ('lab', 51214, 'fibrinogen', 0, 100000, null),
    ('lab', 50809, 'glucose_bg', 0, 10000, null),
    ('lab', 51221, 'hematocrit', 0, 100, null),
    ('lab', 51222, 'hemoglobin', 0, 100, null),
    ('lab', 50813, 'lactate', 0, 10000, null),
    ('lab', 50818, 'pco2', 0, 1000, null),
    ('lab', 50820, 'ph', 0, 14, null),
    ('lab', 51265, 'platelet', 0, 100000, null),
    ('lab', 50821, 'po2', 0, 1000, null),
    ('lab', 50822, 'potassium_bg', 0, 30, null),
    ('lab', 51275, 'ptt', 0, 1000, null),
    ('lab', 50817, 'so2', 0, 100, null),
    ('lab', 50983, 'sodium', 0, 200, null),
    ('lab', 51002, 'troponin_i', 0, 100000, null),
    ('lab', 51003, 'troponin_t', 0, 100000, null),
    ('lab', 51300, 'wbc', 0, 10000, null),
    ('lab', 51301, 'wbc', 0, 10000, null),
    ('lab', 51755, 'wbc', 0, 10000, null),

    -- For SOFA.
    ('lab', 52033, 'specimen', null, null, true),        -- 'ART.' is arterial blood
    ('lab', 50816, 'fio2_bg', 0, 100, null),
    ('chart', 220739, 'gcs_eyes', 0, 4, null),
    ('chart', 223900, 'gcs_verbal', 0, 5, true),         -- 'No Response-ETT': intubated
    ('chart', 223901, 'gcs_motor', 0, 6, null),
    ('chart', 226732, 'o2_device', null, null, true),
    ('chart', 223849, 'ventilator_mode', null, null, true),
    ('chart', 229314, 'ventilator_mode', null, null, true),  -- Hamilton
    ('input', 221906, 'norepinephrine', 0, null, null),
    ('input', 221289, 'epinephrine', 0, null, null),
    ('input', 229617, 'epinephrine', 0, null, null),
    ('input', 221662, 'dopamine', 0, null, null),
    ('input', 221653, 'dobutamine', 0, null, null),
    ('output', 226559, 'urine', 0, null, null),          -- Foley catheter
    ('output', 226560, 'urine', 0, null, null),          -- void
    ('output', 226561, 'urine', 0, null, null),          -- condom catheter
    ('output', 226584, 'urine', 0, null, null),          -- ileoconduit
    ('output', 226563, 'urine', 0, null, null),          -- suprapubic
    ('output', 226564, 'urine', 0, null, null),          -- right nephrostomy
    ('output', 226565, 'urine', 0, null, null),          -- left nephrostomy
    ('output', 226567, 'urine', 0, null, null),          -- straight catheter
    ('output', 226557, 'urine', 0, null, null),          -- right ureteral stent
    ('output', 226558, 'urine', 0, null, null),          -- left ureteral stent
    ('output', 227489, 'urine', 0, null, null),          -- irrigant and urine out
    ('output', 227488, 'irrigant', 0, null, null),       -- irrigant in: to be taken off

    -- Height and weight.
    ('chart', 226730, 'height', 120, 230, null),         -- cm
    ('chart', 226707, 'height', 47, 91, null),           -- inches
    ('chart', 226512, 'weight', 25, 350, null),          -- kg, on admission
    ('chart', 224639, 'weight', 25, 350, null),          -- kg, daily

    -- Antibiotics given in the ICU: category "Antibiotics" of d_items.
    ('input', 225798, 'antibiotic', null, null, null),   -- vancomycin
    ('input', 225840, 'antibiotic', null, null, null),   -- amikacin
    ('input', 225842, 'antibiotic', null, null, null),   -- ampicillin
    ('input', 225843, 'antibiotic', null, null, null),   -- ampicillin/sulbactam
    ('input', 225845, 'antibiotic', null, null, null),   -- azithromycin
    ('input', 225847, 'antibiotic', null, null, null),   -- aztreonam
    ('input', 225850, 'antibiotic', null, null, null),   -- cefazolin
    ('input', 225851, 'antibiotic', null, null, null),   -- cefepime
    ('input', 225853, 'antibiotic', null, null, null),   -- ceftazidime
    ('input', 225855, 'antibiotic', null, null, null),   -- ceftriaxone
    ('input', 225859, 'antibiotic', null, null, null),   -- ciprofloxacin
    ('input', 225860, 'antibiotic', null, null, null),   -- clindamycin
    ('input', 225862, 'antibiotic', null, null, null),   -- colistin
    ('input', 225863, 'antibiotic', null, null, null),   -- daptomycin
    ('input', 225865, 'antibiotic', null, null, null),   -- doxycycline
    ('input', 225866, 'antibiotic', null, null, null),   -- erythromycin
    ('input', 225868, 'antibiotic', null, null, null),   -- ethambutol
    ('input', 225875, 'antibiotic', null, null, null),   -- gentamicin
    ('input', 225876, 'antibiotic', null, null, null),   -- imipenem/cilastatin
    ('input', 225877, 'antibiotic', null, null, null),   -- isoniazid
    ('input', 225879, 'antibiotic', null, null, null),   -- levofloxacin
    ('input', 225881, 'antibiotic', null, null, null),   -- linezolid
    ('input', 225883, 'antibiotic', null, null, null),   -- meropenem
    ('input', 225884, 'antibiotic', null, null, null),   -- metronidazole
    ('input', 225886, 'antibiotic', null, null, null),   -- moxifloxacin
    ('input', 225888, 'antibiotic', null, null, null),   -- nafcillin
    ('input', 225890, 'antibiotic', null, null, null),   -- penicillin G potassium
    ('input', 225892, 'antibiotic', null, null, null),   -- piperacillin
    ('input', 225893, 'antibiotic', null, null, null),   -- piperacillin/tazobactam
    ('input', 225895, 'antibiotic', null, null, null),   -- pyrazinamide
    ('input', 225898, 'antibiotic', null, null, null),   -- rifampin
    ('input', 225899, 'antibiotic', null, null, null),   -- sulfamethoxazole/trimethoprim
    ('input', 225902, 'antibiotic', null, null, null),   -- tobramycin
    ('input', 227691, 'antibiotic', null, null, null),   -- cephalexin
    ('input', 229061, 'antibiotic', null, null, null),   -- ertapenem
    ('input', 229064, 'antibiotic', null, null, null),   -- tigecycline
    ('input', 229587, 'antibiotic', null, null, null),   -- ceftaroline
    -- ... where viruses, fungi and protozoa are treated.
    ('input', 225837, 'antiviral', null, null, null),    -- acyclovir
    ('input', 225838, 'antiviral', null, null, null),    -- amphotericin B
    ('input', 225844, 'antiviral', null, null, null),    -- atovaquone
    ('input', 225848, 'antiviral', null, null, null),    -- caspofungin
    ('input', 225869, 'antiviral', null, null, null),    -- fluconazole
    ('input', 225871, 'antiviral', null, null, null),    -- foscarnet
    ('input', 225873, 'antiviral', null, null, null),    -- ganciclovir
    ('input', 225885, 'antiviral', null, null, null),    -- micafungin
    ('input', 225896, 'antiviral', null, null, null),    -- quinine
    ('input', 225903, 'antiviral', null, null, null),    -- valganciclovir
    ('input', 225905, 'antiviral', null, null, null),    -- voriconazole
    ('input', 228003, 'antiviral', null, null, null)     -- oseltamivir
) as listed (source, itemid, name, above, up_to, is_text);
