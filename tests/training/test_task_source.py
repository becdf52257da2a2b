"""A task comes again from its source, and a source that cannot be right is refused by name."""

import polars as pl
import pytest

from onlinecde.training.settings import FitError
from onlinecde.training.task_source import load_task, table_source


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
