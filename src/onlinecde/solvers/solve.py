"""`solve`: along a control path, from z at its start to z wherever it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from onlinecde.controls import Path, RectilinearPath
from onlinecde.controls.path import query_times, rows_at
from onlinecde.solvers.chain import Chain, chain, steps_for
from onlinecde.solvers.counting import note_evaluations
from onlinecde.solvers.fields import VectorField, as_field
from onlinecde.solvers.solver import (
    Backend,
    Gradient,
    Precision,
    Solution,
    Solver,
    StepControl,
)

Outputs = Literal["rows", "end", "knots"]


def solve(
    path: Path,
    field: VectorField | Callable[[Tensor], Tensor],
    z0: Tensor,
    method: str = "rk4",
    *,
    steps: int = 1,
    max_step: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    step_control: StepControl = "stream",
    max_steps: int = 10_000,
    outputs: Outputs = "rows",
    at: Any = None,
    gradient: Gradient = "exact",
    backend: Backend = "auto",
    precision: Precision = "highest",
) -> Solution:
    """Solve `dz = f(z) dX` from z0 (stream, hidden) along a path.

    Fixed steps: `steps` on each piece, or on time legs as many as keep them within `max_step`
    (in the units of the series' times). With `rtol` and `atol`, steps are chosen to meet them,
    by each stream for itself, or with `step_control="batch"` by all together. Knots are step
    boundaries, except that adaptive steps pass the knots of a smooth path when only the end is
    asked for.

    `at`: query times, (query,) or (stream, query), from each stream's first row on. Between rows
    of a rectilinear path, and after its last one, time goes on and values stand still; on other
    paths z is read on the way to the next row.

    `gradient`: "exact" recomputes each piece on the way back from z at the knots; "backprop"
    records everything (the reference); "adjoint" solves the adjoint equation.

    `precision` is that of products in the GPU kernels: "highest" is float32's, "high" takes
    half-precision operands and adds up in float32.

    Raises:
        SolverError: a state is no longer finite, or `max_steps` did not suffice; it names the
            stream and the time.
    """
    solver = Solver(
        method,
        steps=steps,
        max_step=max_step,
        rtol=rtol,
        atol=atol,
        step_control=step_control,
        max_steps=max_steps,
        gradient=gradient,
        backend=backend,
        precision=precision,
    )
    return solve_with(solver, path, field, z0, outputs=outputs, at=at)


def solve_with(
    solver: Solver,
    path: Path,
    field: VectorField | Callable[[Tensor], Tensor],
    z0: Tensor,
    *,
    outputs: Outputs = "rows",
    at: Any = None,
) -> Solution:
    """`solve` with settings that were checked before."""
    if not isinstance(path, Path):
        raise TypeError(
            f"a {type(path).__name__} is no control path: build one of a SeriesBatch, as "
            "onlinecde.controls.rectilinear(batch) does."
        )
    if not isinstance(z0, Tensor):
        raise TypeError(f"z0 is a {type(z0).__name__}: give a tensor (stream, hidden).")
    if z0.ndim != 2 or z0.shape[0] != path.rows.shape[0]:
        raise ValueError(
            f"z0 has shape {tuple(z0.shape)}: give (stream, hidden) for {path.rows.shape[0]} streams."
        )
    if outputs not in ("rows", "end", "knots"):
        raise ValueError(f"outputs is {outputs!r}: choose 'rows', 'end' or 'knots'.")
    if z0.dtype != path.rows.dtype:
        raise ValueError(
            f"z0 is {z0.dtype} and the path {path.rows.dtype}: give both the same dtype."
        )
    field = as_field(field, z0.shape[1], path.channels)
    laid = chain(path, field, solver.steps, solver.max_step)

    def where(place: int, s: float) -> str:
        stream = int(laid.order[place])
        return f"stream {path.streams[stream]!r} at time {float(path.time_of_s(s)[stream, 0]):g}"

    # The adjoint starts anew from z at every knot, so it needs them all.
    across = path.smooth and outputs == "end" and at is None and solver.gradient != "adjoint"
    done = solver.run(laid, field, z0[laid.order], where, across)
    inverse = torch.argsort(laid.order)
    knots = done.z[:, inverse]
    if laid.pieces < path.pieces:
        still = knots[-1:].expand(path.pieces - laid.pieces, -1, -1)
        knots = torch.cat([knots, still])
    done = replace(
        done, nfe=done.nfe[inverse], steps=done.steps[inverse], rejected=done.rejected[inverse]
    )
    note_evaluations(done.nfe)
    if at is not None:
        return _at_times(solver, path, field, laid, knots, done, at)
    if outputs == "end":
        return replace(done, z=knots[-1])
    every = path.pieces_per_row if outputs == "rows" else 1
    return replace(done, z=knots[::every].transpose(0, 1))


def _at_times(
    solver: Solver,
    path: Path,
    field: VectorField,
    laid: Chain,
    knots: Tensor,
    done: Solution,
    at: Any,
) -> Solution:
    """From z at the row before each query time, go on along what of the path leads there."""
    clock = query_times(at, path.rows.shape[0], path.times.device)
    row = rows_at(path.times, path.lengths, clock, path.streams)
    stream = torch.arange(clock.shape[0], device=clock.device)[:, None].expand_as(row)
    start = knots[row * path.pieces_per_row, stream].flatten(0, 1)
    # The pieces to the queries are one more chain, of one piece, with a stream for each query.
    ahead = _query_chain(path, field, clock, row, stream, laid)

    def where(place: int, s: float) -> str:
        asked = divmod(place, clock.shape[1])
        return f"stream {path.streams[asked[0]]!r} at time {float(clock[asked]):g}"

    found = solver.run(ahead, field, start, where)
    note_evaluations(found.nfe)
    return replace(
        done,
        z=found.z[-1].unflatten(0, clock.shape),
        nfe=done.nfe + found.nfe.view(clock.shape).sum(1),
        steps=done.steps + found.steps.view(clock.shape).sum(1),
        rejected=done.rejected + found.rejected.view(clock.shape).sum(1),
    )


def _query_chain(
    path: Path, field: VectorField, clock: Tensor, row: Tensor, stream: Tensor, laid: Chain
) -> Chain:
    """One piece for each of (stream, query) in turn: from the row before it to the query time."""
    many = clock.numel()
    device = clock.device
    common = {
        "channels": path.channels,
        "order": torch.arange(many, device=device),
        "lengths": torch.ones(many, dtype=torch.int64, device=device),
        "active": [many],
        "counts": laid.counts,
        "max_step": laid.max_step,
        "steps": laid.steps,
    }
    if isinstance(path, RectilinearPath):
        began = path.time.gather(1, row)
        leg = (path.scale_time(clock) - began).flatten()
        time_steps = drive = None
        if laid.max_step is not None:
            gaps = clock - path.times.gather(1, row)
            time_steps = steps_for(gaps, laid.max_step, path.streams).view(1, -1)
        if field.sees_path:
            here = path.rows[stream, row].flatten(0, 1)
            there = torch.cat([path.scale_time(clock).flatten()[:, None].to(here), here[:, 1:]], 1)
            drive = field.drive(torch.stack([here, there]))
        still = path.rows.new_zeros(1, 1, path.channels - 1).expand(1, many, -1)
        return Chain(
            rectilinear=True,
            time=leg[None].to(path.rows.dtype),
            slopes=still,
            observed=None,
            time_steps=time_steps,
            drive=drive,
            **common,
        )
    piece = torch.minimum(row, (path.lengths - 2).clamp(min=0)[:, None])
    began = path.times.gather(1, row)
    gap = path.times.gather(1, torch.minimum(row + 1, path.lengths[:, None] - 1)) - began
    # How far on towards the next row the query is; from the last row on there is none.
    share = torch.where(gap > 0, (clock - began) / torch.where(gap > 0, gap, 1.0), 0.0)
    share = share.flatten()[:, None, None].to(path.rows.dtype)
    if path.pieces == 0:
        slopes, drive = path.rows.new_zeros(1, many, 1, path.channels), None
        if field.sees_path:
            drive = field.drive(path.rows[:, :1].expand(-1, clock.shape[1], -1).flatten(0, 1))
            drive = drive[None].expand(2, -1, -1)
    else:
        place = torch.argsort(laid.order)[stream]
        slopes = laid.slopes[piece, place].flatten(0, 1)
        # The part [0, share] of a piece is itself a piece: u = share * v.
        power = torch.arange(1, slopes.shape[1] + 1, device=device)[None, :, None]
        slopes = (slopes * share**power)[None]
        drive = laid.drive
        if drive is not None:
            if drive.ndim == 3:
                left, right = drive[piece, place], drive[piece + 1, place]
                left, right = left.flatten(0, 1), right.flatten(0, 1)
                drive = torch.stack([left, left + share[:, 0] * (right - left)])
            else:
                power = torch.arange(4, device=device)[None, :, None]
                drive = (drive[piece, place].flatten(0, 1) * share**power)[None]
    return Chain(
        rectilinear=False,
        time=None,
        slopes=slopes,
        observed=None,
        time_steps=None,
        drive=drive,
        **common,
    )
