"""The open demo of MIMIC-IV, 100 patients: SOFA and Sepsis-3 by hand, speed, no leakage."""

import csv
import gzip
import time
from itertools import pairwise

import pytest
import torch
from mimic_by_hand import Stay

from onlinecde.data.mimic import MimicSettings, open_mimic

PARTS = ("respiration", "coagulation", "liver", "cardiovascular", "nerves", "renal")
BY_HAND = (
    38430513, 34100191, 34617352, 34577403, 37127068, 35258379, 38559363, 35727289, 37648963,
    38333427, 31494479, 30458995, 39268883,
)  # fmt: skip
"""Stays with and without sepsis, ventilators, vasopressors, failing kidneys and livers."""


def sofa_of(mimic, stay):
    sql = f"select hour, {', '.join(PARTS)} from sofa where stay_id = {stay} order by hour"
    return {
        row[0]: dict(zip(PARTS, row[1:], strict=True))
        for row in mimic.connection.execute(sql).fetchall()
    }


def test_the_demo_has_140_stays(demo):
    report = demo.report()
    assert report.cohort[0].stays == 140
    assert report.cohort[0].what == "ICU stays"
    assert all(a.stays >= b.stays for a, b in pairwise(report.cohort))


@pytest.mark.parametrize("stay", BY_HAND)
def test_sofa_by_hour_is_what_it_is_by_hand(demo, demo_folder, stay):
    assert sofa_of(demo, stay) == Stay(demo_folder, stay).sofa()


@pytest.mark.parametrize("stay", BY_HAND)
def test_the_onset_of_sepsis_is_what_it_is_by_hand(demo, demo_folder, stay):
    sql = f"select onset from sepsis where stay_id = {stay}"
    found = demo.connection.execute(sql).fetchall()
    by_hand = Stay(demo_folder, stay).onset()
    assert found == ([] if by_hand is None else [(by_hand,)])


def test_the_stays_done_by_hand_are_not_all_alike(demo):
    listed = ", ".join(map(str, BY_HAND))
    most = ", ".join(f"max({part})" for part in PARTS)
    sql = f"select {most} from sofa where stay_id in ({listed})"
    worst = demo.connection.execute(sql).fetchall()[0]
    assert min(worst) >= 2
    septic = demo.connection.execute(
        f"select count(*) from sepsis where stay_id in ({listed})"
    ).fetchall()[0][0]
    assert 3 <= septic < len(BY_HAND)


def test_the_tasks_have_sane_sizes_and_see_nothing_after_their_window(demo, demo_folder):
    hours = {}
    with gzip.open(demo_folder / "icu" / "icustays.csv.gz", "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            hours[int(row["stay_id"])] = 24 * float(row["los"])
    for name in ("mortality", "los", "sepsis"):
        task = demo.task(name)
        stay = torch.tensor([hours[s] for s in task.series.streams])
        last = task.series.times.amax(1)
        assert len(task.series) == task.flow[-1][1]
        assert ((stay >= 4) & (stay <= 72)).all()
        assert (last <= stay + 1e-6).all()
        assert (task.series.rows >= 4).all()
        assert (task.series.times[:, 0] >= 0).all()
        assert (task.series.times.diff()[task.series.real[:, 1:]] > 0).all()
        assert task.series.static is not None
        assert task.series.static.isfinite().all()
        if name == "los":
            assert (last <= 24).all()
            torch.testing.assert_close(task.labels.double(), stay.double() / 24, rtol=0, atol=1e-4)
        heart = task.series.values[..., task.series.channels.index("heart_rate")]
        assert 60 < float(heart.nanmean()) < 110


def test_sepsis_labels_follow_the_onset(demo):
    task = demo.task("sepsis")
    onset = dict(demo.connection.execute("select stay_id, hours from sepsis").fetchall())
    for i, stay in enumerate(task.series.streams):
        rows = int(task.series.rows[i])
        times, labels = task.series.times[i, :rows], task.labels[i, :rows]
        if stay in onset:
            assert onset[stay] >= 4
            assert (times <= onset[stay] + 6).all()
            assert ((times >= onset[stay] - 12) == (labels == 1)).all()
        else:
            assert (labels == 0).all()


def test_the_demo_is_prepared_in_under_20_seconds(demo_folder):
    for settings in (MimicSettings.clean(), MimicSettings.paper()):
        start = time.perf_counter()
        with open_mimic(demo_folder, settings) as mimic:
            tasks = [mimic.task(name) for name in ("mortality", "los", "sepsis")]
        assert time.perf_counter() - start < 20
        assert all(len(task.series) > 10 for task in tasks)
