"""Adaptive steps: each stream chooses its own, so its answer never depends on its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onlinecde.solvers.backends.base import Problem, Tolerance
from onlinecde.solvers.errors import SolverError, not_finite
from onlinecde.solvers.first_order import once_by_solve
from onlinecde.solvers.runge_kutta import Tableau, advance, combine, stages
from onlinecde.solvers.segments import drive_at, slope_at
from onlinecde.solvers.surroundings import check_recomputed

SMALLEST = 1e-12
"""A step shorter than this, as a share of a segment, will not come any nearer to the tolerance."""


@dataclass(frozen=True)
class Steps:
    """One round of accepted steps, one for each of some streams."""

    streams: Tensor
    """(taken,): places in the segments' order"""
    start: Tensor
    """(taken,) float64: the parameter s each step starts from"""
    length: Tensor
    """(taken,) float64"""
    segment: Tensor
    """(taken,): the segment it starts on"""
    lands: Tensor
    """(taken,): the knot it ends on, or -1"""


@dataclass(frozen=True)
class Walk:
    """What an adaptive solve did: its rounds of steps, z before each, and z at the knots."""

    rounds: list[Steps]
    before: list[Tensor]
    knots: Tensor
    nfe: Tensor
    accepted: Tensor
    rejected: Tensor


PathInputs = tuple[Tensor | None, Tensor, Tensor | None]
"""(time, slopes, drive) of some segments, perhaps with gradients"""


def rate_for(
    problem: Problem, data: PathInputs, steps: Steps, across: bool
) -> Callable[[Tensor, float | Tensor], Tensor]:
    """dz/ds for a round of steps, each on its own segment; `across`: stages may pass knots."""
    time, slopes, drive = data
    segments = problem.segments
    ends = segments.lengths[steps.streams]

    def rate(z: Tensor, s: float | Tensor) -> Tensor:
        assert isinstance(s, Tensor)
        segment = steps.segment
        if across:
            segment = torch.minimum(s[:, 0].floor().to(torch.int64), ends - 1)
        u = (s - segment[:, None]).to(z.dtype)
        seen = None
        if drive is not None:
            if not segments.cubic:
                ends_of = (drive[segment, steps.streams], drive[segment + 1, steps.streams])
                seen = torch.stack(ends_of)
            else:
                seen = drive[segment, steps.streams].transpose(0, 1)
        if time is None:
            dx = slope_at(slopes[segment, steps.streams], u)
        else:
            timed = torch.as_tensor(segments.is_time_leg(segment))[:, None]
            leg = segment // 2
            alone = torch.where(timed, time[leg, steps.streams, None], 0.0)
            values = torch.where(timed, 0.0, slopes[leg, steps.streams, 0])
            dx = torch.cat([alone, values], 1)
        return problem.field.contract(z, dx, slice(0, segments.channels), drive_at(seen, u))

    return rate


@torch.no_grad()
def walk(problem: Problem, tolerance: Tolerance) -> Walk:
    """Solve without gradients, choosing steps; every leg starts by trying the whole of it.

    A leg's steps depend on the leg and the state at its start alone, so feeding a series row by
    row takes the same steps. With `problem.across` steps pass the knots of a smooth path; z is then
    known at each stream's start and end only.
    """
    walker, segments = _Walker(problem, tolerance), problem.segments
    while (moving := (walker.s < segments.lengths).nonzero()[:, 0]).numel():
        walker.step(moving)
    # After its last knot a stream stands still.
    row = torch.arange(segments.count + 1, device=problem.z0.device)[:, None]
    last = torch.minimum(row, segments.lengths[None, :])
    knots = walker.knots.gather(0, last[:, :, None].expand_as(walker.knots))
    return Walk(walker.rounds, walker.before, knots, walker.nfe, walker.accepted, walker.rejected)


@dataclass(frozen=True)
class _Trial:
    """Steps that were tried, one for each of some streams; accepted where `ok`."""

    steps: Steps
    z: Tensor
    ahead: Tensor
    """z after the step"""
    last: Tensor
    """The last stage"""
    bound: Tensor
    """The knot that no step may pass"""
    full: Tensor
    """Whether the step goes as far as that"""
    ok: Tensor


class _Walker:
    """Where all streams stand, and the steps they took."""

    def __init__(self, problem: Problem, tolerance: Tolerance) -> None:
        z0, streams, device = problem.z0, problem.z0.shape[0], problem.z0.device
        self.problem, self.tolerance = problem, tolerance
        self.z = z0.clone()
        self.s = torch.zeros(streams, dtype=torch.float64, device=device)
        self.h = torch.ones_like(self.s)
        self.known = torch.zeros(streams, dtype=torch.bool, device=device)
        """Whether `first` is the first stage of the next step"""
        self.first = torch.zeros_like(self.z)
        self.nfe, self.accepted, self.rejected = (
            torch.zeros(streams, dtype=torch.int64, device=device) for _ in range(3)
        )
        self.knots = z0.new_empty(problem.segments.count + 1, *z0.shape)
        self.knots[:] = z0
        self.rounds: list[Steps] = []
        self.before: list[Tensor] = []

    def step(self, moving: Tensor) -> None:
        """Try one step of each moving stream, and take those that are within the tolerance."""
        trial = self._try(moving)
        taken = trial.ok.nonzero()[:, 0]
        if taken.numel():
            self._take(trial, taken)

    def _try(self, moving: Tensor) -> _Trial:
        problem, table = self.problem, self.problem.table
        assert table.error is not None
        start, z = self.s[moving], self.z[moving]
        segment = start.floor()
        # Steps shorter than a segment end on knots: within one a path has no kinks of any order.
        bound = segment + 1
        if problem.across:
            ends = problem.segments.lengths[moving].to(torch.float64)
            bound = torch.where(self.h[moving] > 1, ends, bound)
        length = torch.minimum(self.h[moving], bound - start)
        full = length >= bound - start
        place = segment.to(torch.int64)
        lands = torch.where(full, bound, -1.0).to(torch.int64)
        steps = Steps(moving, start, length, place, lands)
        rate = rate_for(problem, problem.path_inputs, steps, problem.across)
        fresh, k0 = ~self.known[moving], self.first[moving]
        if bool(fresh.any()):
            k0 = torch.where(fresh[:, None], rate(z, start[:, None]), k0)
        h = length[:, None].to(z.dtype)
        ks = stages(table, rate, z, start[:, None], h, k0)
        ahead = advance(z, table.b, ks, h)
        ratio = error_ratio(h * combine(table.error, ks), z, ahead, self.tolerance).mean(1)
        if self.tolerance.joint:
            ratio = ratio.mean().expand_as(ratio)
        ratio = ratio.sqrt()
        trial = _Trial(steps, z, ahead, ks[-1], bound, full, ratio <= 1)
        self.nfe[moving] += table.stages - 1 + fresh.to(torch.int64)
        self.accepted[moving] += trial.ok
        self.rejected[moving] += ~trial.ok
        self.first[moving], self.known[moving] = k0, True
        self._choose_next(trial, next_length(length, ratio, table))
        return trial

    def _choose_next(self, trial: _Trial, grown: Tensor) -> None:
        """Set the lengths of the next steps; raises SolverError where no step can be taken."""
        steps, full = trial.steps, trial.full
        # A step cut short by a knot says nothing against the longer one that was meant.
        longer = torch.maximum(grown, self.h[steps.streams]) if self.problem.across else 1.0
        grown = torch.where(trial.ok & full, longer, grown)
        self.h[steps.streams] = grown
        wild = ~trial.ahead.isfinite().all(1)
        stuck = (grown < SMALLEST) | (trial.ok & wild)
        ends = self.problem.segments.lengths[steps.streams]
        arrived = trial.ok & (steps.start + steps.length >= ends)
        tried = (self.accepted + self.rejected)[steps.streams]
        over = (tried >= self.tolerance.max_steps) & ~arrived
        if bool((stuck | over).any()):
            at = int((stuck | over).nonzero()[0])
            where = self.problem.where(int(steps.streams[at]), float(steps.start[at]))
            raise not_finite(where) if bool(wild[at]) else _no_step(where, self.tolerance)

    def _take(self, trial: _Trial, taken: Tensor) -> None:
        own, full = trial.steps, trial.full[taken]
        steps = Steps(
            own.streams[taken],
            own.start[taken],
            own.length[taken],
            own.segment[taken],
            own.lands[taken],
        )
        self.rounds.append(steps)
        self.before.append(trial.z[taken])
        who = steps.streams
        self.z[who] = trial.ahead[taken]
        self.s[who] = torch.where(full, trial.bound[taken], steps.start + steps.length)
        if self.problem.table.reuses_last:
            self.first[who] = trial.last[taken]
            self.known[who] = ~full | self.problem.across
        else:
            self.known[who] = False
        on = steps.lands >= 0
        self.knots[steps.lands[on], who[on]] = self.z[who[on]]


def error_ratio(error: Tensor, z: Tensor, ahead: Tensor, tolerance: Tolerance) -> Tensor:
    """The square of a step's error as a share of what is allowed, (stream, hidden)."""
    scale = tolerance.atol + tolerance.rtol * torch.maximum(z.abs(), ahead.abs())
    return (error / scale).square()


def next_length(length: Tensor, ratio: Tensor, table: Tableau) -> Tensor:
    """The length to try after a step whose error was `ratio` of what is allowed; no longer if it was refused."""
    power = -1.0 / (table.embedded_order + 1)
    factor = (0.9 * ratio.clamp(min=1e-10).pow(power)).clamp(0.2, 10.0).nan_to_num(0.2)
    return length * torch.where(ratio <= 1, factor, factor.clamp(max=1.0))


def _no_step(where: str, tolerance: Tolerance) -> SolverError:
    return SolverError(
        f"{where}: no step is within rtol {tolerance.rtol:g} and atol {tolerance.atol:g}, or "
        f"{tolerance.max_steps} steps were not enough: raise rtol and atol, raise max_steps, "
        "or scale the inputs down."
    )


def replay(problem: Problem, steps: Steps, z: Tensor, data: PathInputs) -> Tensor:
    """Take one round of steps again, so that autograd sees it: z (taken, hidden) -> after it."""
    rate, table = rate_for(problem, data, steps, problem.across), problem.table
    h = steps.length[:, None].to(z.dtype)
    return advance(z, table.b, stages(table, rate, z, steps.start[:, None], h), h)


def trajectory(problem: Problem, done: Walk) -> Tensor:
    """z at the knots (knot, stream, hidden) of a finished walk, with gradients."""
    z0, segments, data = problem.z0, problem.segments, problem.path_inputs
    if problem.gradient == "exact":
        return _Exact.apply(problem, done, z0, *data, *problem.field.parameters())  # pyright: ignore[reportReturnType]
    z, reached = z0, {}
    for steps in done.rounds:
        z = z.index_copy(0, steps.streams, replay(problem, steps, z[steps.streams], data))
        for knot in steps.lands.unique().tolist():
            if knot >= 0:
                on = steps.streams[steps.lands == knot]
                reached[knot] = reached.get(knot, z0).index_copy(0, on, z[on])
    knots = [z0]
    for knot in range(1, segments.count + 1):
        moving = (segments.lengths >= knot)[:, None]
        here = reached.get(knot, z0)
        knots.append(torch.where(moving, here, knots[-1]))
    return torch.stack(knots)


class _Exact(torch.autograd.Function):
    """Gradients through the steps taken, each recomputed from z before it."""

    @staticmethod
    def forward(
        ctx: Any,
        problem: Problem,
        done: Walk,
        z0: Tensor,
        time: Tensor | None,
        slopes: Tensor,
        drive: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        ctx.problem, ctx.done = problem, done
        return done.knots.clone()

    @staticmethod
    @once_by_solve
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        problem, done = ctx.problem, ctx.done
        sums = Sums(problem, ctx.needs_input_grad[3:6])
        out = grads[0].clone()
        # Knots after a stream's last one repeat it: their gradients belong to it.
        row = torch.arange(problem.segments.count + 1, device=out.device)[:, None]
        last = torch.minimum(row, problem.segments.lengths[None, :])
        out = torch.zeros_like(out).scatter_add(0, last[:, :, None].expand_as(out), out)
        g = torch.zeros_like(out[0])
        off = torch.zeros((), dtype=g.dtype, device=g.device)
        for steps, z in zip(reversed(done.rounds), reversed(done.before), strict=True):
            on = steps.lands >= 0
            who = steps.streams
            g[who[on]] += out[steps.lands[on], who[on]]
            z = z.detach().requires_grad_()
            with torch.enable_grad():
                end = replay(problem, steps, z, sums.data)
            if bool(on.any()):
                reached = done.knots[steps.lands[on], who[on]]
                off = off.maximum((end.detach()[on] - reached).abs().amax())
            g_z, *parts = torch.autograd.grad(end, [z, *sums.wanted], g[who], allow_unused=True)
            g[who] = g_z
            sums.add(parts)
        check_recomputed(off, done.knots)
        return (None, None, g + out[0], *sums.of_all())


class Sums:
    """Gradients of the path and of a field's parameters, added up part by part."""

    def __init__(self, problem: Problem, needs: Sequence[bool]) -> None:
        self.needs, self.weights = needs, [*problem.field.parameters()]
        time, slopes, drive = (
            None if tensor is None else tensor.detach().requires_grad_(bool(need))
            for tensor, need in zip(problem.path_inputs, needs, strict=True)
        )
        assert slopes is not None
        self.data: PathInputs = (time, slopes, drive)
        """The path's tensors, each with gradients where they are needed"""
        inputs = [tensor for tensor, need in zip(self.data, needs, strict=True) if need]
        own = [weight for weight in self.weights if weight.requires_grad]
        self.wanted: list[Tensor] = [tensor for tensor in inputs if tensor is not None] + own
        self.totals = [torch.zeros_like(tensor) for tensor in self.wanted]

    def add(self, parts: Sequence[Tensor | None]) -> None:
        """Take in gradients of `wanted`; None for those that were not used."""
        for total, part in zip(self.totals, parts, strict=True):
            if part is not None:
                total += part

    def of_all(self) -> list[Tensor | None]:
        """Gradients of time, slopes, drive and all parameters; None where they are not needed."""
        totals = iter(self.totals)
        wanted = [*self.needs, *(weight.requires_grad for weight in self.weights)]
        return [next(totals) if each else None for each in wanted]
