"""Query times: where a grid, lots and rows fall, against a plain loop over streams."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onlinecde.data import DataError, Queries, Task, simulate_ward
from onlinecde.data.queries import duration
from onlinecde.series import SeriesBatch


@st.composite
def streams(draw):
    """Series of different lengths that begin at different times, and how long each is followed."""
    gaps = st.lists(st.floats(0.01, 5), min_size=1, max_size=5)
    times = [np.cumsum(draw(gaps)).tolist() for _ in range(3)]
    until = [draw(st.floats(one[0], one[-1] + 4)) for one in times]
    values = [[[1.0]] * len(one) for one in times]
    return SeriesBatch.from_arrays(times, values), torch.tensor(until, dtype=torch.float64)


@given(streams(), st.sampled_from([0.1, 0.25, 1.0, 3.3]))
def test_a_grid_counts_from_each_stream_s_first_row_as_long_as_it_is_followed(made, every):
    series, until = made
    times = Queries("grid", every=every).times(series, until)
    for stream, asked in enumerate(times):
        first, end = float(series.times[stream, 0]), float(until[stream])
        number = int((~asked.isnan()).sum())
        expected = [first + every * n for n in range(number + 1)]
        assert asked[:number].tolist() == pytest.approx(expected[:-1])
        assert float(asked[:number].max()) <= end
        assert expected[-1] > end - 1e-9 * (1 + end)
        assert bool(asked[number:].isnan().all())


def test_the_last_time_of_a_grid_is_no_hair_beyond_the_end():
    series = SeriesBatch.from_arrays([[0.0]], [[[1.0]]])
    times = Queries("grid", every=0.1).times(series, torch.tensor([0.3], dtype=torch.float64))
    assert 3 * 0.1 > 0.3
    assert times.tolist() == [[0.0, 0.1, 0.2, 0.3]]


@given(streams())
def test_lots_fall_within_the_time_followed_in_order_and_differ_by_seed(made):
    series, until = made
    drawn = [
        Queries("random", number=5).times(series, until, torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    ]
    assert torch.equal(drawn[0].nan_to_num(-1), drawn[1].nan_to_num(-1))
    for stream, asked in enumerate(drawn[0]):
        real = asked[~asked.isnan()]
        assert bool((real >= series.times[stream, 0]).all() and (real <= until[stream]).all())
        assert bool((real.diff() >= 0).all())
    assert bool((until - series.times[:, 0] < 1e-6).any()) or not torch.equal(
        drawn[0].nan_to_num(-1), drawn[2].nan_to_num(-1)
    )


def test_rows_and_the_end():
    series = SeriesBatch.from_arrays([[0.0, 2.0], [1.0]], [[[1.0], [2.0]], [[3.0]]])
    until = torch.tensor([9.0, 9.0])
    rows = Queries("rows").times(series, until)
    assert rows.nan_to_num(-1).tolist() == [[0, 2], [1, -1]]
    assert Queries("end").times(series, until).tolist() == [[2], [1]]


@pytest.mark.parametrize(
    ("text", "hours"),
    [("90min", 1.5), ("1.5", 1.5), ("2 h", 2), ("1d", 24), ("3600s", 1), ("1e1hours", 10)],
)
def test_lengths_of_time_are_read_in_any_unit(text, hours):
    assert duration(text, "hours") == pytest.approx(hours)


@pytest.mark.parametrize(
    "text", ["0h", "-1h", "h", "nan", "inf", "1e999h", "", "1h30", "1 fortnight"]
)
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(DataError, match=r"length of time|cannot be turned"):
        duration(text, "hours")


def test_a_unit_that_the_task_does_not_count_in_is_refused():
    assert duration("2", "cycles") == 2
    assert duration("2cycles", "cycles") == 2
    with pytest.raises(
        DataError, match="the series are in cycles, and 'h' cannot be turned into it"
    ):
        duration("2h", "cycles")


@pytest.mark.parametrize("text", ["row", "every", "every=", "random=0", "random=x", "end=3", ""])
def test_what_names_no_times_is_refused(text):
    with pytest.raises(DataError):
        Queries.parse(text, "hours")


def test_a_grid_too_fine_to_hold_is_refused():
    series = SeriesBatch.from_arrays([[0.0]], [[[1.0]]])
    with pytest.raises(DataError, match="give a longer step"):
        Queries("grid", every=1e-9).times(series, torch.tensor([1e3]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[:-1], r"shape \(9, 3\) for 10 streams"),
        (lambda t: t - 2, r"stream 0: query time -2.0 lies before the stream's first row"),
        (lambda t: t + torch.tensor([0, 0, -1.0]), r"stream 0: query time 1.0 does not come after"),
        (lambda t: t.masked_fill(t == 1, math.nan), r"stream 0: query time 2.0 follows a gap"),
        (lambda t: t.masked_fill(t == 2, math.inf), r"stream 0: query time inf is not finite"),
    ],
)
def test_query_times_of_one_s_own_are_checked(change, message):
    series = SeriesBatch.from_arrays([[0.0, 2.0]] * 10, [[[1.0], [2.0]]] * 10)
    task = Task.build("t", series, [0, 1] * 5, kind="binary")
    times = torch.arange(3.0, dtype=torch.float64).expand(10, 3)
    assert task.asked(times).labels[1].tolist() == [1, 1, 1]
    with pytest.raises(DataError, match=message):
        task.asked(change(times))


def test_labels_at_query_times_are_cut_to_the_most_a_split_has():
    task = simulate_ward(40, seed=0).task.asked("every=1h")
    for name, at in task.splits.items():
        series, labels = task.split(name)
        times = task.split_times(name)
        assert labels.shape == times.shape
        assert int((~times.isnan()).sum(1).max()) == times.shape[1]
        assert torch.equal(labels.nan_to_num(9), task.labels[at, : times.shape[1]].nan_to_num(9))
        assert len(series) == len(at)


@given(streams())
def test_several_kinds_of_times_are_asked_together_each_time_once(made):
    series, until = made
    both = Queries.parse("rows+every=0.5", "hours")
    times = both.times(series, until)
    assert str(both) == "rows+every=0.5"
    for stream, asked in enumerate(times):
        parts = [part.times(series, until)[stream] for part in both.parts]
        expected = sorted({float(t) for part in parts for t in part if not t.isnan()})
        assert asked[~asked.isnan()].tolist() == expected


def test_lots_are_drawn_in_proportion_to_how_long_each_stream_is_followed():
    series = SeriesBatch.from_arrays([[0.0]] * 200, [[[1.0]]] * 200)
    until = torch.tensor([1.0, 9.0] * 100, dtype=torch.float64)
    times = Queries("random", number=10).times(series, until, torch.Generator().manual_seed(0))
    count = (~times.isnan()).sum(1).double()
    assert float(count[::2].mean()) == pytest.approx(2, abs=0.3)
    assert float(count[1::2].mean()) == pytest.approx(18, abs=0.3)
