"""Value legs of an `MLPVectorField` over moved channels only, in plain torch.

On each leg the streams in which a channel moved are gathered, channel by channel, and every
channel's columns are computed for its own streams by one batched product. Value and count of a
channel move together, so their columns are computed together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from onlinecde.solvers.chain import Chain
from onlinecde.solvers.fields import ACTIVATIONS, MLPVectorField

DENSE_ABOVE = 0.5
"""Above this share of observed values on a leg, computing all its columns is faster than gathering
some. It is asked leg by leg: what is observed later must not change how a leg is added up."""


@dataclass(frozen=True)
class _Leg:
    gather: Tensor
    """(channel * most,): the stream behind each row of the product; unused rows read stream 0."""
    most: int
    bags: Tensor
    """(moved,): rows of the product in order of streams."""
    offsets: Tensor
    """(stream,): where each stream's rows begin in `bags`."""
    entries: Tensor
    """(moved,): position in dx (stream, channel - 1) of each of these rows."""


class GroupedContraction:
    """Contractions of one field along one chain; `weights` are differentiable functions of it."""

    def __init__(self, field: MLPVectorField, chain: Chain) -> None:
        self.field, self.chain = field, chain
        self.parts = 2 if chain.counts else 1
        values = (chain.channels - 1) // self.parts
        # (part, value, hidden, width) -> (value, width, part * hidden)
        grouped = field.weight[1:].view(self.parts, values, field.hidden, field.width)
        grouped = grouped.permute(1, 3, 0, 2).reshape(values, field.width, -1)
        offset = field.bias[1:].view(self.parts, values, field.hidden).transpose(0, 1)
        self.weights: tuple[Tensor, ...] = (
            *field.inner_weights(),
            field.weight[0],
            field.bias[0],
            grouped,
            offset.reshape(values, 1, -1),
        )
        self.legs = _plan(chain, values, self.parts)

    def at(
        self, piece: int, weights: tuple[Tensor, ...]
    ) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
        """The contraction `(y, dx, drive)` of one piece with the given weights."""
        depth = self.field.depth
        act = ACTIVATIONS[self.field.activation]
        last = torch.tanh if self.field.final == "tanh" else lambda x: x
        time_weight, time_bias, grouped, offset = weights[2 * depth :]

        def features(y: Tensor, drive: Tensor | None) -> Tensor:
            for layer in range(depth):
                y = torch.addmm(weights[2 * layer + 1], y, weights[2 * layer].T)
                y = act(y + drive if layer == 0 and drive is not None else y)
            return y

        def time_leg(y: Tensor, dx: Tensor, drive: Tensor | None) -> Tensor:
            return last(torch.addmm(time_bias, features(y, drive), time_weight.T)) * dx

        if piece % 2 == 0:
            return time_leg
        leg = self.legs[piece // 2]

        def whole_leg(y: Tensor, dx: Tensor, drive: Tensor | None) -> Tensor:
            h = features(y, drive)
            columns = last(torch.baddbmm(offset, h.expand(grouped.shape[0], -1, -1), grouped))
            columns = columns.view(grouped.shape[0], h.shape[0], self.parts, -1)
            shares = dx.view(h.shape[0], self.parts, -1)
            return torch.einsum("vsph,spv->sh", columns, shares)

        def value_leg(y: Tensor, dx: Tensor, drive: Tensor | None) -> Tensor:
            rows = features(y, drive).index_select(0, leg.gather)
            rows = rows.view(grouped.shape[0], leg.most, -1)
            columns = last(torch.baddbmm(offset, rows, grouped))
            return torch.nn.functional.embedding_bag(
                leg.bags,
                columns.view(-1, self.field.hidden),
                leg.offsets,
                mode="sum",
                per_sample_weights=dx.reshape(-1)[leg.entries],
            )

        return whole_leg if leg is None else value_leg


def _plan(chain: Chain, values: int, parts: int) -> list[_Leg | None]:
    """Which rows each leg's product has and where they go, all legs at once; None: all of them."""
    observed = chain.observed
    assert observed is not None
    legs, streams, _ = observed.shape
    device = observed.device
    rank = observed.cumsum(1) - 1
    # One more than the largest group, so that no product is empty.
    most = (rank[:, -1].amax(1) + 1).clamp(min=1) if streams else rank.new_ones(legs)
    starts = torch.cat([most.new_zeros(1), (most * values).cumsum(0)])
    leg, stream, value = observed.nonzero(as_tuple=True)
    row = value * most[leg] + rank[leg, stream, value]
    gather = torch.zeros(int(starts[-1]), dtype=torch.int64, device=device)
    gather[starts[leg] + row] = stream
    part = torch.arange(parts, device=device)
    bags = (row[:, None] * parts + part).flatten()
    entries = ((stream * parts * values + value)[:, None] + part * values).flatten()
    many = observed.sum(2)
    offsets = (many.cumsum(1) - many) * parts
    ends = (many.sum(1).cumsum(0) * parts).tolist()
    starts, most = starts.tolist(), most.tolist()
    active = [chain.active[2 * i + 1] for i in range(legs)]
    moved = many.sum(1).tolist()
    return [
        None
        if moved[i] > DENSE_ABOVE * active[i] * values
        else _Leg(
            gather=gather[starts[i] : starts[i + 1]],
            most=most[i],
            bags=bags[(ends[i - 1] if i else 0) : ends[i]],
            offsets=offsets[i, : active[i]],
            entries=entries[(ends[i - 1] if i else 0) : ends[i]],
        )
        for i in range(legs)
    ]
