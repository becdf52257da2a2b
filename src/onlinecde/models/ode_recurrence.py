"""ODE-RNN's recurrence: a leg of a neural ODE, a GRU update, and so on; hand-written gradients.

For a GPU, where a thin loop is all that counts: everything that does not wait for h is computed before it
or after it, and what each layer took in is kept for one product a layer in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onlinecde.models.row_blocks import (
    Collect,
    beside,
    blocks,
    joined,
    project,
    room,
    sigmoid_back,
    tanh_back,
    where_positive,
)
from onlinecde.solvers import MLPVectorField
from onlinecde.solvers.fields import ACTIVATIONS
from onlinecde.solvers.tableau import Tableau


def ode_recurrence(
    x: Tensor,
    gaps: Tensor,
    h0: Tensor,
    cell: nn.GRUCell,
    field: MLPVectorField,
    table: Tableau,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """All h after rows, (row, stream, hidden), and as each row's time came, without gradients.

    Before each row but the first, `dh/dt = field(h)` over its gap; at a row, `h' = cell(x, h)`.

    x (row, stream, input); gaps (row, stream) in the field's time, that of the first row unused; h0
    (stream, hidden). The field has one channel, time, and no tanh after its last layer. A gap is
    gone through in `steps` steps. Gradients to gaps are not found.
    """
    about = _About(table, steps, field.activation, torch.is_grad_enabled())
    return _ODERecurrence.apply(
        about,
        x,
        gaps[:, :, None],
        h0,
        cell.weight_ih,
        cell.bias_ih,
        cell.weight_hh,
        cell.bias_hh,
        *field.inner_weights(),
        field.weight[0],
        field.bias[0],
    )  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class _About:
    table: Tableau
    steps: int
    activation: str
    keep: bool
    """Whether there is a way back to keep something for."""

    @property
    def from_before(self) -> bool:
        """Whether the activation's derivative is found from what went in, not from what came out."""
        return self.activation in ("silu", "softplus")


@dataclass(frozen=True, eq=False)
class _Tape:
    """What the field's layers took in: (row, stage of all steps, stream, size) of each, the last layer's too."""

    inputs: list[Tensor]
    before: list[Tensor]
    """Of inner layers, what their activation took in, where its derivative is found from that"""

    @classmethod
    def blank(cls, about: _About, rows: int, h0: Tensor, weights: tuple[Tensor, ...]) -> _Tape:
        many = about.steps * about.table.stages
        kept = rows if about.keep else 1
        inputs = [h0.new_empty(kept, many, len(h0), weight.shape[1]) for weight in weights[::2]]
        before = [torch.empty_like(each) for each in inputs[1:]] if about.from_before else []
        return cls(inputs, before)


def _leg(
    about: _About, z: Tensor, gap: Tensor, weights: tuple[Tensor, ...], tape: _Tape, row: int
) -> Tensor:
    """z (stream, hidden) after a gap (stream, 1)."""
    table, act = about.table, ACTIVATIONS[about.activation]
    *inner, last, bias = weights
    stage = 0
    for _ in range(about.steps):
        ks: list[Tensor] = []
        for s in range(table.stages):
            u = tape.inputs[0][row, stage]
            _advance(z, table.a[s], ks, gap, about.steps, into=u)
            for layer in range(len(inner) // 2):
                after = tape.inputs[layer + 1][row, stage]
                at = tape.before[layer][row, stage] if about.from_before else after
                torch.addmm(inner[2 * layer + 1], u, inner[2 * layer].T, out=at)
                if about.activation == "tanh":
                    at.tanh_()
                elif about.activation == "relu":
                    at.relu_()
                else:
                    after.copy_(act(at))
                u = after
            ks.append(torch.addmm(bias, u, last.T))
            stage += 1
        z = _advance(z, table.b, ks, gap, about.steps, into=torch.empty_like(z))
    return z


def _advance(
    z: Tensor, weights: tuple[float, ...], ks: list[Tensor], gap: Tensor, steps: int, into: Tensor
) -> Tensor:
    """`z + gap / steps sum_s weights[s] k_s`, in `into`."""
    for weight, k in zip(weights, ks, strict=True):
        if weight:
            torch.addcmul(z, k, gap, value=weight / steps, out=into)
            z = into
    return z if z is into else into.copy_(z)


def _through_leg(
    about: _About,
    g: Tensor,
    gap: Tensor,
    weights: tuple[Tensor, ...],
    tape: _Tape,
    row: int,
    to: _Tape,
) -> Tensor:
    """The gradient of z before a gap from that of z after it; those after each layer's product go to `to`."""
    table = about.table
    *inner, last, _ = weights
    depth = len(inner) // 2
    stage = about.steps * table.stages
    for _ in range(about.steps):
        g_ys: list[Tensor] = []
        """From the last stage to the first"""
        for s in range(table.stages - 1, -1, -1):
            stage -= 1
            g_k = to.inputs[depth][row, stage]
            torch.mul(g, gap, out=g_k).mul_(table.b[s] / about.steps)
            for later, g_y in zip(range(table.stages - 1, s, -1), g_ys, strict=True):
                if weight := table.a[later][s]:
                    g_k.addcmul_(g_y, gap, value=weight / about.steps)
            g_u = g_k @ last
            for layer in range(depth - 1, -1, -1):
                into = to.inputs[layer][row, stage]
                bent = (tape.before[layer] if about.from_before else tape.inputs[layer + 1])[
                    row, stage
                ]
                _bend_back(about.activation, g_u, bent, into)
                g_u = into @ inner[2 * layer]
            g_ys.append(g_u)
        g = g + g_ys[0]
        for g_y in g_ys[1:]:
            g.add_(g_y)
    return g


def _bend_back(name: str, g: Tensor, bent: Tensor, into: Tensor) -> None:
    """The gradient before an activation from that after it."""
    if name == "tanh":
        tanh_back(g, bent, grad_input=into)
    elif name == "relu":
        into.copy_(where_positive(g, bent, 0))
    elif name == "silu":
        into.copy_(torch.ops.aten.silu_backward(g, bent))
    else:
        into.copy_(torch.ops.aten.softplus_backward(g, bent, 1, 20))


class _ODERecurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        about: _About,
        x: Tensor,
        gaps: Tensor,
        h0: Tensor,
        inward: Tensor,
        inward_bias: Tensor,
        recurrent: Tensor,
        bias: Tensor,
        *field: Tensor,
    ) -> tuple[Tensor, Tensor]:
        gates, trail = room(x, h0)
        heard, between = torch.empty_like(trail[1:]), torch.empty_like(trail[1:])
        u_r, u_z, u_n = (part.T for part in recurrent.chunk(3))
        b_n = bias.chunk(3)[2]
        # The recurrent biases of r and z stand where the inward ones do.
        shift = inward_bias + torch.cat([bias[: -len(b_n)], torch.zeros_like(b_n)])
        seen, weight = beside([x]), torch.cat([inward, shift[:, None]], 1)
        tape = _Tape.blank(about, len(x), h0, field)
        each = list(zip(*gates, heard, trail[1:], strict=False))
        for block in blocks(len(x)):
            project(seen, weight, gates, block)
            for row, (r, z, new, told, out) in enumerate(each[block], block.start):
                h = between[row].copy_(
                    _leg(about, trail[row], gaps[row], field, tape, row if about.keep else 0)
                    if row
                    else h0
                )
                r.addmm_(h, u_r).sigmoid_()
                z.addmm_(h, u_z).sigmoid_()
                torch.addmm(b_n, h, u_n, out=told)
                new.addcmul_(r, told).tanh_()
                torch.lerp(new, h, z, out=out)
        if about.keep:
            ctx.about, ctx.tape = about, tape
            ctx.save_for_backward(gaps, seen, weight, recurrent, gates, between, heard, *field)
        ctx.mark_non_differentiable(between)
        return trail[1:], between

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gaps, seen, weight, recurrent, gates, between, heard, *field = ctx.saved_tensors
        about, tape, field = ctx.about, ctx.tape, tuple(field)
        u_r, u_z, u_n = recurrent.chunk(3)
        n = len(u_r)
        collect = Collect(seen, weight, seen.shape[2] - 1 if ctx.needs_input_grad[1] else 0)
        g_recurrent, g_bias = seen.new_zeros(3, n, n), seen.new_zeros(n)
        to = _Tape([torch.empty_like(each) for each in (*tape.inputs[1:], tape.inputs[0])], [])
        carried = torch.zeros_like(between[0])
        each = list(zip(between, *gates, heard, grads[0], strict=False))
        for block in reversed(blocks(len(heard))):
            g_told = torch.empty_like(heard[block])
            g_gates = torch.empty_like(gates[:, block][:, : len(g_told)])
            into = [*zip(*g_gates, g_told, strict=True)]
            for row in range(block.start + len(g_told) - 1, block.start - 1, -1):
                h, r, z, new, told, g_out = each[row]
                to_r, to_z, to_new, to_told = into[row - block.start]
                g = carried + g_out
                stay = g * z
                tanh_back(g - stay, new, grad_input=to_new)
                sigmoid_back(g.mul_(h - new), z, grad_input=to_z)
                sigmoid_back(to_new * told, r, grad_input=to_r)
                torch.mul(to_new, r, out=to_told)
                carried = stay.addmm_(to_r, u_r).addmm_(to_z, u_z).addmm_(to_told, u_n)
                if row:
                    carried = _through_leg(about, carried, gaps[row], field, tape, row, to)
            before = between[block][: len(g_told)].flatten(0, 1)
            for total, g in zip(g_recurrent, (*g_gates[:2], g_told), strict=True):
                total.addmm_(before.T, g.flatten(0, 1))
            g_bias += g_told.sum((0, 1))
            collect.add(g_gates, block)
        g_weight, g_shift = collect.weight_and_bias()
        g_bias = torch.cat([g_shift[: 2 * n], g_bias])
        g_field = []
        for inputs, g in zip(tape.inputs, to.inputs, strict=True):
            # The first row has no leg before it.
            flat = g[1:].flatten(0, 2)
            g_field += [flat.T @ inputs[1:].flatten(0, 2), flat.sum(0)]
        told = (collect.inputs(len(heard)), None, carried, g_weight, g_shift, joined(g_recurrent))
        return (None, *told, g_bias, *g_field)
