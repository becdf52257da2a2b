"""A path as the solver takes it: tensors with the piece first, longest streams first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from onlinecde.controls import Path, PolynomialPath, RectilinearPath
from onlinecde.solvers.errors import SolverError
from onlinecde.solvers.fields import VectorField

MOST_STEPS = 1_000_000
"""Steps on one time leg; more are taken for times in other units than `max_step`."""


@dataclass(frozen=True, eq=False)
class Chain:
    """The pieces of all streams, u in [0, 1] on each; streams stand in order of falling length.

    A leg's channels: time alone on even pieces of a rectilinear chain, values and counts on odd
    ones; all channels on every piece of another chain.
    """

    rectilinear: bool
    channels: int
    order: Tensor
    """(stream,): which stream of the path stands at each place."""
    lengths: Tensor
    """(stream,): pieces of each stream, falling."""
    active: list[int]
    """How many streams still move on each piece."""
    time: Tensor | None
    """(leg, stream): increments of time legs; None unless rectilinear."""
    slopes: Tensor
    """dX/du: (leg, stream, channel - 1) increments of value legs; otherwise
    (piece, stream, degree, channel), the coefficients of its powers of u."""
    observed: Tensor | None
    """(leg, stream, value channel) bool, rectilinear: what moves on value legs."""
    counts: bool
    steps: int
    """Steps on every piece but time legs with their own number."""
    max_step: float | None
    """The longest step on a time leg, in the units of the clock; None where `steps` holds there too."""
    time_steps: Tensor | None
    """(leg, stream) int64 steps on time legs, or None where `steps` holds for time legs too."""
    drive: Tensor | None
    """What the field sees of the path: (knot, stream, drive) for straight pieces,
    (piece, stream, 4, drive) for cubic ones; None where it sees nothing."""

    @property
    def pieces(self) -> int:
        return len(self.active)

    def moved(self, piece: int) -> slice:
        """The channels that may move on a piece."""
        if not self.rectilinear:
            return slice(0, self.channels)
        return slice(0, 1) if piece % 2 == 0 else slice(1, self.channels)

    def slope(self, data: Tensor, u: float | Tensor) -> Tensor:
        """dX/du (stream, moved) at u of one piece, given that piece's `time` or `slopes`."""
        if self.rectilinear:
            return data[:, None] if data.ndim == 1 else data
        total = data[:, -1]
        for power in range(data.shape[1] - 2, -1, -1):
            total = total * u + data[:, power]
        return total


def chain(
    path: Path,
    field: VectorField | None,
    steps: int = 1,
    max_step: float | None = None,
) -> Chain:
    """Lay a path out for the solver, up to the end of its longest stream.

    Without a field there is no `drive`: who wants one finds it by `drive_of`.
    """
    path = _without_padding(path)
    ends = path.pieces_per_stream
    order = torch.argsort(ends, descending=True, stable=True)
    lengths = ends[order]
    piece = torch.arange(path.pieces, device=ends.device)
    active = (lengths[None, :] > piece[:, None]).sum(1).tolist()
    rows = path.rows[order] if not bool((ends == path.pieces).all()) else path.rows
    time = observed = time_steps = None
    counts = False
    if isinstance(path, RectilinearPath):
        time = path.time_legs[order].T
        slopes = rows[:, :, 1:].diff(dim=1).transpose(0, 1)
        observed = path.observed[order, 1:].transpose(0, 1)
        counts = path.counts
        if max_step is not None:
            time_steps = steps_for(path.times.diff(dim=1), max_step, path.streams)[order].T
    elif isinstance(path, PolynomialPath):
        if max_step is not None:
            raise ValueError(
                f"max_step is for the time legs of a rectilinear path, not for {path.scheme}: "
                "give steps."
            )
        if path.slopes is None:
            slopes = rows.diff(dim=1).transpose(0, 1)[:, :, None]
        else:
            coefficients = path.coefficients()[order].transpose(0, 1)
            slopes = coefficients[:, :, 1:] * _powers(coefficients)
    else:
        raise ValueError(
            f"paths of type {type(path).__name__} cannot be solved along: build one with "
            "onlinecde.controls."
        )
    rectilinear = time is not None
    drive = None
    if field is not None and field.sees_path:
        drive = drive_of(field, rows, slopes, rectilinear)
    return Chain(
        rectilinear=rectilinear,
        channels=path.channels,
        order=order,
        lengths=lengths,
        active=active,
        time=time,
        slopes=slopes,
        observed=observed,
        counts=counts,
        steps=steps,
        max_step=max_step,
        time_steps=time_steps,
        drive=drive,
    )


def drive_of(field: VectorField, rows: Tensor, slopes: Tensor, rectilinear: bool) -> Tensor:
    """What a field sees of a path through rows (stream, row, channel), as `Chain.drive`.

    `slopes` as in a `Chain`; those of a rectilinear path are not looked at.
    """
    if not rectilinear and slopes.shape[2] > 1:
        start = rows[:, :-1].transpose(0, 1)[:, :, None]
        return field.drive(torch.cat([start, slopes / _powers(slopes)], 2))
    knots = _rectilinear_knots(rows) if rectilinear else rows
    return field.drive(knots).transpose(0, 1)


def _powers(like: Tensor) -> Tensor:
    """(degree, 1): the powers of u that a cubic piece has beside the constant."""
    return torch.arange(1.0, 4.0, dtype=like.dtype, device=like.device)[:, None]


def _rectilinear_knots(rows: Tensor) -> Tensor:
    """X at the knots, (stream, knot, channel), of the rectilinear path through rows."""
    stay, come = rows[:, :-1, 1:], rows[:, 1:, :1]
    between = torch.cat([come, stay], 2)
    knots = torch.stack([rows[:, :-1], between], 2).flatten(1, 2)
    return torch.cat([knots, rows[:, -1:]], 1)


def _without_padding(path: Path) -> Path:
    """The path without rows that are padding in every stream."""
    most = int(path.lengths.max())
    if most == path.rows.shape[1]:
        return path
    by_row = ("rows", "times", "time", "observed", "slopes")
    held = {name: getattr(path, name, None) for name in by_row}
    cut = {name: tensor[:, :most] for name, tensor in held.items() if tensor is not None}
    return replace(path, **cut)  # pyright: ignore[reportArgumentType]


def steps_for(gaps: Tensor, max_step: float, streams: Sequence[Hashable]) -> Tensor:
    """How many steps a time leg of each gap (stream, ...) takes; it depends on the gap alone."""
    steps = (gaps / max_step - 1e-9).ceil().clamp(min=1)
    if steps.numel() and bool(steps.amax() > MOST_STEPS):
        worst = int(steps.argmax())
        stream = worst // (steps.numel() // len(steps))
        raise SolverError(
            f"stream {streams[stream]!r}: a gap of {float(gaps.flatten()[worst]):g} in steps of at "
            f"most {max_step:g} takes {float(steps.flatten()[worst]):.3g} of them, more than "
            f"{MOST_STEPS:,}: give a larger max_step, in the units of the series' times."
        )
    return steps.to(torch.int64)


def leg_steps(gaps: np.ndarray, max_step: float) -> np.ndarray | None:
    """`steps_for` the gaps (stream,) of single observations, int32; None where they are too many."""
    steps = np.ceil(gaps / max_step - 1e-9)
    return None if steps.max() > MOST_STEPS else np.maximum(steps, 1).astype(np.int32)
