"""Plain torch over the columns that move, for an `MLPField` along a rectilinear path; gradients written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onlinecde.solvers.backends.base import Backend, Gradients, Needs, Problem, Solved
from onlinecde.solvers.backends.sparse_columns import (
    Collector,
    SparseColumns,
    Stage,
    sparse_weights,
    unshare,
)
from onlinecde.solvers.fields import is_plain
from onlinecde.solvers.runge_kutta import Tableau, advance, fixed_steps, stages
from onlinecde.solvers.segments import drive_at

Step = tuple[float | Tensor, float | Tensor, list[Stage]]
"""Start u and length h of a step, and its stages"""


class TorchSparse(Backend):
    """Computes the columns of the channels that moved, without autograd."""

    name = "torch"

    def unsupported(self, problem: Problem) -> str | None:
        if problem.gradient != "exact" or torch.compiler.is_compiling():
            return "autograd records the solve"
        if problem.segments.observed is None:
            return "it is not known which channels move"
        return None if is_plain(problem.field) else "the field has to be called"

    def weights(self, problem: Problem) -> tuple[Tensor, ...]:
        field: Any = problem.field
        return sparse_weights(field, problem.segments)

    def forward(self, problem: Problem, weights: tuple[Tensor, ...]) -> Solved:
        field: Any = problem.field
        columns, segments = SparseColumns(field, problem.segments), problem.segments
        z, knots = problem.z0, [problem.z0]
        for segment in range(segments.count):
            n = segments.active_on(segment)
            moved = _take_segment(problem, columns, weights, segment, z[:n])
            z = moved if n == z.shape[0] else torch.cat([moved, z[n:]])
            knots.append(z)
        return Solved(torch.stack(knots), tape=columns)

    def backward(
        self,
        problem: Problem,
        solved: Solved,
        weights: tuple[Tensor, ...],
        g: Tensor,
        needs: Needs,
    ) -> Gradients:
        sweep = _Sweep(problem, solved, weights, needs)
        upstream, g_z = g, g[-1].clone()
        for segment in range(problem.segments.count - 1, -1, -1):
            g_z = sweep.back_over(segment, g_z) + upstream[segment]
        return Gradients(
            g_z, sweep.g_time, sweep.g_slopes, sweep.g_drive, tuple(sweep.collector.sums)
        )


class _Sweep:
    """The way back over the segments, and the gradients it adds up."""

    def __init__(
        self, problem: Problem, solved: Solved, weights: tuple[Tensor, ...], needs: Needs
    ) -> None:
        self.problem, self.z, self.weights = problem, solved.z, weights
        self.columns: SparseColumns = solved.tape
        self.collector = Collector(weights)
        self.g_time, self.g_slopes, self.g_drive = problem.path_gradients(needs)

    def back_over(self, segment: int, g: Tensor) -> Tensor:
        """The gradient of z (stream, hidden) at a segment's start from that at its end."""
        segments = self.problem.segments
        n, timed = segments.active_on(segment), segments.is_time_leg(segment)
        g_increments = self.g_time if timed else self.g_slopes
        shares = self.columns.shares(segment, segments.increments(segment)[:, 0])
        steps: list[Step] = []
        _take_segment(self.problem, self.columns, self.weights, segment, self.z[segment, :n], steps)
        g_shares = torch.zeros_like(shares) if g_increments is not None else None
        g_seen = self.g_drive[segment : segment + 2, :n] if self.g_drive is not None else None
        g_z = g[:n]
        for step in reversed(steps):
            g_z = self._back_over_step(segment, step, shares, g_z, g_shares, g_seen)
        self.collector.flush()
        if g_increments is not None and g_shares is not None:
            if timed:
                g_increments[segments.leg(segment), :n] += g_shares[:, 0]
            else:
                leg = self.columns.legs[segments.leg(segment)]
                part = unshare(g_shares, n, self.columns.values, leg)
                g_increments[segments.leg(segment), :n, 0] += part
        return torch.cat([g_z, g[n:]]) if n < g.shape[0] else g_z

    def _back_over_step(
        self,
        segment: int,
        step: Step,
        shares: Tensor,
        g_z: Tensor,
        g_shares: Tensor | None,
        g_seen: Tensor | None,
    ) -> Tensor:
        """The gradient of z at a step's start from that at its end; those of shares and drive are added to."""
        (u, h, stages), table = step, self.problem.table
        g_ys: list[Tensor | None] = [None] * table.stages
        for s in range(table.stages - 1, -1, -1):
            g_k = _gradient_of_stage(table, s, h, g_z, g_ys)
            if g_k is None:
                continue
            g_y, g_first, part = self.columns.pull_back(
                self.weights, segment, stages[s], shares, g_k, self.collector, g_shares is not None
            )
            g_ys[s] = g_y
            if g_shares is not None and part is not None:
                g_shares += part
            if g_seen is not None:
                at = u + table.c[s] * h
                g_seen[0] += (1 - at) * g_first
                g_seen[1] += at * g_first
        return g_z + sum(part for part in g_ys if part is not None)


def _take_segment(
    problem: Problem,
    columns: SparseColumns,
    weights: tuple[Tensor, ...],
    segment: int,
    z: Tensor,
    steps: list[Step] | None = None,
) -> Tensor:
    """z (active, hidden) at the end of a segment; its steps are put into `steps`, if given."""
    segments, table = problem.segments, problem.table
    shares = columns.shares(segment, segments.increments(segment)[:, 0])
    drive = segments.seen(segment)
    kept: list[Stage] = []

    def rate(y: Tensor, u: float | Tensor) -> Tensor:
        k, stage = columns.evaluate(weights, segment, y, shares, drive_at(drive, u))
        kept.append(stage)
        return k

    for u, h in fixed_steps(segments, segment, z):
        z = advance(z, table.b, stages(table, rate, z, u, h), h)
        if steps is not None:
            steps.append((u, h, [*kept]))
        kept.clear()
    return z


def _gradient_of_stage(
    table: Tableau, s: int, h: float | Tensor, g: Tensor, g_ys: list[Tensor | None]
) -> Tensor | None:
    """The gradient of k_s: what it adds to the step's end and to the later stages' inputs."""
    total = (table.b[s] * h) * g if table.b[s] else None
    for later in range(s + 1, table.stages):
        weight, g_y = table.a[later][s], g_ys[later]
        if weight and g_y is not None:
            start = torch.zeros_like(g_y) if total is None else total
            total = advance(start, (weight,), [g_y], h)
    return total
