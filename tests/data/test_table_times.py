"""Times of all tables of a task mean the same instants, or are refused."""

from datetime import datetime, timedelta

import polars as pl
import pytest

from onlinecde.data import DataError, IntervalLabels, StreamLabels, task_from_table

COLUMNS = {"stream": "bed", "time": "when"}
DEATHS = StreamLabels("died", pl.DataFrame({"bed": range(10), "died": [0, 1] * 5}))
NOON = datetime(2030, 7, 1, 12)
LOCAL = pl.DataFrame(
    {
        "bed": [n // 4 for n in range(40)],
        "when": [NOON + timedelta(hours=n % 4) for n in range(40)],
        "pulse": range(40),
    }
)
ZONED = LOCAL.with_columns(pl.col("when").dt.replace_time_zone("Europe/Berlin"))
FAULT = pl.DataFrame(
    {"bed": [3], "start": [NOON + timedelta(hours=1)], "end": [NOON.replace(hour=14)]}
)
INSIDE = [0, 1, 1, 0]


def written(frame, form):
    return frame.with_columns(pl.selectors.datetime().dt.strftime(form))


def test_labels_stand_at_their_instants_in_any_zone():
    there = pl.selectors.datetime().dt.replace_time_zone("Europe/Berlin")
    for faults in (
        FAULT.with_columns(there),
        FAULT.with_columns(there.dt.convert_time_zone("Asia/Tokyo")),
        written(FAULT, "%Y-%m-%dT%H:%M:%S+02:00"),
        written(FAULT, "%Y-%m-%d %H:%M+0200"),
    ):
        task = task_from_table(ZONED, labels=IntervalLabels(faults), **COLUMNS)
        assert task.labels[3].tolist() == INSIDE
    task = task_from_table(LOCAL, labels=IntervalLabels(FAULT), **COLUMNS)
    assert task.labels[3].tolist() == INSIDE


def test_labels_of_another_form_than_the_series_are_refused():
    utc = FAULT.with_columns(pl.selectors.datetime().dt.replace_time_zone("UTC"))
    column = r"column 'start' \(start\) holds timestamps"
    for faults in (FAULT, written(FAULT, "%Y-%m-%d %H:%M"), written(FAULT, "%Y-%m-%d")):
        with pytest.raises(
            DataError, match=column + r" without .* are timestamps with a time zone"
        ):
            task_from_table(ZONED, labels=IntervalLabels(faults), **COLUMNS)
    for faults in (utc, written(FAULT, "%Y-%m-%d %H:%M:%SZ")):
        with pytest.raises(DataError, match=column + r" with a .* without a time zone: give both"):
            task_from_table(LOCAL, labels=IntervalLabels(faults), **COLUMNS)


def test_a_column_of_local_and_zoned_times_is_refused_by_line():
    stamps = LOCAL["when"].dt.strftime("%Y-%m-%d %H:%M:%S").to_list()
    stamps[7] += "+02:00"
    mixed = LOCAL.with_columns(pl.Series("when", stamps))
    message = (
        r"line 7, column 'when' \(time\): '2030-07-01 15:00:00\+02:00' is among timestamps with"
    )
    with pytest.raises(DataError, match=message + r"out a time zone .*: give all a time zone, or"):
        task_from_table(mixed, labels=DEATHS, **COLUMNS)


def test_a_zone_that_changes_over_the_year_counts_real_hours():
    stamps = ["2030-10-27T02:30:00+02:00", "2030-10-27T02:30:00+01:00"] * 10
    frame = pl.DataFrame({"bed": [n // 2 for n in range(20)], "when": stamps, "pulse": 1.0})
    task = task_from_table(frame, labels=DEATHS, **COLUMNS)
    assert task.series.times[0].tolist() == [0.0, 1.0]


def test_the_origin_of_time_is_of_the_form_of_the_times():
    facts = pl.DataFrame({"bed": range(10), "came": [NOON - timedelta(hours=1)] * 10})
    task = task_from_table(LOCAL, labels=DEATHS, static=facts, origin="came", **COLUMNS)
    assert task.series.times[0].tolist() == [1, 2, 3, 4]
    with pytest.raises(DataError, match=r"'came' \(origin of time\) holds timestamps without"):
        task_from_table(ZONED, labels=DEATHS, static=facts, origin="came", **COLUMNS)
