"""An `MLPField` on rectilinear legs over moved channels only, in plain torch, without autograd.

On each value leg the streams in which a channel moved are gathered, channel by channel, and every
channel's columns are computed for its own streams by one batched product. Value and count of a
channel move together, so their columns are computed together. `evaluate` is one stage, `pull_back`
its gradient, written out: half of what small operations cost is what autograd adds to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from onlinecde.kernels.activations import ACTIVATIONS
from onlinecde.solvers.fields import MLPField
from onlinecde.solvers.segments import PathSegments

DENSE_ABOVE = 0.5
"""Above this share of observed values on a leg, computing all its columns is faster than gathering
some. It is asked leg by leg: what is observed later must not change how a leg is added up."""


@dataclass(frozen=True)
class _Leg:
    """One leg's product: a row for each (value channel, stream in which it moved), and some unused."""

    most: int
    """Rows of each channel; there are channel * most in all."""
    stream: Tensor
    """(row,): the stream behind each row, 0 for unused ones"""
    entry: Tensor
    """(row,): position of its value in dx (stream, channel - 1), 0 for unused ones"""
    used: Tensor
    """(row, 1): 1, or 0 for unused ones"""
    bags: Tensor
    """(moved,): the rows that are used, in order of streams"""
    offsets: Tensor
    """(stream,): where each stream's rows begin in `bags`"""
    columns: Tensor
    """(moved * part,): the columns of these rows, which are `part` for each"""


@dataclass(frozen=True)
class Stage:
    """What `pull_back` needs of one evaluation."""

    inputs: list[Tensor]
    """What each inner layer and the last one took in"""
    bent: list[Tensor]
    """For each inner layer, what its activation's derivative is found from"""
    columns: Tensor
    """Columns after the tanh: (stream, hidden) on a time leg, else (value, row, part * hidden)"""
    rows: Tensor | None
    """(value, row, width): the last layer's input on a value leg"""


def sparse_weights(field: MLPField, segments: PathSegments) -> tuple[Tensor, ...]:
    """Differentiable functions of a field's parameters, as `SparseColumns` takes them.

    Weights and biases come in turn: inner layers, the time column, all other columns, those of a
    value and its count together.
    """
    values = segments.values
    parts = 2 if segments.counts else 1
    # (part, value, hidden, width) -> (value, width, part * hidden)
    weight = field.weight
    grouped = weight[1:].view(parts, values, field.hidden, field.width)
    grouped = grouped.permute(1, 3, 0, 2).reshape(values, field.width, -1)
    offset = field.bias[1:].view(parts, values, field.hidden).transpose(0, 1)
    return (
        *field.inner_weights(),
        weight[0],
        field.bias[0],
        grouped,
        offset.reshape(values, 1, -1),
    )


class SparseColumns:
    """The moved columns of a field along some segments: a stage, and its gradient."""

    def __init__(self, field: MLPField, segments: PathSegments) -> None:
        self.depth, self.activation = field.depth, ACTIVATIONS[field.activation]
        self.tanh = field.final == "tanh"
        self.parts, self.values = 2 if segments.counts else 1, segments.values
        self.legs = _plan(segments, self.values, self.parts)

    def shares(self, segment: int, dx: Tensor) -> Tensor:
        """How far each row's channels move on a segment: dx itself on a time leg, else (row, part)."""
        if segment % 2 == 0:
            return dx
        return _shares(dx, self.values, self.parts, self.legs[segment // 2])

    def evaluate(
        self,
        weights: tuple[Tensor, ...],
        segment: int,
        y: Tensor,
        shares: Tensor,
        drive: Tensor | None,
    ) -> tuple[Tensor, Stage]:
        """`f(y) dX/du` (stream, hidden) on a segment."""
        inputs, bent = [y], []
        for layer in range(self.depth):
            before = torch.addmm(weights[2 * layer + 1], inputs[-1], weights[2 * layer].T)
            if layer == 0 and drive is not None:
                before += drive
            after = self.activation.value(before)
            bent.append(after if self.activation.from_output else before)
            inputs.append(after)
        h = inputs[-1]
        if segment % 2 == 0:
            column = torch.addmm(weights[-3], h, weights[-4].T)
            if self.tanh:
                _tanh_in_place(column)
            return column * shares, Stage(inputs, bent, column, None)
        grouped, offset = weights[-2:]
        leg = self.legs[segment // 2]
        rows = h.expand(self.values, -1, -1)
        if leg is not None:
            rows = h.index_select(0, leg.stream).view(self.values, leg.most, -1)
        columns = torch.baddbmm(offset, rows, grouped)
        if self.tanh:
            _tanh_in_place(columns)
        if leg is None:
            each = columns.view(self.values, h.shape[0], self.parts, -1)
            wide = shares.view(self.values, h.shape[0], self.parts)
            k = torch.einsum("vsph,vsp->sh", each, wide)
        else:
            k = torch.nn.functional.embedding_bag(
                leg.columns,
                columns.view(leg.stream.shape[0] * self.parts, -1),
                leg.offsets * self.parts,
                mode="sum",
                per_sample_weights=shares.view(-1)[leg.columns],
            )
        return k, Stage(inputs, bent, columns, rows)

    def pull_back(
        self,
        weights: tuple[Tensor, ...],
        segment: int,
        stage: Stage,
        shares: Tensor,
        g: Tensor,
        collector: Collector,
        want_shares: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """From the gradient of a stage's k: those of y, of its drive, and of the shares if wanted."""
        g_shares = None
        h = stage.inputs[-1]
        if segment % 2 == 0:
            if want_shares:
                g_shares = (g * stage.columns).sum(1, keepdim=True)
            g_columns = self._through_tanh(g * shares, stage.columns)
            collector.stages[self.depth].append((h, g_columns))
            g_h = g_columns @ weights[-4]
        else:
            leg, grouped = self.legs[segment // 2], weights[-2]
            if leg is None:
                spread = g.expand(self.values, -1, -1).flatten(0, 1)[:, None]
            else:
                spread = g.index_select(0, leg.stream)[:, None]
            if want_shares:
                g_shares = (stage.columns.view(*shares.shape, -1) * spread).sum(2)
            g_columns = (spread * shares[:, :, None]).reshape(stage.columns.shape)
            g_columns = self._through_tanh(g_columns, stage.columns)
            assert stage.rows is not None
            collector.stages[-1].append((stage.rows, g_columns))
            g_rows = torch.bmm(g_columns, grouped.transpose(1, 2))
            if leg is None:
                g_h = g_rows.sum(0)
            else:
                flat = g_rows.view(-1, g_rows.shape[2])
                g_h = torch.nn.functional.embedding_bag(leg.bags, flat, leg.offsets, mode="sum")
        g_before = g_h
        for layer in range(self.depth - 1, -1, -1):
            g_before = self.activation.derivative(g_h, stage.bent[layer])
            collector.stages[layer].append((stage.inputs[layer], g_before))
            g_h = g_before @ weights[2 * layer]
        return g_h, g_before, g_shares

    def _through_tanh(self, g: Tensor, columns: Tensor) -> Tensor:
        return torch.ops.aten.tanh_backward(g, columns) if self.tanh else g


class Collector:
    """Gradients of a `SparseColumns`'s weights: a leg's stages in one product, added in place."""

    def __init__(self, weights: tuple[Tensor, ...]) -> None:
        self.sums = [torch.zeros_like(weight) for weight in weights]
        self.stages: list[list[tuple[Tensor, Tensor]]] = [[] for _ in weights[::2]]

    def flush(self) -> None:
        """Take in the stages met since the last time."""
        for number, stages in enumerate(self.stages):
            if stages:
                inputs = torch.cat([inputs for inputs, _ in stages], -2)
                grads = torch.cat([grads for _, grads in stages], -2)
                weight, bias = self.sums[2 * number], self.sums[2 * number + 1]
                if grads.ndim == 2:
                    weight.addmm_(grads.T, inputs)
                    bias += grads.sum(0)
                else:
                    weight.baddbmm_(inputs.transpose(1, 2), grads)
                    bias += grads.sum(1, keepdim=True)
                stages.clear()


def _tanh_in_place(columns: Tensor) -> None:
    if columns.device.type == "cpu" and columns.dtype in (torch.float32, torch.float64):
        # numpy's is vectorised and takes a third of the time of torch's.
        array = columns.numpy()
        np.tanh(array, out=array)
    else:
        columns.tanh_()


def _shares(dx: Tensor, values: int, parts: int, leg: _Leg | None) -> Tensor:
    """How far each row's channels move, (row, part): from dx (stream, part * value)."""
    if leg is None:
        return dx.view(-1, parts, values).permute(2, 0, 1).reshape(-1, parts)
    part = torch.arange(parts, device=dx.device) * values
    return dx.reshape(-1)[leg.entry[:, None] + part] * leg.used.to(dx.dtype)


def unshare(g_shares: Tensor, streams: int, values: int, leg: _Leg | None) -> Tensor:
    """The gradient of dx (stream, part * value) from that of the rows' shares (row, part)."""
    parts = g_shares.shape[1]
    if leg is None:
        return g_shares.view(values, streams, parts).permute(1, 2, 0).reshape(streams, -1)
    part = torch.arange(parts, device=g_shares.device) * values
    g_dx = g_shares.new_zeros(streams * parts * values)
    g_dx.index_add_(
        0, (leg.entry[:, None] + part).flatten(), (g_shares * leg.used.to(g_shares.dtype)).flatten()
    )
    return g_dx.view(streams, -1)


def _plan(segments: PathSegments, values: int, parts: int) -> list[_Leg | None]:
    """Which rows each leg's product has and where they go, all legs at once; None: all of them."""
    observed = segments.observed
    assert observed is not None
    legs, streams, _ = observed.shape
    device = observed.device
    rank = observed.cumsum(1) - 1
    # At least one row a channel, so that no product is empty.
    most = (rank[:, -1].amax(1) + 1).clamp(min=1) if streams else rank.new_ones(legs)
    starts = torch.cat([most.new_zeros(1), (most * values).cumsum(0)])
    leg, stream, value = observed.nonzero(as_tuple=True)
    row = value * most[leg] + rank[leg, stream, value]
    place = starts[leg] + row
    rows = int(starts[-1])
    behind = torch.zeros(rows, dtype=torch.int64, device=device).index_put((place,), stream)
    entry = torch.zeros(rows, dtype=torch.int64, device=device)
    entry[place] = stream * parts * values + value
    used = torch.zeros(rows, 1, dtype=torch.bool, device=device)
    used[place] = True
    columns = (row[:, None] * parts + torch.arange(parts, device=device)).flatten()
    counts = observed.sum(2)
    offsets = counts.cumsum(1) - counts
    moved = counts.sum(1).tolist()
    ends = counts.sum(1).cumsum(0).tolist()
    begins, sizes = starts.tolist(), most.tolist()
    plan: list[_Leg | None] = []
    for i in range(legs):
        active = segments.active_on(2 * i + 1)
        if moved[i] > DENSE_ABOVE * active * values:
            plan.append(None)
            continue
        own = slice(begins[i], begins[i + 1])
        plan.append(
            _Leg(
                most=sizes[i],
                stream=behind[own],
                entry=entry[own],
                used=used[own],
                bags=row[ends[i] - moved[i] : ends[i]],
                offsets=offsets[i, :active],
                columns=columns[(ends[i] - moved[i]) * parts : ends[i] * parts],
            )
        )
    return plan
