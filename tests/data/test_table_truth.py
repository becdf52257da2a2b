"""Labels of one's own tables that live in time, and times of one's own at which to ask."""

import math

import numpy as np
import polars as pl
import pytest
import torch

from onlinecde.data import (
    DataError,
    EventLabels,
    EventTruth,
    IntervalLabels,
    RowLabels,
    StreamLabels,
    TimeLabels,
    asked_at_table,
    simulate_ward,
    task_from_table,
)

COLUMNS = {"stream": "bed", "time": "hours"}
# Beds 0 to 9, with rows at 1, 3 and 6 + bed hours.
EVENTS = pl.DataFrame(
    {
        "bed": np.repeat(np.arange(10), 3),
        "hours": np.stack([np.full(10, 1.0), np.full(10, 3.0), 6.0 + np.arange(10)], 1).ravel(),
        "pulse": np.arange(30.0),
    }
)
STAMPED = EVENTS.with_columns(
    (pl.datetime(2030, 3, 1) + pl.duration(minutes=60 * pl.col("hours"))).alias("hours")
)


def read(labels, **options):
    return task_from_table(EVENTS, labels=labels, **COLUMNS, **options)


def numbers(tensor):
    return tensor.double().nan_to_num(-1).tolist()


def at(*times):
    """Query times for all ten beds."""
    return torch.tensor(times, dtype=torch.float64).expand(10, -1)


def write(folder, frame, name="l.csv"):
    frame.write_csv(folder / name)
    return folder / name


ILL = pl.DataFrame(
    {"bed": [3, 3, 3, 7, 7], "at": [2.0, 4.5, 1.0, 20.0, 2.5], "ill": [1, 0, 0, 1, None]}
)


def test_labels_stand_at_their_own_times_with_or_without_a_row():
    task = read(TimeLabels(ILL, "at", "ill"))
    assert (task.kind, task.per) == ("binary", "time")
    assert numbers(task.queries[3]) == [1.0, 2.0, 4.5]
    assert numbers(task.labels[3]) == [0, 1, 0]
    assert numbers(task.queries[7]) == [20.0, -1, -1]
    assert bool(task.labels[0].isnan().all())
    assert task.notes == ("8 of 10 streams have no label",)
    assert numbers(task.truth.at(at(2.0, 2.1, 4.5)))[3] == [1, -1, 0]
    assert float(task.truth.until[7]) == 20
    assert float(task.truth.until[3]) == 9
    stood = read(TimeLabels(ILL, "at", "ill", stands="30min"))
    assert numbers(stood.truth.at(at(2.0, 2.5, 2.6, 4.75)))[3] == [1, 1, -1, 0]
    assert float(stood.truth.until[7]) == 20.5


def test_several_labels_and_classes_stand_at_times_too():
    table = ILL.drop_nulls().with_columns(sad=pl.Series([0, None, 1, 1]))
    task = read(TimeLabels(table, "at", ["ill", "sad"]))
    assert task.kind == "multilabel"
    assert task.labels.shape == (10, 3, 2)
    assert numbers(task.labels[3]) == [[0, 1], [1, 0], [0, -1]]
    named = table.with_columns(pl.Series("ill", ["b", "a", "c", "a"]))
    task = read(TimeLabels(named, "at", "ill"))
    assert task.classes == ("a", "b", "c")
    assert task.labels[3].tolist() == [2, 1, 0]
    assert task.labels[7].tolist() == [0, -1, -1]


def test_labels_of_timestamps_count_from_where_the_series_do():
    when = ILL.with_columns(
        (pl.datetime(2030, 3, 1) + pl.duration(minutes=60 * pl.col("at"))).alias("at")
    )
    task = task_from_table(STAMPED, labels=TimeLabels(when, "at", "ill"), **COLUMNS)
    assert numbers(task.queries[3]) == [0.0, 1.0, 3.5]


def test_labels_before_and_after_a_stream_are_left_out_and_counted():
    early = pl.concat(
        [ILL, pl.DataFrame({"bed": [3, 4, 4], "at": [0.5, 0.0, 9.0], "ill": [1, 1, 1]})]
    )
    task = read(TimeLabels(early, "at", "ill"))
    assert numbers(task.queries[3]) == [1.0, 2.0, 4.5]
    assert (
        "2 of 7 labels of the table of labels (2 streams) are before their stream's"
        in task.notes[0]
    )
    ends = pl.DataFrame({"bed": range(10), "gone": [8.5] * 10})
    task = read(TimeLabels(early, "at", "ill"), static=ends, followed_until="gone")
    assert bool(task.labels[4].isnan().all())
    assert "2 of 7 labels of the table of labels (2 streams) are after their stream is" in " ".join(
        task.notes
    )


def test_a_label_that_is_there_twice_counts_once_and_two_labels_are_refused(tmp_path):
    twice = pl.concat([ILL, ILL.head(1)])
    task = read(TimeLabels(twice, "at", "ill"))
    assert numbers(task.queries[3]) == [1.0, 2.0, 4.5]
    assert "1 labels of the table of labels are there twice: each counts once" in task.notes
    other = write(tmp_path, twice.with_columns(ill=pl.Series([1, 0, 0, 1, None, 0])))
    with pytest.raises(
        DataError, match=r"l.csv, line 7, column 'ill': stream 3 has two labels at time 2"
    ):
        read(TimeLabels(other, "at", "ill"))


def test_intervals_are_known_between_rows_and_overlaps_are_joined():
    table = pl.DataFrame({"bed": [3, 3, 3], "start": [2.0, 2.5, 7.0], "end": [2.5, 4.0, 8.0]})
    task = read(IntervalLabels(table))
    assert task.labels[3].tolist() == [0, 1, 0]
    assert numbers(task.truth.at(at(1.9, 2.0, 4.0, 4.1, 8.0, 9.1)))[3] == [0, 1, 1, 0, 1, -1]
    assert task.notes == ()
    over = read(IntervalLabels(table.with_columns(start=pl.Series([2.0, 2.25, 7.0]))))
    assert over.notes == (
        "1 intervals of the table of intervals overlap another with the same label: joined",
    )
    times = at(1.9, 2.0, 4.0, 4.1, 8.0)
    assert torch.equal(over.truth.at(times)[3], task.truth.at(times)[3])


def test_intervals_with_labels_leave_unknown_what_lies_outside(tmp_path):
    table = pl.DataFrame(
        {
            "bed": [3, 3, 5],
            "start": [1.0, 4.0, 3.0],
            "end": [4.0, 6.0, 3.0],
            "state": ["calm", "ill", "ill"],
        }
    )
    task = read(IntervalLabels(table, label="state"))
    assert task.classes == ("calm", "ill")
    assert task.labels[3].tolist() == [0, 0, -1]
    assert task.truth.at(at(3.9, 4.0, 6.0, 6.1))[3].tolist() == [0, 1, 1, -1]
    overlap = write(tmp_path, table.with_columns(end=pl.Series([4.5, 6.0, 3.0])))
    with pytest.raises(
        DataError,
        match=r"line 3, column 'start': the interval starts before another of its stream ends .*line 2, col",
    ):
        read(IntervalLabels(overlap, label="state"))


def test_a_row_label_stands_as_long_as_it_is_said_to():
    ill = EVENTS.with_columns(ill=pl.Series([0, 1, None] * 10))
    options = {**COLUMNS, "channels": ["pulse"]}
    alone = task_from_table(ill, labels=RowLabels("ill"), **options)
    assert alone.truth is None
    assert numbers(alone.label_truth.at(at(3.0, 3.5)))[0] == [1, -1]
    task = task_from_table(ill, labels=RowLabels("ill", stands=3.0), **options)
    assert numbers(task.truth.at(at(3.0, 3.5, 6.0)))[0] == [1, 1, 1]
    # At a row without a label, within what the last one stands for, it is known too.
    assert numbers(task.labels[:2]) == [[0, 1, 1], [0, 1, -1]]


OUTCOMES = pl.DataFrame(
    {
        "bed": range(10),
        "sepsis": [5.0, None, 7.5, *[None] * 6, 40.0],
        "lost": [None, 12.0, None, *[9.0] * 6, None],
        "left": [10.0, 11.0, 7.0, *[None] * 7],
    }
)


def test_an_event_s_time_gives_labels_at_rows_and_at_any_time():
    task = read(EventLabels(OUTCOMES, "sepsis", "lost", horizon="4h"))
    assert (task.kind, task.per, task.classes) == ("binary", "row", ("no event", "event"))
    assert task.label_lead == 4
    assert numbers(task.labels[:3]) == [[1, 1, -1], [0, 0, 0], [0, 0, -1]]
    assert numbers(task.truth.at(at(0.9, 1.0, 4.9, 5.0)))[0] == [0, 1, 1, -1]
    assert numbers(task.truth.at(at(8.0, 8.1, 12.1)))[1] == [0, -1, -1]
    assert [float(t) for t in task.truth.until[:3]] == [5, 12, 7.5]
    # Columns of outcomes never become inputs, wherever they stand.
    wide = EVENTS.join(OUTCOMES, on="bed")
    same = task_from_table(
        wide, labels=EventLabels(None, "sepsis", "lost", horizon=4), channels=["pulse"], **COLUMNS
    )
    assert torch.equal(same.labels.nan_to_num(-1), task.labels.nan_to_num(-1))
    every = wide.drop("left")
    assert task_from_table(
        every, labels=EventLabels(None, "sepsis", "lost", horizon=4), **COLUMNS
    ).series.channels == ("pulse",)
    beside = read(EventLabels(None, "sepsis", "lost", 4.0), static=OUTCOMES.drop("left"))
    assert torch.equal(beside.labels.nan_to_num(-1), task.labels.nan_to_num(-1))
    assert beside.series.features == ()


def test_without_a_horizon_the_event_s_time_itself_is_the_label():
    task = read(EventLabels(OUTCOMES, "sepsis", "lost"))
    assert task.kind == "time-to-event"
    assert isinstance(task.truth, EventTruth)
    assert numbers(task.labels[0]) == [[4, 1], [2, 1], [-1, -1]]
    assert numbers(task.labels[1]) == [[11, 0], [9, 0], [5, 0]]
    first = read(EventLabels(OUTCOMES, "sepsis", "lost", 3.0), kind="time-to-event")
    assert first.horizon == 3
    assert 3 in first.edges


def test_who_left_is_asked_about_until_then_and_no_event_until_then_is_known():
    task = read(
        EventLabels(OUTCOMES, "sepsis", horizon=2.0), static=OUTCOMES, followed_until="left"
    )
    assert [float(t) for t in task.truth.until[:4]] == [5, 11, 7, 9]
    assert numbers(task.truth.at(at(6.9, 9.0, 9.1)))[:3] == [[-1, -1, -1], [0, 0, -1], [1, -1, -1]]
    assert "7 of 10 streams have no 'left': followed until their last row" in task.notes
    assert "1 rows of 1 streams come after 'left': without a label" in task.notes
    far = OUTCOMES.with_columns(
        lost=pl.lit(None, pl.Float64), sepsis=pl.Series([900.0] * 9 + [5.0])
    )
    task = read(EventLabels(far, "sepsis", horizon=2.0))
    assert "streams are asked about for 889 hours beyond their last row (median)" in task.notes[0]


def test_followed_until_ends_what_is_known_of_every_kind_of_label():
    left = OUTCOMES.select("bed", "left", died=pl.col("bed") % 2)
    task = read(StreamLabels("died", left), followed_until="left")
    assert numbers(task.truth.at(at(6.9, 10.0, 12.0)))[:4] == [
        [0, 0, -1], [1, 1, -1], [0, -1, -1], [1, -1, -1],
    ]  # fmt: skip
    assert task.labels.shape == (10,)
    ill = EVENTS.with_columns(ill=pl.Series([0, 1, 1] * 10)).join(left, on="bed")
    task = task_from_table(
        ill, labels=RowLabels("ill"), channels=["pulse"], followed_until="left", **COLUMNS
    )
    assert numbers(task.labels[2]) == [0, 1, -1]
    spans = pl.DataFrame({"bed": [2], "start": [2.0], "end": [20.0]})
    task = read(IntervalLabels(spans), static=left.drop("died"), followed_until="left")
    assert numbers(task.labels[2]) == [0, 1, -1]
    assert task.series.features == ()


def change(bed, **cells):
    """The outcomes with other cells for one bed."""
    return OUTCOMES.with_columns(
        pl.when(pl.col("bed") == bed).then(pl.lit(value, pl.Float64)).otherwise(name).alias(name)
        for name, value in cells.items()
    )


EVENT = {"event": "sepsis", "censored": "lost", "horizon": 4.0}
BAD = {
    r"l.csv, line 2, column 'sepsis': stream 0 has its event at 1, no later than its first row": (
        EventLabels, change(0, sepsis=1.0), EVENT,
    ),
    r"l.csv, line 3, column 'lost': stream 1 is censored at 0.5, before its first row": (
        EventLabels, change(1, lost=0.5), EVENT,
    ),
    r"line 2, column 'lost': stream 0 is censored at 6, after its event: .*--followed-until": (
        EventLabels, change(0, lost=6.0), EVENT,
    ),
    r"line 2, column 'lost': stream 0 is censored at 4, before its event, of which": (
        EventLabels, change(0, lost=4.0), EVENT,
    ),
    r"l.csv, column 'bed': stream 9 has no line, as 1 of 10 streams": (
        EventLabels, OUTCOMES.head(9), EVENT,
    ),
    r"line 12, column 'sepsis': stream 0 has two times of the event, 5 and 6": (
        EventLabels, pl.concat([OUTCOMES, change(0, sepsis=6.0).head(1)]), EVENT,
    ),
    r"line 4, column 'sepsis' \(time of the event\): 'soon' is not a number": (
        EventLabels, OUTCOMES.with_columns(sepsis=pl.Series(["5", "6", "soon"] + [None] * 7)), EVENT,
    ),
    r"there is no column 'death' for the time of the event": (
        EventLabels, OUTCOMES, {**EVENT, "event": "death"},
    ),
    r"horizon is 0.0: give a length of time above 0": (
        EventLabels, OUTCOMES, {**EVENT, "horizon": 0.0},
    ),
    r"'4 moons': the series are in hours, and 'moons' cannot be turned": (
        EventLabels, OUTCOMES, {**EVENT, "horizon": "4 moons"},
    ),
    r"line 2, column 'bed': stream 33 is not in the series, whose ids .*: drop the label": (
        TimeLabels, ILL.with_columns(bed=pl.lit(33)), {"time": "at", "column": "ill"},
    ),
    r"line 4, column 'at': the time of the label is missing: fill it in": (
        TimeLabels, ILL.with_columns(pl.Series("at", [1.0, 2.0, math.nan, 3.0, 4.0])), {"time": "at", "column": "ill"},
    ),
    r"column 'ill': there is no label in it": (
        TimeLabels, ILL.tail(1), {"time": "at", "column": "ill"},
    ),
    r"line 2, column 'at': none of the 4 labels lies between .* Are they in hours": (
        TimeLabels, ILL.with_columns(pl.col("at") / 60), {"time": "at", "column": "ill"},
    ),
    r"column 'at' \(time of the label\) holds timestamps without a time zone, the times of the series are numbers": (
        TimeLabels, ILL.with_columns(at=pl.lit("2030-03-01 10:00")), {"time": "at", "column": "ill"},
    ),
    r"line 3, column 'end': the interval ends before it starts": (
        IntervalLabels, pl.DataFrame({"bed": [3, 5], "start": [2.0, 4.0], "end": [3.0, 3.5]}), {},
    ),
    r"line 3, column 'bed': stream 33 is not in the series": (
        IntervalLabels, pl.DataFrame({"bed": [3, 33], "start": [2.0, 4.0], "end": [3.0, 4.5]}), {},
    ),
    r"stands is -1: give how long a label stands": (
        TimeLabels, ILL, {"time": "at", "column": "ill", "stands": -1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_bad_labels_in_time_are_refused_by_file_line_and_column(message, tmp_path):
    kind, frame, columns = BAD[message]
    with pytest.raises(DataError, match=message):
        read(kind(write(tmp_path, frame), **columns))


def test_what_does_not_go_together_is_refused():
    for kind in ("binary", "regression"):
        with pytest.raises(DataError, match="with a horizon"):
            read(EventLabels(OUTCOMES, "sepsis", "lost"), kind=kind)
    early = OUTCOMES.with_columns(left=pl.lit(0.5))
    with pytest.raises(
        DataError, match=r"line 0, column 'left': stream 0 is followed until 0.5, before"
    ):
        read(StreamLabels("sepsis", early), followed_until="left", kind="regression")
    with pytest.raises(DataError, match="there is no column 'gone'"):
        read(EventLabels(OUTCOMES, "sepsis", horizon=1.0), followed_until="gone")


def test_a_task_is_asked_at_the_times_of_a_table():
    task = read(EventLabels(OUTCOMES, "sepsis", "lost", horizon=4.0))
    rounds = pl.DataFrame(
        {"bed": ["3", "0", "3", "3", "0", "0"], "hours": [4.0, 0.2, 2.0, 2.0, 5.5, 4.0]}
    )
    asked = asked_at_table(task, rounds)
    assert numbers(asked.queries[[0, 3]]) == [[4, -1], [2, 4]]
    assert numbers(asked.labels[[0, 3]]) == [[1, -1], [0, 0]]
    assert asked.notes == (
        "1 of 6 query times of the table of query times (1 streams) are before their stream's first row: left out",
        "1 of 6 query times of the table of query times (1 streams) are after their stream is followed: left out",
        "1 query times of the table of query times are there twice: each counts once",
        "8 of 10 streams are asked about at no time",
    )
    other = rounds.rename({"hours": "when"})
    assert torch.equal(
        asked_at_table(task, other, time="when").queries.nan_to_num(-1),
        asked.queries.nan_to_num(-1),
    )


def test_timestamps_of_queries_count_from_where_the_series_do():
    died = pl.DataFrame({"bed": range(10), "died": [0, 1] * 5})
    task = task_from_table(STAMPED, labels=StreamLabels("died", died), **COLUMNS)
    rounds = pl.DataFrame({"bed": [4], "hours": ["2030-03-01T02:30"]})
    asked = asked_at_table(task, rounds)
    assert numbers(asked.queries[4]) == [1.5]
    with pytest.raises(DataError, match="holds numbers, the times of the series are timestamps"):
        asked_at_table(task, rounds.with_columns(hours=pl.lit(1.5)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stream": pl.lit(77)}, r"q.csv, line 2, column 'stream': stream 77 is not in the series"),
        ({"time": pl.lit(None)}, r"q.csv, line 2, column 'time': the query time is missing"),
        ({"time": pl.lit("x")}, r"q.csv, line 2, column 'time'"),
        ({"time": pl.lit("nan")}, r"q.csv, line 2, column 'time': the query time is missing"),
        ({"time": pl.lit("inf")}, r"q.csv, line 2, column 'time' \(query time\): the value is inf"),
        (
            {"time": pl.col("time") * 3600},
            r"none of the 2 query times lies between .* Are they in hours",
        ),
        (
            {"time": pl.lit("2030-01-01 10:00")},
            r"holds timestamps without a time zone, the times of",
        ),
    ],
)
def test_bad_query_times_are_refused_by_file_line_and_column(change, message, tmp_path):
    task = simulate_ward(20, seed=0).task
    frame = pl.DataFrame({"stream": [0, 3], "time": [2.0, 1.5]}).with_columns(**change)
    with pytest.raises(DataError, match=message):
        asked_at_table(task, write(tmp_path, frame, "q.csv"))
