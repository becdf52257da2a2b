"""Empty rows let time pass and change nothing that was observed, nothing before them, and no other stream."""

import pytest
import torch

from onlinecde.series import SeriesBatch, SeriesError
from onlinecde.series.empty_rows import filled_queries, with_empty_rows

NAN = float("nan")


@pytest.fixture
def batch():
    return SeriesBatch.from_arrays(
        [[0.0, 2.0, 5.0], [1.0]],
        [[[1.0, NAN], [NAN, 2.0], [3.0, 4.0]], [[7.0, NAN]]],
        channels=["a", "b"],
    )


def test_each_time_has_a_row_and_each_row_its_values(batch):
    times = torch.tensor([[0.0, 1.0, 3.0, 9.0], [1.5, NAN, NAN, NAN]])
    more, row = with_empty_rows(batch, times)
    assert more.rows.tolist() == [6, 2]
    assert more.times[0].tolist() == [0.0, 1.0, 2.0, 3.0, 5.0, 9.0]
    assert row.tolist() == [[0, 1, 3, 5], [1, 1, 1, 1]]
    assert torch.equal(more.times.gather(1, row)[0], times[0].double())
    kept = more.observed_rows()
    assert torch.equal(kept.times, batch.times)
    assert torch.equal(kept.values.nan_to_num(-1), batch.values.nan_to_num(-1))


def test_a_row_keeps_its_values_and_is_there_once(batch):
    more, row = with_empty_rows(batch, torch.tensor([[2.0, 2.0, 2.0], [1.0, 1.0, NAN]]))
    assert more.rows.tolist() == batch.rows.tolist()
    assert torch.equal(more.values.nan_to_num(-1), batch.values.nan_to_num(-1))
    assert row.tolist() == [[1, 1, 1], [0, 0, 0]]


def test_what_comes_later_changes_nothing_before(batch):
    early = torch.tensor([[1.0, 3.0], [1.2, 1.4]])
    late = torch.cat([early, torch.tensor([[4.0, 8.0], [2.0, NAN]])], 1)
    (few, at), (many, row) = (with_empty_rows(batch, times) for times in (early, late))
    assert torch.equal(at, row[:, :2])
    for stream in range(2):
        last = int(at[stream, -1]) + 1
        assert torch.equal(few.times[stream, :last], many.times[stream, :last])
        assert torch.equal(few.observed[stream, :last], many.observed[stream, :last])


def test_alone_or_beside_others_a_stream_is_the_same(batch, rng):
    times = torch.from_numpy(rng.uniform(1, 9, (2, 6))).sort(1).values
    both, row = with_empty_rows(batch, times)
    for stream in range(2):
        alone, place = with_empty_rows(batch[stream], times[stream : stream + 1])
        rows = int(alone.rows)
        assert torch.equal(place[0], row[stream])
        assert torch.equal(both.times[stream, :rows], alone.times[0])
        assert torch.equal(
            both.values[stream, :rows].nan_to_num(-1), alone.values[0].nan_to_num(-1)
        )
        # Padding repeats the last time and holds nothing.
        assert bool((both.times[stream, rows:] == both.times[stream, rows - 1]).all())
        assert bool(both.values[stream, rows:].isnan().all())


def test_gradients_reach_the_values(batch):
    values = batch.values.nan_to_num(0.0).double().requires_grad_()
    series = SeriesBatch.from_padded(batch.times, values, batch.rows)
    more, _ = with_empty_rows(series, torch.tensor([[1.0], [4.0]]))
    more.values.nansum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, batch.real[:, :, None].expand_as(values).double())


def test_missing_times_are_filled_with_the_last_or_the_first_row(batch):
    times = torch.tensor([[1.0, 3.0, NAN], [NAN, NAN, NAN]])
    assert filled_queries(batch, times).tolist() == [[1.0, 3.0, 3.0], [1.0, 1.0, 1.0]]


def test_wrong_times_are_refused_by_stream(batch):
    with pytest.raises(
        SeriesError, match=r"stream 1 is asked for at time 0\.5, but its first row is at 1\.0"
    ):
        with_empty_rows(batch, torch.tensor([[1.0], [0.5]]))
    with pytest.raises(SeriesError, match=r"shape \(3, 1\) for 2 streams"):
        with_empty_rows(batch, torch.zeros(3, 1))
