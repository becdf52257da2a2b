"""Both sweeps by thread-block clusters, for `high` on compute capability 9: the last layer stays on chip.

A cluster of eight thread blocks takes its streams through the whole solve and waits for no other.
Each block keeps the columns of its share of the values; stages and their sums go from block to
block through shared memory. Inputs and tape are those of the other kernels, with the features of
each stage in half precision beside them, so that the backward sweep need not take these kernels too.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from onlinecde.kernels.activations import activation_named
from onlinecde.kernels.gpu.hopper import compiling
from onlinecde.kernels.gpu.packing import Legs, PackedField, Table, padded, row

if TYPE_CHECKING:
    from onlinecde.kernels.gpu.weight_gradients import Tape

SWITCH = "ONLINECDE_CLUSTERS"
"""Set to 0 in the environment, it leaves these kernels out."""
BLOCKS = 8
THREADS = 256
SIDE = 64
"""Hidden units and widths a tile holds"""
MOST_DEPTH = 2
MOST_PARTS = 2
BLOCK_STREAMS = (4, 6, 8, 9, 10, 12, 16)
"""Streams of a thread block the kernels are compiled for"""
COLUMNS_SHARED = 57 * 1024
"""Bytes of shared memory of a thread block for the last layer's gradients: two fit a multiprocessor."""
COLUMNS = 2
"""Thread blocks of a multiprocessor for them"""
SHARED_FILES = ("primitives.cuh", "numbers.cuh", "cluster_tiles.cuh")


class FieldSizes(Protocol):
    """What must be known of a field: one that was packed, or the one it was made from."""

    @property
    def hidden(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def activation(self) -> str: ...
    @property
    def final(self) -> str: ...


@dataclass(frozen=True)
class Clusters:
    """How a solve is shared out among clusters, and what its kernels are compiled for."""

    block_streams: int
    defines: tuple[tuple[str, str], ...]

    def blocks(self, streams: int) -> int:
        """Thread blocks of a launch."""
        return -(-streams // (BLOCKS * self.block_streams)) * BLOCKS


def plan(
    field: FieldSizes, legs: Legs, table: Table, *, split: bool, save: bool, device: torch.device
) -> Clusters | str:
    """How clusters take a solve, or in words why they do not."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    if split:
        return "products are split"
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != 9:
        return "the device is not of compute capability 9"
    reason = not_covered(field, legs)
    if reason is not None:
        return reason
    number = torch.cuda.current_device() if device.index is None else device.index
    try:
        at_once = compiling.clusters_at_once(BLOCKS, THREADS, number)
        clusters = clusters_for(field, legs, table, at_once)
    except compiling.CompileError as error:
        return _said_once(str(error))
    return _broken(clusters, save, number) or clusters


def not_covered(field: FieldSizes, legs: Legs) -> str | None:
    """What of a solve the cluster kernels do not know, or None."""
    if not legs.rectilinear:
        return "the path is not rectilinear"
    if legs.time_steps is not None:
        return "time legs have steps of their own"
    if max(field.hidden, field.width) > SIDE or field.depth > MOST_DEPTH:
        return (
            f"hidden is {field.hidden}, width {field.width} and depth {field.depth}; clusters take "
            f"up to {SIDE}, {SIDE} and {MOST_DEPTH}"
        )
    if not block_streams_for(legs.values, legs.parts):
        return f"the columns of {legs.values * legs.parts} channels do not fit into a cluster"
    return None


@lru_cache(maxsize=64)
def _broken(clusters: Clusters, save: bool, device: int) -> str | None:
    """Why one of the kernels a solve needs cannot be compiled, or None; found out once."""
    try:
        for name in ("forward", "reverse", "columns") if save else ("forward",):
            _kernel(name, clusters, save, device)
    except compiling.CompileError as error:
        return _said_once(str(error))
    return None


@lru_cache(maxsize=64)
def _said_once(reason: str) -> str:
    warnings.warn(f"precision 'high' goes without thread-block clusters: {reason}", stacklevel=2)
    return reason


def shared_bytes(values: int, parts: int, block_streams: int) -> int:
    """Bytes of shared memory the backward sweep takes in a thread block, the larger of the two sweeps."""
    each, streams = -(-values // BLOCKS), BLOCKS * block_streams
    line = 2 * (SIDE + 8)
    slots = -(-streams // 16) * 16
    columns = each * parts
    states = (3 * (streams + 1) + 7 * 16 + SIDE + columns * SIDE) * line
    entries = (each + 1) * 16 * 2 * (parts * SIDE + 8)
    sums = 4 * ((streams + 1) * (SIDE + 8) + streams * (SIDE + 4) + columns * SIDE)
    words = columns * streams + each * slots * (parts + 1) + block_streams * values * parts
    moves = 4 * (words + each + streams + each * -(-streams // 32)) + each * slots + 16
    # What alignment adds at most.
    return states + entries + sums + moves + 512


def block_streams_for(values: int, parts: int) -> list[int]:
    """Streams of a thread block for which there is room."""
    if parts > MOST_PARTS:
        return []
    room = compiling.LARGEST_SHARED
    return [n for n in BLOCK_STREAMS if shared_bytes(values, parts, n) <= room]


def clusters_for(field: FieldSizes, legs: Legs, table: Table, at_once: int) -> Clusters:
    """The fewest streams a block with which all run at once; where none do, the most that fit."""
    sizes = block_streams_for(legs.values, legs.parts)
    enough = [n for n in sizes if -(-legs.streams // (BLOCKS * n)) <= at_once]
    block_streams = enough[0] if enough else sizes[-1]
    lines = [table.rows[4 * line : 4 * line + 4] for line in range(6)]
    *a, b, c = ["{" + ", ".join(_number(x / legs.steps) for x in line) + "}" for line in lines]
    defines = {
        "H": field.hidden,
        "W": field.width,
        "HP": padded(field.hidden),
        "WP": padded(field.width),
        "HR": row(field.hidden),
        "WR": row(field.width),
        "DEPTH": field.depth,
        "ACT": activation_named(field.activation).code,
        "TANH": int(field.final == "tanh"),
        "DRIVE": int(legs.drive is not None),
        "VALUES": legs.values,
        "PARTS": legs.parts,
        "STEPS": legs.steps,
        "STAGES": table.stages,
        "BLOCK_STREAMS": block_streams,
        "TABLE_A": "{" + ", ".join(a) + "}",
        "TABLE_B": b,
        "TABLE_C": c,
    }
    return Clusters(block_streams, tuple((name, str(value)) for name, value in defines.items()))


def _number(x: float) -> str:
    """A float32 literal."""
    return f"{float(np.float32(x))!r}f"


def _kernel(name: str, clusters: Clusters, save: bool, device: int) -> compiling.Kernel:
    return compiling.kernel(
        f"cluster_{name}",
        (*SHARED_FILES, f"cluster_{name}.cu"),
        (*clusters.defines, ("SAVE", str(int(save)))),
        THREADS,
        COLUMNS_SHARED if name == "columns" else compiling.LARGEST_SHARED,
        device,
    )


def launch(
    name: str, clusters: Clusters, save: bool, blocks: int, arguments: tuple[Tensor | int, ...]
) -> None:
    """Launch one of the kernels on the current device."""
    _kernel(name, clusters, save, torch.cuda.current_device()).launch(blocks, arguments)


def forward(
    field: PackedField,
    legs: Legs,
    z0: Tensor,
    clusters: Clusters,
    knots: Tensor,
    every: int,
    ys: Tensor,
    before: Tensor,
    *,
    save: bool,
) -> Tensor:
    """Fill `knots` at every `every`-th knot and, with `save`, the tape.

    Returns the features in halves, (slot, stream, 64).
    """
    assert legs.time is not None
    drive = legs.time if legs.drive is None else legs.drive
    bent = z0.new_empty(ys.shape[0], legs.streams, SIDE, dtype=torch.float16)
    launch(
        "forward", clusters, save, clusters.blocks(legs.streams),
        (
            knots, z0.contiguous(), ys, before, bent, legs.time, legs.slopes, legs.lengths, drive,
            field.inner_head, field.inner_bias, field.head, field.bias, legs.streams, legs.pieces,
            every,
        ),
    )  # fmt: skip
    return bent


def reverse(
    tape: Tape,
    g_knots: Tensor,
    every: int,
    g_z0: Tensor,
    g_ks: Tensor,
    g_most: Tensor,
    grads: Tensor,
) -> None:
    """Fill the gradients of the states and what those of the weights are found from.

    `g_knots` are gradients at every `every`-th knot.
    """
    field, legs, clusters, features = tape.field, tape.legs, tape.clusters, tape.features
    assert legs.time is not None
    assert clusters is not None
    assert features is not None
    launch(
        "reverse", clusters, True, clusters.blocks(legs.streams),
        (
            g_knots, g_z0, g_ks, g_most, grads, tape.before, features,
            legs.time, legs.slopes, legs.lengths,
            field.inner_head, field.head, field.bias, legs.streams, legs.pieces, every,
        ),
    )  # fmt: skip


def column_parts(legs: Legs, device: torch.device) -> tuple[int, int]:
    """Shares into which the legs are cut for `columns`, and the parts of its sums."""
    programs = torch.cuda.get_device_properties(device).multi_processor_count
    # No more than run at once: the last would be alone.
    shares = max(1, min(legs.pieces // 2, COLUMNS * programs // legs.values))
    # With one part, half the warps of a block add up for themselves.
    return shares, shares * (2 if legs.parts == 1 else 1)


def columns(
    field: PackedField,
    legs: Legs,
    clusters: Clusters,
    bent: Tensor,
    g_ks: Tensor,
    most: Tensor,
    weight: Tensor,
    bias: Tensor,
    shares: int,
) -> None:
    """Fill the gradients of the columns on value legs, in parts.

    (part, channel, hidden, width) and (part, channel, hidden); the column of time is not among them.
    `most` is a bound on the stages' gradients times dX.
    """
    launch(
        "columns", clusters, True, legs.values * shares,
        (
            bent, g_ks, most, weight, bias, legs.slopes, legs.lengths, field.head, field.bias,
            legs.streams, legs.pieces // 2, shares,
        ),
    )  # fmt: skip
