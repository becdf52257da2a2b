"""Fixed steps over moved channels only: exact gradients from z at the knots, written out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onlinecde.solvers.chain import Chain
from onlinecde.solvers.first_order import once_by_solve
from onlinecde.solvers.grouped import Collector, GroupedField, Stage, unshare
from onlinecde.solvers.stepping import advance, drive_at, piece_data, piece_drive, piece_steps
from onlinecde.solvers.tableau import Tableau

Step = tuple[float | Tensor, float | Tensor, list[Stage]]
"""Start u and length h of a step, and its stages"""


def trajectory(chain: Chain, field: GroupedField, table: Tableau, z0: Tensor) -> Tensor:
    """z at all knots, (knot, stream, hidden), streams in the chain's order, with exact gradients."""
    return _Moved.apply(
        chain, field, table, z0, chain.time, chain.slopes, chain.drive, *field.weights
    )  # pyright: ignore[reportReturnType]


def _take_piece(
    chain: Chain,
    field: GroupedField,
    weights: tuple[Tensor, ...],
    table: Tableau,
    piece: int,
    z: Tensor,
    kept: list[Step] | None = None,
) -> Tensor:
    """z (active, hidden) at the end of a piece; its steps are put into `kept`, if given."""
    shares = field.shares(piece, chain.slope(piece_data(chain, piece), 0.0))
    drive = piece_drive(chain, piece)
    for u, h in piece_steps(chain, piece, z):
        ks: list[Tensor] = []
        stages: list[Stage] = []
        for s in range(table.stages):
            y = advance(z, table.a[s], ks, h)
            seen = drive_at(drive, u + table.c[s] * h)
            k, stage = field.evaluate(weights, piece, y, shares, seen)
            ks.append(k)
            stages.append(stage)
        z = advance(z, table.b, ks, h)
        if kept is not None:
            kept.append((u, h, stages))
    return z


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        field: GroupedField,
        table: Tableau,
        z0: Tensor,
        time: Tensor,
        slopes: Tensor,
        drive: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        z, knots = z0, [z0]
        for piece, n in enumerate(chain.active):
            moved = _take_piece(chain, field, weights, table, piece, z[:n])
            z = moved if n == z.shape[0] else torch.cat([moved, z[n:]])
            knots.append(z)
        ctx.chain, ctx.field, ctx.table = chain, field, table
        found = torch.stack(knots)
        ctx.save_for_backward(found, *weights)
        return found

    @staticmethod
    @once_by_solve
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _backward(ctx, grads[0])


def _backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of what `_Moved` was given, from those of z at the knots."""
    chain, field, table = ctx.chain, ctx.field, ctx.table
    knots, *weights = ctx.saved_tensors
    weights = tuple(weights)
    need_time, need_slopes, need_drive = ctx.needs_input_grad[4:7]
    collector = Collector(weights)
    g_time = torch.zeros_like(chain.time) if need_time else None
    g_slopes = torch.zeros_like(chain.slopes) if need_slopes else None
    g_drive = torch.zeros_like(chain.drive) if need_drive else None
    g = gz[-1].clone()
    for piece in range(chain.pieces - 1, -1, -1):
        n = chain.active[piece]
        g_data = g_time if piece % 2 == 0 else g_slopes
        shares = field.shares(piece, chain.slope(piece_data(chain, piece), 0.0))
        kept: list[Step] = []
        _take_piece(chain, field, weights, table, piece, knots[piece, :n], kept)
        g_shares = torch.zeros_like(shares) if g_data is not None else None
        g_seen = g_drive[piece : piece + 2, :n] if g_drive is not None else None
        g_z = g[:n]
        for u, h, stages in reversed(kept):
            g_ys: list[Tensor | None] = [None] * table.stages
            for s in range(table.stages - 1, -1, -1):
                g_k = _gradient_of_stage(table, s, h, g_z, g_ys)
                if g_k is None:
                    continue
                g_y, g_first, found = field.pull_back(
                    weights, piece, stages[s], shares, g_k, collector, g_data is not None
                )
                g_ys[s] = g_y
                if g_shares is not None:
                    g_shares += found
                if g_seen is not None:
                    at = u + table.c[s] * h
                    g_seen[0] += (1 - at) * g_first
                    g_seen[1] += at * g_first
            g_z = g_z + sum(part for part in g_ys if part is not None)
        collector.flush()
        if g_data is not None and g_shares is not None:
            if piece % 2 == 0:
                g_data[piece // 2, :n] += g_shares[:, 0]
            else:
                leg = field.legs[piece // 2]
                g_data[piece // 2, :n] += unshare(g_shares, n, field.values, leg)
        g = torch.cat([g_z, g[n:]]) + gz[piece] if n < g.shape[0] else g_z + gz[piece]
    return (None, None, None, g, g_time, g_slopes, g_drive, *collector.sums)


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
