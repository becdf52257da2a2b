"""Which solves are done stage by stage, how their work is cut, and what the CUDA kernels for them are compiled for."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from onlinecde.kernels.activations import activation_named
from onlinecde.kernels.gpu.hopper import compiling
from onlinecde.kernels.gpu.hopper.clusters import FieldSizes
from onlinecde.kernels.gpu.launching import groups_for
from onlinecde.kernels.gpu.packing import Legs, Table, padded

SWITCH = "ONLINECDE_STAGES"
"""Set to 0 in the environment, it leaves these kernels out."""
PRIMITIVES = ("primitives.cuh", "stage_primitives.cuh")
SOURCES = {
    "next": ("numbers.cuh", "stage_layers.cuh", "stage_next.cu"),
    "columns": ("numbers.cuh", "stage_tiles.cuh", "stage_work.cuh", "stage_columns.cu"),
    "back": ("numbers.cuh", "stage_layers.cuh", "stage_back.cu"),
    "pull": ("numbers.cuh", "stage_tiles.cuh", "stage_work.cuh", "stage_pull.cu"),
    "weights": ("numbers.cuh", "stage_tiles.cuh", "stage_weights.cu"),
}
"""The kernels, in the order in which a solve first needs them, and their files but for the primitives"""
LAYER_STREAMS = 16
"""Streams of a thread block that takes them through the inner layers, a warp each"""
LOT = 32
"""Streams of which the gradients of the last layer are found at once"""
HELD = 128
"""Up to this width the left sides of two products fit into registers."""
WORTH = 2**16
"""Along a last layer of fewer numbers a sweep is faster: launches cost more than they save."""


@dataclass(frozen=True)
class Tiles:
    """How the columns of a stage are shared out among thread blocks: 16 streams to each warp."""

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
class Stages:
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
        return _tiles(self.size("W")) * 16

    @property
    def halves(self) -> int:
        """Halves of a number: its head, and where products are split its tail."""
        return 1 + self.size("SPLIT")

    @property
    def unit_tiles(self) -> int:
        """Tiles of 16 hidden units of a channel, for the last layer's gradients."""
        held = self.size("W") <= HELD
        return _tiles(self.size("H")) if held else self.size("HP") // 16


def plan(
    field: FieldSizes, legs: Legs, table: Table, *, split: bool, save: bool, device: torch.device
) -> Stages | str:
    """How a solve is done stage by stage, or in words why it is not."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return "the device is not of compute capability 9"
    reason = not_covered(field, legs, split=split)
    if reason is not None:
        return reason
    number = torch.cuda.current_device() if device.index is None else device.index
    programs = torch.cuda.get_device_properties(device).multi_processor_count
    how = stages_for(field, legs, table, programs, split=split)
    return _broken(how, save, number) or how


def not_covered(field: FieldSizes, legs: Legs, *, split: bool) -> str | None:
    """What of a solve these kernels do not know, or None."""
    if legs.observed is not None:
        return "not every channel moves"
    if legs.drive is not None:
        return "the field sees the path"
    if field.final != "tanh":
        return "the field does not end with tanh"
    if legs.values * legs.parts * field.hidden * field.width < WORTH:
        return f"the last layer has fewer than {WORTH:,} numbers"
    if _layers_shared(field, 1 + split) > compiling.LARGEST_SHARED:
        return "the inner layers do not fit into shared memory"
    return None


def stages_for(
    field: FieldSizes, legs: Legs, table: Table, programs: int, *, split: bool
) -> Stages:
    """Tiles by the sizes of the field and the number of streams, as they were fastest on an H200."""
    units, warps, resident, weights = (32, 96), (8, 4), (2, 2), (4, 3)
    if field.width > HELD:
        units, warps, resident, weights = (32, 32), (8, 8), (1, 1), (8, 1)
    elif field.width > 96:
        units, resident, weights = (96, 32), (1, 2), (4, 2)
    elif field.hidden <= 48:
        units, resident = (48, 48), (1, 2)
    there, back = (
        tiles_for(field, legs, *how, programs) for how in zip(units, warps, resident, strict=True)
    )
    at_stages = legs.steps * table.stages
    defines = {
        "H": field.hidden,
        "W": field.width,
        "HP": packed_rows(field.hidden),
        "HS": legs.row(field.hidden),
        "WS": legs.row(field.width),
        # Four more keep banks of shared memory apart.
        "GS": legs.row(field.hidden) + 4,
        "BIAS": padded(field.width),
        "DEPTH": field.depth,
        "ACT": activation_named(field.activation).code,
        "CHANNELS": legs.values * legs.parts,
        "STAGES": table.stages,
        "TOTAL": at_stages,
        "NODES": at_stages if legs.slopes.shape[2] > 1 else 1,
        "STEP": f"{float(np.float32(1.0 / legs.steps))!r}f",
        "SPLIT": int(split),
    }
    return Stages(there, back, weights, tuple((name, str(x)) for name, x in defines.items()))


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


def packed_rows(hidden: int) -> int:
    """Rows of a channel's packed weights: whole tiles of 16, an even number of them if there are many.

    >>> [packed_rows(hidden) for hidden in (5, 33, 65, 82, 249)]
    [16, 48, 96, 96, 256]
    """
    tiles = _tiles(hidden)
    return 16 * (tiles if tiles <= 3 else tiles + tiles % 2)


def _tiles(size: int) -> int:
    return -(-size // 16)


def shared_bytes(name: str, how: Stages) -> int:
    """Bytes of shared memory of a thread block, with what alignment may add."""
    line = 2 * how.line * how.halves
    if name in ("next", "back"):
        return _layers_bytes(how.size("H"), how.line, how.size("DEPTH"), how.halves)
    if name == "weights":
        return _weights_bytes(how, places_for(how))
    tiles = how.there if name == "columns" else how.back
    return 3 * (tiles.units * (line + 4) + 128) + 16 * tiles.warps * line + 256


def _layers_shared(field: FieldSizes, halves: int) -> int:
    return _layers_bytes(field.hidden, _tiles(field.width) * 16, field.depth, halves)


def _layers_bytes(hidden: int, line: int, depth: int, halves: int) -> int:
    """All inner layers, and a tile of what goes through them."""
    taken = _tiles(hidden) * 16
    widest = max(taken, line)
    layers = 2 * halves * line * (taken + (depth - 1) * line)
    return layers + LAYER_STREAMS * max(2 * widest * halves, 4 * (widest + 4)) + 256


def _weights_bytes(how: Stages, places: int) -> int:
    """What the last layer's gradients take with so many lots at once."""
    line, (warps, _), tiles = 2 * how.line * how.halves, how.weights, how.unit_tiles
    part = tiles % warps == 0 and tiles > warps
    row = 16 * warps + 4 if part else how.size("GS")
    lanes = (warps + tiles - 2) // tiles + 1
    lots = places * (LOT * (line + 4 * row + 4 * lanes) + 256)
    return lots + (0 if how.size("W") <= HELD else 16 * warps * line) + 512


def places_for(how: Stages) -> int:
    """Lots that are brought at once: three where they fit."""
    return 3 if _weights_bytes(how, 3) <= compiling.LARGEST_SHARED else 2


def compiled_for(
    name: str, how: Stages, save: bool, every: int = 1
) -> tuple[tuple[tuple[str, str], ...], int]:
    """What a kernel is compiled for, and the threads of its thread blocks."""
    own: dict[str, str | int] = {"SAVE": int(save), "EVERY": every}
    warps = LAYER_STREAMS
    if name not in ("next", "back"):
        if name == "weights":
            (warps, resident), units, first = how.weights, 16, LOT
            own |= {"LOT": LOT, "PLACES": places_for(how)}
        else:
            tiles = how.there if name == "columns" else how.back
            warps, resident, units, first = tiles.warps, tiles.resident, tiles.units, tiles.units
        held = name == "columns" or how.size("W") <= HELD
        own |= {"UNITS": units, "WARPS": warps, "RESIDENT": resident, "HELD": int(held)}
        own |= _operands("FIRST", first) | _operands("LAST", how.line)
    else:
        # The primitives name operands that no product of theirs has.
        own |= _operands("FIRST", 16) | _operands("LAST", 16)
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


@lru_cache(maxsize=256)
def kernel(name: str, how: Stages, save: bool, device: int, every: int = 1) -> compiling.Kernel:
    """A kernel on a device; kept, for a solve asks hundreds of times what it is compiled for."""
    defines, threads = compiled_for(name, how, save, every)
    return compiling.kernel(
        f"stage_{name}", (*PRIMITIVES, *SOURCES[name]), defines, threads, shared_bytes(name, how),
        device, "a",
    )  # fmt: skip


@lru_cache(maxsize=64)
def _broken(how: Stages, save: bool, device: int) -> str | None:
    """Why one of the kernels a solve needs cannot be compiled, or None; found out once."""
    try:
        for name in SOURCES if save else ("next", "columns"):
            kernel(name, how, save, device)
    except compiling.CompileError as error:
        warnings.warn(f"a captured solve is not done stage by stage: {error}", stacklevel=2)
        return str(error)
    return None
