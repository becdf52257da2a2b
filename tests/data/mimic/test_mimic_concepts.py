"""Each concept on the made MIMIC-IV, whose answers are known (made_mimic.py says them)."""

from dataclasses import replace

import pytest
from made_mimic import MadeMimic, at
from mimic_by_hand import Stay

from onlinecde.data.mimic import LABORATORY, VITAL_SIGNS, MimicSettings, open_mimic


def test_the_paper_has_10_vital_signs_and_27_laboratory_values_and_each_has_items(clean, ask):
    assert len(VITAL_SIGNS) == 10
    assert len(LABORATORY) == 27
    known = {name for (name,) in ask(clean, "select distinct name from items")}
    assert {*VITAL_SIGNS, *LABORATORY} - {"troponin"} <= known
    assert {"troponin_i", "troponin_t"} <= known


def test_stays_know_age_sex_and_descent(clean, ask):
    found = ask(clean, "select male, age, race_group, died, hours from stays where stay_id = 102")
    assert found == [(0.0, 54, "black", 1, 48.0)]
    assert ask(clean, "select count(*) from stays") == [(19,)]


def test_readings_are_converted_averaged_and_checked_for_plausibility(clean, ask):
    def channel(name, stay):
        return ask(
            clean,
            f"select date_diff('minute', intime, time) / 60, round(value, 6) from vital_signs "
            f"join stays using (stay_id) where channel = '{name}' and stay_id = {stay} order by 1",
        )

    assert channel("temperature", 107) == [(2.0, 37.0)]
    assert channel("spo2", 107) == [(4.0, 92.0)]
    assert channel("fio2", 102) == [(4.0, 50.0)]
    assert 3.0 not in dict(channel("heart_rate", 107))
    assert channel("mbp", 101) == channel("mbp_ni", 101)


@pytest.mark.parametrize(("protocol", "value"), [("clean", 0.4), ("paper", 0.9)])
def test_troponin_is_t_in_clean_and_i_in_the_paper(protocol, value, request, ask):
    mimic = request.getfixturevalue(protocol)
    assert ask(mimic, "select value from laboratory where channel = 'troponin'") == [(value,)]


def test_ventilation_lasts_from_the_tube_to_the_next_device_and_as_documented(clean, paper, ask):
    sql = "select starttime, endtime, source from ventilation where status = 'invasive' order by 1"
    charted = (at(102, 1), at(102, 12), "charts")
    assert ask(clean, sql) == [charted, (at(102, 40), at(102, 44), "procedures")]
    assert ask(paper, sql) == [charted]


def test_blood_gases_are_arterial_with_the_oxygen_given(clean, ask):
    found = ask(clean, "select time, pao2, fio2, ratio, ventilated from blood_gas order by time")
    assert found == [
        (at(102, 6), 90.0, 50.0, 180.0, True),
        (at(102, 20), 100.0, 40.0, 250.0, False),
    ]


def test_coma_scale_takes_a_tube_for_15_and_carries_parts_for_six_hours(clean, ask):
    found = ask(clean, "select time, gcs from coma_scale order by time")
    assert found == [(at(102, 2), 15), (at(102, 13), 13), (at(102, 15), 12), (at(102, 30), 14)]


def test_urine_of_24_hours_needs_22_hours_collected(clean, ask):
    found = dict(ask(clean, "select time, ml_24h from urine_output where ml_24h is not null"))
    assert min(found) == at(102, 22)
    assert set(found.values()) == {240.0}


def test_vasopressors_are_by_weight_and_rewritten_orders_do_not_count(clean, ask):
    found = ask(clean, "select stay_id, agent, rate from vasopressors order by 1")
    assert found == [(101, "norepinephrine", 0.05), (102, "dopamine", 6.0)]


def test_sofa_of_the_septic_stay_is_0_then_3_then_5(clean, ask):
    score = dict(ask(clean, "select hour, score from sofa where stay_id = 101"))
    assert min(score) == 0
    assert max(score) == 30
    assert [score[h] for h in (0, 12, 13, 14, 15, 30)] == [0, 0, 3, 3, 5, 5]


def test_sofa_of_the_ventilated_stay_has_each_part(clean, ask):
    parts = "respiration, coagulation, liver, cardiovascular, nerves, renal"
    sql = f"select hour, {parts} from sofa where stay_id = 102"
    found = {row[0]: row[1:] for row in ask(clean, sql)}
    assert found[5] == (0, 0, 0, 0, 0, 0)
    assert found[6] == (3, 0, 0, 0, 0, 0)
    assert found[15] == (3, 0, 0, 0, 2, 0)
    assert found[22] == (3, 0, 0, 0, 2, 3)
    # The gas of hour 6 is older than a day: the one of hour 20 counts, with no machine at most 2.
    assert found[30] == (2, 0, 0, 0, 2, 3)
    assert found[32] == (2, 0, 0, 3, 2, 3)


@pytest.mark.parametrize("stay", [101, 102, 107, 109])
def test_sofa_and_onset_are_what_they_are_by_hand(clean, made_folder, ask, stay):
    parts = "respiration, coagulation, liver, cardiovascular, nerves, renal"
    found = {
        r[0]: r[1:] for r in ask(clean, f"select hour, {parts} from sofa where stay_id = {stay}")
    }
    by_hand = Stay(made_folder, stay)
    assert found == {hour: tuple(scores.values()) for hour, scores in by_hand.sofa().items()}
    onset = ask(clean, f"select onset from sepsis where stay_id = {stay}")
    assert onset == ([] if by_hand.onset() is None else [(by_hand.onset(),)])


def test_antibiotics_need_a_second_dose_and_may_be_orders(clean, paper, ask):
    sql = "select hadm_id, drug, repeated from antibiotics order by 1, 2"
    assert ask(clean, sql) == [
        (1101, "vancomycin", True),
        (1108, "ceftriaxone", True),
        (1109, "newcillin", False),
    ]
    assert ask(paper, sql) == [
        (1101, "vancomycin", True),
        (1109, "acyclovir", True),
        (1109, "newcillin", False),
    ]


def test_suspicion_is_the_earlier_of_culture_and_antibiotic(clean, paper, ask):
    assert ask(clean, "select stay_id, time from suspicion") == [(101, at(101, 9))]
    day = at(109, 0).replace(hour=0)
    assert ask(paper, "select stay_id, time from suspicion order by 1") == [
        (101, at(101, 9)),
        (109, day),
    ]


@pytest.mark.parametrize(
    ("changes", "hours"),
    [
        ({"onset_rule": "earlier"}, 9.0),
        ({"onset_rule": "suspicion"}, 9.0),
        ({"onset_rule": "sofa"}, 13.0),
        ({"onset_rule": "later"}, 13.0),
        ({"onset_rule": "sofa", "sofa_stamp": "start"}, 12.0),
        ({"onset_rule": "sofa", "sofa_rise": 4}, 15.0),
        ({"onset_rule": "sofa", "sofa_baseline": "zero"}, 13.0),
        ({"onset_rule": "sofa", "sofa_baseline": "lowest"}, 13.0),
        ({"onset_rule": "sofa", "sofa_hours_after": 3.0}, None),
        ({"antibiotic_hours_after_culture": 0.5}, None),
        ({"doses_hours": 5.0}, None),
    ],
)
def test_every_rule_of_the_onset_is_a_setting(made_folder, ask, changes, hours):
    with open_mimic(made_folder, replace(MimicSettings.clean(), **changes)) as mimic:
        found = ask(mimic, "select hours from sepsis where stay_id = 101")
    assert found == ([] if hours is None else [(hours,)])


def test_a_window_that_starts_late_has_the_raised_score_as_its_baseline(tmp_path, ask):
    made = MadeMimic()
    made.tables["microbiologyevents"].clear()
    made.culture(101, 18)
    for dose in made.tables["inputevents"]:
        if dose["itemid"] == 225798:
            dose["starttime"] = at(101, 19 if dose["starttime"] < at(101, 15) else 25)
            dose["endtime"] = dose["starttime"]
    folder = made.write(tmp_path)
    # From 4 hours before the suspicion on, SOFA is 3, then 5: a rise of 2 at hour 15.
    for baseline, hours in (("first", 15.0), ("zero", 14.0)):
        settings = replace(
            MimicSettings.clean(),
            sofa_hours_before=4.0,
            sofa_baseline=baseline,
            onset_rule="sofa",
        )
        with open_mimic(folder, settings) as mimic:
            assert ask(mimic, "select hours from sepsis") == [(hours,)]


def test_close_readings_become_one_row_at_the_last_of_them(clean, paper, ask):
    sql = (
        "select round(hours * 60) from rows "
        "where stay_id = 107 and hours between 5 and 5.2 order by 1"
    )
    assert ask(paper, sql) == [(309.0,)]
    assert ask(clean, sql) == [(301.0,), (303.0,), (305.0,), (307.0,), (309.0,)]
    value = (
        "select avg(value) from cells join rows using (stay_id, row) where stay_id = 107 "
        "and channel = list_position(getvariable('channels'), 'heart_rate') - 1 "
        "and hours between 5.1 and 5.2"
    )
    assert ask(paper, value) == [(104.5,)]


def test_readings_after_discharge_count_only_in_the_paper(clean, paper, ask):
    sql = "select max(hours) from rows where stay_id = 107"
    assert ask(clean, sql) == [(9.5,)]
    assert ask(paper, sql) == [(12.0,)]
