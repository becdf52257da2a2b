"""A task comes again from its source, and a source that cannot be right is refused by name."""

from dataclasses import replace

import polars as pl
import pytest

from onlinecde.data import fold_task, simulate_ward
from onlinecde.training.settings import FitError
from onlinecde.training.task_source import content_of, load_task, table_source


@pytest.fixture
def folder(tmp_path):
    events = pl.DataFrame(
        {
            "bed": [n // 3 for n in range(30)],
            "hours": [0.0, 1.0, 2.0] * 10,
            "pulse": range(30),
            "ill": [0, 1, 0] * 10,
            "worse": [0, 0, 1] * 10,
        }
    )
    events.write_csv(tmp_path / "events.csv")
    faults = pl.DataFrame({"bed": [3], "start": [0.5], "end": [1.5], "why": [1]})
    faults.write_csv(tmp_path / "faults.csv")
    return tmp_path


def task_of(folder, per, label, labels=None, **more):
    return load_task(
        table_source(
            folder / "events.csv",
            labels=None if labels is None else folder / labels,
            label=label,
            label_per=per,
            stream="bed",
            time="hours",
            **more,
        )
    )


def test_a_second_label_per_row_is_refused_and_does_not_become_an_input(folder):
    with pytest.raises(FitError, match=r"2 labels \(ill, worse\) per row: a row has one"):
        task_of(folder, "row", ["ill", "worse"])
    assert task_of(folder, "row", ["ill"]).series.channels == ("pulse", "worse")


@pytest.mark.parametrize("label", [["start"], ["start", "end", "why"]])
def test_intervals_have_a_start_then_an_end(label, folder):
    assert task_of(folder, "interval", ["start", "end"], "faults.csv").labels.sum() == 1
    with pytest.raises(
        FitError, match=r"intervals by start.*: name two .*the start, then that of the end"
    ):
        task_of(folder, "interval", label, "faults.csv")


def test_intervals_are_no_numbers_to_predict(folder):
    with pytest.raises(ValueError, match=r"kind is 'regression': intervals make binary labels"):
        task_of(folder, "interval", ["start", "end"], "faults.csv", kind="regression")


def test_bounds_of_intervals_are_labels_and_never_static_features(folder):
    faults = pl.DataFrame({"bed": range(10), "start": [0.5] * 10, "end": [1.5] * 10, "age": 60})
    faults.write_csv(folder / "all.csv")
    static = folder / "all.csv"
    task = task_of(folder, "interval", ["start", "end"], "all.csv", static=static)
    assert task.series.features == ("age",)


def test_labels_in_time_come_again_from_their_source(folder):
    times = pl.DataFrame({"bed": [3, 4], "at": [0.5, 1.5], "ill": [1, 0]})
    times.write_csv(folder / "times.csv")
    task = task_of(folder, "time", ["ill"], "times.csv", label_times="at", label_stands="15min")
    assert task.queries[[3, 4], 0].tolist() == [0.5, 1.5]
    assert task.truth.stands == 0.25
    spans = pl.DataFrame({"bed": [3], "start": [0.5], "end": [1.5], "state": [0]})
    spans.write_csv(folder / "spans.csv")
    task = task_of(folder, "interval", ["start", "end"], "spans.csv", interval_label="state")
    assert task.labels[3].nan_to_num(-1).tolist() == [-1, 0, -1]
    ends = pl.DataFrame({"bed": range(10), "death": [1.5] + [None] * 9, "out": [None] + [3.0] * 9})
    ends.write_csv(folder / "ends.csv")
    event = {"event_time": "death", "censored": "out", "horizon": "1h"}
    task = task_of(folder, "event", [], "ends.csv", **event)
    assert task.labels[0].nan_to_num(-1).tolist() == [0, 1, -1]
    with pytest.raises(FitError, match=r"label_per is 'day': choose stream, row, time, interval"):
        task_of(folder, "day", ["ill"])


def test_what_is_true_at_other_times_counts_in_the_hash_of_new_tasks_alone():
    task = simulate_ward(40, seed=0).task
    # A run of 0.1 knew series, labels and splits.
    assert content_of(replace(task, truth=None)) == content_of(task)
    hours = task.asked("every=1h")
    assert content_of(hours) != content_of(task)
    assert content_of(hours) == content_of(task.asked("every=1h"))
    assert content_of(hours) != content_of(task.asked("every=2h"))
    assert content_of(replace(hours, truth=hours.truth.cut(hours.truth.until - 1))) != content_of(
        hours
    )
    assert content_of(fold_task(hours, 1, 3)) != content_of(fold_task(hours, 2, 3))
    own = replace(task, known_risk=None)
    other = replace(own, truth=replace(own.truth, event=own.truth.event + 0.01))
    assert content_of(own) != content_of(other)
