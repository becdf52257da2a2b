"""Adaptive steps: each stream chooses its own, so its answer never depends on its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onlinecde.solvers.chain import Chain
from onlinecde.solvers.errors import SolverError
from onlinecde.solvers.fields import VectorField
from onlinecde.solvers.first_order import once_by_solve
from onlinecde.solvers.stepping import advance, combine, drive_at, stages
from onlinecde.solvers.surroundings import check_recomputed
from onlinecde.solvers.tableau import Tableau

SMALLEST = 1e-12
"""A step shorter than this, as a share of a piece, will not come any nearer to the tolerance."""


@dataclass(frozen=True)
class Tolerance:
    """When a step is accepted: its error within `atol + rtol |z|`, root mean square over hidden."""

    rtol: float
    atol: float
    joint: bool
    """One error and one step for the whole batch, as torchdiffeq does; else one a stream."""
    max_steps: int


@dataclass(frozen=True)
class Steps:
    """One round of accepted steps, one for each of some streams."""

    streams: Tensor
    """(taken,): places in the chain"""
    start: Tensor
    """(taken,) float64: the parameter s each step starts from"""
    length: Tensor
    """(taken,) float64"""
    piece: Tensor
    """(taken,): the piece it starts on"""
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


Slopes = tuple[Tensor | None, Tensor, Tensor | None]
"""(time, slopes, drive) of a chain, perhaps with gradients"""


def rate_for(
    chain: Chain, field: VectorField, data: Slopes, steps: Steps, across: bool
) -> Callable[[Tensor, float | Tensor], Tensor]:
    """dz/ds for a round of steps, each on its own piece; `across`: stages may pass knots."""
    time, slopes, drive = data
    ends = chain.lengths[steps.streams]

    def rate(z: Tensor, s: float | Tensor) -> Tensor:
        assert isinstance(s, Tensor)
        piece = steps.piece
        if across:
            piece = torch.minimum(s[:, 0].floor().to(torch.int64), ends - 1)
        u = (s - piece[:, None]).to(z.dtype)
        seen = None
        if drive is not None:
            if drive.ndim == 3:
                seen = torch.stack([drive[piece, steps.streams], drive[piece + 1, steps.streams]])
            else:
                seen = drive[piece, steps.streams].transpose(0, 1)
        if time is None:
            dx = chain.slope(slopes[piece, steps.streams], u)
        else:
            timed = (piece % 2 == 0)[:, None]
            leg = piece // 2
            moved = slopes[leg, steps.streams]
            dx = torch.cat(
                [
                    torch.where(timed, time[leg, steps.streams, None], 0.0),
                    torch.where(timed, 0.0, moved),
                ],
                1,
            )
        return field.contract(z, dx, slice(0, chain.channels), drive_at(seen, u))

    return rate


@torch.no_grad()
def walk(
    chain: Chain,
    field: VectorField,
    table: Tableau,
    z0: Tensor,
    tolerance: Tolerance,
    across: bool,
    where: Callable[[int, float], str],
) -> Walk:
    """Solve without gradients, choosing steps; every leg starts by trying the whole of it.

    A leg's steps depend on the leg and the state at its start alone, so feeding a series row by
    row takes the same steps. `across` lets steps pass the knots of a smooth path; z is then known
    at each stream's start and end only.
    """
    assert table.error is not None
    device = z0.device
    many = z0.shape[0]
    z = z0.clone()
    s = torch.zeros(many, dtype=torch.float64, device=device)
    h = torch.ones_like(s)
    ends = chain.lengths.to(torch.float64)
    known = torch.zeros(many, dtype=torch.bool, device=device)
    first = torch.zeros_like(z)
    nfe, accepted, rejected = (
        torch.zeros(many, dtype=torch.int64, device=device) for _ in range(3)
    )
    knots = z0.new_empty(chain.pieces + 1, *z0.shape)
    knots[:] = z0
    rounds, before = [], []
    data: Slopes = (chain.time, chain.slopes, chain.drive)
    power = -1.0 / (table.embedded_order + 1)
    while True:
        live = (s < ends).nonzero()[:, 0]
        if not live.numel():
            break
        start = s[live]
        piece = start.floor()
        # Steps shorter than a piece end on knots: within one a path has no kinks of any order.
        bound = torch.where(h[live] > 1, ends[live], piece + 1) if across else piece + 1
        length = torch.minimum(h[live], bound - start)
        full = length >= bound - start
        trial = Steps(live, start, length, piece.to(torch.int64), piece.to(torch.int64))
        rate = rate_for(chain, field, data, trial, across)
        fresh = ~known[live]
        zs = z[live]
        k0 = first[live]
        if bool(fresh.any()):
            k0 = torch.where(fresh[:, None], rate(zs, start[:, None]), k0)
        step = length[:, None].to(zs.dtype)
        ks = stages(table, rate, zs, start[:, None], step, k0)
        ahead = advance(zs, table.b, ks, step)
        error = step * combine(table.error, ks)
        scale = tolerance.atol + tolerance.rtol * torch.maximum(zs.abs(), ahead.abs())
        ratio = (error / scale).square().mean(1)
        if tolerance.joint:
            ratio = ratio.mean().expand_as(ratio)
        ratio = ratio.sqrt()
        ok = ratio <= 1
        factor = (0.9 * ratio.clamp(min=1e-10).pow(power)).clamp(0.2, 10.0).nan_to_num(0.2)
        factor = torch.where(ok, factor, factor.clamp(max=1.0))
        nfe[live] += table.stages - 1 + fresh.to(torch.int64)
        accepted[live] += ok
        rejected[live] += ~ok
        grown = length * factor
        # A step cut short by a knot says nothing against the longer one that was meant.
        grown = torch.where(ok & full, torch.maximum(grown, h[live]), grown)
        if not across:
            grown = torch.where(ok & full, 1.0, grown)
        h[live] = grown
        first[live] = k0
        known[live] = True
        wild = ~ahead.isfinite().all(1)
        stuck = (grown < SMALLEST) | (ok & wild)
        arrived = ok & (start + length >= ends[live])
        over = ((accepted + rejected)[live] >= tolerance.max_steps) & ~arrived
        if bool((stuck | over).any()):
            at = int((stuck | over).nonzero()[0])
            raise _lost(where(int(live[at]), float(start[at])), tolerance, bool(wild[at]))
        taken = ok.nonzero()[:, 0]
        if not taken.numel():
            continue
        who = live[taken]
        rounds.append(
            Steps(
                who,
                start[taken],
                length[taken],
                trial.piece[taken],
                torch.where(full[taken], bound[taken], -1.0).to(torch.int64),
            )
        )
        before.append(zs[taken])
        z[who] = ahead[taken]
        s[who] = torch.where(full[taken], bound[taken], start[taken] + length[taken])
        if table.reuses_last:
            first[who] = ks[-1][taken]
        stale = torch.ones_like(full) if not table.reuses_last else full & (not across)
        known[who] = ~stale[taken]
        landed = rounds[-1].lands
        on = landed >= 0
        knots[landed[on], who[on]] = z[who[on]]
    # After its last knot a stream stands still.
    row = torch.arange(chain.pieces + 1, device=device)[:, None]
    last = torch.minimum(row, chain.lengths[None, :])
    knots = knots.gather(0, last[:, :, None].expand_as(knots))
    return Walk(rounds, before, knots, nfe, accepted, rejected)


def _lost(where: str, tolerance: Tolerance, wild: bool) -> SolverError:
    if not wild:
        return SolverError(
            f"{where}: no step is within rtol {tolerance.rtol:g} and atol {tolerance.atol:g}, or "
            f"{tolerance.max_steps} steps were not enough: raise rtol and atol, raise max_steps, "
            "or scale the inputs down."
        )
    return SolverError(
        f"{where}: the state is no longer finite: the inputs or the weights are too large. Scale "
        "the series (Encoding.fit) or lower the learning rate."
    )


def replay(
    chain: Chain,
    field: VectorField,
    table: Tableau,
    steps: Steps,
    z: Tensor,
    data: Slopes,
    across: bool,
) -> Tensor:
    """Take one round of steps again, so that autograd sees it: z (taken, hidden) -> after it."""
    rate = rate_for(chain, field, data, steps, across)
    step = steps.length[:, None].to(z.dtype)
    return advance(z, table.b, stages(table, rate, z, steps.start[:, None], step), step)


def trajectory(
    chain: Chain,
    field: VectorField,
    table: Tableau,
    z0: Tensor,
    done: Walk,
    across: bool,
    exact: bool,
) -> Tensor:
    """z at the knots (knot, stream, hidden) of a finished walk, with gradients."""
    if exact:
        return _Exact.apply(
            chain,
            field,
            table,
            done,
            across,
            z0,
            chain.time,
            chain.slopes,
            chain.drive,
            *field.parameters(),
        )  # pyright: ignore[reportReturnType]
    z, reached = z0, {}
    data: Slopes = (chain.time, chain.slopes, chain.drive)
    for steps in done.rounds:
        z = z.index_copy(
            0, steps.streams, replay(chain, field, table, steps, z[steps.streams], data, across)
        )
        for knot in steps.lands.unique().tolist():
            if knot >= 0:
                on = steps.streams[steps.lands == knot]
                reached[knot] = reached.get(knot, z0).index_copy(0, on, z[on])
    knots = [z0]
    for knot in range(1, chain.pieces + 1):
        moving = (chain.lengths >= knot)[:, None]
        here = reached.get(knot, z0)
        knots.append(torch.where(moving, here, knots[-1]))
    return torch.stack(knots)


class _Exact(torch.autograd.Function):
    """Gradients through the steps taken, each recomputed from z before it."""

    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        field: VectorField,
        table: Tableau,
        done: Walk,
        across: bool,
        z0: Tensor,
        time: Tensor | None,
        slopes: Tensor,
        drive: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        ctx.chain, ctx.field, ctx.table, ctx.done, ctx.across = chain, field, table, done, across
        return done.knots.clone()

    @staticmethod
    @once_by_solve
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        chain, field, done = ctx.chain, ctx.field, ctx.done
        weights = [weight for weight in field.parameters() if weight.requires_grad]
        needs = ctx.needs_input_grad[6:9]
        data = [
            None if tensor is None else tensor.detach().requires_grad_(bool(need))
            for tensor, need in zip((chain.time, chain.slopes, chain.drive), needs, strict=True)
        ]
        wanted = [*(tensor for tensor, need in zip(data, needs, strict=True) if need), *weights]
        sums = [torch.zeros_like(tensor) for tensor in wanted]
        out = grads[0].clone()
        # Knots after a stream's last one repeat it: their gradients belong to it.
        row = torch.arange(chain.pieces + 1, device=out.device)[:, None]
        last = torch.minimum(row, chain.lengths[None, :])
        out = torch.zeros_like(out).scatter_add(0, last[:, :, None].expand_as(out), out)
        g = torch.zeros_like(out[0])
        off = torch.zeros((), dtype=g.dtype, device=g.device)
        for steps, z in zip(reversed(done.rounds), reversed(done.before), strict=True):
            on = steps.lands >= 0
            who = steps.streams
            g[who[on]] += out[steps.lands[on], who[on]]
            z = z.detach().requires_grad_()
            with torch.enable_grad():
                end = replay(chain, field, ctx.table, steps, z, tuple(data), ctx.across)  # pyright: ignore[reportArgumentType]
            if bool(on.any()):
                reached = done.knots[steps.lands[on], who[on]]
                off = off.maximum((end.detach()[on] - reached).abs().amax())
            found = torch.autograd.grad(end, [z, *wanted], g[who], allow_unused=True)
            g[who] = found[0]
            for total, part in zip(sums, found[1:], strict=True):
                if part is not None:
                    total += part
        g = g + out[0]
        check_recomputed(off, done.knots)
        totals = iter(sums)
        g_data = [next(totals) if need else None for need in needs]
        g_weights = [
            next(totals) if weight.requires_grad else None for weight in field.parameters()
        ]
        return (None, None, None, None, None, g, *g_data, *g_weights)
