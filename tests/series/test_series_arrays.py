"""A batch from arrays holds what was given, padded with nothing, in the dtype it came with."""

import numpy as np
import polars as pl
import pytest
import torch

from onlinecde import SeriesBatch, SeriesError

NAN = float("nan")


def two_streams(dtype=torch.float32, **keywords):
    return SeriesBatch.from_arrays(
        [torch.tensor([0.0, 1.5, 2.0]), torch.tensor([5.0])],
        [
            torch.tensor([[1.0, NAN], [2.0, 3.0], [NAN, NAN]], dtype=dtype),
            torch.tensor([[7.0, 8.0]], dtype=dtype),
        ],
        **keywords,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_streams_of_unequal_length_are_padded_with_nothing(dtype):
    batch = two_streams(dtype)
    assert batch.times.tolist() == [[0.0, 1.5, 2.0], [5.0, 5.0, 5.0]]
    assert batch.rows.tolist() == [3, 1]
    assert batch.real.tolist() == [[True, True, True], [True, False, False]]
    assert batch.observed.tolist() == [
        [[True, False], [True, True], [False, False]],
        [[True, True], [False, False], [False, False]],
    ]
    assert batch.values[batch.observed].tolist() == [1.0, 2.0, 3.0, 7.0, 8.0]
    assert batch.dtype == batch.values.dtype == dtype
    assert batch.times.dtype == torch.float64
    assert len(batch) == 2


def test_names_have_defaults_and_may_be_given():
    batch = two_streams(static=[[1.0], [2.0]])
    assert batch.channels == ("x0", "x1")
    assert batch.features == ("f0",)
    assert batch.streams == (0, 1)
    named = two_streams(
        static=[[1.0], [2.0]], channels=["hr", "bp"], features=["age"], streams=["ann", "bob"]
    )
    assert named.channels == ("hr", "bp")
    assert named.features == ("age",)
    assert named.streams == ("ann", "bob")


def test_static_features_take_the_dtype_of_the_values():
    batch = two_streams(torch.float64, static=np.array([[1, 2], [3, 4]], np.int32))
    assert batch.static is not None
    assert batch.static.dtype == torch.float64
    assert batch.static.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert two_streams().static is None


@pytest.mark.parametrize(
    "times",
    [
        [1.7e9, 1.7e9 + 1],
        [1_700_000_000, 1_700_000_001],
        np.array([1_700_000_000, 1_700_000_001]),
        torch.tensor([1_700_000_000, 1_700_000_001]),
        np.array([1.7e9, 1.7e9 + 1]),
        pl.Series([1.7e9, 1.7e9 + 1]),
    ],
    ids=["floats", "ints", "numpy ints", "torch ints", "numpy floats", "polars"],
)
def test_unix_seconds_stay_apart(times):
    batch = SeriesBatch.from_arrays([times], [[[1.0], [2.0]]])
    assert batch.times.diff().tolist() == [[1.0]]
    padded = SeriesBatch.from_padded([list(times)], [[[1.0], [2.0]]])
    assert padded.times.diff().tolist() == [[1.0]]


def test_a_missing_value_may_be_nan_or_none():
    batch = SeriesBatch.from_arrays([[0, 1, 2]], [[[1.0], [None], [NAN]]])
    assert batch.observed.flatten().tolist() == [True, False, False]
    assert batch.dtype == torch.get_default_dtype()


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
def test_what_is_masked_was_not_observed(kind):
    table = np.ma.masked_array(np.array([[1], [99]], kind), [[False], [True]])
    batch = SeriesBatch.from_arrays([[0, 1]], [table])
    assert batch.observed.flatten().tolist() == [True, False]
    assert batch.dtype == (torch.float64 if kind is np.float64 else torch.float32)
    together = SeriesBatch.from_padded([[0, 1]], table[None])
    assert together.observed.flatten().tolist() == [True, False]


def test_a_masked_time_is_refused():
    clock = np.ma.masked_array([0.0, 1.0], [False, True])
    with pytest.raises(SeriesError, match="row 1: the time is nan"):
        SeriesBatch.from_arrays([clock], [[[1.0], [2.0]]])


def test_arrays_keep_their_dtype_and_lists_take_the_default():
    times = [[0.0]]
    assert SeriesBatch.from_arrays(times, [np.zeros((1, 1))]).dtype == torch.float64
    assert SeriesBatch.from_arrays(times, [np.zeros((1, 1), ">f4")]).dtype == torch.float32
    assert SeriesBatch.from_arrays(times, [np.zeros((1, 1), int)]).dtype == torch.float32
    assert SeriesBatch.from_arrays(times, [[[0.0]]]).dtype == torch.float32


def test_reversed_and_read_only_arrays_are_read():
    clock = np.arange(3.0)
    clock.setflags(write=False)
    batch = SeriesBatch.from_arrays([clock], [clock[::-1, None]])
    assert batch.values.flatten().tolist() == [2.0, 1.0, 0.0]


def test_what_stands_behind_the_rows_is_ignored():
    times = torch.tensor([[0.0, 1.0, NAN], [0.0, -5.0, float("inf")]])
    values = torch.tensor([[1.0, 2.0, float("inf")], [3.0, float("-inf"), 9.0]])[:, :, None]
    batch = SeriesBatch.from_padded(times, values, rows=[2, 1])
    assert batch.times.tolist() == [[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    assert batch.observed[:, :, 0].tolist() == [[True, True, False], [True, False, False]]


def test_gradients_reach_values_times_and_static():
    times = torch.tensor([[0.0, 1.0, 9.0], [0.0, 2.0, 3.0]], requires_grad=True)
    values = torch.ones(2, 3, 1, requires_grad=True)
    static = torch.ones(2, 1, requires_grad=True)
    batch = SeriesBatch.from_padded(times, values, rows=[2, 3], static=static)
    assert batch.static is not None
    total = batch.times.sum() + batch.values.nan_to_num().sum() + 3 * batch.static.sum()
    total.backward()
    # Padding repeats the last time, so that time counts twice, and what it replaced not at all.
    assert times.grad is not None
    assert times.grad.tolist() == [[1.0, 2.0, 0.0], [1.0, 1.0, 1.0]]
    assert values.grad is not None
    assert values.grad[:, :, 0].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert static.grad is not None
    assert static.grad.tolist() == [[3.0], [3.0]]


def test_repr_says_what_is_inside():
    assert repr(two_streams()) == "SeriesBatch(2 streams, 1 to 3 rows, 2 channels, 62 % observed)"
    one = SeriesBatch.from_arrays([[0.0]], [[[1.0]]], static=[[1.0, 2.0]])
    assert repr(one) == "SeriesBatch(1 stream, 1 row, 1 channel, 2 static, 100 % observed)"
