"""The three tasks and the exclusion flow, on the made MIMIC-IV."""

import contextlib
from dataclasses import replace

import pytest
import torch
from made_mimic import STAYS, MadeMimic, at

from onlinecde.cli import main
from onlinecde.data.errors import DataError
from onlinecde.data.mimic import MimicSettings, load, open_mimic, report, settings_of
from onlinecde.data.registry import data_set


def flow(steps):
    return [step.stays for step in steps]


def last_hours(task):
    rows = task.series.rows[:, None] - 1
    return task.series.times.gather(1, rows)[:, 0]


def test_the_flow_counts_who_is_left_after_each_question(clean):
    found = clean.report()
    # 19 stays; 106 has no reading; 103 and 104 are too short and too long; 105 has 3 times.
    assert flow(found.cohort) == [19, 18, 16, 15]
    assert flow(found.tasks["mortality"]) == [15]
    # 107 and seven quiet ones are shorter than a day.
    assert flow(found.tasks["los"]) == [7, 7]
    # 108 had an antibiotic before.
    assert flow(found.tasks["sepsis"]) == [14, 14, 14]
    assert found.labels["mortality"] == "2 died in hospital"
    assert found.notes == ()
    text = found.text()
    assert "     19  ICU stays" in text
    assert "     16  of 4 to 72 hours  (-2)" in text
    assert "settings: clean" in text


def test_the_flow_of_the_paper_drops_who_is_charted_by_the_minute_and_inverts_the_los_rule(paper):
    found = paper.report()
    assert flow(found.cohort) == [19, 18, 16, 15, 14]
    assert found.cohort[-1].what == "not charted minute by minute"
    assert flow(found.tasks["los"]) == [7, 7]
    assert "settings: paper" in found.text()


def test_mortality_has_all_readings_of_the_stay(clean):
    task = clean.task("mortality")
    assert (task.kind, task.per, task.metric, task.time_unit) == (
        "binary",
        "stream",
        "auc",
        "hours",
    )
    assert set(task.series.streams) == set(STAYS) - {103, 104, 105, 106}
    died = [s for s, label in zip(task.series.streams, task.labels, strict=True) if label == 1]
    assert died == [102, 111]
    assert len(task.series.channels) == 37
    stays = torch.tensor([STAYS[s][1] for s in task.series.streams])
    assert (last_hours(task) <= stays).all()
    assert (last_hours(task) >= stays - 1).all()
    assert task.flow[0] == ("ICU stays", 19)
    assert task.flow[-1][1] == len(task.series)


def test_values_stand_where_they_were_measured(clean):
    task = clean.task("mortality")
    place = task.series.streams.index(101)
    row = task.series.times[place].tolist().index(2.0)
    values = dict(zip(task.series.channels, task.series.values[place, row].tolist(), strict=True))
    assert {name: v for name, v in values.items() if v == v} == {
        "platelet": 200.0,
        "bilirubin_total": 0.5,
        "creatinine": 1.0,
    }


def test_static_features_are_known_by_the_first_day(clean, paper):
    def facts(mimic):
        task = mimic.task("mortality")
        place = task.series.streams.index(102)
        return dict(zip(task.series.features, task.series.static[place].tolist(), strict=True))

    known = facts(clean)
    assert known["male"] == 0
    assert known["age"] == 54
    assert known["weight"] == 80
    # Height was charted in hour 30 and is not used; nobody else has one.
    assert known["height_missing"] == 1
    assert known["ethnicity=black"] == 1
    assert known["ethnicity=white"] == 0
    known = facts(paper)
    assert known["height"] == 180
    assert known["ethnicity"] == 1  # second in the alphabet of descriptions


def test_length_of_stay_sees_one_day_only(clean):
    task = clean.task("los")
    assert task.kind == "regression"
    assert set(task.series.streams) == {101, 102, 108, 109, 113, 114, 115}
    assert float(last_hours(task).max()) <= 24
    days = dict(zip(task.series.streams, task.labels.tolist(), strict=True))
    assert days[102] == 2.0


def test_length_of_stay_of_the_paper_has_who_had_left(paper):
    task = paper.task("los")
    assert set(task.series.streams) == {110, 111, 112, 116, 117, 118, 119}
    assert float(last_hours(task).max()) <= 24


def test_sepsis_is_1_from_12_hours_before_to_6_after_and_cut_there(clean):
    task = clean.task("sepsis")
    assert (task.kind, task.per) == ("binary", "row")
    assert 108 not in task.series.streams
    place = task.series.streams.index(101)
    rows = int(task.series.rows[place])
    # Onset at 9 h: every row until 15 h is positive, the rest is cut.
    assert 14 < float(task.series.times[place, rows - 1]) <= 15
    assert task.labels[place, :rows].tolist() == [1.0] * rows
    assert task.labels[place, rows:].isnan().all()
    others = [i for i, s in enumerate(task.series.streams) if s != 101]
    assert task.labels[others].nansum() == 0


def test_sepsis_label_starts_12_hours_before_a_later_onset(made_folder):
    settings = replace(MimicSettings.clean(), onset_rule="sofa", sepsis_hours_before=3.0)
    with open_mimic(made_folder, settings) as mimic:
        task = mimic.task("sepsis")
    place = task.series.streams.index(101)
    rows = int(task.series.rows[place])
    times, labels = task.series.times[place, :rows], task.labels[place, :rows]
    assert ((times >= 10) == (labels == 1)).all()
    assert task.label_lead == 3
    assert float(times[-1]) <= 19
    # What is true between rows is known as well.
    real = task.series.real
    at_rows = task.series.times.masked_fill(~real, torch.nan)
    assert torch.equal(task.truth.at(at_rows)[real], task.labels[real])
    between = task.truth.at(torch.tensor([[9.9, 10.0, 10.1, 19.1]]).expand(len(real), -1))
    assert between[place, :3].tolist() == [0, 1, 1]
    assert bool(between[place, 3].isnan())


def test_an_onset_before_4_hours_and_antibiotics_before_the_icu_drop_a_stay(made_folder):
    settings = replace(
        MimicSettings.clean(), onset_least_hours=9.5, drop_antibiotics_before_icu=False
    )
    with open_mimic(made_folder, settings) as mimic:
        task = mimic.task("sepsis")
    assert 101 not in task.series.streams
    assert 108 in task.series.streams


def test_the_paper_counts_from_the_row_nearest_to_the_onset(paper):
    task = paper.task("sepsis")
    place = task.series.streams.index(101)
    rows = int(task.series.rows[place])
    # SOFA rises in the hour that starts at 12 h; the nearest rows are at 11.5 and 12.5: the first.
    assert float(task.series.times[place, rows - 1]) == pytest.approx(17.5)


def test_nothing_after_the_window_can_change_a_task(made_folder, tmp_path):
    """Rows after the first day, and after the cut at 15 h, may say what they like."""
    made = MadeMimic()
    for row in made.tables["chartevents"]:
        stay = row["stay_id"]
        later = 24.01 if stay != 101 else 15.01
        if row["itemid"] == 220045 and row["charttime"] > at(stay, later):
            row["valuenum"] = 199
    folder = made.write(tmp_path)
    with open_mimic(made_folder) as before, open_mimic(folder) as after:
        one, two = before.task("los"), after.task("los")
        others = [i for i, stay in enumerate(one.series.streams) if stay != 101]
        assert torch.equal(
            one.series.values[others].nan_to_num(-1), two.series.values[others].nan_to_num(-1)
        )
        one, two = before.task("sepsis"), after.task("sepsis")
        place = one.series.streams.index(101)
        assert torch.equal(
            one.series.values[place].nan_to_num(-1), two.series.values[place].nan_to_num(-1)
        )
        changed = before.task("mortality"), after.task("mortality")
        assert not torch.equal(*(task.series.values.nan_to_num(-1) for task in changed))


def test_subjects_stay_together_in_clean(tmp_path):
    made = MadeMimic()
    # 113 and 114 become stays of one person.
    for table in made.tables.values():
        for row in table:
            if row.get("subject_id") == 14:
                row["subject_id"] = 13
    made.tables["patients"] = list({r["subject_id"]: r for r in made.tables["patients"]}.values())
    folder = made.write(tmp_path)
    with open_mimic(folder) as mimic:
        task = mimic.task("mortality")
    assert len(set(task.subjects)) == len(task.series) - 1
    homes = {
        task.subjects[at]: name for name, split in task.splits.items() for at in split.tolist()
    }
    assert len(homes) == len(set(task.subjects))


def test_the_registry_offers_every_setting(made_folder):
    entry = data_set("mimic-iv")
    offered = entry.settings()
    assert {"protocol", "los_rule", "onset_rule", "sofa_hours_before"} <= set(offered)
    task = load([made_folder], task="los", protocol="clean", los_hours=None, los_rows_least=5)
    assert task.settings["los_rows_least"] == 5
    assert task.settings["los_hours"] == 24.0
    assert report([made_folder], protocol="paper", memory="500MB").tasks["mortality"][0].stays == 14


def test_settings_are_checked():
    with pytest.raises(DataError, match="los_rule is 'sometimes': choose one of"):
        settings_of("clean", los_rule="sometimes")
    with pytest.raises(DataError, match="no setting 'onset'"):
        settings_of("clean", onset=3)
    with pytest.raises(DataError, match="protocol is 'clear': choose 'paper' or 'clean'"):
        settings_of("clear")
    with pytest.raises(DataError, match="merge_minutes is -1"):
        settings_of("clean", merge_minutes=-1)
    with pytest.raises(DataError, match="swap hours_least and hours_most"):
        settings_of("clean", hours_least=80.0)


def test_a_task_that_nobody_is_left_for_says_so(made_folder):
    with (
        open_mimic(made_folder, replace(MimicSettings.clean(), rows_least=1000)) as mimic,
        pytest.raises(DataError, match=r"no stay .* is left for the task 'mortality'"),
    ):
        mimic.task("mortality")


def test_an_unknown_task_is_refused(clean):
    with pytest.raises(DataError, match="no task 'death': choose one of mortality, los, sepsis"):
        clean.task("death")


def test_the_command_prints_the_flow(made_folder, tmp_path, capsys):
    (tmp_path / "mimic-iv").symlink_to(made_folder)
    arguments = ["data", "prepare", "mimic-iv", "--report", "--protocol", "paper"]
    with contextlib.suppress(SystemExit):
        main([*arguments, "--data-dir", str(tmp_path)])
    said = capsys.readouterr().out
    assert "settings: paper" in said
    assert "     14  not charted minute by minute  (-1)" in said
