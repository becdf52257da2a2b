"""A table of one's own becomes a task, or an error that names file, line and column."""

import gzip

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from onlinecde.data import (
    DataError,
    IntervalLabels,
    RowLabels,
    StreamLabels,
    task_from_table,
)

LONG = {"stream": "bed", "time": "hours", "channel": "what", "value": "x"}
WIDE = {"stream": "bed", "time": "hours"}


@pytest.fixture
def long_frame() -> pl.DataFrame:
    random = np.random.default_rng(0)
    lines = [
        (bed, round(t, 2), what, round(random.normal(), 3))
        for bed in range(10)
        for t in np.cumsum(0.1 + random.exponential(2.0, 5))
        for what in ("pulse", "pressure")
        if random.random() < 0.7 or t < 1
    ]
    return pl.DataFrame(lines, schema=["bed", "hours", "what", "x"], orient="row")


@pytest.fixture
def deaths() -> pl.DataFrame:
    return pl.DataFrame({"bed": range(10), "died": [0, 1] * 5})


def assert_same_series(first, second):
    assert first.channels == second.channels
    for what in ("times", "values"):
        torch.testing.assert_close(getattr(first, what), getattr(second, what), equal_nan=True)


def test_files_and_frames_of_every_kind_give_the_same_task(long_frame, deaths, tmp_path):
    labels = StreamLabels("died", deaths)
    reference = task_from_table(long_frame, labels=labels, **LONG)
    long_frame.write_csv(tmp_path / "t.csv")
    long_frame.write_csv(tmp_path / "t.tsv", separator="\t")
    long_frame.write_parquet(tmp_path / "t.parquet")
    long_frame.write_ipc(tmp_path / "t.arrow")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    forms = [tmp_path / f"t.{e}" for e in ("csv", "tsv", "parquet", "arrow", "csv.gz")]
    for form in [*forms, str(forms[0]), long_frame.to_pandas(), long_frame.to_arrow()]:
        task = task_from_table(form, labels=labels, **LONG)
        assert_same_series(task.series, reference.series)
        assert task.series.streams == reference.series.streams
        assert torch.equal(task.labels, reference.labels)
        assert all(torch.equal(task.splits[n], reference.splits[n]) for n in task.splits)


def test_wide_and_long_agree(long_frame, deaths):
    wide = long_frame.pivot("what", index=["bed", "hours"], values="x")
    channels = ["pressure", "pulse"]
    labels = StreamLabels("died", deaths)
    ours = task_from_table(wide, labels=labels, channels=channels, **WIDE)
    assert_same_series(ours.series, task_from_table(long_frame, labels=labels, **LONG).series)


def test_columns_of_one_wide_table_take_their_roles_and_no_label_becomes_a_channel(deaths):
    frame = pl.DataFrame(
        {
            "bed": np.repeat(np.arange(10), 2),
            "hours": [0.0, 1.0] * 10,
            "pulse": np.arange(20.0),
            "age": np.repeat(np.arange(40, 50), 2),
            "sex": np.repeat(["f", "m"] * 5, 2),
            "patient": np.repeat(np.arange(10), 2),
            "died": np.repeat([0, 1] * 5, 2),
        }
    )
    task = task_from_table(
        frame,
        labels=StreamLabels("died"),
        static_columns=["age", "sex"],
        subject="patient",
        **WIDE,
    )
    assert task.series.channels == ("pulse",)
    assert task.series.features == ("age", "sex=f", "sex=m")
    assert task.subjects == tuple(range(10))
    assert task.kind == "binary"
    facts = frame.unique("bed", maintain_order=True).drop("hours", "pulse")
    other = task_from_table(
        frame.select("bed", "hours", "pulse"),
        labels=StreamLabels("died", facts),
        static=facts,
        subject="patient",
        **WIDE,
    )
    assert other.series.features == task.series.features
    assert torch.equal(other.series.static, task.series.static)


def test_timestamps_become_hours_from_the_first_event_or_from_an_origin(tmp_path, deaths):
    path = tmp_path / "t.csv"
    lines = [f"{bed},2030-03-0{1 + bed % 3} {h:02d}:30,{h}" for bed in range(10) for h in (6, 9)]
    path.write_text("bed,when,pulse\n" + "\n".join(lines) + "\n")
    options = {"stream": "bed", "time": "when", "labels": StreamLabels("died", deaths)}
    task = task_from_table(path, **options)
    assert task.series.times.tolist() == [[0.0, 3.0]] * 10
    minutes = task_from_table(path, time_unit="minutes", **options)
    assert minutes.series.times[0].tolist() == [0.0, 180.0]
    admitted = pl.DataFrame(
        {"bed": range(10), "came": [f"2030-03-0{1 + bed % 3}T06:00:00" for bed in range(10)]}
    )
    task = task_from_table(path, static=admitted, origin="came", **options)
    assert task.series.times.tolist() == [[0.5, 3.5]] * 10
    assert task.series.features == ()


def test_zoned_stamps_and_datetime_columns_are_read(deaths):
    stamps = pd.to_datetime(["2030-03-01 12:00+02:00", "2030-03-01 13:30+02:00"] * 10)
    frame = pd.DataFrame({"bed": np.repeat(np.arange(10), 2), "when": stamps, "pulse": 1.0})
    task = task_from_table(frame, stream="bed", time="when", labels=StreamLabels("died", deaths))
    assert task.series.times[4].tolist() == [0.0, 1.5]


def test_row_labels_stand_at_their_rows_and_nowhere_else():
    frame = pl.DataFrame(
        {
            "bed": np.repeat(np.arange(10), 3),
            "hours": [0.0, 1.0, 2.0] * 10,
            "pulse": np.arange(30.0),
            "ill": [0, None, 1] * 10,
        }
    )
    task = task_from_table(frame, labels=RowLabels("ill"), **WIDE)
    assert task.per == "row"
    assert task.labels[0].isnan().tolist() == [False, True, False]
    apart = task_from_table(
        frame.drop("ill"), labels=RowLabels("ill", frame.select("bed", "hours", "ill")), **WIDE
    )
    torch.testing.assert_close(apart.labels, task.labels, equal_nan=True)


def test_intervals_mark_the_rows_inside_them(tmp_path):
    lines = [f"{bed},2030-03-01 {h:02d}:00:00,{h}" for bed in range(10) for h in range(6)]
    (tmp_path / "t.csv").write_text("bed,when,pulse\n" + "\n".join(lines) + "\n")
    (tmp_path / "i.csv").write_text(
        "bed,start,end\n3,2030-03-01 01:00:00,2030-03-01 02:30:00\n3,2030-03-01 05:00,2030-03-02\n"
    )
    task = task_from_table(
        tmp_path / "t.csv", stream="bed", time="when", labels=IntervalLabels(tmp_path / "i.csv")
    )
    assert task.labels[3].tolist() == [0, 1, 1, 0, 0, 1]
    assert task.labels[[0, 1, 2, 4]].sum() == 0


@pytest.mark.parametrize(
    ("column", "kind", "classes"),
    [
        ([0, 1] * 5, "binary", ("0", "1")),
        ([True, False] * 5, "binary", ("0", "1")),
        ([1.5, 2.5] * 5, "regression", ("y",)),
        (["b", "a"] * 5, "multiclass", ("a", "b")),
    ],
)
def test_the_kind_of_label_is_guessed(column, kind, classes, long_frame):
    labels = StreamLabels("y", pl.DataFrame({"bed": range(10), "y": column}))
    task = task_from_table(long_frame, labels=labels, **LONG)
    assert (task.kind, task.classes) == (kind, classes)


def test_numbers_can_be_classes_and_several_columns_several_outputs(long_frame):
    table = pl.DataFrame({"bed": range(10), "y": [10, 9] * 5, "a": [0, 1] * 5, "b": [1, 1] * 5})
    task = task_from_table(long_frame, labels=StreamLabels("y", table), kind="multiclass", **LONG)
    assert task.classes == ("9", "10")
    assert task.labels[:2].tolist() == [1, 0]
    task = task_from_table(long_frame, labels=StreamLabels(["a", "b"], table), **LONG)
    assert (task.kind, task.outputs, task.labels.shape) == ("multilabel", 2, (10, 2))


def test_two_values_at_one_instant_are_refused_or_resolved_as_asked(long_frame, deaths):
    twice = pl.concat([long_frame, long_frame.head(1).with_columns(pl.col("x") + 2)])
    labels = StreamLabels("died", deaths)
    with pytest.raises(DataError, match=rf"line {long_frame.height}, column 'x': stream 0 has two"):
        task_from_table(twice, labels=labels, **LONG)
    first, last, mean = (
        task_from_table(twice, labels=labels, duplicates=d, **LONG).series.values.nansum()
        for d in ("first", "last", "mean")
    )
    assert float(last - first) == pytest.approx(2, abs=1e-4)
    assert float(mean - first) == pytest.approx(1, abs=1e-4)


GOOD = "bed,hours,what,x\n" + "".join(f"{b},{t},pulse,{b + t}\n" for b in range(9) for t in (0, 1))
LAST = "8,1,pulse,9"
BAD_TABLES = {
    "text value": (LAST, "8,1,pulse,high", r"t.csv, line 19, column 'x' \(value\): 'high'"),
    "text time": (LAST, "8,late,pulse,9", r"t.csv, line 19, column 'hours' \(time\): 'late'"),
    "no time": (LAST, "8,,pulse,9", r"t.csv, line 19, column 'hours': the time is missing"),
    "no stream": (LAST, ",1,pulse,9", r"line 19, column 'bed': the stream is missing"),
    "infinite": (LAST, "8,1,pulse,inf", r"line 19, column 'x' \(value\): the value is inf"),
    "short line": (LAST, "8,1,pulse", r"t.csv, line 19: 3 cells for 4 columns"),
    "unknown channel": (LAST, "8,1,plse,9", r"line 19, column 'what': channel 'plse' is not"),
    "two values": (LAST, "8,0,pulse,9", r"line 19, column 'x': stream 8 has two values"),
    "no column": ("hours,", "time,", r"t.csv: there is no column 'hours' for the time; there"),
    "column twice": ("what,x", "x,x", r"t.csv, line 1: column 'x' stands twice"),
    "no label": (LAST, "12,1,pulse,9", r"the table of labels, column 'died': stream 12 has no"),
}


@pytest.mark.parametrize("fault", BAD_TABLES)
def test_a_bad_table_is_refused_by_file_line_and_column(fault, tmp_path, deaths):
    right, wrong, message = BAD_TABLES[fault]
    assert right in GOOD
    path = tmp_path / "t.csv"
    path.write_text(GOOD.replace(right, wrong))
    with pytest.raises(DataError, match=message):
        task_from_table(path, labels=StreamLabels("died", deaths), channels=["pulse"], **LONG)


def test_other_faults_say_what_to_do(tmp_path, long_frame, deaths):
    labels = StreamLabels("died", deaths)
    with pytest.raises(DataError, match=r"gone.csv does not exist"):
        task_from_table(tmp_path / "gone.csv", labels=labels, **LONG)
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"'.xlsx' are not read: give .csv"):
        task_from_table(tmp_path / "t.xlsx", labels=labels, **LONG)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"t.parquet: the file is damaged"):
        task_from_table(tmp_path / "t.parquet", labels=labels, **LONG)
    (tmp_path / "t.csv").write_bytes(GOOD.encode() + b"\xff,1,pulse,2\n")
    with pytest.raises(DataError, match=r"t.csv, line 20: not UTF-8"):
        task_from_table(tmp_path / "t.csv", labels=labels, **LONG)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(GOOD.encode())[:-12])
    with pytest.raises(DataError, match=r"t.csv.gz: the archive is damaged or was cut short"):
        task_from_table(tmp_path / "t.csv.gz", labels=labels, **LONG)
    with pytest.raises(DataError, match=r"needs both `channel` and `value`"):
        task_from_table(long_frame, labels=labels, stream="bed", time="hours", channel="what")
    with pytest.raises(
        DataError, match=r"give StreamLabels, RowLabels, TimeLabels, IntervalLabels"
    ):
        task_from_table(long_frame, labels="died", **LONG)
    ends = pl.DataFrame({"bed": [3], "start": [5.0], "end": [4.0]})
    with pytest.raises(
        DataError, match=r"line 0, column 'end': the interval ends before it starts"
    ):
        task_from_table(long_frame, labels=IntervalLabels(ends), **LONG)
    with pytest.raises(DataError, match=r"column 'bed': stream 77 is not in the series"):
        task_from_table(
            long_frame, labels=IntervalLabels(ends.with_columns(bed=pl.lit(77))), **LONG
        )
    late = pl.DataFrame({"bed": [3], "hours": [0.123], "ill": [1]})
    with pytest.raises(DataError, match=r"stream 3 has no row at time 0.123"):
        task_from_table(long_frame, labels=RowLabels("ill", late), **LONG)
