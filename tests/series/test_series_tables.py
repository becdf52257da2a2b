"""Long and wide tables become the same batch, whoever made the table and however it is sorted."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onlinecde import SeriesBatch

NAN = float("nan")
LONG = {"stream": "stay", "time": "hours", "channel": "name", "value": "number"}
KINDS = {
    "polars": lambda frame: frame,
    "lazy polars": pl.DataFrame.lazy,
    "pandas": pl.DataFrame.to_pandas,
    "arrow": pl.DataFrame.to_arrow,
    "arrow batch": lambda frame: frame.to_arrow().to_batches()[0],
}
EVENTS = pl.DataFrame(
    {
        "stay": [7, 7, 7, 3, 7, 3],
        "hours": [2.0, 0.0, 2.0, 1.0, 1.0, 1.0],
        "name": ["hr", "hr", "bp", "bp", "hr", "hr"],
        "number": [82.0, 80.0, 120.0, 110.0, None, NAN],
    }
)


def by_stream(batch):
    """What a batch says, whatever the order of its streams."""
    return {
        name: (
            batch.times[i, : batch.rows[i]].tolist(),
            [[None if math.isnan(x) else x for x in row] for row in one.values[0].tolist()],
        )
        for i, (name, one) in enumerate(zip(batch.streams, batch, strict=True))
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_table_of_any_kind(kind):
    batch = SeriesBatch.from_long(KINDS[kind](EVENTS), **LONG)
    assert batch.channels == ("bp", "hr")
    assert batch.streams == (7, 3)
    assert by_stream(batch) == {
        7: ([0.0, 1.0, 2.0], [[None, 80.0], [None, None], [120.0, 82.0]]),
        3: ([1.0], [[110.0, None]]),
    }
    assert batch.dtype == torch.float32
    assert SeriesBatch.from_long(EVENTS, dtype=torch.float64, **LONG).dtype == torch.float64


@pytest.mark.parametrize("kind", KINDS)
def test_a_wide_table_of_any_kind(kind):
    frame = pl.DataFrame(
        {
            "stay": ["b", "b", "a"],
            "hours": [1, 0, 0],
            "bp": [120.0, None, NAN],
            "hr": [None, 80, 70],
        }
    )
    batch = SeriesBatch.from_wide(KINDS[kind](frame), stream="stay", time="hours")
    assert batch.channels == ("bp", "hr")
    assert by_stream(batch) == {
        "b": ([0.0, 1.0], [[None, 80.0], [120.0, None]]),
        "a": ([0.0], [[None, 70.0]]),
    }
    only = SeriesBatch.from_wide(frame, stream="stay", time="hours", channels=["hr"])
    assert only.channels == ("hr",)


def test_a_null_from_pandas_is_a_missing_value():
    frame = pd.DataFrame({"stay": [1, 1], "hours": [0.0, 1.0], "hr": [None, 2.0]})
    batch = SeriesBatch.from_wide(frame, stream="stay", time="hours")
    assert batch.observed.flatten().tolist() == [False, True]


def test_channels_may_be_categories_or_numbers_and_keep_the_given_order():
    frame = EVENTS.with_columns(pl.col("name").cast(pl.Categorical))
    batch = SeriesBatch.from_long(frame, channels=["hr", "spo2", "bp"], **LONG)
    assert batch.channels == ("hr", "spo2", "bp")
    assert batch.observed.sum((0, 1)).tolist() == [2, 0, 2]
    numbered = EVENTS.with_columns(name=pl.Series([2, 2, 10, 10, 2, 2]))
    assert SeriesBatch.from_long(numbered, channels=[2, 10], **LONG).channels == ("2", "10")


def test_columns_may_be_called_anything():
    frame = pl.DataFrame(
        {"row": [1, 1], "low": [0.0, 1.0], "code": [1.0, 2.0], "stream": [3.0, 4.0], "time": [5, 6]}
    )
    batch = SeriesBatch.from_wide(frame, stream="row", time="low")
    assert batch.channels == ("code", "stream", "time")
    assert batch.values[0].tolist() == [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]


def test_unix_seconds_stay_apart():
    frame = EVENTS.with_columns(pl.col("hours") / 1000 + 1.7e9)
    batch = SeriesBatch.from_long(frame, **LONG)
    assert batch.rows.tolist() == [3, 1]
    torch.testing.assert_close(
        batch.times[0].diff(), torch.tensor([1e-3, 1e-3], dtype=torch.float64), rtol=0, atol=1e-6
    )


def test_static_features_come_raw_with_gaps_and_texts():
    static = pl.DataFrame({"stay": [3, 5, 7], "age": [30, None, 70], "sex": ["f", None, "m"]})
    batch = SeriesBatch.from_long(EVENTS, static=static, **LONG)
    assert batch.features == ("age", "sex=f", "sex=m")
    assert batch.static.tolist() == [[70, 0, 1], [30, 1, 0]]
    assert batch[1].raw_static.columns["sex"].tolist() == ["f"]
    both = SeriesBatch.concatenate([batch[1], batch[0]])
    assert both.raw_static.columns["age"].tolist() == [30, 70]
    wider = static.filter(pl.col("stay") != 3).with_columns(stay=pl.Series([3, 7]))
    batch = SeriesBatch.from_long(EVENTS, static=wider, **LONG)
    assert batch.features == ("age", "age_missing", "sex=m")
    assert batch.static.tolist() == [[70, 0, 1], [70, 1, 0]]


def test_static_features_follow_their_stream():
    static = pa.table({"stay": [3, 5, 7], "age": [30, 50, 70], "sex": [0.0, 1.0, 1.0]})
    batch = SeriesBatch.from_long(EVENTS, static=static, **LONG)
    assert batch.features == ("age", "sex")
    assert batch.static is not None
    assert batch.static.tolist() == [[70.0, 1.0], [30.0, 0.0]]
    assert batch.static.dtype == batch.dtype


@pytest.mark.parametrize("count", [2, 10, 500])
@pytest.mark.parametrize("shape", ["long", "wide"])
def test_streams_come_in_the_order_in_which_they_first_appear(shape, count):
    streams = [f"s{i}" for i in np.random.default_rng(0).permutation(count)]
    channels = [f"c{count - i:03}" for i in range(count)]
    frame = pl.DataFrame({"stay": streams, "hours": [0.0] * count, "number": np.arange(count)})
    if shape == "long":
        batch = SeriesBatch.from_long(frame.with_columns(name=pl.Series(channels)), **LONG)
    else:
        batch = SeriesBatch.from_wide(frame, stream="stay", time="hours")
    assert batch.streams == tuple(streams)
    assert batch.values.nan_to_num().sum((1, 2)).tolist() == list(range(count))


@st.composite
def event_tables(draw):
    """Events of a few streams at a few instants, most instants with several channels."""
    cells = draw(
        st.dictionaries(
            st.tuples(
                st.sampled_from(["ann", "bob", "cy"]),
                st.sampled_from([-1.0, -0.0, 0.0, 0.1, 0.30000000000000004, 0.3, 2e9, 2e9 + 1e-6]),
                st.sampled_from(["a", "b", "c"]),
            ),
            st.one_of(st.none(), st.floats(-1e3, 1e3, width=32)),
            min_size=1,
        )
    )
    lines = [(*key, value) for key, value in cells.items()]
    repeats = draw(st.lists(st.sampled_from(lines), max_size=3))
    return lines, draw(st.permutations(lines + repeats))


def table(lines):
    stream, time, channel, value = zip(*lines, strict=True)
    return pl.DataFrame(
        {
            "stay": stream,
            "hours": time,
            "name": channel,
            "number": pl.Series(value, dtype=pl.Float64),
        }
    )


@given(event_tables())
def test_events_may_come_in_any_order_and_twice(tables):
    ordered, shuffled = (SeriesBatch.from_long(table(lines), **LONG) for lines in tables)
    assert by_stream(ordered) == by_stream(shuffled)
    assert ordered.channels == shuffled.channels


@given(event_tables())
def test_a_wide_table_of_single_events_is_the_same_batch(tables):
    """One line an event, so that every instant has to be merged from several lines."""
    frame = table(tables[1])
    long = SeriesBatch.from_long(frame, **LONG)
    wide = SeriesBatch.from_wide(
        frame.select(
            "stay",
            "hours",
            *(pl.when(pl.col("name") == c).then("number").alias(c) for c in long.channels),
        ),
        stream="stay",
        time="hours",
    )
    assert by_stream(long) == by_stream(wide)


@given(event_tables())
def test_a_batch_from_arrays_of_the_same_rows_is_the_same(tables):
    batch = SeriesBatch.from_long(table(tables[0]), **LONG)
    arrays = SeriesBatch.from_arrays(
        [t[:n].numpy() for t, n in zip(batch.times, batch.rows, strict=True)],
        [x[:n].numpy() for x, n in zip(batch.values, batch.rows, strict=True)],
        streams=batch.streams,
    )
    assert by_stream(arrays) == by_stream(batch)
