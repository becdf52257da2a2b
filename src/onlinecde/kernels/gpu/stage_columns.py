"""Columns of one stage, their way back, and their gradients, for paths on which every channel moves: in CUDA.

A warpgroup's products run by themselves from shared memory (compute capability 9), and several thread blocks on
a multiprocessor keep some multiplying while others compute tanh. Inputs, tape and results are those of the
Triton kernels.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from onlinecde.kernels.gpu import compiling
from onlinecde.kernels.gpu.launching import groups_for
from onlinecde.kernels.gpu.packing import Legs, PackedField, Table

if TYPE_CHECKING:
    from onlinecde.kernels.gpu.weight_gradients import Tape

PRIMITIVES = ("cluster_primitives.cuh", "stage_primitives.cuh")
LOT = 32
"""Streams of which the gradients of the weights are found at once"""
HELD = 128
"""Up to this width the left sides of two products fit into registers."""
ROOM = 128
"""Streams are padded to a multiple of these: no tile has more."""
LARGEST = compiling.LARGEST_SHARED


class FieldSizes(Protocol):
    """What must be known of a field: one that was packed, or the one it was made from."""

    @property
    def hidden(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def final(self) -> str: ...


@dataclass(frozen=True)
class Tiles:
    """How the work of a stage is shared out among thread blocks: 16 streams to each warp."""

    units: int
    """Hidden units of a piece of work"""
    warps: int
    resident: int
    """Thread blocks of a multiprocessor"""
    blocks: int
    """Pieces of work into which the hidden units are cut"""
    groups: int
    """... and the channels"""

    @property
    def parts(self) -> int:
        """Parts of a stream's gradients."""
        return self.blocks * self.groups

    def works(self, streams: int) -> int:
        """Thread blocks of a launch."""
        return -(-streams // (16 * self.warps)) * self.parts


@dataclass(frozen=True)
class Staged:
    """How a solve is done stage by stage, and what its kernels are compiled for."""

    there: Tiles
    back: Tiles
    weights: tuple[int, int]
    """Warps of a thread block for the last layer's gradients, and thread blocks of a multiprocessor"""
    defines: tuple[tuple[str, str], ...]

    def size(self, name: str) -> int:
        """One of the sizes the kernels are compiled for."""
        return int(dict(self.defines)[name])

    @property
    def line(self) -> int:
        """Halves in a row of what the last layer takes in."""
        return -(-self.size("W") // 16) * 16

    @property
    def halves(self) -> int:
        return 1 + self.size("SPLIT")


def plan(
    field: FieldSizes, legs: Legs, table: Table, *, split: bool, save: bool, device: torch.device
) -> Staged | str:
    """How a solve is done stage by stage, or in words why it is not."""
    if legs.observed is not None:
        return "not every channel moves"
    if field.final != "tanh":
        return "the field does not end with tanh"
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return "the device is not of compute capability 9"
    number = torch.cuda.current_device() if device.index is None else device.index
    programs = torch.cuda.get_device_properties(device).multi_processor_count
    how = staged_for(field, legs, table, programs, split=split)
    return _broken(how, save, number) or how


def staged_for(
    field: FieldSizes, legs: Legs, table: Table, programs: int, *, split: bool
) -> Staged:
    """Tiles by the sizes of the field and the number of streams."""
    if field.width <= 96:
        units, weights = (32, 96), (4, 3)
        warps, resident = (8, 4), (2, 2)
        if field.hidden <= 48:
            units, resident = (48, 48), (1, 2)
    elif field.width <= HELD:
        units, weights = (96, 32), (4, 2)
        warps, resident = (8, 4), (1, 2)
    else:
        units, weights = (32, 32), (8, 1)
        warps, resident = (8, 8), (1, 1)
    there, back = (
        tiles_for(field, legs, *how, programs) for how in zip(units, warps, resident, strict=True)
    )
    cubic = legs.slopes.shape[2] > 1
    defines = {
        "H": field.hidden,
        "W": field.width,
        "HP": packed_rows(field.hidden),
        "HS": legs.row(field.hidden),
        "WS": legs.row(field.width),
        "GS": gradient_row(legs.row(field.hidden)),
        "CHANNELS": legs.values * legs.parts,
        "TOTAL": legs.steps * table.stages,
        "NODES": legs.steps * table.stages if cubic else 1,
        "SPLIT": int(split),
    }
    return Staged(there, back, weights, tuple((name, str(x)) for name, x in defines.items()))


def packed_rows(hidden: int) -> int:
    """Rows of a channel's packed weights: whole tiles of 16, an even number of them if there are many.

    >>> [packed_rows(hidden) for hidden in (5, 33, 65, 82, 249)]
    [16, 48, 96, 96, 256]
    """
    tiles = -(-hidden // 16)
    return 16 * (tiles if tiles <= 3 else tiles + tiles % 2)


def gradient_row(size: int) -> int:
    """Numbers in a row of a stage's gradients: four more keep banks of shared memory apart."""
    return size + 4


def tiles_for(
    field: FieldSizes, legs: Legs, units: int, warps: int, resident: int, programs: int
) -> Tiles:
    """Tiles of so many hidden units or fewer."""
    rows = packed_rows(field.hidden)
    units = max(n for n in range(16, min(units, rows) + 1, 16) if rows % n == 0)
    blocks = -(-field.hidden // units)
    tiles = -(-legs.streams // (16 * warps)) * blocks
    groups = groups_for(legs.values, legs.parts, tiles, programs * resident)
    return Tiles(units, warps, resident, blocks, groups)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The last layer's weights as products want them: (channel, row, across, 8, 8) halves of 8 units each."""

    head: Tensor
    tail: Tensor
    bias: Tensor
    """(channel, packed row)"""


def in_blocks(field: PackedField, how: Staged) -> Blocks:
    """Lay a field's last layer out in blocks of 8 x 8."""
    rows, across = how.size("HP"), how.line // 8

    def laid(weight: Tensor) -> Tensor:
        channels, tall, wide = weight.shape
        blocks = weight.view(channels, tall // 8, 8, wide // 8, 8)[:, : rows // 8, :, :across]
        return blocks.transpose(2, 3).contiguous()

    head = laid(field.head)
    return Blocks(head, laid(field.tail) if how.halves > 1 else head, field.bias[:, :rows].contiguous())


def room_for_rows(how: Staged, stages: int, streams: int, like: Tensor) -> Tensor:
    """Where what the last layer takes in is kept, (stage, half, stream, line), in blocks of 8 x 8.

    What is not written is 0, for products take it in and must find numbers.
    """
    room = -(-streams // ROOM) * ROOM
    return like.new_zeros(stages, how.halves, room, how.line, dtype=torch.float16)


@lru_cache(maxsize=64)
def _broken(how: Staged, save: bool, device: int) -> str | None:
    """Why one of the kernels a solve needs cannot be compiled, or None; found out once."""
    try:
        _kernel("columns", how, save, device)
        if save:
            _kernel("pull", how, save, device)
            _kernel("weights", how, save, device)
    except compiling.CompileError as error:
        warnings.warn(f"a captured solve is not done stage by stage: {error}", stacklevel=2)
        return str(error)
    return None


def shared_bytes(name: str, how: Staged) -> int:
    """Bytes of shared memory of a thread block, with what alignment may add."""
    line = 2 * how.line * how.halves
    if name != "weights":
        tiles = how.there if name == "columns" else how.back
        return 3 * (tiles.units * (line + 4) + 128) + 16 * tiles.warps * line + 256
    return _weights_shared(how, places_for(how))


def _weights_shared(how: Staged, places: int) -> int:
    """Bytes of shared memory that the last layer's gradients take with so many lots at once."""
    line, warps = 2 * how.line * how.halves, how.weights[0]
    held = how.size("W") <= HELD
    tiles = -(-how.size("H") // 16) if held else how.size("HP") // 16
    part = tiles % warps == 0 and tiles > warps
    row = 16 * warps + 4 if part else how.size("GS")
    lanes = (warps + tiles - 2) // tiles + 1
    lots = places * (LOT * (line + 4 * row + 4 * lanes) + 256)
    return lots + (0 if held else 16 * warps * line) + 512


def places_for(how: Staged) -> int:
    """Lots that are brought at once: three where they fit."""
    return 3 if _weights_shared(how, 3) <= LARGEST else 2


def compiled_for(name: str, how: Staged, save: bool) -> tuple[tuple[tuple[str, str], ...], int]:
    """What a kernel is compiled for, and the threads of its thread blocks."""
    own: dict[str, str | int] = {"SAVE": int(save), "LOT": LOT, "PLACES": places_for(how)}
    held = name == "columns" or how.size("W") <= HELD
    if name == "weights":
        (warps, resident), units, first = how.weights, 16, LOT
    else:
        tiles = how.there if name == "columns" else how.back
        warps, resident, units, first = tiles.warps, tiles.resident, tiles.units, tiles.units
    own |= {"UNITS": units, "WARPS": warps, "RESIDENT": resident, "HELD": int(held)}
    own |= _operands("FIRST", first) | _operands("LAST", how.line)
    return (*how.defines, *((key, str(value)) for key, value in own.items())), 32 * warps


def _operands(name: str, columns: int) -> dict[str, str | int]:
    """How a warpgroup's product names its operands, for results of so many columns."""
    first = columns // 2
    place = [f'"%{number}"' for number in range(first + 6)]
    return {
        name: columns,
        f"{name}_NUMBERS": '"' + ",".join(f"%{number}" for number in range(first)) + '"',
        f"{name}_OUTPUTS": ", ".join(f'"+f"(d[{number}])' for number in range(first)),
        f"{name}_A": '"' + ",".join(f"%{first + number}" for number in range(4)) + '"',
        f"{name}_B": place[first + 4],
        f"{name}_ADD": place[first + 5],
        f"{name}_A_AT": place[first],
        f"{name}_B_AT": place[first + 1],
        f"{name}_ADD_AT": place[first + 2],
    }


def _kernel(name: str, how: Staged, save: bool, device: int) -> compiling.Kernel:
    defines, threads = compiled_for(name, how, save)
    return compiling.kernel(
        f"stage_{name}", (*PRIMITIVES, *files_of(name)), defines, threads, shared_bytes(name, how),
        device, "a",
    )  # fmt: skip


def files_of(name: str) -> tuple[str, ...]:
    """A kernel's source, but for the primitives."""
    work = () if name == "weights" else ("stage_work.cuh",)
    return "stage_tiles.cuh", *work, f"stage_{name}.cu"


def launch(
    name: str, how: Staged, save: bool, blocks: int, arguments: tuple[Tensor | int, ...]
) -> None:
    """Launch one of the kernels on the current device."""
    _kernel(name, how, save, torch.cuda.current_device()).launch(blocks, arguments)


def forward(tape: Tape, how: Staged, blocks: Blocks, parts: Tensor, number: int, *, save: bool) -> None:
    """The columns of stage `number` into `parts` (stream, group, row of hidden)."""
    legs, bent = tape.legs, tape.bent
    assert bent is not None
    launch(
        "columns", how, save, how.there.works(legs.streams),
        (
            bent, parts, legs.stage_slopes(tape.table), legs.moving, blocks.head, blocks.tail, blocks.bias,
            legs.streams, bent.shape[2], how.there.groups, number,
        ),
    )  # fmt: skip


def reverse(
    tape: Tape, how: Staged, blocks: Blocks, g_ks: Tensor, g_sizes: Tensor, parts: Tensor, number: int
) -> None:  # fmt: skip
    """Gradients of what the last layer takes in at stage `number` into `parts` (stream, part, row of width)."""
    legs, bent = tape.legs, tape.bent
    assert bent is not None
    launch(
        "pull", how, True, how.back.works(legs.streams),
        (
            bent, g_ks, g_sizes, parts, legs.stage_slopes(tape.table), legs.steep, legs.moving,
            blocks.head, blocks.tail, blocks.bias, legs.streams, bent.shape[2], how.back.groups, number,
        ),
    )  # fmt: skip


def weights(
    tape: Tape,
    how: Staged,
    g_ks: Tensor,
    most: Tensor,
    weight: Tensor,
    bias: Tensor,
    shares: int,
    cuts: int,
) -> None:
    """Gradients of the last layer, (share, channel, hidden, width) and (share, channel, hidden), in parts."""
    legs, bent, blocks = tape.legs, tape.bent, tape.blocks
    assert bent is not None
    assert blocks is not None
    held = how.size("W") <= HELD
    tiles = -(-how.size("H") // 16) if held else how.size("HP") // 16
    launch(
        "weights", how, True, -(-(legs.values * legs.parts * tiles) // how.weights[0]) * shares * cuts,
        (
            bent, g_ks, most, weight, bias, legs.stage_slopes(tape.table), legs.moving,
            blocks.head, blocks.tail, blocks.bias, legs.streams, bent.shape[2],
            legs.pieces * legs.steps * tape.table.stages, shares, cuts,
        ),
    )  # fmt: skip
