"""A path answers the same however it is asked: by number, list, stream, piece or clock."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_series import SCHEMES, batches, build, inside_pieces, random_batch, same_bits

from onlinecde import SeriesBatch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_shapes(scheme, counts, dtype):
    path = build(scheme, random_batch([5, 1, 3], 2, 0, dtype=dtype), counts)
    channels = 5 if counts else 3
    pieces = 8 if scheme == "rectilinear" else 4
    assert path.scheme == scheme
    assert path.channels == channels
    assert path.pieces == pieces
    assert path.pieces_per_stream.tolist() == [pieces, 0, pieces // 2]
    assert path.knots.tolist() == list(range(pieces + 1))
    assert path.smooth == (scheme in ("hermite", "natural_cubic"))
    each = torch.tensor([[0.5, 1.25], [0.0, 3.0], [2.0, 9.0]])
    for ask in (path.evaluate, path.derivative):
        assert ask(0.5).shape == ask(torch.tensor(0.5)).shape == (3, channels)
        assert ask(1).dtype == ask(each).dtype == dtype
        several = ask(torch.tensor([0.0, 0.5, 1.75]))
        assert several.shape == (3, 3, channels)
        same_bits(ask(0.5), several[:, 1])
        same_bits(ask([0.0, 0.5, 1.75]), several)
        answers = ask(each)
        assert answers.shape == (3, 2, channels)
        for stream in range(3):
            same_bits(answers[stream], ask(each[stream])[stream])
        assert ask(torch.zeros(0)).shape == (3, 0, channels)
    assert path.s_of_time(path.times[:, :1]).shape == (3, 1)
    assert path.time_of_s(0.5).shape == path.s_of_time(1e9).shape == (3, 1)
    assert path.time_of_s(torch.zeros(4)).shape == path.s_of_time([1e9] * 4).shape == (3, 4)
    assert path.time_of_s(each).dtype == torch.float64


@pytest.mark.parametrize("scheme", SCHEMES)
@given(batch=batches(), counts=st.booleans())
def test_pieces_are_the_path(scheme, batch, counts):
    path = build(scheme, batch, counts)
    for index in range(path.pieces):
        piece = path.piece(index)
        assert piece.coefficients.shape[::2] == path.rows[:, 0, piece.channels].shape
        still = torch.ones(path.channels, dtype=torch.bool)
        still[piece.channels] = False
        for u in (0.0, 0.25, 0.75):
            x, slope = path.evaluate(index + u), path.derivative(index + u)
            torch.testing.assert_close(piece.value(u), x[:, piece.channels], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(
                piece.derivative(u), slope[:, piece.channels], rtol=1e-12, atol=1e-12
            )
            assert (slope[:, still] == 0).all()
            same_bits(x[:, still], path.evaluate(index + 0.5)[:, still])
    if scheme != "rectilinear":
        together = path.coefficients()
        assert together.shape == (len(batch), path.pieces, 4 if path.smooth else 2, path.channels)
        for index in range(path.pieces):
            same_bits(together[:, index], path.piece(index).coefficients)


@given(batch=batches(), counts=st.booleans())
def test_legs_are_the_pieces(batch, counts):
    path = build("rectilinear", batch, counts)
    value_legs, seen = path.rows[:, :, 1:].diff(dim=1), batch.observed[:, 1:]
    moved = torch.cat([seen, seen], 2) if counts else seen
    for row in range(batch.times.shape[1] - 1):
        same_bits(path.time_legs[:, row], path.piece(2 * row).coefficients[:, 1, 0])
        same_bits(value_legs[:, row], path.piece(2 * row + 1).coefficients[:, 1])
    # Only what was observed moves, and a count moves whenever its channel was observed.
    assert (value_legs[~moved] == 0).all()
    assert torch.equal(path.observed, batch.observed)
    if counts:
        assert torch.equal(value_legs[:, :, batch.values.shape[2] :] == 1, seen)


@pytest.mark.parametrize("scheme", SCHEMES)
@given(batch=batches(min_rows=2), counts=st.booleans())
def test_the_derivative_is_that_of_the_values(scheme, batch, counts):
    """Central differences are exact to order h^2 for a cubic, and exact for a line."""
    path = build(scheme, batch, counts)
    s, h = inside_pieces(path), 1e-5
    difference = (path.evaluate(s + h) - path.evaluate(s - h)) / (2 * h)
    size = float(path.rows.abs().max()) + 1
    torch.testing.assert_close(path.derivative(s), difference, rtol=0, atol=1e-8 * size)


@pytest.mark.parametrize("scheme", SCHEMES)
@given(batch=batches())
def test_paths_are_continuous_and_the_cubics_smooth(scheme, batch):
    path = build(scheme, batch, True)
    if path.pieces < 2:
        return
    inner = path.knots[1:-1]
    before = inner - 1e-9
    size = float(path.rows.abs().max()) + 1
    torch.testing.assert_close(
        path.evaluate(inner), path.evaluate(before), rtol=0, atol=1e-7 * size
    )
    if path.smooth:
        going = (inner < path.pieces_per_stream[:, None])[:, :, None]
        torch.testing.assert_close(
            path.derivative(inner) * going,
            path.derivative(before) * going,
            rtol=0,
            atol=1e-6 * size,
        )


@pytest.mark.parametrize("scheme", SCHEMES)
@given(batch=batches(), share=st.floats(0, 1))
def test_s_and_time_invert_each_other(scheme, batch, share):
    path = build(scheme, batch)
    first, last = batch.times[:, :1], batch.times[:, -1:]
    clock = torch.cat([batch.times, first + share * (last - first)], 1)
    s = path.s_of_time(clock)
    torch.testing.assert_close(path.time_of_s(s), clock, rtol=1e-12, atol=1e-12)
    # A row's time is the knot at which the row is taken in, to the last bit.
    rows = torch.minimum(torch.arange(batch.times.shape[1]), batch.rows[:, None] - 1)
    assert torch.equal(s[:, :-1], (path.pieces_per_row * rows).double())
    # Where time passes, s comes back too; on a value leg time stands, and the leg's end comes back.
    u = torch.tensor([0.0, 0.125, 0.5, 0.875], dtype=torch.float64)
    for row in range(batch.times.shape[1] - 1):
        start = path.pieces_per_row * row
        back = path.s_of_time(path.time_of_s(start + u))
        ends = path.pieces_per_stream[:, None]
        torch.testing.assert_close(back, torch.minimum(start + u, ends), rtol=0, atol=1e-9)
        if scheme == "rectilinear":
            back = path.s_of_time(path.time_of_s(start + 1 + u))
            assert torch.equal(back, torch.minimum(torch.tensor(start + 2.0), ends).expand(-1, 4))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(batch=batches())
def test_after_its_last_row_a_path_stays_at_its_end(scheme, batch):
    path = build(scheme, batch)
    later = batch.times[:, -1:] + torch.tensor([[1.0, torch.inf]])
    ends = path.pieces_per_stream[:, None].double()
    assert torch.equal(path.s_of_time(later), ends.expand(-1, 2))
    for beyond in (ends, ends + 3.5, torch.full_like(ends, torch.inf)):
        same_bits(path.time_of_s(beyond), batch.times[:, -1:])
        same_bits(path.evaluate(beyond), path.evaluate(ends))
        assert (path.derivative(beyond) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_stream_of_one_row_stands_still(scheme, counts, dtype):
    nan = float("nan")
    batch = SeriesBatch.from_arrays([[3.0]], [torch.tensor([[7.0, nan]], dtype=dtype)])
    path = build(scheme, batch, counts)
    row = [3.0, 7.0, 0.0, *([1.0, 0.0] if counts else [])]
    assert path.pieces == 0
    assert path.knots.tolist() == [0.0]
    for s in (0.0, 0.5, 4.0):
        assert path.evaluate(s).tolist() == [row]
        assert path.derivative(s).tolist() == [[0.0] * len(row)]
    assert path.evaluate(torch.tensor([0.0, 1.0])).tolist() == [[row, row]]
    assert path.s_of_time(torch.tensor([3.0, 8.0])).tolist() == [[0.0, 0.0]]
    assert path.time_of_s(2.0).tolist() == [[3.0]]


def test_time_legs_of_unix_seconds_keep_their_seconds_in_float32():
    values = torch.zeros(3, 1)
    times = [1.7e9, 1.7e9 + 1, 1.7e9 + 3]
    path = build("rectilinear", SeriesBatch.from_arrays([times], [values]))
    assert path.time_legs.tolist() == [[1.0, 2.0]]
    assert [path.piece(i).coefficients[0, 1, 0].item() for i in (0, 2)] == [1.0, 2.0]
    assert path.derivative(torch.tensor([0.0, 2.0]))[0, :, 0].tolist() == [1.0, 2.0]
    assert path.time_of_s(2.0).item() == 1.7e9 + 1
    assert path.s_of_time(1.7e9 + 2).item() == 2.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("scheme", ["linear", "rectilinear"])
def test_s_is_exact_whatever_the_paths_own_precision(scheme, dtype):
    """Between the last rows of a long stream s has as much left for where it stands as at its start."""
    rows = 5_000
    times = torch.arange(float(rows), dtype=torch.float64)[None]
    path = build(scheme, SeriesBatch.from_padded(times, torch.zeros(1, rows, 1)).to(dtype=dtype))
    clock = torch.tensor([[0.001, 4_000.001, rows - 2 + 0.001]], dtype=torch.float64)
    torch.testing.assert_close(path.time_of_s(path.s_of_time(clock)), clock, rtol=0, atol=1e-9)
    assert path.knots.tolist() == list(range(path.pieces + 1))
    last = torch.tensor([path.pieces - 1.0], dtype=torch.float64)
    assert torch.equal(path.evaluate(last)[0], path.evaluate(path.knots)[0, -2:-1])
    assert path.evaluate(last).dtype == dtype
