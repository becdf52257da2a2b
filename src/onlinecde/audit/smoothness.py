"""Smoothness of a path, found from one-sided limits of differences at its knots."""

import enum
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from onlinecde.audit.paths import PathBuilder, build_path, knots_per_stream
from onlinecde.series import SeriesBatch

_NODES = 5
_COARSE, _FINE = 1 / 16, 1 / 64
_TOLERANCE = 1e-5


class Smoothness(enum.Enum):
    """How often a path can be differentiated across its knots."""

    BROKEN = "broken"
    """The path itself jumps."""
    PIECEWISE = "piecewise"
    """The path is continuous, its slope jumps."""
    C1 = "C1"
    """The slope is continuous, the curvature jumps."""
    C2 = "C2"
    """The curvature is continuous too."""


@dataclass(frozen=True)
class PathSmoothness:
    """The smoothness a path was seen to have at its inner knots."""

    smoothness: Smoothness
    reason: str
    jumps: tuple[float, float, float]
    """The largest jump of X, dX/ds and d2X/ds2 at a knot, in units of the size of X and a piece."""
    derivative_error: float
    """How far, in the same units, `derivative` is from the right slope of `evaluate` at a knot."""


def path_smoothness(build: PathBuilder, batch: SeriesBatch) -> PathSmoothness:
    """Compare left and right limits of X and its first two derivatives at every inner knot.

    The limits come from `evaluate` alone: a polynomial through five points beside the knot,
    continued to it, in float64. Where this is done with points four times closer, a jump stays
    while the error of the method shrinks at least fourfold, which tells the two apart.
    """
    batch = batch.to(dtype=torch.float64)
    path = build_path(build, batch)
    knots = knots_per_stream(path, len(batch))
    ends = path.s_of_time(torch.stack([batch.times[:, 0], batch.times[:, -1]], 1))
    if path.evaluate(ends).dtype != torch.float64 or knots.dtype != torch.float64:
        raise ValueError(
            "the path of a float64 series is not float64, too coarse to measure its smoothness: "
            "keep the dtype of the batch in `knots` and `evaluate`."
        )
    inner = (knots[:, 1:-1] > ends[:, :1]) & (knots[:, 1:-1] < ends[:, 1:])
    if not bool(inner.any()):
        raise ValueError("no path has an inner knot: give series with at least 3 rows.")
    knot, width = knots[:, 1:-1], knots.diff(dim=1)
    left, right = width[:, :-1], width[:, 1:]
    size = (path.evaluate(knots) - path.evaluate(ends[:, :1])).abs().max().clamp(min=1e-300)

    def jumps(step: float) -> tuple[Tensor, Tensor]:
        """Relative jumps (3,) and right limits (3, stream, knot, channel) from so near."""
        before = _limits(path.evaluate, knot, -step * left)
        after = _limits(path.evaluate, knot, step * right)
        order = torch.arange(3, device=knot.device)[:, None, None]
        unit = torch.minimum(left, right) ** order / size
        apart = (after - before).abs().amax(3) * unit
        return torch.where(inner, apart, 0.0).amax((1, 2)), after

    (coarse, _), (fine, after) = jumps(_COARSE), jumps(_FINE)
    jumped = ((fine > _TOLERANCE) & (fine > coarse / 2)).tolist()
    slope_gap = (path.derivative(knot) - after[1]).abs().amax(2) * right / size
    error = float(torch.where(inner, slope_gap, 0.0).max())
    smoothness = _classify(jumped)
    return PathSmoothness(
        smoothness,
        _reason(smoothness, fine.tolist(), int(inner.sum()), error),
        _triple(fine),
        error,
    )


def _limits(evaluate: Callable[[Tensor], Tensor], knot: Tensor, step: Tensor) -> Tensor:
    """Limits of X, X', X'' (3, stream, knot, channel) at knots, from the side of `step`."""
    node = torch.arange(1, _NODES + 1, dtype=knot.dtype, device=knot.device)
    points = (knot[:, :, None] + step[:, :, None] * node).flatten(1)
    values = evaluate(points).unflatten(1, (knot.shape[1], _NODES))
    powers = node[:, None] ** torch.arange(_NODES, device=knot.device)
    taylor = torch.linalg.inv(powers)[:3]
    coefficients = torch.einsum("kn,bqnc->kbqc", taylor, values)
    factorial = torch.tensor([1.0, 1.0, 2.0], dtype=knot.dtype, device=knot.device)
    order = torch.arange(3, device=knot.device)[:, None, None]
    return coefficients * (factorial[:, None, None] / step**order)[..., None]


def _classify(jumped: list[bool]) -> Smoothness:
    order = [Smoothness.BROKEN, Smoothness.PIECEWISE, Smoothness.C1]
    return next((kind for kind, jump in zip(order, jumped, strict=True) if jump), Smoothness.C2)


def _reason(smoothness: Smoothness, jumps: list[float], knots: int, error: float) -> str:
    what = {
        Smoothness.BROKEN: f"X jumps at a knot, by {jumps[0]:.2g} of its size",
        Smoothness.PIECEWISE: f"the slope jumps at a knot, by {jumps[1]:.2g} of X's size a piece",
        Smoothness.C1: f"slopes meet (to {jumps[1]:.0e}), the curvature jumps by {jumps[2]:.2g}",
        Smoothness.C2: f"slopes (to {jumps[1]:.0e}) and curvatures (to {jumps[2]:.0e}) meet",
    }[smoothness]
    reason = f"{what}; {knots} knots looked at."
    if error > _TOLERANCE:
        reason += (
            f" `derivative` is not the right slope of `evaluate` at a knot: off by {error:.2g}."
        )
    return reason


def _triple(numbers: Tensor) -> tuple[float, float, float]:
    first, second, third = numbers.tolist()
    return first, second, third
