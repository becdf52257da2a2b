"""Gradients reach values and times through every control, missing values and padding or not."""

import pytest
import torch
from made_series import SCHEMES, build
from torch.autograd import gradcheck, gradgradcheck

from onlinecde import Encoding, SeriesBatch

# Two streams of 5 and 3 rows: leading, inner and trailing missing values, one channel unobserved.
OBSERVED = torch.tensor(
    [
        [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]],
        [[0, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]],
    ],
    dtype=torch.bool,
)
ROWS = torch.tensor([5, 3])


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def through(scheme, observed=OBSERVED, encoding=None):
    def function(times, values):
        values = torch.where(observed, values, torch.nan)
        batch = SeriesBatch.from_padded(times, values, ROWS)
        path = build(scheme, batch, True, encoding=encoding)
        s = torch.tensor([0.0, 0.3, 1.0, 1.6, 2.2, 3.5, 5.5, 9.0], dtype=torch.float64)
        parts = [path.evaluate(s), path.derivative(s)]
        parts += [path.piece(i).coefficients for i in range(path.pieces)]
        return tuple(parts)

    return function


@pytest.mark.parametrize("observed", [OBSERVED, torch.ones_like(OBSERVED)], ids=["gaps", "full"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_gradients_are_those_of_finite_differences(scheme, observed):
    times = (numbers(2, 5).abs() + 0.1).cumsum(1).requires_grad_()
    values = numbers(2, 5, 3).requires_grad_()
    assert gradcheck(through(scheme, observed), (times, values))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gradients_pass_through_an_encoding(scheme):
    times = (numbers(2, 5).abs() + 0.1).cumsum(1).requires_grad_()
    values = numbers(2, 5, 3).requires_grad_()
    encoding = Encoding(3, True, gain=0.5, clip=3.0, count_scale="log").double()
    with torch.no_grad():
        encoding.fit(SeriesBatch.from_padded(times, values, ROWS))
    assert gradcheck(through(scheme, encoding=encoding), (times, values))


def test_the_spline_has_second_derivatives():
    times = (numbers(2, 5).abs() + 0.1).cumsum(1)

    def energy(values):
        values = torch.where(OBSERVED[:, :, :2], values, torch.nan)
        batch = SeriesBatch.from_padded(times, values, ROWS)
        return build("natural_cubic", batch).coefficients().square().sum((0, 1, 3))

    assert gradgradcheck(energy, (numbers(2, 5, 2).requires_grad_(),))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_missing_values_and_padding_get_no_gradient(scheme):
    times = (numbers(2, 5).abs() + 0.1).cumsum(1).requires_grad_()
    values = torch.where(OBSERVED, numbers(2, 5, 3), torch.nan).requires_grad_()
    batch = SeriesBatch.from_padded(times, values, ROWS)
    path = build(scheme, batch, True)
    s = torch.linspace(0, path.pieces, 31, dtype=torch.float64)
    (path.evaluate(s).square().sum() + path.derivative(s).square().sum()).backward()
    assert values.grad is not None
    assert times.grad is not None
    assert (values.grad[~OBSERVED] == 0).all()
    assert (values.grad[OBSERVED] != 0).any()
    assert (times.grad[1, 3:] == 0).all()
    assert times.grad.isfinite().all()
    assert values.grad.isfinite().all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_path_can_be_followed_along_s(scheme):
    batch = SeriesBatch.from_padded(
        (numbers(2, 5).abs() + 0.1).cumsum(1),
        torch.where(OBSERVED, numbers(2, 5, 3), torch.nan),
        ROWS,
    )
    path = build(scheme, batch)
    s = torch.tensor([[0.3, 1.6, 3.2], [0.2, 1.1, 1.7]], dtype=torch.float64, requires_grad=True)
    for channel in range(path.channels):
        (slope,) = torch.autograd.grad(path.evaluate(s)[:, :, channel].sum(), s)
        torch.testing.assert_close(slope, path.derivative(s.detach())[:, :, channel])
