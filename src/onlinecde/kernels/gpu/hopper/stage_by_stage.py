"""A solve stage by stage, for paths on which every channel moves: two CUDA kernels a stage, there and back.

One takes in what the stage before gave, and its streams through the inner layers; the other computes columns, a
warpgroup's products from shared memory, and several thread blocks on a multiprocessor keep some multiplying while
others compute tanh. What a sweep does in one kernel takes hundreds of launches here. That pays inside a CUDA
graph, where a launch takes a microsecond: no kernel has to leave registers to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from onlinecde.kernels.gpu.hopper import stage_plan
from onlinecde.kernels.gpu.hopper.stage_plan import LAYER_STREAMS, Stages
from onlinecde.kernels.gpu.packing import PackedField, padded

if TYPE_CHECKING:
    from onlinecde.kernels.gpu.weight_gradients import Tape

ROOM = 128
"""Streams are padded to a multiple of these: no tile has more."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """How a solve is done, and weights as products want them, in blocks of 8 x 8 halves: heads and tails."""

    how: Stages
    head: Tensor
    """(channel, row of blocks, column of blocks, 8, 8), of the last layer"""
    tail: Tensor
    bias: Tensor
    """(channel, packed row)"""
    inner_head: Tensor
    """Inner layers one after the other"""
    inner_tail: Tensor


def in_blocks(field: PackedField, how: Stages) -> Blocks:
    """Lay a field's weights out in blocks of 8 x 8."""
    rows, line = how.size("HP"), how.line

    def laid(weight: Tensor, rows: int, columns: int) -> Tensor:
        """Blocks of the first rows and columns of matrices (number, row, column)."""
        number, tall, wide = weight.shape
        blocks = weight.view(number, tall // 8, 8, wide // 8, 8)
        return blocks[:, : rows // 8, :, : columns // 8].transpose(2, 3).contiguous()

    def inner(weight: Tensor) -> Tensor:
        tall, wide = padded(field.hidden), padded(field.width)
        first = laid(weight[: wide * tall].view(1, wide, tall), line, -(-field.hidden // 16) * 16)
        others = laid(weight[wide * tall :].view(-1, wide, wide), line, line)
        return torch.cat([first.flatten(), others.flatten()])

    head, inner_head = laid(field.head, rows, line), inner(field.inner_head)
    tail, inner_tail = head, inner_head
    if how.halves > 1:
        tail, inner_tail = laid(field.tail, rows, line), inner(field.inner_tail)
    return Blocks(how, head, tail, field.bias[:, :rows].contiguous(), inner_head, inner_tail)


def room_for_rows(how: Stages, stages: int, streams: int, like: Tensor) -> Tensor:
    """Where what the last layer takes in is kept, (stage, half, stream, line), in blocks of 8 x 8.

    What is not written is 0, for products take it in and must find numbers.
    """
    room = -(-streams // ROOM) * ROOM
    return like.new_zeros(stages, how.halves, room, how.line, dtype=torch.float16)


def launch(
    name: str, how: Stages, blocks: int, arguments: tuple[Tensor | int, ...], *,
    save: bool = True, every: int = 1, early: bool = False,
) -> None:  # fmt: skip
    """Launch one of the kernels on the current device; `early` where the one before is one of them too."""
    kernel = stage_plan.kernel(name, how, save, torch.cuda.current_device(), every)
    kernel.launch(blocks, arguments, early)


def forward(tape: Tape, z0: Tensor, knots: Tensor, every: int, *, save: bool) -> None:
    """Fill `knots`, one of `every` so many, and, to `save` it, the tape."""
    field, legs, table, own, bent = tape.field, tape.legs, tape.table, tape.blocks, tape.bent
    assert own is not None
    assert bent is not None
    streams, hidden, there = legs.streams, legs.row(field.hidden), own.how.there
    z_now = torch.nn.functional.pad(z0, (0, hidden - field.hidden))
    ks = z0.new_zeros(4, streams, hidden)
    parts = z0.new_empty(streams * there.groups, hidden)
    stages, room = _stages_of(tape), bent.shape[2]
    for number in range(stages + 1):
        launch(
            "next", own.how, -(-streams // LAYER_STREAMS),
            (
                knots, z_now, ks, tape.ys, tape.before, bent, parts, legs.lengths,
                own.inner_head, own.inner_tail, field.inner_bias, table.numbers,
                streams, room, stages, there.groups, number,
            ),
            save=save, every=every, early=number > 0,
        )  # fmt: skip
        if number < stages:
            launch(
                "columns", own.how, there.works(streams),
                (
                    bent, parts, legs.stage_slopes(table), legs.moving, own.head, own.tail, own.bias,
                    streams, room, there.groups, number,
                ),
                save=save, early=True,
            )  # fmt: skip


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

    `g_knots` are gradients at one of `every` so many knots.
    """
    field, legs, table, own, bent = tape.field, tape.legs, tape.table, tape.blocks, tape.bent
    assert own is not None
    assert bent is not None
    streams, hidden, back = legs.streams, legs.row(field.hidden), own.how.back
    new = g_knots.new_zeros
    g_now, g_ys, g_sizes = new(streams, hidden), new(4, streams, hidden), new(streams)
    g_most.zero_()
    parts = g_knots.new_empty(streams * back.parts, legs.row(field.width))
    stages, steep = _stages_of(tape), legs.steep
    for number in range(stages, -1, -1):
        launch(
            "back", own.how, -(-streams // LAYER_STREAMS),
            (
                g_knots, g_z0, g_now, g_ys, g_ks, g_sizes, g_most, grads, tape.before, parts, legs.lengths,
                own.inner_head, own.inner_tail, table.numbers, streams, stages, back.parts, number,
            ),
            every=every, early=number < stages,
        )  # fmt: skip
        if number:
            launch(
                "pull", own.how, back.works(streams),
                (
                    bent, g_ks, g_sizes, parts, legs.stage_slopes(table), steep, legs.moving,
                    own.head, own.tail, own.bias, streams, bent.shape[2], back.groups, number - 1,
                ),
                early=True,
            )  # fmt: skip


def last_layer(
    tape: Tape, own: Blocks, g_ks: Tensor, most: Tensor, weight: Tensor, bias: Tensor, shares: int, cuts: int
) -> None:  # fmt: skip
    """Gradients of the last layer, (part, channel, hidden, width) and (part, channel, hidden).

    Parts are so many `shares` of the stages, and `cuts` of the streams of each. `most` is a bound on the stages'
    gradients times dX.
    """
    legs, bent = tape.legs, tape.bent
    assert bent is not None
    tiles = legs.values * legs.parts * own.how.unit_tiles
    launch(
        "weights", own.how, -(-tiles // own.how.weights[0]) * shares * cuts,
        (
            bent, g_ks, most, weight, bias, legs.stage_slopes(tape.table), legs.moving,
            own.head, own.tail, own.bias, legs.streams, bent.shape[2], _stages_of(tape), shares, cuts,
        ),
    )  # fmt: skip


def _stages_of(tape: Tape) -> int:
    return tape.legs.pieces * tape.legs.steps * tape.table.stages
