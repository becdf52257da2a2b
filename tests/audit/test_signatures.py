"""Signatures against iterated integrals, known values and their algebra."""

import itertools
import math

import numpy as np
import pytest
import torch

from onlinecde import controls
from onlinecde.audit import path_signature, signature, trial_batch


def iterated_integrals(curve: np.ndarray, slope: np.ndarray, h: float, word: tuple[int, ...]):
    """The iterated integral of a word by quadrature of each nested integral; no Chen in it."""
    inner = np.ones(len(curve))
    for letter in word:
        integrand = inner * slope[:, letter]
        steps = h * (integrand[1:] + integrand[:-1]) / 2
        inner = np.concatenate([[0.0], steps.cumsum()])
    return inner[-1]


def _random_points(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a_smooth_curve_has_the_iterated_integrals_of_its_definition():
    fine = 40_000
    u = np.linspace(0, 1, fine + 1)
    curve = np.stack([u, np.sin(3 * u), u**2 - u], 1)
    slope = np.stack([np.ones_like(u), 3 * np.cos(3 * u), 2 * u - 1], 1)
    levels = signature(torch.from_numpy(curve[::20])[None], depth=3)
    for depth, level in enumerate(levels, 1):
        words = itertools.product(range(3), repeat=depth)
        expected = [iterated_integrals(curve, slope, 1 / fine, word) for word in words]
        assert level.shape == (1, 3**depth)
        np.testing.assert_allclose(level[0].numpy(), expected, atol=2e-6)


def test_the_corner_has_its_known_area():
    right_then_up = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]], dtype=torch.float64)
    _, level = signature(right_then_up, depth=2)
    assert level[0].tolist() == [0.5, 1.0, 0.0, 0.5]


def test_a_line_has_powers_over_factorials():
    step = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
    levels = signature(torch.stack([torch.zeros_like(step), step])[None], depth=4)
    power = torch.ones(1, dtype=torch.float64)
    for k, level in enumerate(levels, 1):
        power = torch.outer(power, step).flatten()
        torch.testing.assert_close(level[0], power / math.factorial(k), rtol=1e-14, atol=1e-14)


def test_shuffle_product_holds():
    points = _random_points(4, 9, 3).cumsum(1)
    first, second, third = signature(points, depth=3)
    second, third = second.view(4, 3, 3), third.view(4, 3, 3, 3)
    for i, j, k in itertools.product(range(3), repeat=3):
        product = first[:, i] * second[:, j, k]
        shuffled = third[:, i, j, k] + third[:, j, i, k] + third[:, j, k, i]
        torch.testing.assert_close(product, shuffled, rtol=1e-10, atol=1e-10)


def test_going_back_undoes_the_way_there():
    points = _random_points(3, 6, 2)
    there_and_back = torch.cat([points, points.flip(1)], 1)
    assert all(level.abs().max() < 1e-12 for level in signature(there_and_back, depth=4))


@pytest.mark.parametrize("build", [controls.linear, controls.rectilinear])
def test_a_change_of_speed_along_straight_pieces_changes_nothing(build):
    path = build(trial_batch(missing=0.3), counts=True)
    end = float(path.knots[-1])
    s = torch.linspace(0, 1, 400, dtype=torch.float64)
    slow_start = torch.cat([path.knots, end * s**3]).sort().values
    rushed = torch.cat([path.knots, end * (1 - (1 - s) ** 2)]).sort().values
    for a, b in zip(
        signature(path.evaluate(slow_start), 4), signature(path.evaluate(rushed), 4), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("build", [controls.natural_cubic, controls.hermite])
def test_a_change_of_speed_along_curves_changes_nothing_in_the_limit(build):
    """Reparameterisation invariance: what is left shrinks with the spacing, fast."""
    path = build(trial_batch(rows=4))

    class Rushed:
        """The same curve, walked at another speed along each piece."""

        knots = path.knots

        def evaluate(self, s):
            piece = s.floor().clamp(max=path.pieces - 1)
            u = s - piece
            return path.evaluate(piece + 0.5 * u * (1 + u))

    exact = path_signature(path, 6, depth=3, points_per_piece=32)
    errors = []
    for points in (2, 4, 8):
        rushed = path_signature(Rushed(), 6, depth=3, points_per_piece=points)  # pyright: ignore[reportArgumentType]
        errors.append(max(float((a - b).abs().max()) for a, b in zip(exact, rushed, strict=True)))
    assert errors[0] < 1e-3
    assert errors[1] < errors[0] / 30
    assert errors[2] < errors[1] / 30


def test_standing_still_and_padding_add_nothing():
    batch = trial_batch(missing=0.3)
    short = batch.first_rows(torch.tensor([9, 4, 4, 4, 4, 4]))
    alone = path_signature(controls.hermite(short[1]), 1)
    among = path_signature(controls.hermite(short), 6)
    for a, b in zip(alone, among, strict=True):
        torch.testing.assert_close(a[0], b[1], rtol=1e-12, atol=1e-12)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"give \(stream, point, channel\)"):
        signature(torch.zeros(3, 2), 2)
    with pytest.raises(ValueError, match="at least 1"):
        signature(torch.zeros(1, 3, 2), 0)
