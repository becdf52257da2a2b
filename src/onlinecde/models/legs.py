"""The legs of one observation in torch: the reference, and what is differentiated or exported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from onlinecde.solvers.chain import Chain, steps_for

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
    knots = _run(model, row_chain(model, z, since, clock, old, new, observed), z, clock)
    return knots[1], knots[2]


def row_chain(
    model: NeuralCDE,
    z: Tensor,
    since: Tensor,
    clock: Tensor,
    old: Tensor,
    new: Tensor,
    observed: Tensor,
) -> Chain:
    """The two legs that lead from row to row, one chain for all streams."""
    encoding = model.encoding
    time = (encoding.scale_time(clock) - encoding.scale_time(since)).to(z.dtype)
    drive, field = None, model.vector_field
    if field.sees_path:
        between = torch.cat([new[:, :1], old[:, 1:]], 1)
        drive = field.drive(torch.stack([old, between, new]))
    return _chain(
        model,
        z,
        rectilinear=True,
        pieces=2,
        time=time[None],
        slopes=(new - old)[None, :, 1:],
        observed=observed[None],
        time_steps=_time_steps(model, since, clock),
        drive=drive,
    )


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
    encoding = model.encoding
    time = (encoding.scale_time(clock) - encoding.scale_time(since)).to(z.dtype)
    drive, field = None, model.vector_field
    if field.sees_path:
        assert old is not None
        assert new is not None
        drive = field.drive(torch.stack([old, new]))
    still = z.new_zeros(1, 1, model.encoding.path_channels - 1).expand(1, z.shape[0], -1)
    chain = _chain(
        model,
        z,
        rectilinear=True,
        pieces=1,
        time=time[None],
        slopes=still,
        observed=None,
        time_steps=_time_steps(model, since, clock),
        drive=drive,
    )
    return _run(model, chain, z, clock)[1]


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
    drive, field = None, model.vector_field
    if field.sees_path:
        if slope is None:
            drive = field.drive(torch.stack([old, new]))
        else:
            cubic = torch.stack([old, slopes[:, 0], slopes[:, 1] / 2, slopes[:, 2] / 3], 1)
            drive = field.drive(cubic)[None]
    chain = _chain(
        model,
        z,
        rectilinear=False,
        pieces=1,
        time=None,
        slopes=slopes[None],
        observed=None,
        time_steps=None,
        drive=drive,
    )
    return _run(model, chain, z, clock)[1]


def _time_steps(model: NeuralCDE, since: Tensor, clock: Tensor) -> Tensor | None:
    if model.solver.max_step is None:
        return None
    return steps_for(clock - since, model.solver.max_step, range(len(clock)))[None]


def _chain(model: NeuralCDE, z: Tensor, pieces: int, **parts: Any) -> Chain:
    many = z.shape[0]
    return Chain(
        channels=model.encoding.path_channels,
        order=torch.arange(many, device=z.device),
        lengths=torch.full((many,), pieces, device=z.device),
        active=[many] * pieces,
        counts=model.counts,
        steps=model.solver.steps,
        max_step=model.solver.max_step,
        **parts,
    )


def _run(model: NeuralCDE, chain: Chain, z: Tensor, clock: Tensor) -> Tensor:
    def where(place: int, s: float) -> str:
        return f"stream {place} at time {float(clock[place]):g}"

    return model.solver.run(chain, model.vector_field, z, where).z
