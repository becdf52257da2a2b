"""The legs of one observation in torch: the reference, and what is differentiated or exported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from onlinecde.solvers.segments import (
    PathSegments,
    one_segment,
    row_segments,
    steps_for,
    time_segment,
)
from onlinecde.solvers.solve import solve_problem

if TYPE_CHECKING:
    from onlinecde.models.neural_cde import NeuralCDE


def row_legs(
    model: NeuralCDE,
    z: Tensor,
    since: Tensor,
    clock: Tensor,
    old: Tensor,
    new: Tensor,
    observed: Tensor,
) -> tuple[Tensor, Tensor]:
    """A time leg and a value leg from rows `old` to `new` (stream, path channel): z after each."""
    knots = _run(model, segments_of_row(model, z, since, clock, old, new, observed), z, clock)
    return knots[1], knots[2]


def segments_of_row(
    model: NeuralCDE,
    z: Tensor,
    since: Tensor,
    clock: Tensor,
    old: Tensor,
    new: Tensor,
    observed: Tensor,
) -> PathSegments:
    """The two legs that lead from row to row in all streams."""
    time = _scaled_gap(model, z, since, clock)
    steps = _steps(model, since, clock)
    return row_segments(old, new, time, observed, counts=model.counts, **steps)


def time_leg(
    model: NeuralCDE,
    z: Tensor,
    since: Tensor,
    clock: Tensor,
    old: Tensor | None,
    new: Tensor | None,
) -> Tensor:
    """A time leg alone: z at `clock` if nothing is observed until then.

    `old` and `new` (stream, path channel), X at both ends, are needed by a field that sees it.
    """
    time = _scaled_gap(model, z, since, clock)
    steps = _steps(model, since, clock)
    leg = time_segment(time, model.encoding.path_channels, old, new, counts=model.counts, **steps)
    return _run(model, leg, z, clock)[1]


def piece(
    model: NeuralCDE, z: Tensor, clock: Tensor, old: Tensor, new: Tensor, slope: Tensor | None
) -> Tensor:
    """One piece of a linear (slope None) or Hermite path from row to row: z after it."""
    rise = new - old
    if slope is None:
        slopes = rise[:, None]
    else:
        left = torch.where(slope.isnan(), rise, slope)
        bend = rise - left
        slopes = torch.stack([left, 4 * bend, -3 * bend], 1)
    return _run(model, one_segment(old, new, slopes, steps=model.solver.steps), z, clock)[1]


def _scaled_gap(model: NeuralCDE, z: Tensor, since: Tensor, clock: Tensor) -> Tensor:
    encoding = model.encoding
    return (encoding.scale_time(clock) - encoding.scale_time(since)).to(z.dtype)


def _steps(model: NeuralCDE, since: Tensor, clock: Tensor) -> dict[str, Any]:
    """The steps that a time leg of each stream takes."""
    max_step, time_steps = model.solver.max_step, None
    if max_step is not None:
        time_steps = steps_for(clock - since, max_step, range(len(clock)))[None]
    return {"steps": model.solver.steps, "max_step": max_step, "time_steps": time_steps}


def _run(model: NeuralCDE, segments: PathSegments, z: Tensor, clock: Tensor) -> Tensor:
    def where(place: int, knot: float) -> str:
        return f"stream {place} at time {float(clock[place]):g}"

    return solve_problem(model.solver.problem(segments, model.vector_field, z, where)).z
