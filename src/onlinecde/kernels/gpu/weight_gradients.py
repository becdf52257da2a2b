"""Launching the weights' gradients, from what the two sweeps wrote down."""

from __future__ import annotations

# Triton's own types call every constant a constexpr, which callers do not give.
# pyright: reportArgumentType=false, reportCallIssue=false
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from onlinecde.kernels.gpu.beside import Beside
from onlinecde.kernels.gpu.hopper import clusters
from onlinecde.kernels.gpu.hopper.clusters import Clusters
from onlinecde.kernels.gpu.launching import Shape, nodes_of, options, precision_of, sizes_of
from onlinecde.kernels.gpu.packing import Legs, PackedField, Table, padded
from onlinecde.kernels.gpu.plan import Moves
from onlinecde.kernels.gpu.sums import Part, Sums
from onlinecde.kernels.gpu.weights import columns_kernel, outer_kernel

SUMS = 2**26
"""Numbers that may stand in sums of columns side by side"""
OUTER = 3
"""Thread blocks of a multiprocessor for the gradients of inner layers"""


@dataclass(frozen=True, eq=False)
class Tape:
    """What the backward pass needs of a solve."""

    field: PackedField
    legs: Legs
    table: Table
    shape: Shape
    moves: Moves | None
    slots: Tensor
    """(piece + 1,): where the stages of each piece are kept"""
    room: int
    ys: Tensor
    """(slot, stream, row of hidden): the stages' inputs"""
    before: Tensor
    """(slot, layer, stream, row of width): what the activations took in"""
    bent: Tensor | None
    """(stage of a value leg, 2, stream, row of width): what the last layer took in, in halves; None where
    clusters kept it"""
    split: bool
    """Whether products are computed to 22 bits, else to 11"""
    clusters: Clusters | None = None
    """Cluster plan of the forward pass, or None"""
    features: Tensor | None = None
    """(slot, stream, 64) halves: the same, as clusters keep it"""

    def layer_inputs(self, layer: int) -> tuple[Tensor, int, int, int, int, bool]:
        """What a layer takes in: where it is kept, as which of how many rows, their numbers and
        size, and whether the activation is still to come."""
        field, legs = self.field, self.legs
        if layer == 0:
            return self.ys, 0, 1, legs.row(field.hidden), field.hidden, False
        if layer == field.depth and self.features is not None:
            return self.features, 0, 1, self.features.shape[-1], field.width, False
        return self.before, layer - 1, field.depth, legs.row(field.width), field.width, True


def weight_gradients(
    tape: Tape, g_ks: Tensor, g_most: Tensor, grads: Tensor
) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """The weights' gradients from the tape and what the sweep wrote."""
    field, legs = tape.field, tape.legs
    hidden, width, depth = field.hidden, field.width, field.depth
    moving, timed = legs.moving_in_slots(tape.table.stages)
    most = g_most.max() * legs.steepest
    outer = []
    for layer in range(depth):
        taken = tape.layer_inputs(layer)
        outer.append(_Outer(*taken, grads, layer, depth, width, moving))
    if legs.rectilinear:
        outer.append(_Outer(*tape.layer_inputs(depth), g_ks, 0, 1, hidden, timed))
    columns = _clustered(tape, g_ks, most) if tape.clusters else _columns(tape, g_ks, most)
    parts = [Part(each.shares(tape), each.g_size, each.x_size) for each in outer]
    of_time = hidden if legs.rectilinear else 0
    if of_time:
        parts[-1] = replace(parts[-1], into=len(outer))
    parts.append(Part(columns.shares, field.channels * hidden, width, skip=of_time))
    sums = Sums(tuple(parts), g_ks)
    side = Beside(g_ks.device)
    for number, each in enumerate(outer):
        each.fill(tape, *sums.parts(number))
    # The others wait for memory and this one for arithmetic.
    with side:
        columns.fill(*sums.parts(len(outer)))
    side.join()
    *inner, (weight, bias) = sums.added()
    return inner, weight.view(-1, hidden, width), bias.view(-1, hidden)


@dataclass(frozen=True)
class _Columns:
    """The gradients of the columns that move on value legs: into how many parts, and what fills them."""

    shares: int
    fill: Callable[[Tensor, Tensor], None]


def _clustered(tape: Tape, g_ks: Tensor, most: Tensor) -> _Columns:
    assert tape.clusters is not None
    assert tape.features is not None
    own_plan, features = tape.clusters, tape.features
    shares, room = clusters.column_parts(tape.legs, g_ks.device)

    def fill(weights: Tensor, biases: Tensor) -> None:
        clusters.columns(
            tape.field, tape.legs, own_plan, features, g_ks, most, weights, biases, shares
        )

    return _Columns(room, fill)


def _columns(tape: Tape, g_ks: Tensor, most: Tensor) -> _Columns:
    field, legs, shape = tape.field, tape.legs, tape.shape
    device, hidden, width = g_ks.device, field.hidden, field.width
    block, entries, warps = min(padded(hidden), 64), min(shape.entries, 32), 4
    moved = legs.values * legs.parts
    every = shape.alone or legs.observed is None
    room = legs.row(hidden)
    # Rows of 80 and 96, one channel after the other: a block of 64 reaches into the next one at most.
    flat = every and room > block and room % block > 0
    blocks = (-(-moved * room // block), 1) if flat else (moved, -(-hidden // block))
    # A path may end with a time leg: what would follow it is not there.
    number = legs.pieces // 2 if legs.rectilinear else legs.pieces
    wanted = -(-4 * shape.programs // (blocks[0] * blocks[1]))
    # Tensor cores cut off what they add: the more in one sum, the more is lost. Many sums take memory.
    terms = number * legs.streams * legs.steps * tape.table.stages
    short = min(-(-terms // shape.longest), SUMS // (field.channels * hidden * width))
    shares = max(1, min(number, max(wanted, short)))
    cuts = max(1, min(-(-legs.streams // entries), -(-short // shares)))
    sizes = sizes_of(field, legs, shape, tape.table.stages, block)
    for name in ("BW", "BH", "BK", "BKH", "DEPTH", "ACT", "OWN_STEPS", "ROWS", "ALONE"):
        del sizes[name]
    broad = legs.row(width)
    # Products wait for each other: three thread blocks on a multiprocessor, or two, fill the gaps.
    registers = 168 if 64 < broad <= 128 else None
    ahead = 1 if broad == 256 and tape.split else 2
    sizes |= {"ENTRIES": entries, "AHEAD": ahead, "ALL": every, "FLAT": flat}
    sizes |= {"NODES": nodes_of(legs, tape.table)}
    slopes = legs.stage_slopes(tape.table) if every else legs.slopes
    moving = legs.moving
    lists = (tape.moves.entry_stream, tape.moves.value_first) if tape.moves else (moving, moving)

    def fill(weights: Tensor, biases: Tensor) -> None:
        columns_kernel[(*blocks, shares * cuts)](
            tape.bent, g_ks, most, weights, biases, slopes, moving, tape.slots,
            field.head, field.tail, field.bias, tape.table.numbers, *lists, legs.streams, number, cuts,
            **sizes, **precision_of(tape.split, device), **options(warps, registers=registers),
        )  # fmt: skip

    return _Columns(shares * cuts, fill)


@dataclass(frozen=True)
class _Outer:
    """Sums of g^T x (G, X) and of g (G,) over all slots and the streams that move in them.

    Of each slot's `x_many` rows of a stream in `xs` it takes number `x_first`, and likewise of `gs`.
    """

    xs: Tensor
    x_first: int
    x_many: int
    x_row: int
    x_size: int
    act: bool
    """Whether x is what the activation takes in"""
    gs: Tensor
    g_first: int
    g_many: int
    g_size: int
    moving: Tensor

    def _blocks(self) -> tuple[int, int]:
        return -(-self.g_size // 64), -(-self.x_size // 64)

    def shares(self, tape: Tape) -> int:
        """Into how many parts the sums are cut."""
        down, across = self._blocks()
        return max(1, min(tape.room, OUTER * tape.shape.programs // (down * across)))

    def fill(self, tape: Tape, weight: Tensor, offset: Tensor) -> None:
        shape, legs = tape.shape, tape.legs
        outer_kernel[(weight.shape[0], *self._blocks())](
            self.xs, self.gs, weight, offset, self.moving, legs.streams, tape.room, self.x_first,
            self.g_first,
            X=self.x_size, XR=self.x_row, BX=min(padded(self.x_size), 64), XS=self.x_many,
            G=self.g_size, GR=legs.row(self.g_size), BG=min(padded(self.g_size), 64), GS=self.g_many,
            ACT=tape.field.activation if self.act else "none", ROWS=shape.entries if tape.split else 2 * shape.entries,
            **precision_of(tape.split, self.gs.device), **options(4),
        )  # fmt: skip
