"""Fixed steps in plain torch: the reference, and exact gradients from z at the knots alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onlinecde.solvers import moved
from onlinecde.solvers.chain import Chain
from onlinecde.solvers.fields import VectorField, is_plain
from onlinecde.solvers.first_order import once_by_solve
from onlinecde.solvers.grouped import GroupedField
from onlinecde.solvers.stepping import piece_data, piece_drive, take_piece
from onlinecde.solvers.surroundings import Surroundings, check_recomputed
from onlinecde.solvers.tableau import Tableau


def trajectory(chain: Chain, field: VectorField, table: Tableau, z0: Tensor, exact: bool) -> Tensor:
    """z at all knots, (knot, stream, hidden), streams in the chain's order.

    With `exact`, z is kept at the knots and each piece is recomputed on the way back, over moved
    channels only where the field allows it; otherwise autograd records everything.
    """
    # Which streams move is data: a traced program must not depend on it.
    if exact and not torch.compiler.is_compiling():
        if chain.observed is not None and is_plain(field):
            return moved.trajectory(chain, GroupedField(field, chain), table, z0)
        if torch.is_grad_enabled():
            return _Exact.apply(
                chain, table, field, z0, chain.time, chain.slopes, chain.drive, *field.parameters()
            )  # pyright: ignore[reportReturnType]
    return torch.stack(_forward(chain, table, field, z0))


def _forward(
    chain: Chain,
    table: Tableau,
    field: VectorField,
    z: Tensor,
    around: Surroundings | None = None,
) -> list[Tensor]:
    """z at the knots; `around` is marked at each."""
    knots = [z]
    for piece, n in enumerate(chain.active):
        data, drive = piece_data(chain, piece), piece_drive(chain, piece)
        ahead = take_piece(chain, table, _contract(field, chain, piece), piece, z[:n], data, drive)
        z = ahead if n == z.shape[0] else torch.cat([ahead, z[n:]])
        knots.append(z)
        if around is not None:
            around.mark()
    return knots


def _contract(
    field: VectorField, chain: Chain, piece: int
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """The field's own contraction over the channels that may move on a piece."""
    channels = chain.moved(piece)
    return lambda y, dx, drive: field.contract(y, dx, channels, drive)


class _Exact(torch.autograd.Function):
    """Discretise-then-optimise gradients; memory O(stream * knot * hidden)."""

    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        table: Tableau,
        field: VectorField,
        z0: Tensor,
        time: Tensor | None,
        slopes: Tensor,
        drive: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        around = Surroundings(field, z0)
        knots = torch.stack(_forward(chain, table, field, z0, around))
        ctx.chain, ctx.table, ctx.field, ctx.around = chain, table, field, around
        ctx.save_for_backward(knots, *weights)
        return knots

    @staticmethod
    @once_by_solve
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        chain, table, field = ctx.chain, ctx.table, ctx.field
        knots, *weights = ctx.saved_tensors
        need_time, need_slopes, need_drive = ctx.needs_input_grad[4:7]
        wanted = [weight for weight in weights if weight.requires_grad]
        sums = [torch.zeros_like(weight) for weight in wanted]
        g_time = torch.zeros_like(chain.time) if need_time else None
        g_slopes = torch.zeros_like(chain.slopes) if need_slopes else None
        g_drive = torch.zeros_like(chain.drive) if need_drive else None
        g = grads[0][-1]
        off = torch.zeros((), dtype=g.dtype, device=g.device)
        for piece in range(chain.pieces - 1, -1, -1):
            n = chain.active[piece]
            timed = chain.rectilinear and piece % 2 == 0
            z = knots[piece, :n].detach().requires_grad_()
            data = piece_data(chain, piece).detach()
            data.requires_grad_(bool(need_time if timed else need_slopes))
            drive = piece_drive(chain, piece)
            if drive is not None:
                drive = drive.detach().requires_grad_(need_drive)
            inputs = [x for x in (z, data, drive) if x is not None and x.requires_grad]
            with ctx.around.as_at(piece):
                with torch.enable_grad():
                    contract = _contract(field, chain, piece)
                    end = take_piece(chain, table, contract, piece, z, data, drive)
                found = list(torch.autograd.grad(end, [*inputs, *wanted], g[:n], allow_unused=True))
            if n:
                off = off.maximum((end.detach() - knots[piece + 1, :n]).abs().amax())
            g_z = found.pop(0)
            g = torch.cat([g_z, g[n:]]) if n < g.shape[0] else g_z
            g = g + grads[0][piece]
            g_data = g_time if timed else g_slopes
            if data.requires_grad and g_data is not None:
                place = piece // 2 if chain.rectilinear else piece
                if (part := found.pop(0)) is not None:
                    g_data[place, :n] += part
            if drive is not None and g_drive is not None and (part := found.pop(0)) is not None:
                if part.shape[0] == 2:
                    g_drive[piece : piece + 2, :n] += part
                else:
                    g_drive[piece, :n] += part.transpose(0, 1)
            for total, part in zip(sums, found, strict=True):
                if part is not None:
                    total += part
        check_recomputed(off, knots)
        totals = iter(sums)
        g_weights = [next(totals) if weight.requires_grad else None for weight in weights]
        return (None, None, None, g, g_time, g_slopes, g_drive, *g_weights)
