"""ODE-RNN's recurrence: a leg of a neural ODE, a GRU update, and so on; hand-written gradients.

For a GPU, where a thin loop is all that counts: everything that does not wait for h is computed before it
or after it, and what each layer took in is kept for one product a layer in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onlinecde.kernels.activations import ACTIVATIONS
from onlinecde.models.recurrent.recurrences import gru_rows, gru_rows_back
from onlinecde.models.recurrent.row_blocks import tanh_back
from onlinecde.solvers import MLPField
from onlinecde.solvers.first_order import once_by_recurrence
from onlinecde.solvers.runge_kutta import Tableau


def ode_recurrence(
    x: Tensor,
    gaps: Tensor,
    h0: Tensor,
    cell: nn.GRUCell,
    field: MLPField,
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
        gaps[:, :, None],
        x,
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
    """Whether a backward sweep will need what is kept."""

    @property
    def from_before(self) -> bool:
        """Whether the activation's derivative is found from what went in, not from what came out."""
        return not ACTIVATIONS[self.activation].from_output


@dataclass(frozen=True, eq=False)
class _Tape:
    """What the field's layers took in: (row, stage of all steps, stream, size) of each, the last layer's too."""

    inputs: list[Tensor]
    before: list[Tensor]
    """Of inner layers, what their activation took in, where its derivative is found from that"""

    @classmethod
    def blank(cls, about: _About, rows: int, h0: Tensor, weights: tuple[Tensor, ...]) -> _Tape:
        count = about.steps * about.table.stages
        kept = rows if about.keep else 1
        inputs = [h0.new_empty(kept, count, len(h0), weight.shape[1]) for weight in weights[::2]]
        before = [torch.empty_like(each) for each in inputs[1:]] if about.from_before else []
        return cls(inputs, before)


def _leg(
    about: _About, z: Tensor, gap: Tensor, weights: tuple[Tensor, ...], tape: _Tape, row: int
) -> Tensor:
    """z (stream, hidden) after a gap (stream, 1)."""
    table, act = about.table, ACTIVATIONS[about.activation].value
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
        g_ys: list[Tensor] = []  # from the last stage to the first
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
                if about.activation == "tanh":
                    tanh_back(g_u, bent, grad_input=into)  # the usual one, in place
                else:
                    into.copy_(ACTIVATIONS[about.activation].derivative(g_u, bent))
                g_u = into @ inner[2 * layer]
            g_ys.append(g_u)
        g = g + g_ys[0]
        for g_y in g_ys[1:]:
            g.add_(g_y)
    return g


class _ODERecurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        about: _About,
        gaps: Tensor,
        x: Tensor,
        h0: Tensor,
        inward: Tensor,
        inward_bias: Tensor,
        recurrent: Tensor,
        bias: Tensor,
        *field: Tensor,
    ) -> tuple[Tensor, Tensor]:
        tape = _Tape.blank(about, len(x), h0, field)

        def between(row: int, h: Tensor) -> Tensor:
            return _leg(about, h, gaps[row], field, tape, row if about.keep else 0)

        after, kept = gru_rows(x, h0, inward, inward_bias, recurrent, bias, between)
        if about.keep:
            ctx.about, ctx.tape = about, tape
            ctx.save_for_backward(gaps, *kept, *field)
        ctx.mark_non_differentiable(before := kept[-2])
        return after, before

    @staticmethod
    @once_by_recurrence
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gaps, *saved = ctx.saved_tensors
        kept, field = saved[:6], tuple(saved[6:])
        about, tape = ctx.about, ctx.tape
        to = _Tape([torch.empty_like(each) for each in (*tape.inputs[1:], tape.inputs[0])], [])

        def between(row: int, g: Tensor) -> Tensor:
            return _through_leg(about, g, gaps[row], field, tape, row, to)

        of_rows = gru_rows_back(kept, grads[0], ctx.needs_input_grad[2], between)
        g_field = []
        for inputs, g in zip(tape.inputs, to.inputs, strict=True):
            # The first row has no leg before it.
            flat = g[1:].flatten(0, 2)
            g_field += [flat.T @ inputs[1:].flatten(0, 2), flat.sum(0)]
        return (None, None, *of_rows, *g_field)
