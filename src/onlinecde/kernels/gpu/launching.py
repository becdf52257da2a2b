"""How a solve is cut into tiles, and the arguments all kernels share."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from onlinecde.kernels.gpu.assembler import ptxas
from onlinecde.kernels.gpu.packing import Legs, PackedField, Table, padded
from onlinecde.kernels.gpu.plan import Moves
from onlinecde.sharing import on_the_gpu

SHARED = 225_000
"""Bytes of shared memory a kernel may plan with."""
ALONE_UP_TO = 8
"""With at most this number of channels, each thread block takes its streams through the whole solve alone ..."""
ALONE_WEIGHTS = 32_000
"""... if the weights it would read at every stage are no more than these."""


class FieldShape(Protocol):
    """What tiles depend on: of a field that was packed, or of the one it was made from."""

    @property
    def hidden(self) -> int: ...
    @property
    def width(self) -> int: ...


@dataclass(frozen=True)
class Dense:
    """How a value leg on which most channels move is cut into pieces of work."""

    streams: int
    """Streams in a tile"""
    columns: int
    """Hidden units in a block"""
    groups: int
    """Groups into which the channels are cut; kernels are not compiled for their number"""
    ahead: int
    """Blocks of weights that are read one ahead of the other"""

    def parts_of(self, hidden: int) -> int:
        """Parts of a stream's gradients, for rows of a number of hidden units."""
        return -(-hidden // self.columns) * self.groups


@dataclass(frozen=True)
class Shape:
    """How a solve is cut into tiles."""

    rows: int
    """Streams in a tile"""
    entries: int
    """(channel, stream) entries in a tile"""
    entries_back: int
    """... and the number of them taken at once in the backward sweep"""
    block: int
    """Columns of a tile's product computed at once"""
    columns: int
    """... and of an entry's"""
    columns_back: int
    shares: int
    """Pieces of work into which the hidden units of a tile of entries are cut, where units come first"""
    shares_back: int
    ahead: int
    """Blocks of an entry's weights that are read one ahead of the other in the forward sweep"""
    deep: int
    """Numbers of a row read at once; wider rows are not held in registers"""
    warps: int
    """Warps of a thread block"""
    warps_back: int
    alone: bool
    programs: int
    """Thread blocks of a solve in which they work together"""
    longest: int
    """Products that may be added up in one sum"""
    dense: Dense | None
    """Legs on which most channels move; None where they are as all others"""
    dense_back: Dense | None


def interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter, one thread block after the other."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def shape_for(
    field: FieldShape, legs: Legs, alone: bool | None = None, split: bool = True
) -> Shape:
    """Tiles by the sizes of the field and the number of streams, never by what was observed."""
    tall, wide = padded(field.hidden), max(padded(field.hidden), padded(field.width))
    long, broad = legs.row(field.hidden), legs.row(field.width)
    channels = legs.values * legs.parts
    if alone is None:
        # Every other leg of a rectilinear path is one of time, for which nobody need meet.
        most = ALONE_WEIGHTS * (3 if legs.rectilinear else 1)
        alone = channels <= ALONE_UP_TO and channels * long * broad <= most
    programs = 1
    if not interpreted():
        programs = torch.cuda.get_device_properties(legs.slopes.device).multi_processor_count
    # Fewer units would leave tensor cores idle.
    crowds = not alone and long >= 64
    rows = 16
    while not alone and rows < 64 and rows * programs < legs.streams:
        rows *= 2
    if interpreted():
        # The least tensor cores would take: there every number computed costs time.
        dense = _dense(field, legs, 16, 16, programs, 1) if crowds else None
        return Shape(rows, 16, 16, 16, 16, 16, 1, 1, 1, 16, 1, 1, alone, programs, 8, dense, dense)
    small = wide <= 64
    entries, entries_back = 64, 64 if small else 32
    # Every meeting costs more the more come: no more thread blocks than can ever have work, and of a GPU
    # that several processes share no more than a share of it, for blocks that wait hold their place.
    tiles = legs.values * -(-legs.streams // min(entries, entries_back))
    share = -(-programs // on_the_gpu())
    programs = min(programs, max(-(-legs.streams // rows), min(tiles, share)))
    warps = 8 if split or not small else 4
    columns_back, warps_back = 64, 4 if small else 8
    if not alone and not small and (long > 64 or wide > 128):
        # Eight warps want 128 units each time, whose weights must fit into shared memory twice.
        fast = (tall == 128 or long % 128 == 0) and broad <= 192 and ptxas() is not None
        columns_back, warps_back = (128, 8) if fast else (64, 4)
    shares = 2 if long == 256 else 1
    # Shared memory holds an entry's rows and two blocks of weights for each part, or one.
    fits = entries * broad + 2 * legs.parts * 64 * broad <= 50_000
    dense = dense_back = None
    # Values with counts are mostly sparse, and code for both kinds of legs takes registers from each.
    if crowds and (legs.observed is None or legs.parts == 1):
        dense = _dense_streams_first(field, legs, warps, programs, split)
        narrow = broad <= 128
        if legs.observed is None:
            warps_back = 8 if (narrow or long % 128 == 0) and ptxas() is not None else 4
        if narrow:
            dense_back = _dense_streams_first(field, legs, warps_back, programs, split)
        elif warps_back == 8 and long % 128 == 0:
            # Shared memory holds what the last layer takes in, a block of weights and its gradients.
            size = 4 if split else 2
            halves = (64 + 128) * broad * size + 64 * 128 * (size + 2)
            dense_back = _dense(field, legs, 64 if halves <= SHARED else 32, 128, programs, ahead=1)
        elif legs.observed is None:
            # Four warps have no registers for the gradients of many streams with many features.
            dense_back = _dense(field, legs, 32, 64, programs, ahead=2)
    return Shape(
        rows=rows,
        entries=entries,
        entries_back=entries_back,
        # Whole rows where a tile has few of them.
        block=256 if rows == 16 else 128,
        columns=64,
        columns_back=columns_back,
        shares=shares,
        shares_back=shares,
        ahead=2 if fits else 1,
        deep=128 if wide <= 128 else 64,
        warps=warps,
        warps_back=warps_back,
        alone=alone,
        programs=programs,
        longest=8192,
        dense=dense,
        dense_back=dense_back,
    )


def _dense_streams_first(
    field: FieldShape, legs: Legs, warps: int, programs: int, split: bool
) -> Dense:
    """16 streams for each of so many warps, and as many units as go well with rows of the field's width."""
    broad = legs.row(field.width)
    ahead = 3 if (16 * warps + 64 * 3) * broad * (4 if split else 2) <= SHARED else 2
    return _dense(field, legs, 16 * warps, 64 if broad <= 128 else 32, programs, ahead)


def _dense(
    field: FieldShape, legs: Legs, streams: int, columns: int, programs: int, ahead: int
) -> Dense:
    """The shape for tiles of a number of streams, and blocks of at most a number of hidden units."""
    long = legs.row(field.hidden)
    # Of 80 and 96 units no block but the last is half empty.
    columns = min(columns, 32 if long in (80, 96) else long)
    tiles = -(-legs.streams // streams) * -(-long // columns)
    return Dense(streams, columns, groups_for(legs.values, legs.parts, tiles, programs), ahead)


def groups_for(values: int, parts: int, tiles: int, programs: int) -> int:
    """Groups of channels, at most one for each value, with which all thread blocks are done first.

    Every group makes work of its own for each of `tiles`: to begin it takes about as long as one channel.

    >>> groups_for(9, 1, tiles=64, programs=132)
    2
    """

    def turns(groups: int) -> int:
        return -(-tiles * groups // programs) * (-(-values * parts // groups) + 1)

    return min(range(1, values + 1), key=turns)


def counter(device: torch.device) -> Tensor:
    """How many thread blocks have come to a meeting, over all meetings."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def grid_of(shape: Shape, streams: int) -> tuple[int]:
    """How many thread blocks there are: one for each tile of streams, or all that fit."""
    return (-(-streams // shape.rows),) if shape.alone else (shape.programs,)


def path_of(legs: Legs, table: Table, dense: Dense | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The path's tensors, with stand-ins for those that are not there."""
    nothing = legs.slopes
    return (
        nothing if legs.time is None else legs.time,
        legs.lengths if legs.time_steps is None else legs.time_steps,
        legs.slopes,
        legs.stage_slopes(table) if dense else nothing,
    )


def lists_of(moves: Moves | None, legs: Legs) -> tuple[Tensor, ...]:
    """The move lists, with stand-ins where there are none."""
    if moves is None:
        return (legs.lengths,) * 8
    return (
        moves.entry_stream, moves.entry_place, moves.tile_value, moves.tile_first, moves.tile_last,
        moves.leg_tiles, moves.stream_first, moves.leg_crowd,
    )  # fmt: skip


def sizes_of(
    field: PackedField, legs: Legs, shape: Shape, stages: int, columns: int
) -> dict[str, Any]:
    """The sizes all sweeps are compiled for; `columns` of an entry are computed at once."""
    tall, wide = padded(field.hidden), padded(field.width)
    long, broad = legs.row(field.hidden), legs.row(field.width)
    return {
        "H": field.hidden,
        "HS": long,
        "HP": tall,
        "BH": _block(long, tall, shape.block),
        "W": field.width,
        "WA": wide if wide == broad else wide // 2,
        "WB": 0 if wide == broad else broad - wide // 2,
        "WP": wide,
        "BW": _block(broad, wide, shape.block),
        "DEPTH": field.depth,
        "ACT": field.activation,
        "TANH": field.final == "tanh",
        "VALUES": legs.values,
        "PARTS": legs.parts,
        "RECTILINEAR": legs.rectilinear,
        "DEGREE": legs.slopes.shape[2],
        "STEPS": legs.steps,
        "STAGES": stages,
        "OWN_STEPS": legs.time_steps is not None,
        "ALONE": shape.alone,
        "BK": min(wide, shape.deep),
        "BKH": min(tall, shape.deep),
        "BN": min(tall, columns),
        "ROWS": shape.rows,
        "ENTRIES": shape.entries,
    }


def nodes_of(legs: Legs, table: Table) -> int:
    """At how many nodes of a leg dX/du is found by itself."""
    return legs.steps * table.stages if legs.slopes.shape[2] > 1 else 1


def dense_of(dense: Dense | None, legs: Legs, table: Table) -> dict[str, Any]:
    """How a sweep takes legs on which most channels move."""
    if dense is None:
        return {
            "groups": 0, "DENSE": "never", "CROWD": 16, "DN": 16, "DENSE_AHEAD": 1, "NODES": 1
        }  # fmt: skip
    return {
        "groups": dense.groups,
        # Where anything may move there is no other leg, and no code for one.
        "DENSE": "always" if legs.observed is None else "some",
        "CROWD": dense.streams,
        "DN": dense.columns,
        "DENSE_AHEAD": dense.ahead,
        "NODES": nodes_of(legs, table),
    }


def room_for(legs: Legs, shape: Shape, shares: int, dense: int) -> int:
    """Parts of a stage that may stand side by side: `shares` of each entry, or `dense` of each stream."""
    if shape.alone:
        return 0
    entries = legs.values * shares
    # Where anything may move, either all legs are dense or none is.
    return legs.streams * (dense if dense and legs.observed is None else max(dense, entries))


def _block(size: int, whole: int, most: int) -> int:
    """The power of two `whole` that holds `size`, or the largest up to `most` that divides it."""
    return whole if whole <= most else math.gcd(size, most)


def precision_of(split: bool, device: torch.device) -> dict[str, bool]:
    """Whether products are split, and tanh is the hardware's."""
    return {"SPLIT": split, "FAST": not split and device.type == "cuda"}


def options(warps: int, together: bool = False, registers: int | None = None) -> dict[str, Any]:
    """Options of a launch; thread blocks that wait for each other must all be let in at once."""
    if interpreted():
        return {}
    # One stage: what a pipeline of loads would take in shared memory is more than it gains.
    chosen = {"num_warps": warps, "num_stages": 1, "launch_cooperative_grid": together}
    return chosen if registers is None else chosen | {"maxnreg": registers}
