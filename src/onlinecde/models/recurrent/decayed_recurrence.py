"""GRU-D's recurrence: decay, update, and hand-written gradients; blocks as in `recurrences`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onlinecde.models.recurrent.row_blocks import (
    Collect,
    beside,
    blocks,
    exp_,
    joined,
    project,
    room,
    sigmoid_back,
    tanh_,
    tanh_back,
    where_positive,
)
from onlinecde.solvers.first_order import once_by_recurrence


def fade(values: Tensor, mask: Tensor, elapsed: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GRU-D's inputs: values where observed, else `exp(-max(0, weight elapsed + bias)) values`.

    values, mask, elapsed (row, stream, channel); weight and bias (channel,).
    """
    return _Fade.apply(values, mask, elapsed, weight, bias)  # pyright: ignore[reportReturnType]


def decayed_recurrence(
    x: Tensor,
    mask: Tensor,
    elapsed: Tensor,
    h0: Tensor,
    inward: Tensor,
    inward_bias: Tensor,
    recurrent: Tensor,
    decay: Tensor,
    decay_bias: Tensor,
) -> Tensor:
    """All h after rows, (row, stream, hidden), of GRU-D (Che et al. 2018).

    x, mask, elapsed (row, stream, channel); h0 (stream, hidden); inward (3 * hidden, 2 * channel)
    for x and mask; recurrent (3 * hidden, hidden); decay (hidden, channel); gates in the order
    z, r, c:

        k = exp(-max(0, D elapsed + d)) h;  z, r = sigmoid(W_zr (x, mask) + U_zr k + b_zr)
        c = tanh(W_c (x, mask) + U_c (r k) + b_c);  h' = (1 - z) k + z c
    """
    return _DecayedRecurrence.apply(  # pyright: ignore[reportReturnType]
        x, mask, elapsed, h0, inward, inward_bias, recurrent, decay, decay_bias
    )


class _Fade(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, mask: Tensor, elapsed: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        share = torch.addcmul(bias, elapsed, weight).clamp_(min=0).mul_(mask - 1).exp_()
        x = share.mul_(values) if not ctx.needs_input_grad[0] else share * values
        ctx.save_for_backward(mask, elapsed, weight, bias, x, share)
        return x

    @staticmethod
    @once_by_recurrence
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        mask, elapsed, weight, bias, x, share = ctx.saved_tensors
        need_values, _, need_elapsed = ctx.needs_input_grad[:3]
        g = where_positive((grads[0] * x).mul_(mask - 1), torch.addcmul(bias, elapsed, weight), 0)
        return (
            grads[0] * share if need_values else None,
            None,
            g * weight if need_elapsed else None,
            (g * elapsed).sum((0, 1)),
            g.sum((0, 1)),
        )


class _DecayedRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mask: Tensor,
        elapsed: Tensor,
        h0: Tensor,
        inward: Tensor,
        inward_bias: Tensor,
        recurrent: Tensor,
        decay: Tensor,
        decay_bias: Tensor,
    ) -> Tensor:
        gates, trail = room(x, h0)
        share = torch.empty_like(gates[:1])
        k, reset = torch.empty_like(h0), torch.empty_like(h0)
        u_z, u_r, u_new = (part.T for part in recurrent.chunk(3))
        seen, weight = beside([x, mask]), torch.cat([inward, inward_bias[:, None]], 1)
        since, fading = beside([elapsed]), -torch.cat([decay, decay_bias[:, None]], 1)
        each = list(zip(trail, share[0], *gates, trail[1:], strict=False))
        for block in blocks(len(x)):
            project(seen, weight, gates, block)
            project(since, fading, share, block)
            exp_(share[0, block].clamp_(max=0))
            for h, kept, z, r, new, out in each[block]:
                torch.mul(h, kept, out=k)
                z.addmm_(k, u_z).sigmoid_()
                r.addmm_(k, u_r).sigmoid_()
                tanh_(new.addmm_(torch.mul(r, k, out=reset), u_new))
                torch.lerp(k, new, z, out=out)
        ctx.save_for_backward(seen, since, weight, recurrent, fading, gates, trail, share)
        return trail[1:]

    @staticmethod
    @once_by_recurrence
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        seen, since, weight, recurrent, fading, gates, trail, share = ctx.saved_tensors
        u_z, u_r, u_new = recurrent.chunk(3)
        rows, channels = len(trail) - 1, since.shape[2] - 1
        # The mask is what it is: of the inputs, values and times alone may want gradients.
        need_x, _, need_elapsed = ctx.needs_input_grad[:3]
        collect = Collect(seen, weight, channels if need_x else 0)
        collect_fading = Collect(since, fading, channels if need_elapsed else 0, gates=1)
        g_recurrent = seen.new_zeros(3, len(u_z), len(u_z))
        # Each row's gradient takes in the one of the row before it: at the first, h0's, which is 0.
        g, g_before = grads[0][-1].clone(), [torch.zeros_like(trail[0]), *grads[0]]
        each = list(zip(share[0], *gates, g_before[:-1], strict=False))
        for block in reversed(blocks(rows)):
            before = trail[block][: rows - block.start]
            shares, opened = share[0, block][: len(before)], gates[:, block][:, : len(before)]
            ks = shares * before
            g_gates, g_ks = torch.empty_like(opened), torch.empty_like(ks)
            into = zip(ks, *g_gates, g_ks, strict=True)
            for (kept, z, r, new, g_earlier), (k, to_z, to_r, to_new, to_k) in zip(
                reversed(each[block]), reversed(list(into)), strict=True
            ):
                moved = g * z
                tanh_back(moved, new, grad_input=to_new)
                torch.sub(g, moved, out=to_k)
                sigmoid_back(g.mul_(new - k), z, grad_input=to_z)
                reset = to_new @ u_new
                sigmoid_back(reset * k, r, grad_input=to_r)
                to_k.addcmul_(reset, r).addmm_(to_z, u_z).addmm_(to_r, u_r)
                g = torch.addcmul(g_earlier, to_k, kept)
            collect.add(g_gates, block)
            no_gradients = (ks, ks, ks * opened[1])
            for total, inputs, to_gate in zip(g_recurrent, no_gradients, g_gates, strict=True):
                total.addmm_(inputs.flatten(0, 1).T, to_gate.flatten(0, 1))
            # d exp(min(0, u)) / du is the share, and 0 where nothing is lost.
            collect_fading.add(where_positive(g_ks.mul_(ks), 1 - shares, 0)[None], block)
        g_decay, g_decay_bias = collect_fading.weight_and_bias()
        return (
            collect.inputs(rows),
            None,
            collect_fading.inputs(rows),
            g,
            *collect.weight_and_bias(),
            joined(g_recurrent),
            -g_decay,
            -g_decay_bias,
        )
