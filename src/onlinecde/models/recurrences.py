"""GRU recurrences over rows: a thin loop forwards, hand-written gradients backwards.

Rows are taken in blocks. What does not depend on h (input products, decays) is computed for a block
at once, and so are weight gradients on the way back; the loop over rows is left with what is truly
sequential. Of each row, h and its open gates are kept; everything else lives within a block, in cache.

A matrix product may sum in another order when it has more rows. All blocks have the same number, the
last one filled up with zeros, so every row's numbers are bitwise the same whatever rows follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLOCK = 8
"""Rows in a block."""

_sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
_tanh_back = torch.ops.aten.tanh_backward.grad_input
_where_positive = torch.ops.aten.threshold_backward


def in_blocks(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """`function` of (row, stream, feature), a block at a time."""
    many = rows.shape[0]
    if missing := -many % BLOCK:
        rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    return torch.cat([function(block) for block in rows.split(BLOCK)])[:many]


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
        gates, trail = _room(x, h0)
        heard = torch.empty_like(trail[1:])
        u_r, u_z, u_n = (part.T for part in recurrent.chunk(3))
        b_n = bias.chunk(3)[2]
        # The recurrent biases of r and z stand where the inward ones do.
        shift = inward_bias + torch.cat([bias[: -len(b_n)], torch.zeros_like(b_n)])
        seen, weight = _beside([x]), torch.cat([inward, shift[:, None]], 1)
        each = list(zip(trail, *gates, heard, trail[1:], strict=False))
        for block in _blocks(len(x)):
            _project(seen, weight, gates, block)
            for h, r, z, new, told, out in each[block]:
                r.addmm_(h, u_r).sigmoid_()
                z.addmm_(h, u_z).sigmoid_()
                torch.addmm(b_n, h, u_n, out=told)
                _tanh_(new.addcmul_(r, told))
                torch.lerp(new, h, z, out=out)
        ctx.save_for_backward(seen, weight, recurrent, gates, trail, heard)
        return trail[1:]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        seen, weight, recurrent, gates, trail, heard = ctx.saved_tensors
        u_r, u_z, u_n = recurrent.chunk(3)
        n = len(u_r)
        collect = _Collect(seen, weight, seen.shape[2] - 1 if ctx.needs_input_grad[0] else 0)
        g_recurrent, g_bias = seen.new_zeros(3, n, n), seen.new_zeros(n)
        carried = torch.zeros_like(trail[0])
        each = list(zip(trail, *gates, heard, grads[0], strict=False))
        for block in reversed(_blocks(len(heard))):
            g_gates = torch.empty_like(gates[:, block])
            g_told = torch.empty_like(heard[block])
            into = zip(*g_gates, g_told, strict=True)
            for (h, r, z, new, told, g_out), (to_r, to_z, to_new, to_told) in zip(
                reversed(each[block]), reversed(list(into)), strict=True
            ):
                g = carried.add_(g_out)
                stay = g * z
                _tanh_back(g - stay, new, grad_input=to_new)
                _sigmoid_back(g.mul_(h - new), z, grad_input=to_z)
                _sigmoid_back(to_new * told, r, grad_input=to_r)
                torch.mul(to_new, r, out=to_told)
                carried = stay.addmm_(to_r, u_r).addmm_(to_z, u_z).addmm_(to_told, u_n)
            before = trail[block][: len(g_told)].flatten(0, 1)
            for total, g in zip(g_recurrent, (*g_gates[:2], g_told), strict=True):
                total.addmm_(before.T, g.flatten(0, 1))
            g_bias += g_told.sum((0, 1))
            collect.add(g_gates, block)
        g_weight, g_shift = collect.weight_and_bias()
        g_bias = torch.cat([g_shift[: 2 * n], g_bias])
        return collect.inputs(len(heard)), carried, g_weight, g_shift, _joined(g_recurrent), g_bias


class _Fade(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, mask: Tensor, elapsed: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        share = torch.addcmul(bias, elapsed, weight).clamp_(min=0).mul_(mask - 1).exp_()
        x = share * values
        ctx.save_for_backward(mask, elapsed, weight, bias, x, share)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        mask, elapsed, weight, bias, x, share = ctx.saved_tensors
        need_values, _, need_elapsed = ctx.needs_input_grad[:3]
        g = _where_positive((grads[0] * x).mul_(mask - 1), torch.addcmul(bias, elapsed, weight), 0)
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
        gates, trail = _room(x, h0)
        share = torch.empty_like(gates[:1])
        k, reset = torch.empty_like(h0), torch.empty_like(h0)
        u_z, u_r, u_new = (part.T for part in recurrent.chunk(3))
        seen, weight = _beside([x, mask]), torch.cat([inward, inward_bias[:, None]], 1)
        since, fading = _beside([elapsed]), -torch.cat([decay, decay_bias[:, None]], 1)
        each = list(zip(trail, share[0], *gates, trail[1:], strict=False))
        for block in _blocks(len(x)):
            _project(seen, weight, gates, block)
            _project(since, fading, share, block)
            share[0, block].clamp_(max=0).exp_()
            for h, kept, z, r, new, out in each[block]:
                torch.mul(h, kept, out=k)
                z.addmm_(k, u_z).sigmoid_()
                r.addmm_(k, u_r).sigmoid_()
                _tanh_(new.addmm_(torch.mul(r, k, out=reset), u_new))
                torch.lerp(k, new, z, out=out)
        ctx.save_for_backward(seen, since, weight, recurrent, fading, gates, trail, share)
        return trail[1:]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        seen, since, weight, recurrent, fading, gates, trail, share = ctx.saved_tensors
        u_z, u_r, u_new = recurrent.chunk(3)
        rows, channels = len(trail) - 1, since.shape[2] - 1
        # The mask is what it is: of the inputs, values and times alone may want gradients.
        need_x, _, need_elapsed = ctx.needs_input_grad[:3]
        collect = _Collect(seen, weight, channels if need_x else 0)
        collect_fading = _Collect(since, fading, channels if need_elapsed else 0, gates=1)
        g_recurrent = seen.new_zeros(3, len(u_z), len(u_z))
        # Each row's gradient takes in the one of the row before it: at the first, h0's, which is 0.
        g, g_before = grads[0][-1].clone(), [torch.zeros_like(trail[0]), *grads[0]]
        each = list(zip(share[0], *gates, g_before[:-1], strict=False))
        for block in reversed(_blocks(rows)):
            before = trail[block][: rows - block.start]
            shares, opened = share[0, block][: len(before)], gates[:, block][:, : len(before)]
            ks = shares * before
            g_gates, g_ks = torch.empty_like(opened), torch.empty_like(ks)
            into = zip(ks, *g_gates, g_ks, strict=True)
            for (kept, z, r, new, g_earlier), (k, to_z, to_r, to_new, to_k) in zip(
                reversed(each[block]), reversed(list(into)), strict=True
            ):
                moved = g * z
                _tanh_back(moved, new, grad_input=to_new)
                torch.sub(g, moved, out=to_k)
                _sigmoid_back(g.mul_(new - k), z, grad_input=to_z)
                reset = to_new @ u_new
                _sigmoid_back(reset * k, r, grad_input=to_r)
                to_k.addcmul_(reset, r).addmm_(to_z, u_z).addmm_(to_r, u_r)
                g = torch.addcmul(g_earlier, to_k, kept)
            collect.add(g_gates, block)
            told = (ks, ks, ks * opened[1])
            for total, inputs, to_gate in zip(g_recurrent, told, g_gates, strict=True):
                total.addmm_(inputs.flatten(0, 1).T, to_gate.flatten(0, 1))
            # d exp(min(0, u)) / du is the share, and 0 where nothing is lost.
            collect_fading.add(_where_positive(g_ks.mul_(ks), 1 - shares, 0)[None], block)
        g_decay, g_decay_bias = collect_fading.weight_and_bias()
        return (
            collect.inputs(rows),
            None,
            collect_fading.inputs(rows),
            g,
            *collect.weight_and_bias(),
            _joined(g_recurrent),
            *collect_fading.weight_and_bias(),
        )


def _tanh_(x: Tensor) -> None:
    """The tanh of x in its place; on a CPU numpy's, which is several times as fast as torch's."""
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        array = x.numpy()
        np.tanh(array, out=array)
    else:
        x.tanh_()


def _blocks(rows: int) -> list[slice]:
    return [slice(start, start + BLOCK) for start in range(0, rows, BLOCK)]


def _room(x: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Gates (3, row of whole blocks, stream, hidden), and h (1 + row, stream, hidden) from h0 on."""
    trail = h0.new_empty(1 + len(x), *h0.shape)
    trail[0] = h0
    return h0.new_empty(3, len(x) + -len(x) % BLOCK, *h0.shape), trail


def _beside(parts: list[Tensor]) -> Tensor:
    """Parts (row, stream, ...) side by side with a 1 for the bias, in whole blocks of rows."""
    rows, streams = parts[0].shape[:2]
    width = sum(part.shape[2] for part in parts)
    seen = parts[0].new_empty(rows + -rows % BLOCK, streams, width + 1)
    seen[:, :, -1] = 1
    seen[rows:] = 0
    for part, into in zip(
        parts, seen[:rows].split([*(part.shape[2] for part in parts), 1], 2), strict=False
    ):
        into.copy_(part)
    return seen


def _project(seen: Tensor, weight: Tensor, out: Tensor, block: slice) -> None:
    """A block of rows times each gate's weight, into (gate, row, stream, hidden)."""
    inputs = seen[block].flatten(0, 1)
    for w, into in zip(weight.chunk(len(out)), out, strict=True):
        torch.mm(inputs, w.T, out=into[block].flatten(0, 1))


def _joined(by_gate: Tensor) -> Tensor:
    """A weight's gradient (gate * hidden, input) from (gate, input, hidden)."""
    return by_gate.transpose(1, 2).flatten(0, 1)


class _Collect:
    """What `_project` gives back, block by block: gradients to its weight and its first inputs."""

    def __init__(self, seen: Tensor, weight: Tensor, wanted: int, gates: int = 3) -> None:
        self._seen, self._wanted = seen, wanted
        self._weight = seen.new_zeros(gates, seen.shape[2], len(weight) // gates)
        # Products are fastest with whole vectors of columns.
        wide = min(seen.shape[2], wanted + -wanted % 8)
        self._columns = weight[:, :wide].contiguous().chunk(gates)
        self._inputs = seen.new_empty(*seen.shape[:2], wide) if wanted else None

    def add(self, g_gates: Tensor, block: slice) -> None:
        """Take in the gradients (gate, row, stream, hidden) of a block's real rows."""
        each = g_gates.flatten(1, 2)
        seen = self._seen[block][: g_gates.shape[1]].flatten(0, 1).T
        for total, g in zip(self._weight, each, strict=True):
            total.addmm_(seen, g)
        if self._inputs is not None:
            into = self._inputs[block][: g_gates.shape[1]].flatten(0, 1)
            torch.mm(each[0], self._columns[0], out=into)
            for g, columns in zip(each[1:], self._columns[1:], strict=True):
                into.addmm_(g, columns)

    def weight_and_bias(self) -> tuple[Tensor, Tensor]:
        """Gradients (gate * hidden, input) and (gate * hidden,)."""
        both = _joined(self._weight)
        return both[:, :-1], both[:, -1]

    def inputs(self, rows: int) -> Tensor | None:
        """Gradients of the first inputs, (row, stream, wanted), where they are wanted."""
        return None if self._inputs is None else self._inputs[:rows, :, : self._wanted]
