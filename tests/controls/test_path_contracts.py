"""Contracts 2, 4, 5 and 8 of DESIGN.md for paths: adapted, inert padding, any order, refusals."""

import polars as pl
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from made_series import MISSING, SCHEMES, batches, build, inside_pieces, random_batch, same_bits

from onlinecde import Encoding, Measurability, SeriesBatch, SeriesError

SEEDS = st.integers(0, 2**32 - 1)


def with_another_future(batch, row, seed, rows_after):
    """The same streams up to `row` (or their end, if before), and something else afterwards."""
    numbers = torch.Generator().manual_seed(seed)
    kept = batch.first_rows(row + 1)
    times, values = [], []
    for stream in range(len(batch)):
        n = int(kept.rows[stream])
        gaps = 10 ** (4 * torch.rand(rows_after, dtype=torch.float64, generator=numbers) - 2)
        future = torch.randn(
            rows_after, batch.values.shape[2], dtype=batch.dtype, generator=numbers
        )
        future[torch.rand(future.shape, generator=numbers) < 0.4] = torch.nan
        times.append(
            torch.cat([kept.times[stream, :n], kept.times[stream, n - 1] + gaps.cumsum(0)])
        )
        values.append(torch.cat([kept.values[stream, :n], future]))
    return SeriesBatch.from_arrays(times, values)


@pytest.mark.parametrize("counts", [False, True])
@given(batch=batches(), row=st.integers(0, 8), after=st.integers(0, 4), seed=SEEDS)
def test_rectilinear_never_looks_ahead(counts, batch, row, after, seed):
    """Contract 2, at every moment: edited, deleted or added rows change nothing before them."""
    other = with_another_future(batch, row, seed, after)
    one, two = build("rectilinear", batch, counts), build("rectilinear", other, counts)
    assert one.measurability is two.measurability is Measurability.CONTINUOUS
    known = torch.minimum(batch.rows - 1, torch.tensor(row))
    # Up to the row, in s: everything.
    share = torch.linspace(0, 1, 9, dtype=torch.float64)
    s = 2 * known[:, None] * share
    same_bits(one.evaluate(s), two.evaluate(s))
    before = s[:, :-1]
    moving = (before < 2 * known[:, None])[:, :, None]
    same_bits(one.derivative(before) * moving, two.derivative(before) * moving)
    # From the row to just before the next one, on the clock: values and counts.
    start = batch.times.gather(1, known[:, None])
    clock = start + torch.tensor([[0.0, 1e-4, 1e-3, 5e-3]])
    soon = torch.minimum(_next_time(batch, known), _next_time(other, known))
    live = (clock < soon[:, None])[:, :, None]
    at = [path.evaluate(path.s_of_time(clock))[:, :, 1:] * live for path in (one, two)]
    same_bits(at[0], at[1])
    # The time channel is the clock itself for as long as the path goes.
    going = live[:, :, 0] & (known + 1 < batch.rows)[:, None]
    time = one.evaluate(one.s_of_time(clock))[:, :, 0]
    torch.testing.assert_close(time[going], clock[going], rtol=1e-12, atol=1e-12)


def _next_time(batch, row):
    following = torch.minimum(row + 1, batch.rows - 1)
    time = batch.times.gather(1, following[:, None])[:, 0]
    return torch.where(row + 1 < batch.rows, time, torch.inf)


@pytest.mark.parametrize("scheme", ["linear", "hermite"])
@pytest.mark.parametrize("counts", [False, True])
@given(
    batch=batches(missing=("none", "leading")),
    row=st.integers(0, 8),
    after=st.integers(0, 4),
    seed=SEEDS,
)
def test_discrete_controls_do_not_look_past_a_row(scheme, counts, batch, row, after, seed):
    """Contract 2, at the rows: what was there up to a row stays, whatever comes after it."""
    other = with_another_future(batch, row, seed, after)
    one, two = build(scheme, batch, counts), build(scheme, other, counts)
    assert one.measurability is Measurability.DISCRETE
    known = torch.minimum(batch.rows - 1, torch.tensor(row))
    s = known[:, None] * torch.linspace(0, 1, 9, dtype=torch.float64)
    same_bits(one.evaluate(s), two.evaluate(s))
    moving = (s < known[:, None])[:, :, None]
    same_bits(one.derivative(s) * moving, two.derivative(s) * moving)


@pytest.mark.parametrize("scheme", ["natural_cubic", "linear", "hermite"])
def test_what_is_declared_offline_does_look_ahead(scheme):
    """The tests above can fail: with a gap, these three change before the edit."""
    batch = random_batch([6], 1, 0, "none")
    values = batch.values.clone()
    values[0, 2] = torch.nan
    gap = SeriesBatch.from_padded(batch.times, values)
    values = values.clone()
    values[0, 3] += 1
    edited = SeriesBatch.from_padded(batch.times, values)
    one, two = build(scheme, gap), build(scheme, edited)
    assert one.measurability is Measurability.OFFLINE
    assert (one.evaluate(2.0) - two.evaluate(2.0)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scheme", SCHEMES)
@given(
    batch=batches(max_streams=3),
    companion=st.tuples(st.integers(1, 16), SEEDS, st.sampled_from(MISSING)),
    counts=st.booleans(),
    first=st.booleans(),
)
def test_a_companion_of_any_length_changes_nothing(scheme, dtype, batch, companion, counts, first):
    """Contract 4, to the last bit: values, slopes, pieces; after its end the path stands still."""
    rows, seed, missing = companion
    batch = batch.to(dtype=dtype)
    channels = batch.values.shape[2]
    other = random_batch([rows], channels, seed, missing, dtype=dtype)
    parts = [batch, SeriesBatch.from_padded(other.times, other.values, streams=["companion"])]
    both = SeriesBatch.concatenate(parts[::-1] if first else parts)
    at = slice(1, None) if first else slice(0, -1)
    alone, among = build(scheme, batch, counts), build(scheme, both, counts)

    s = torch.cat([inside_pieces(alone), alone.knots, alone.pieces + torch.rand(3, dtype=dtype)])
    same_bits(alone.evaluate(s), among.evaluate(s)[at])
    same_bits(alone.derivative(s), among.derivative(s)[at])
    for index in range(among.pieces):
        piece = among.piece(index)
        if index < alone.pieces:
            same_bits(alone.piece(index).coefficients, piece.coefficients[at])
        ended = index >= among.pieces_per_stream
        assert (piece.coefficients[ended, 1:] == 0).all()
    behind = both.rows < both.times.shape[1]
    if behind.any():
        end = among.pieces_per_stream[:, None] + torch.tensor([0.0, 0.5, 7.0])
        assert (among.derivative(end) == 0).all()
        last = among.rows.gather(1, (both.rows - 1)[:, None, None].expand(-1, 1, among.channels))
        same_bits(among.evaluate(end), last.expand(-1, 3, -1))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(batch=batches(), seed=SEEDS)
def test_what_stands_in_the_padding_does_not_matter(scheme, batch, seed):
    numbers = torch.Generator().manual_seed(seed)
    real = batch.real
    times = torch.where(real, batch.times, torch.randn(real.shape, generator=numbers).double())
    junk = torch.randn(batch.values.shape, generator=numbers).double()
    values = torch.where(real[:, :, None], batch.values, junk)
    one = build(scheme, batch, True)
    two = build(scheme, SeriesBatch.from_padded(times, values, batch.rows), True)
    s = torch.cat([inside_pieces(one), one.knots])
    same_bits(one.evaluate(s), two.evaluate(s))
    same_bits(one.derivative(s), two.derivative(s))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(batch=batches(), counts=st.booleans(), order=st.randoms(use_true_random=False))
def test_events_of_one_instant_may_come_in_any_order(scheme, batch, counts, order):
    """Contract 5: a path does not know in which order the events of its rows came."""
    assume(bool(batch.observed.any()))
    cells = [
        (
            stream,
            float(batch.times[stream, row]),
            channel,
            float(batch.values[stream, row, channel]),
        )
        for stream, row, channel in batch.real[:, :, None]
        .expand_as(batch.values)
        .nonzero()
        .tolist()
    ]
    paths = []
    for lines in (cells, order.sample(cells, len(cells))):
        frame = pl.DataFrame(lines, schema=["s", "t", "c", "x"], orient="row")
        series = SeriesBatch.from_long(
            frame, stream="s", time="t", channel="c", value="x", dtype=torch.float64
        )
        where = sorted(range(len(series)), key=lambda i, names=series.streams: names[i])
        paths.append(build(scheme, series[where], counts))
    s = torch.cat([inside_pieces(paths[0]), paths[0].knots])
    same_bits(paths[0].evaluate(s), paths[1].evaluate(s))
    same_bits(paths[0].evaluate(s), build(scheme, batch, counts).evaluate(s))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_questions_that_make_no_sense_are_refused(scheme):
    """Contract 8 for paths; the path is as before afterwards."""
    path = build(scheme, random_batch([5, 3], 2, 0))
    before = path.evaluate(path.knots)
    for ask in (path.evaluate, path.derivative, path.time_of_s):
        for s in (-0.5, torch.tensor([0.0, -1.0]), float("nan"), torch.tensor([[0.0], [-1.0]])):
            with pytest.raises(SeriesError, match="0 or more"):
                ask(s)
        for s in (torch.zeros(3, 1), torch.zeros(2, 1, 1)):
            with pytest.raises(SeriesError, match=r"s has shape .* 2 streams"):
                ask(s)
    with pytest.raises(SeriesError, match=r"times has shape \(3, 1\) for 2 streams"):
        path.s_of_time(torch.zeros(3, 1))
    first = path.times[:, :1]
    for clock in (first - torch.tensor([[0.0], [1.0]]), first * torch.tensor([[1.0], [torch.nan]])):
        with pytest.raises(SeriesError, match=r"stream 1 is asked for at time .* first row is at"):
            path.s_of_time(clock)
    same_bits(path.evaluate(path.knots), before)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_encoding_that_does_not_fit_is_refused(scheme):
    batch = random_batch([5, 3], 2, 0)
    with pytest.raises(SeriesError, match="2 channels, the encoding was made for 3"):
        build(scheme, batch, encoding=Encoding(3))
    with pytest.raises(SeriesError, match="no counts"):
        build(scheme, batch, counts=True, encoding=Encoding(2))
