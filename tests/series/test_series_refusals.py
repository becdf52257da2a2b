"""Bad input is refused with an error that says what is wrong, where, and what to do."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from onlinecde import SeriesBatch, SeriesError

NAN, INF = float("nan"), float("inf")
LONG = {"stream": "stay", "time": "hours", "channel": "name", "value": "number"}
WIDE = {"stream": "stay", "time": "hours"}
NAMES = {"streams": ["ann", "bob"], "channels": ["hr", "bp"]}


def refused(make, *words):
    """Check that `make` is refused and that the message has every one of the words."""
    with pytest.raises(SeriesError) as caught:
        make()
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"


def arrays(times, values=None, **keywords):
    if values is None:
        values = [np.zeros((len(clock), 2)) for clock in times]
    return lambda: SeriesBatch.from_arrays(times, values, **{**NAMES, **keywords})


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        ([0.0, 2.0, 1.0], ["row 2", "time 1.0", "time 2.0", "sort the rows"]),
        ([0.0, 1.0, 1.0], ["row 2", "time 1.0", "merge", "from_long"]),
        ([0.0, NAN, 1.0], ["row 1", "nan", "finite time"]),
        ([0.0, 1.0, INF], ["row 2", "inf", "finite time"]),
        ([-INF, 1.0, 2.0], ["row 0", "-inf", "finite time"]),
        ([0.0, None, 1.0], ["row 1", "nan", "finite time"]),
    ],
)
def test_times_that_do_not_increase_or_are_not_finite(clock, words):
    refused(arrays([[0.0, 1.0], clock]), "stream 'bob'", *words)


@pytest.mark.parametrize("value", [INF, -INF])
def test_infinite_values(value):
    values = [np.zeros((2, 2)), np.array([[1.0, 2.0], [3.0, value]])]
    refused(
        arrays([[0.0, 1.0], [0.0, 1.0]], values),
        "stream 'bob'",
        "row 1",
        "channel 'bp'",
        str(value),
        "use NaN",
    )


def test_a_value_too_large_for_the_dtype():
    frame = pl.DataFrame({"stay": ["ann"], "hours": [0.0], "name": ["hr"], "number": [1e300]})
    refused(lambda: SeriesBatch.from_long(frame, **LONG), "stream 'ann'", "row 0", "'hr'", "inf")
    assert SeriesBatch.from_long(frame, dtype=torch.float64, **LONG).values.item() == 1e300


def test_a_stream_with_no_row():
    refused(arrays([[0.0], []]), "stream 'bob' has no row", "leave empty streams out")
    refused(
        lambda: SeriesBatch.from_padded(np.zeros((2, 1)), np.zeros((2, 1, 2)), [1, 0], **NAMES),
        "stream 'bob' has no row",
    )
    refused(lambda: SeriesBatch.from_padded(np.zeros((2, 0)), np.zeros((2, 0, 2))), "no row")


def test_no_stream_and_no_channel():
    refused(lambda: SeriesBatch.from_arrays([], []), "no stream", "at least one")
    refused(lambda: SeriesBatch.from_padded(np.zeros((0, 3)), np.zeros((0, 3, 1))), "no stream")
    refused(lambda: SeriesBatch.from_padded([[0.0]], np.zeros((1, 1, 0))), "no channel")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (arrays([[0.0]], []), ["1 series of times", "0 of values", "one of each"]),
        (arrays([[0.0], [0.0]], [[[1.0, 2.0]], [1.0, 2.0]]), ["'bob'", "(2,)", "(row, channel)"]),
        (arrays([[0.0], [0.0, 1.0]], [[[1.0, 2.0]], [[1.0, 2.0]]]), ["'bob'", "(2,)", "(1, 2)"]),
        (arrays([[0.0], [0.0]], [[[1.0, 2.0]], [[1.0]]]), ["'bob'", "1 channels", "has 2", "NaN"]),
        (arrays([[0.0], [0.0]], [[[1.0, 2.0]], [[1.0], [2.0, 3.0]]]), ["'bob'", "as numbers"]),
        (arrays([[0.0], [0.0]], static=[1.0, 2.0]), ["static", "(2,)", "(stream, feature)"]),
        (arrays([[0.0], [0.0]], static=[[1.0]]), ["static", "(1, 1)", "2 streams"]),
        (arrays([[0.0], [0.0]], streams=["ann"]), ["1 stream identifiers", "2 streams"]),
        (arrays([[0.0], [0.0]], channels=["hr"]), ["1 channel names", "2 channels"]),
        (
            arrays([[0.0], [0.0]], static=[[1.0], [2.0]], features=["a", "b"]),
            ["2 static feature names", "1 static feature"],
        ),
        (lambda: SeriesBatch.from_padded([0.0], [[[1.0]]]), ["(1,)", "(stream, row)"]),
        (lambda: SeriesBatch.from_padded(0.0, 1.0), ["()", "(stream, row)"]),
        (lambda: SeriesBatch.from_padded([[0.0, 1.0]], [[[1.0]]]), ["(1, 2)", "(1, 1, 1)"]),
        (lambda: SeriesBatch.from_padded([[0.0]], [[[1.0]]], rows=[1, 1]), ["rows", "(2,)"]),
        (lambda: SeriesBatch.from_padded([[0.0]], [[[1.0]]], rows=[2]), ["0 claims 2", "1 to 1"]),
        (lambda: SeriesBatch.from_padded([[0.0]], [[[1.0]]], rows=[-1]), ["0 claims -1"]),
    ],
)
def test_shapes_that_do_not_fit(make, words):
    refused(make, *words)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (arrays([[0.0], [0.0]], streams=["ann", "ann"]), ["'ann'", "twice", "unique"]),
        (arrays([[0.0], [0.0]], channels=["hr", "hr"]), ["channel 'hr'", "twice", "unique"]),
        (
            arrays([[0.0], [0.0]], static=[[1.0, 2.0]] * 2, features=["age", "age"]),
            ["static feature 'age'", "twice"],
        ),
    ],
)
def test_names_given_twice(make, words):
    refused(make, *words)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (torch.zeros(1, 2, dtype=torch.float16), ["float16", "float32 or float64"]),
        (torch.zeros(1, 2, dtype=torch.complex64), ["complex64", "real numbers"]),
        (torch.zeros(1, 2, dtype=torch.bool), ["bool", "real numbers"]),
        (np.zeros((1, 2), bool), ["bool", "real numbers"]),
        (np.zeros((1, 2), np.float16), ["float16", "float32 or float64"]),
        (np.zeros((1, 2), complex), ["complex128", "real numbers"]),
        (np.zeros((1, 2), np.longdouble), ["real numbers"]),
        ([["80", "120"]], ["real numbers"]),
        ([[80, "120"]], ["real numbers"]),
        ([[object(), 1.0]], ["real numbers"]),
    ],
)
def test_wrong_dtypes(values, words):
    refused(arrays([[0.0], [0.0]], [np.zeros((1, 2)), values]), "stream 'bob': values", *words)


def test_wrong_dtypes_of_times_rows_and_static():
    dates = np.array(["2021-06-11"], "datetime64[s]")
    refused(arrays([[0.0], dates]), "stream 'bob': times", "datetime64", "real numbers")
    refused(arrays([[0.0], [0.0]], static=[["old"], ["young"]]), "static", "real numbers")
    for rows in ([1.0], [True], ["one"], [None]):
        refused(
            lambda rows=rows: SeriesBatch.from_padded([[0.0]], [[[1.0]]], rows), "rows", "whole"
        )


def test_streams_of_different_dtypes():
    values = [np.zeros((1, 2), np.float32), np.zeros((1, 2))]
    refused(arrays([[0.0], [0.0]], values), "stream 'bob'", "float64", "float32", "same dtype")


@pytest.mark.parametrize("value", [NAN, INF])
def test_static_features_that_are_not_known(value):
    refused(
        arrays([[0.0], [0.0]], static=[[1.0], [value]], features=["age"]),
        "stream 'bob'",
        "'age'",
        str(value),
        "known and finite",
    )


def long(**columns):
    frame = {
        "stay": ["ann", "bob"],
        "hours": [0.0, 1.0],
        "name": ["hr", "bp"],
        "number": [1.0, 2.0],
    }
    return pl.DataFrame({**frame, **columns}, strict=False)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (long().drop("hours"), ["no column 'hours' for the time", "number"]),
        (long().clear(), ["no lines"]),
        (long(hours=[0.0, NAN]), ["line 1", "'bob'", "nan", "finite time"]),
        (long(hours=[0.0, None]), ["line 1", "'bob'", "None", "finite time"]),
        (long(hours=[INF, 0.0]), ["line 0", "'ann'", "inf", "finite time"]),
        (long(number=[1.0, INF]), ["'bob'", "row 0", "'bp'", "inf", "NaN"]),
        (long(stay=["ann", None]), ["line 1", "the stream", "'stay'", "fill it in"]),
        (long(name=["hr", None]), ["line 1", "the channel", "'name'", "fill it in"]),
        (long(number=["1", "2"]), ["'number' (value)", "String", "numbers"]),
        (long(number=[True, False]), ["'number' (value)", "Boolean", "numbers"]),
        (long(hours=["0", "1"]), ["'hours' (time)", "String", "numbers"]),
        (
            long(hours=[datetime.datetime(2021, 6, 11)] * 2),
            ["'hours' (time)", "Datetime", "Convert"],
        ),
        (
            long(stay=["bob"] * 2, hours=[1.0] * 2, name=["hr"] * 2),
            ["stream 'bob'", "time 1.0", "channel 'hr'", "1.0 and 2.0", "keep one"],
        ),
    ],
)
def test_long_tables_that_cannot_be_read(frame, words):
    refused(lambda: SeriesBatch.from_long(frame, **LONG), *words)


def test_channels_the_long_table_does_not_have_or_has_too_many():
    refused(
        lambda: SeriesBatch.from_long(long(), channels=["hr"], **LONG),
        "stream 'bob'",
        "time 1.0",
        "channel 'bp'",
        "['hr']",
        "drop these lines",
    )
    refused(lambda: SeriesBatch.from_long(long(), channels=["hr", "bp", "hr"], **LONG), "twice")
    refused(lambda: SeriesBatch.from_long(long(), **{**LONG, "value": "hours"}), "'hours'", "twice")


def wide(**columns):
    return pl.DataFrame({"stay": ["ann", "bob"], "hours": [0.0, 1.0], **columns}, strict=False)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (wide(), ["no channel columns"]),
        (wide(hr=["a", "b"]), ["'hr' (channel)", "String", "numbers"]),
        (wide(hr=[1.0, INF]), ["stream 'bob'", "row 0", "channel 'hr'", "inf"]),
        (wide(hr=[1.0, 2.0], hours=[0.0, NAN]), ["line 1", "'bob'", "finite time"]),
        (wide(hr=[1.0, 2.0], stay=["ann", None]), ["line 1", "the stream"]),
        (
            wide(hr=[1.0, 2.0], stay=["bob"] * 2, hours=[1.0] * 2),
            ["stream 'bob'", "time 1.0", "channel 'hr'", "1.0 and 2.0", "keep one"],
        ),
    ],
)
def test_wide_tables_that_cannot_be_read(frame, words):
    refused(lambda: SeriesBatch.from_wide(frame, **WIDE), *words)


def test_columns_the_wide_table_does_not_have():
    frame = wide(hr=[1.0, 2.0])
    refused(lambda: SeriesBatch.from_wide(frame, channels=["hr", "bp"], **WIDE), "no column 'bp'")
    refused(lambda: SeriesBatch.from_wide(frame, channels=["hr", "hr"], **WIDE), "'hr'", "twice")
    refused(lambda: SeriesBatch.from_wide(frame, stream="id", time="hours"), "no column 'id'")


def test_what_is_not_a_table():
    for frame in ({"stay": [1]}, [[1, 2]], None, torch.zeros(2, 2)):
        refused(lambda frame=frame: SeriesBatch.from_wide(frame, **WIDE), type(frame).__name__)
    mixed = pd.DataFrame(
        {"stay": [1, 1], "hours": [0.0, 1.0], "hr": pd.Series(["x", 2.0], dtype=object)}
    )
    refused(lambda: SeriesBatch.from_wide(mixed, **WIDE), "pandas", "one type")


@pytest.mark.parametrize(
    ("static", "words"),
    [
        (pl.DataFrame({"id": ["ann"], "age": [1.0]}), ["no column 'stay'"]),
        (pl.DataFrame({"stay": ["ann"], "age": [1.0]}), ["'bob'", "no line of static"]),
        (pl.DataFrame({"stay": ["ann", "bob", "bob"], "age": [1.0] * 3}), ["'bob'", "two lines"]),
        (pl.DataFrame({"stay": ["ann", "bob"], "age": ["1", "2"]}), ["'age'", "numbers"]),
        (pl.DataFrame({"stay": ["ann", "bob"], "age": [1.0, 1e39]}), ["'bob'", "'age'", "beyond"]),
        (pl.DataFrame({"stay": ["ann", "bob"]}), ["no column beside 'stay'"]),
        (pl.DataFrame({"stay": [1, 2], "age": [1.0, 2.0]}), ["'stay'", "Int64", "'ann'", "same"]),
    ],
)
def test_static_tables_that_do_not_fit(static, words):
    refused(lambda: SeriesBatch.from_long(long(), static=static, **LONG), *words)


@given(
    rows=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    where=st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 1)),
    fault=st.sampled_from(["time nan", "time inf", "repeated", "backwards", "infinite"]),
)
def test_a_fault_anywhere_is_found_where_it_is(rows, where, fault):
    """Contract 8, wherever in the batch the fault lies; the input is left as it was."""
    stream, row, channel = where[0] % len(rows), where[1], where[2]
    row = row % rows[stream]
    assume(fault not in ("repeated", "backwards") or row > 0)
    times = torch.arange(6.0).repeat(len(rows), 1)
    values = torch.zeros(len(rows), 6, 2)
    if fault == "infinite":
        values[stream, row, channel] = INF
    else:
        times[stream, row] = {"time nan": NAN, "time inf": INF, "repeated": row - 1}.get(
            fault, row - 1.5
        )
    before = times.clone(), values.clone()
    with pytest.raises(SeriesError) as caught:
        SeriesBatch.from_padded(times, values, rows, channels=["hr", "bp"])
    assert f"stream {stream}, row {row}" in str(caught.value)
    assert fault != "infinite" or f"channel '{['hr', 'bp'][channel]}'" in str(caught.value)
    assert torch.equal(times.nan_to_num(), before[0].nan_to_num())
    assert torch.equal(values, before[1])
