"""Taking, cutting, grouping, joining and moving batches."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onlinecde import SeriesBatch, SeriesError


def made(lengths, static=True, seed=0, dtype=torch.float32, names="s"):
    numbers = torch.Generator().manual_seed(seed)
    values = [torch.randn(n, 2, generator=numbers, dtype=dtype) for n in lengths]
    for table in values:
        table[torch.rand(table.shape, generator=numbers) < 0.3] = torch.nan
    return SeriesBatch.from_arrays(
        [torch.rand(n, generator=numbers, dtype=torch.float64).cumsum(0) for n in lengths],
        values,
        torch.randn(len(lengths), 3, generator=numbers) if static else None,
        streams=[f"{names}{i}" for i in range(len(lengths))],
    )


def same(one, other):
    """Whether two batches are the same to the last bit."""
    assert one.channels == other.channels
    assert one.features == other.features
    assert one.streams == other.streams
    for name in ("times", "values", "rows", "static"):
        left, right = getattr(one, name), getattr(other, name)
        assert (left is None) == (right is None)
        if left is not None:
            torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


LENGTHS = [3, 1, 4, 2]


@pytest.mark.parametrize(
    ("index", "positions"),
    [
        (2, [2]),
        (-1, [3]),
        (np.int64(1), [1]),
        (torch.tensor(1), [1]),
        (slice(1, 3), [1, 2]),
        (slice(None, None, -1), [3, 2, 1, 0]),
        ([3, 0], [3, 0]),
        ((3, 0), [3, 0]),
        (np.array([1]), [1]),
        (torch.tensor([2, 1]), [2, 1]),
        (torch.tensor([True, False, True, False]), [0, 2]),
        ([False, True, False, True], [1, 3]),
    ],
)
def test_an_index_takes_streams_and_cuts_padding(index, positions):
    batch = made(LENGTHS)
    taken = batch[index]
    assert taken.streams == tuple(f"s{i}" for i in positions)
    assert taken.rows.tolist() == [LENGTHS[i] for i in positions]
    assert taken.times.shape[1] == taken.values.shape[1] == max(LENGTHS[i] for i in positions)
    for place, position in enumerate(positions):
        same(taken[place], batch[position])


def test_an_index_that_takes_nothing_is_refused():
    batch = made(LENGTHS)
    for nothing in ([], slice(2, 2), torch.zeros(4, dtype=torch.bool), torch.tensor([], dtype=int)):
        with pytest.raises(SeriesError, match="no stream"):
            batch[nothing]
    for outside in (4, -5, [4], torch.tensor([-5])):
        with pytest.raises(IndexError):
            batch[outside]
    with pytest.raises(IndexError):
        batch[[True, False]]


def test_iterating_gives_every_stream_once():
    batch = made(LENGTHS)
    same(SeriesBatch.concatenate(list(batch)), batch)


def test_first_rows_are_what_was_known_then():
    batch = made(LENGTHS)
    cut = batch.first_rows(2)
    assert cut.rows.tolist() == [2, 1, 2, 2]
    each = batch.first_rows(torch.tensor([1, 9, 3, 1]))
    assert each.rows.tolist() == [1, 1, 3, 1]
    for short in (cut, each):
        for i, n in enumerate(short.rows.tolist()):
            again = SeriesBatch.from_padded(
                batch.times[i : i + 1, :n],
                batch.values[i : i + 1, :n],
                static=None if batch.static is None else batch.static[i : i + 1],
                streams=[f"s{i}"],
            )
            same(short[i], again)
    same(batch.first_rows(4), batch)


def test_first_rows_refuses_what_makes_no_sense():
    batch = made(LENGTHS)
    for rows in (0, torch.tensor([1, 1, 0, 1])):
        with pytest.raises(SeriesError, match="at least one row"):
            batch.first_rows(rows)
    with pytest.raises(SeriesError, match=r"\(2,\).*4 streams"):
        batch.first_rows(torch.tensor([1, 2]))
    with pytest.raises(SeriesError, match="whole numbers"):
        batch.first_rows(1.5)  # pyright: ignore[reportArgumentType]


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    size=st.integers(1, 8),
    seed=st.one_of(st.none(), st.integers(0, 99)),
)
def test_length_buckets_take_every_stream_once_among_its_like(lengths, size, seed):
    batch = made(lengths, static=False)
    numbers = None if seed is None else torch.Generator().manual_seed(seed)
    groups = batch.length_buckets(size, numbers)
    assert sorted(torch.cat(groups).tolist()) == list(range(len(lengths)))
    assert all(1 <= len(group) <= size for group in groups)
    assert len(groups) == -(-len(lengths) // size)
    # Like lengths: ordered by length, no two groups overlap.
    ranges = sorted((min(part), max(part)) for part in ([lengths[i] for i in g] for g in groups))
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(ranges))


def test_length_buckets_are_shuffled_by_their_generator_alone():
    batch = made([2] * 30 + [3] * 30, static=False)
    orders = [
        torch.cat(batch.length_buckets(4, torch.Generator().manual_seed(seed))).tolist()
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    plain = [group.tolist() for group in batch.length_buckets(4)]
    assert plain == [group.tolist() for group in batch.length_buckets(4)]
    with pytest.raises(SeriesError, match="size is 0"):
        batch.length_buckets(0)


def test_concatenation_joins_streams_of_any_length():
    one, other = made([3, 1], names="a"), made([2, 6], seed=1, names="b")
    both = SeriesBatch.concatenate([one, other])
    assert both.streams == ("a0", "a1", "b0", "b1")
    assert both.rows.tolist() == [3, 1, 2, 6]
    same(both[:2], one)
    same(both[2:], other)
    bare = SeriesBatch.concatenate([made([1], False), made([2], False, names="b")])
    assert bare.static is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (made([2], static=False, names="b"), "batch 1 has features"),
        (made([2], dtype=torch.float64, names="b"), "batch 1 has dtype"),
        (made([2]), "'s0' occurs twice"),
        (SeriesBatch.from_arrays([[0.0]], [[[1.0]]], [[1.0] * 3]), "batch 1 has channels"),
    ],
)
def test_batches_that_do_not_agree_are_not_joined(other, words):
    with pytest.raises(SeriesError, match=words):
        SeriesBatch.concatenate([made([3, 1]), other])
    with pytest.raises(SeriesError, match="no batch"):
        SeriesBatch.concatenate([])


def test_times_stay_float64_whatever_the_dtype():
    batch = made(LENGTHS)
    double = batch.to(dtype=torch.float64)
    assert double.dtype == torch.float64
    assert double.static is not None
    assert double.static.dtype == torch.float64
    assert torch.equal(double.times, batch.times)
    same(double.to(dtype=torch.float32), batch)
    assert batch.to("meta").device.type == "meta"
    assert batch.to("meta").times.dtype == torch.float64
    same(batch.to(), batch)


def test_a_batch_cannot_be_changed_but_can_be_pickled():
    batch = made(LENGTHS)
    with pytest.raises(AttributeError):
        batch.times = batch.times + 1  # pyright: ignore[reportAttributeAccessIssue]
    same(pickle.loads(pickle.dumps(batch)), batch)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_batch_works_on_the_gpu():
    batch = made(LENGTHS)
    there = batch.to("cuda")
    same(there[[0, 3]].to("cpu"), batch[[0, 3]])
    same(there.first_rows(2).to("cpu"), batch.first_rows(2))


def test_unnamed_streams_are_numbered_anew_when_concatenated():
    one = SeriesBatch.from_arrays([[0.0], [1.0]], [[[1.0]], [[2.0]]])
    both = SeriesBatch.concatenate([one, one])
    assert both.streams == (0, 1, 2, 3)


def test_so_are_some_of_them_taken_by_an_index():
    one = SeriesBatch.from_arrays([[0.0]] * 4, [[[1.0]]] * 4)
    fresh = SeriesBatch.from_padded(torch.zeros(3, 1), torch.zeros(3, 1, 1))
    both = SeriesBatch.concatenate([one[2:], fresh])
    assert both.streams == (0, 1, 2, 3, 4)
    assert SeriesBatch.concatenate([both[[4, 1]], fresh[1]]).streams == (0, 1, 2)
    named = SeriesBatch.from_arrays([[0.0]], [[[1.0]]], streams=[2])
    with pytest.raises(SeriesError, match="stream 2 occurs twice"):
        SeriesBatch.concatenate([one[2:], named])


def test_a_dtype_alone_may_be_given_to_to():
    batch = SeriesBatch.from_arrays([[0.0]], [[[1.0]]]).to(torch.float64)
    assert batch.dtype == torch.float64
