"""Launching the weights' gradients, from what the two sweeps wrote down."""

from __future__ import annotations

# Triton's own types call every constant a constexpr, which callers do not give.
# pyright: reportArgumentType=false, reportCallIssue=false
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from onlinecde.kernels.gpu import clusters
from onlinecde.kernels.gpu.beside import Beside
from onlinecde.kernels.gpu.clusters import Clusters
from onlinecde.kernels.gpu.launching import Shape, options, precision_of, sizes_of
from onlinecde.kernels.gpu.packing import Legs, PackedField, Table, padded
from onlinecde.kernels.gpu.plan import Moves
from onlinecde.kernels.gpu.weights import columns_kernel, outer_kernel

SUMS = 2**26
"""Numbers that may stand in sums of columns side by side"""
OUTER = 3
"""Thread blocks of a multiprocessor for the gradients of inner layers"""


@dataclass(frozen=True, eq=False)
class Tape:
    """What the way back needs of a solve."""

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
    """How clusters took the way there, if they did"""
    features: Tensor | None = None
    """(slot, stream, 64) halves: the same, as clusters keep it"""


def weight_gradients(
    tape: Tape, g_ks: Tensor, g_most: Tensor, grads: Tensor
) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """The weights' gradients from the tape and what the sweep wrote."""
    field, legs = tape.field, tape.legs
    hidden, width, depth = field.hidden, field.width, field.depth
    moving, timed = legs.moving_in_slots(tape.table.stages)
    most = g_most.max() * legs.steepest
    if tape.clusters and tape.features is not None:
        parts, fill = clusters.columns(field, legs, tape.clusters, tape.features, g_ks, most)
    else:
        parts, fill = _columns(tape, g_ks, most)
    side = Beside(g_ks.device)
    inner = []
    for layer in range(depth):
        xs, x_first, per_slot, size = tape.ys, 0, 1, hidden
        if layer:
            xs, x_first, per_slot, size = tape.before, layer - 1, depth, width
        inner.append(
            _outer(
                tape, xs, grads, moving, x_first, layer,
                sizes=(size, width), per_slot=(per_slot, depth), act=layer > 0,
            )
        )  # fmt: skip
    of_time = None
    if legs.rectilinear:
        of_time = _outer(
            tape, tape.before, g_ks, timed, depth - 1, 0,
            sizes=(width, hidden), per_slot=(depth, 1), act=True,
        )  # fmt: skip
    # The others wait for memory and this one for arithmetic.
    with side:
        fill()
    side.join()
    weight, bias = _sum(parts)
    if of_time is not None:
        weight[0], bias[0] = _sum(of_time)
    return [_sum(layer) for layer in inner], weight, bias


def _sum(parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Parts added up, always in the same order."""
    weights, biases = parts
    return weights.sum(0), biases.sum(0)


def _columns(
    tape: Tape, g_ks: Tensor, most: Tensor
) -> tuple[tuple[Tensor, Tensor], Callable[[], None]]:
    """Room for the gradients of the columns that move on value legs, in parts, and what fills it."""
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
    shares *= cuts
    weights = g_ks.new_empty(shares, field.channels, hidden, width)
    biases = g_ks.new_empty(shares, field.channels, hidden)
    sizes = sizes_of(field, legs, shape, tape.table.stages, block)
    for name in ("BW", "BH", "BK", "BKH", "DEPTH", "ACT", "OWN_STEPS", "DRIVE", "ROWS", "ALONE"):
        del sizes[name]
    sizes |= {"ENTRIES": entries, "AHEAD": 2, "ALL": every, "FLAT": flat}
    moving = legs.moving
    lists = (tape.moves.entry_stream, tape.moves.value_first) if tape.moves else (moving, moving)

    def fill() -> None:
        columns_kernel[(*blocks, shares)](
            tape.bent, g_ks, most, weights, biases, legs.slopes, moving, tape.slots,
            field.head, field.tail, field.bias, tape.table.numbers, *lists, legs.streams, number, cuts,
            **sizes, **precision_of(tape.split, device), **options(warps),
        )  # fmt: skip

    return (weights, biases), fill


def _outer(
    tape: Tape,
    xs: Tensor,
    gs: Tensor,
    moving: Tensor,
    x_first: int,
    g_first: int,
    *,
    sizes: tuple[int, int],
    per_slot: tuple[int, int],
    act: bool,
) -> tuple[Tensor, Tensor]:
    """Sums of g^T x (G, X) and of g (G,) over all slots and the streams that move in them, in parts."""
    x_size, g_size = sizes
    shape, legs = tape.shape, tape.legs
    blocks = -(-g_size // 64), -(-x_size // 64)
    shares = max(1, min(tape.room, OUTER * shape.programs // (blocks[0] * blocks[1])))
    weight = gs.new_empty(shares, g_size, x_size)
    offset = gs.new_empty(shares, g_size)
    outer_kernel[(shares, *blocks)](
        xs, gs, weight, offset, moving, legs.streams, tape.room, x_first, g_first,
        X=x_size, XR=legs.row(x_size), BX=min(padded(x_size), 64), XS=per_slot[0],
        G=g_size, GR=legs.row(g_size), BG=min(padded(g_size), 64), GS=per_slot[1],
        ACT=tape.field.activation if act else "none", ROWS=shape.entries,
        **precision_of(tape.split, gs.device), **options(4),
    )  # fmt: skip
    return weight, offset
