"""A stream is the same in every table of a task, however its id is typed; who is missing is said."""

import numpy as np
import polars as pl
import pytest
import torch

from onlinecde.data import DataError, IntervalLabels, RowLabels, StreamLabels, task_from_table

COLUMNS = {"stream": "bed", "time": "hours"}
EVENTS = pl.DataFrame(
    {"bed": [n // 2 for n in range(20)], "hours": [0.0, 1.0] * 10, "pulse": np.arange(20.0)}
)
DEATHS = pl.DataFrame({"bed": range(10), "died": [0, 1] * 5})
AGES = pl.DataFrame({"bed": range(10), "age": range(40, 50)})
TEXT = pl.col("bed").cast(pl.String)


def with_one_more(frame):
    """The same table with a line of someone whose id is no number."""
    more = frame.with_columns(TEXT)
    return pl.concat([more, more.tail(1).with_columns(bed=pl.lit("test-patient"))])


def test_one_id_of_another_kind_does_not_hide_the_others():
    reference = task_from_table(EVENTS, labels=StreamLabels("died", DEATHS), static=AGES, **COLUMNS)
    task = task_from_table(
        EVENTS,
        labels=StreamLabels("died", with_one_more(DEATHS)),
        static=with_one_more(AGES),
        **COLUMNS,
    )
    assert torch.equal(task.labels, reference.labels)
    assert torch.equal(task.series.static, reference.series.static)
    ward = pl.format("ward-{}", "bed").alias("bed")
    other = pl.concat([EVENTS.with_columns(TEXT), EVENTS.with_columns(ward)])
    deaths = pl.concat([DEATHS.with_columns(TEXT), DEATHS.with_columns(ward)])
    both = task_from_table(other, labels=StreamLabels("died", deaths), static=AGES, **COLUMNS)
    assert torch.equal(both.series.static[:10, 0], reference.series.static[:, 0])
    assert both.notes == ("10 of 20 streams have no line in the table of static features",)


def test_row_labels_and_intervals_find_ids_of_another_kind_too():
    text = EVENTS.with_columns(bed=pl.when(pl.col("bed") == 9).then(pl.lit("x")).otherwise(TEXT))
    ill = pl.DataFrame({"bed": [0, 3], "hours": [1.0, 1.0], "ill": [0, 1]})
    task = task_from_table(text, labels=RowLabels("ill", ill), **COLUMNS)
    assert task.labels[3, 1] == 1
    faults = pl.DataFrame({"bed": [3], "start": [0.5], "end": [1.5]})
    assert task_from_table(text, labels=IntervalLabels(faults), **COLUMNS).labels[3, 1] == 1


def test_ids_that_are_written_otherwise_are_shown():
    labels = StreamLabels("died", DEATHS.with_columns(TEXT + ".0"))
    with pytest.raises(
        DataError, match=r"stream 0 has no label.*ids look like '0.0', '1.0', '2.0'"
    ):
        task_from_table(EVENTS, labels=labels, **COLUMNS)
    ill = pl.DataFrame({"bed": ["p0"], "hours": [1.0], "ill": [1]})
    with pytest.raises(
        DataError, match=r"stream 'p0' is not in the series, whose ids look like 0, "
    ):
        task_from_table(EVENTS, labels=RowLabels("ill", ill), **COLUMNS)


@pytest.mark.parametrize("form", ["p{}", "{}.0"])
def test_static_features_of_no_stream_are_refused(form):
    ages = AGES.with_columns(pl.format(form, "bed").alias("bed"))
    message = r"column 'bed': no stream of the series has a line: ids look like .*, like 0, 1, 2 in"
    with pytest.raises(DataError, match=message):
        task_from_table(EVENTS, labels=StreamLabels("died", DEATHS), static=ages, **COLUMNS)


def test_who_has_no_static_line_and_who_is_labelled_without_events_is_told():
    whole = task_from_table(EVENTS, labels=StreamLabels("died", DEATHS), static=AGES, **COLUMNS)
    assert (whole.flow, whole.notes) == ((), ())
    more = pl.concat([DEATHS, pl.DataFrame({"bed": [77, 78, 79], "died": [1, 1, None]})])
    labels = StreamLabels("died", more)
    task = task_from_table(EVENTS, labels=labels, static=AGES.head(7), **COLUMNS)
    assert task.flow == (("labelled streams", 12), ("with events", 10))
    told = task.describe()
    assert "left      labelled streams 12, with events 10" in told
    assert "note      3 of 10 streams have no line in the table of static features" in told


def test_nan_means_no_label_as_an_empty_cell_does():
    ill = EVENTS.with_columns(ill=pl.Series([0.0, np.nan, 1.0, 0.0] * 5))
    task = task_from_table(ill, labels=RowLabels("ill"), **COLUMNS)
    assert task.kind == "binary"
    assert task.labels[0].isnan().tolist() == [False, True]
    deaths = DEATHS.with_columns(died=pl.Series([0.0, 1.0] * 4 + [0.0, np.nan]))
    with pytest.raises(DataError, match=r"column 'died': stream 9 has no label: give it one"):
        task_from_table(EVENTS, labels=StreamLabels("died", deaths), **COLUMNS)


def test_of_several_outputs_some_may_be_missing_but_not_all():
    table = DEATHS.with_columns(left=pl.Series([1.0, None, np.nan] + [0.0] * 7))
    labels = StreamLabels(["died", "left"], table)
    task = task_from_table(EVENTS, labels=labels, **COLUMNS)
    assert task.kind == "multilabel"
    assert task.labels.isnan().sum() == 2
    nothing = table.with_columns(pl.when(pl.col("bed") != 2).then("died").alias("died"))
    with pytest.raises(DataError, match=r"stream 2 has no label"):
        task_from_table(EVENTS, labels=StreamLabels(["died", "left"], nothing), **COLUMNS)


def test_several_labels_are_not_one_binary_label():
    labels = StreamLabels(["died", "left"], DEATHS.with_columns(left=1 - pl.col("died")))
    with pytest.raises(
        DataError, match=r"kind is 'binary' with 2 labels \(died, left\): say 'multi"
    ):
        task_from_table(EVENTS, labels=labels, kind="binary", **COLUMNS)


def test_labels_of_two_kinds_are_refused_by_name_and_one_kind_is_taken():
    table = DEATHS.with_columns(sofa=3.0 + pl.col("bed") % 4)
    labels = StreamLabels(["died", "sofa"], table)
    with pytest.raises(
        DataError, match=r"'died' is 0 or 1, 'sofa' has other numbers.*fit a model for each kind"
    ):
        task_from_table(EVENTS, labels=labels, **COLUMNS)
    task = task_from_table(EVENTS, labels=labels, kind="regression", **COLUMNS)
    assert (task.kind, task.classes) == ("regression", ("died", "sofa"))
