"""Move lists: for each value leg, channel by channel, the streams in which the channel moved.

Built on the device, without a look at what is in them: everything has room for the most there
could be, so that the same memory serves the next batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from onlinecde.kernels.gpu.packing import Legs

DENSE_FROM = 0.6
"""Where so large a share of what may move on a leg does, its columns are computed for all channels alike."""


@dataclass(frozen=True, eq=False)
class Moves:
    """Entries in the order leg, value, stream, cut into tiles of one value each; all int32."""

    entry_stream: Tensor
    """(entry,): the stream in which it moved"""
    entry_place: Tensor
    """(entry,): its number among the leg's entries in the order stream, value"""
    value_first: Tensor
    """(leg * value + 1): where the entries of each value on each leg begin"""
    tile_value: Tensor
    """(tile,)"""
    tile_first: Tensor
    tile_last: Tensor
    leg_tiles: Tensor
    """(leg + 1): where each leg's tiles begin"""
    stream_first: Tensor
    """(leg, stream + 1): where each stream's entries begin in the order stream, value"""
    leg_crowd: Tensor
    """(leg,): how many streams move where most of their values do, else 0; they come first"""


def plan_moves(legs: Legs, entries: int) -> Moves:
    """The move lists of a path in tiles of `entries`."""
    number, streams = legs.slopes.shape[:2]
    values, device = legs.values, legs.slopes.device
    piece = (
        torch.arange(number, device=device) * 2 + 1
        if legs.rectilinear
        else torch.arange(number, device=device)
    )
    going = legs.lengths[None, :] > piece[:, None]
    moves = going[:, :, None].expand(-1, -1, values)
    if legs.observed is not None:
        moves = moves & legs.observed
    one = moves.to(torch.int32)
    rank = one.cumsum(1, dtype=torch.int32)
    counts = rank[:, -1].reshape(-1)
    value_last = counts.cumsum(0, dtype=torch.int32)
    value_first = value_last - counts
    room = number * streams * values
    # What does not move goes to one place behind all others.
    target = rank - 1 + value_first.view(number, 1, values)
    target = torch.where(moves, target, room).view(-1).to(torch.int64)
    place = one.view(number, -1).cumsum(1, dtype=torch.int32) - 1
    stream = torch.arange(streams, dtype=torch.int32, device=device)[None, :, None].expand_as(one)
    entry_stream = torch.zeros(room + 1, dtype=torch.int32, device=device)
    entry_place = torch.zeros_like(entry_stream)
    entry_stream.scatter_(0, target, stream.reshape(-1))
    entry_place.scatter_(0, target, place.view(-1))
    each = one.sum(2, dtype=torch.int32).cumsum(1, dtype=torch.int32)
    stream_first = torch.nn.functional.pad(each, (1, 0))
    tiles = (counts + entries - 1) // entries
    tile_end = tiles.cumsum(0, dtype=torch.int32)
    tile = torch.arange(number * values * -(-streams // entries), dtype=torch.int32, device=device)
    group = torch.searchsorted(tile_end, tile, right=True).clamp(max=number * values - 1)
    first = value_first[group] + (tile - (tile_end - tiles)[group]) * entries
    # By the leg alone: what comes later must not move what was before by a bit.
    crowd = going.sum(1, dtype=torch.int32)
    dense = each[:, -1] >= DENSE_FROM * values * crowd
    leg_tiles = torch.nn.functional.pad(tile_end.view(number, values)[:, -1], (1, 0))
    return Moves(
        entry_stream,
        entry_place,
        torch.nn.functional.pad(value_last, (1, 0)),
        (group % values).to(torch.int32),
        first,
        torch.minimum(first + entries, value_last[group]),
        leg_tiles,
        stream_first,
        torch.where(dense, crowd, 0),
    )
