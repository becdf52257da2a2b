"""Recurrences over rows: a thin loop forwards, hand-written gradients backwards.

Rows are taken in blocks. What does not depend on h (input products) is computed for a block at once,
and so are weight gradients in the backward sweep; the loop over rows is left with what is truly sequential.
Of each row, h and its open gates are kept; everything else lives within a block, in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from onlinecde.models.recurrent.row_blocks import (
    Collect,
    beside,
    blocks,
    joined,
    project,
    room,
    sigmoid_back,
    tanh_,
    tanh_back,
)
from onlinecde.solvers.first_order import once_by_recurrence


def carry_on_(fresh: Tensor, keep: Tensor) -> Tensor:
    """`y_i = fresh_i + keep_i y_{i-1}` over rows, in the place of `fresh` (row, ...); keep as it is."""
    return _CarryOn.apply(fresh, keep)  # pyright: ignore[reportReturnType]


def gru_recurrence(
    x: Tensor, h0: Tensor, inward: Tensor, inward_bias: Tensor, recurrent: Tensor, bias: Tensor
) -> Tensor:
    """All h after rows, (row, stream, hidden), of one layer of `torch.nn.GRU` with its weights.

    x (row, stream, input); h0 (stream, hidden); inward (3 * hidden, input); recurrent (3 * hidden,
    hidden); gates in torch's order r, z, n:

        r, z = sigmoid(W_rz x + U_rz h + b_rz);  n = tanh(W_n x + b_n + r (U_n h + c_n))
        h' = (1 - z) n + z h
    """
    return _GRURecurrence.apply(x, h0, inward, inward_bias, recurrent, bias)  # pyright: ignore[reportReturnType]


class _CarryOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fresh: Tensor, keep: Tensor) -> Tensor:
        rows = fresh.unbind()
        for before, now, kept in zip(rows, rows[1:], keep[1:], strict=False):
            now.addcmul_(before, kept)
        ctx.mark_dirty(fresh)
        ctx.save_for_backward(keep)
        return fresh

    @staticmethod
    @once_by_recurrence
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (keep,) = ctx.saved_tensors
        g = grads[0].clone()
        rows = g.unbind()
        for row in range(len(rows) - 1, 0, -1):
            rows[row - 1].addcmul_(rows[row], keep[row])
        return g, None


def gru_rows(
    x: Tensor,
    h0: Tensor,
    inward: Tensor,
    inward_bias: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    between: Callable[[int, Tensor], Tensor] | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`gru_recurrence` without gradients, and what `gru_rows_back` needs: h before each row is the last but one.

    `between(row, h)` is what becomes of h after one row until the next one, `row`; None: it stays.
    """
    gates, trail = room(x, h0)
    heard = torch.empty_like(trail[1:])
    before = trail if between is None else torch.empty_like(trail[1:])
    u_r, u_z, u_n = (part.T for part in recurrent.chunk(3))
    b_n = bias.chunk(3)[2]
    # The recurrent biases of r and z stand where the inward ones do.
    shift = inward_bias + torch.cat([bias[: -len(b_n)], torch.zeros_like(b_n)])
    seen, weight = beside([x]), torch.cat([inward, shift[:, None]], 1)
    each = list(zip(before, *gates, heard, trail[1:], strict=False))
    for block in blocks(len(x)):
        project(seen, weight, gates, block)
        for row, (h, r, z, new, kept, out) in enumerate(each[block], block.start):
            if between is not None:
                h.copy_(between(row, trail[row]) if row else h0)
            r.addmm_(h, u_r).sigmoid_()
            z.addmm_(h, u_z).sigmoid_()
            torch.addmm(b_n, h, u_n, out=kept)
            tanh_(new.addcmul_(r, kept))
            torch.lerp(new, h, z, out=out)
    return trail[1:], (seen, weight, recurrent, gates, before, heard)


def gru_rows_back(
    kept: Sequence[Tensor],
    grads: Tensor,
    want_x: bool,
    between: Callable[[int, Tensor], Tensor] | None = None,
) -> tuple[Tensor | None, ...]:
    """Gradients of what `gru_rows` took, in its order, from those of all h after rows.

    `between(row, g)` is the gradient of h after the row before, from that of h as `row` comes.
    """
    seen, weight, recurrent, gates, before, heard = kept
    u_r, u_z, u_n = recurrent.chunk(3)
    n = len(u_r)
    collect = Collect(seen, weight, seen.shape[2] - 1 if want_x else 0)
    g_recurrent, g_bias = seen.new_zeros(3, n, n), seen.new_zeros(n)
    carried = torch.zeros_like(before[0])
    each = list(zip(before, *gates, heard, grads, strict=False))
    for block in reversed(blocks(len(heard))):
        g_told = torch.empty_like(heard[block])
        g_gates = torch.empty_like(gates[:, block][:, : len(g_told)])
        into = list(zip(*g_gates, g_told, strict=True))
        for row in range(block.start + len(g_told) - 1, block.start - 1, -1):
            h, r, z, new, product, g_out = each[row]
            to_r, to_z, to_new, to_told = into[row - block.start]
            g = carried.add_(g_out)
            stay = g * z
            tanh_back(g - stay, new, grad_input=to_new)
            sigmoid_back(g.mul_(h - new), z, grad_input=to_z)
            sigmoid_back(to_new * product, r, grad_input=to_r)
            torch.mul(to_new, r, out=to_told)
            carried = stay.addmm_(to_r, u_r).addmm_(to_z, u_z).addmm_(to_told, u_n)
            if row and between is not None:
                carried = between(row, carried)
        came = before[block][: len(g_told)].flatten(0, 1)
        for total, g in zip(g_recurrent, (*g_gates[:2], g_told), strict=True):
            total.addmm_(came.T, g.flatten(0, 1))
        g_bias += g_told.sum((0, 1))
        collect.add(g_gates, block)
    g_weight, g_shift = collect.weight_and_bias()
    g_bias = torch.cat([g_shift[: 2 * n], g_bias])
    return collect.inputs(len(heard)), carried, g_weight, g_shift, joined(g_recurrent), g_bias


class _GRURecurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        inward: Tensor,
        inward_bias: Tensor,
        recurrent: Tensor,
        bias: Tensor,
    ) -> Tensor:
        after, kept = gru_rows(x, h0, inward, inward_bias, recurrent, bias)
        ctx.save_for_backward(*kept)
        return after

    @staticmethod
    @once_by_recurrence
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gru_rows_back(ctx.saved_tensors, grads[0], ctx.needs_input_grad[0])
