"""Where torchcde 0.2.5 is wrong: each test shows the fault, and that our path does not have it."""

import pytest
import torch
import torchcde
from made_series import SCHEMES, build, random_batch, same_bits

from onlinecde import SeriesBatch

NAN = float("nan")


def with_time(batch):
    return torch.cat([batch.times[:, :, None], batch.values], 2)


def test_leading_missing_values_are_filled_from_the_future_under_rectilinear():
    def series(future):
        values = torch.tensor([[NAN], [NAN], [future], [1.0]], dtype=torch.float64)
        return SeriesBatch.from_arrays([[0.0, 1.0, 2.0, 3.0]], [values])

    theirs = []
    for future in (5.0, -5.0):
        with pytest.warns(UserWarning, match="not causal"):
            coefficients = torchcde.linear_interpolation_coeffs(
                with_time(series(future)), rectilinear=0
            )
        theirs.append(torchcde.LinearInterpolation(coefficients).evaluate(torch.tensor(0.0)))
    assert theirs[0][0, 1] == 5.0
    assert theirs[1][0, 1] == -5.0

    past = torch.linspace(0, 3, 13)  # up to the row before the value, and the way to its time
    ours = [build("rectilinear", series(future)).evaluate(past) for future in (5.0, -5.0)]
    same_bits(ours[0], ours[1])
    assert (ours[0][:, :, 1] == 0).all()


def test_the_slope_at_a_knot_is_that_of_the_piece_before_it():
    batch = SeriesBatch.from_arrays([[0.0, 1.0, 2.0]], [[[0.0], [1.0], [5.0]]])
    theirs = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(with_time(batch)))
    ours = build("linear", batch)
    knot = torch.tensor(1.0)
    assert theirs.derivative(knot)[0, 1] == 1.0  # the piece that has ended
    assert ours.derivative(knot)[0, 1] == 4.0  # the piece a step from here goes along
    after = torch.tensor(1.0 + 1e-4)
    assert theirs.derivative(after)[0, 1] == ours.derivative(after)[0, 1] == 4.0


def test_a_solver_step_from_a_knot_goes_wrong_on_their_path_and_right_on_ours():
    """Euler with one step a piece is exact on a linear path, given the slopes of the right side."""
    batch = random_batch([6], 2, 3, "none")
    theirs = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(with_time(batch)))
    ours = build("linear", batch)
    end = with_time(batch)[:, -1]
    for path, exact in ((theirs, False), (ours, True)):
        x = with_time(batch)[:, 0]
        for row in range(5):
            x = x + path.derivative(torch.tensor(float(row), dtype=torch.float64))
        assert torch.allclose(x, end, rtol=1e-12, atol=1e-12) is exact


def test_the_right_slope_is_that_of_the_next_piece_at_every_knot():
    for scheme in SCHEMES:
        path = build(scheme, random_batch([7, 3], 2, 1), True)
        for knot in range(path.pieces):
            piece = path.piece(knot)
            slope = torch.zeros_like(path.rows[:, 0])
            slope[:, piece.channels] = piece.derivative(0.0)
            torch.testing.assert_close(path.derivative(knot), slope, rtol=1e-14, atol=1e-14)


def test_padding_bends_a_natural_cubic_and_goes_on_moving():
    short, long = random_batch([5], 2, 1, "none"), random_batch([9], 2, 2, "none")
    padded = torch.full((1, 9, 3), NAN, dtype=torch.float64)
    padded[:, :5] = with_time(short)
    alone = torchcde.CubicSpline(torchcde.natural_cubic_coeffs(with_time(short)))
    theirs = torchcde.CubicSpline(torchcde.natural_cubic_coeffs(padded))
    inside, behind = torch.tensor([0.5, 2.5, 3.5]).double(), torch.tensor([4.25, 5.5, 6.5]).double()
    assert (theirs.evaluate(inside) - alone.evaluate(inside)).abs().max() > 1e-3
    assert theirs.derivative(behind).abs().max() > 1e-3
    # The paper's way, reading the spline beyond its end, carries the last piece on.
    assert (alone.derivative(behind).abs() > 1e-3).all()

    both = SeriesBatch.from_arrays(
        [short.times[0], long.times[0]], [short.values[0], long.values[0]]
    )
    ours = build("natural_cubic", both)
    torch.testing.assert_close(
        ours.evaluate(inside)[:1], alone.evaluate(inside), rtol=1e-10, atol=1e-10
    )
    assert (ours.derivative(behind)[0] == 0).all()
    same_bits(ours.evaluate(behind)[0], with_time(short)[0, -1:].expand(3, -1))
