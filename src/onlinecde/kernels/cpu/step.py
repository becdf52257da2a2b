"""One explicit Runge-Kutta step of every row at once, forwards."""

from typing import NamedTuple

import numpy as np

from onlinecde.kernels.cpu.compiled import calling, instruction, part, read, shared
from onlinecde.kernels.cpu.elementwise import (
    SILU,
    activate,
    add_scaled,
    clear_row,
    copy_row,
    fma,
    tanh,
)
from onlinecde.kernels.cpu.inputs import drive_like, field_like, tableau_like
from onlinecde.kernels.cpu.moves import Chunk, find_increments, moves_like
from onlinecde.kernels.cpu.products import product


class Stages(NamedTuple):
    """The working arrays of a step: one slot a stage when kept for the backward pass, else one slot for all.

    Each slot is flat: rows of `tall` (padded hidden) or `wide` (padded width) numbers.
    """

    z: np.ndarray
    """(row * tall,): where the step begins; the step leaves where it ends."""
    y: np.ndarray
    """(slot, row * tall): what a stage evaluates the field at."""
    h: np.ndarray
    """(slot * depth, row * wide): the hidden layers."""
    kept: np.ndarray
    """As h: what went into a silu, when kept; else empty slots."""
    u: np.ndarray
    """(slot, entry * tall): the moved columns, after tanh; not kept: one channel at a time."""
    k: np.ndarray
    """(stage, row * tall): the stage's increment, sum of dX_j f_j."""
    dx: np.ndarray
    """(slot, entry): the increment of each moved entry."""
    driven: np.ndarray
    """(row * wide,): bias and drive of the first layer."""
    identity: np.ndarray
    """0, 1, 2, ..."""
    keep: bool


def stages_like(dtype) -> Stages:
    """Stages of the types that `new_stages` gives."""
    flat, slots = np.empty(0, dtype), np.empty((0, 0), dtype)
    whole = np.empty(0, np.int64)
    return Stages(flat, slots, slots, slots, slots, slots, slots, flat, whole, True)


@part
def new_stages(field, stages, rows, entries, keep, driven):
    """Room for steps of up to so many rows and moved entries."""
    like = field.weights
    slots = stages if keep else 1
    tall, wide = field.tall, field.wide
    identity = np.empty(max(rows, entries), np.int64)
    for i in range(identity.size):
        identity[i] = i
    return Stages(
        np.empty(rows * tall, like.dtype),
        np.empty((slots, rows * tall), like.dtype),
        np.empty((slots * field.depth, rows * wide), like.dtype),
        np.empty(
            (slots * field.depth, rows * wide if keep and field.activation == SILU else 0),
            like.dtype,
        ),
        np.empty((slots, (entries if keep else rows) * tall), like.dtype),
        np.empty((stages, rows * tall), like.dtype),
        np.empty((slots, entries), like.dtype),
        np.empty(rows * wide if driven else 0, like.dtype),
        identity,
        keep,
    )


@part
def add_combination(coefficients, vectors, out, size):
    """out[:size] += sum over s of coefficients[s] * vectors[s], in ascending order, leaving out zeros."""
    out = out[:size]
    for s in range(coefficients.size):
        if coefficients[s] != 0:
            factor, vector = coefficients[s], vectors[s][:size]
            for i in range(out.size):
                out[i] = fma(factor, vector[i], out[i])


@part
def set_driven(field, drive, piece, chunk, moves, rows, stage_c, out):
    """out[row] = bias of the first layer + drive at the stage's place on the piece."""
    bias = field.hidden * field.wide
    for row in range(rows):
        stream = chunk.first + moves.stream[row] * chunk.stride
        at = fma(stage_c, moves.size[row], moves.start[row])
        base = row * field.wide
        for i in range(field.width):
            if drive.shape[0] == 1:
                value = fma(
                    at,
                    drive[0, piece + 1, stream, i] - drive[0, piece, stream, i],
                    drive[0, piece, stream, i],
                )
            else:
                value = drive[drive.shape[0] - 1, piece, stream, i]
                for power in range(drive.shape[0] - 2, -1, -1):
                    value = fma(value, at, drive[power, piece, stream, i])
            out[base + i] = field.weights[bias + i] + value
        for i in range(field.width, field.wide):
            out[base + i] = 0


@part
def hidden_layers(field, stages, slot, rows, driven):
    """The layers of the field at y[slot]."""
    tall, wide, depth = field.tall, field.wide, field.depth
    start = 0
    for layer in range(depth):
        first = layer == 0
        inner = field.hidden if first else field.width
        x = stages.y[slot] if first else stages.h[slot * depth + layer - 1]
        out = stages.h[slot * depth + layer]
        init, init_start, init_stride = field.weights, start + inner * wide, 0
        if first and driven:
            init, init_start, init_stride = stages.driven, 0, wide
        product(
            field.product, x, 0, tall if first else wide, stages.identity, 0, field.weights, start, inner, wide,
            init, init_start, init_stride, out, 0, stages.identity, 0, rows,
        )  # fmt: skip
        activate(
            field.activation, out[: rows * wide], stages.kept[slot * depth + layer][: rows * wide]
        )
        start += (inner + 1) * wide


@part
def add_columns(field, stages, moves, slot, k):
    """k[row] += dX_j f_j for each moved entry, channels in ascending order."""
    tall, wide = field.tall, field.wide
    weights, size = field.weights, (field.width + 1) * tall
    h, u, dx = stages.h[slot * field.depth + field.depth - 1], stages.u[slot], stages.dx[slot]
    row, at = moves.row, 0
    while moves.moved[at] >= 0:
        channel = moves.moved[at]
        first, last = moves.pointer[channel], moves.pointer[channel + 1]
        start = field.column_start + channel * size
        shift = 0 if stages.keep else first * tall
        product(
            field.product, h, 0, wide, row, first, weights, start, field.width, tall, weights,
            start + field.width * tall, 0, u, -shift, stages.identity, first, last - first,
        )  # fmt: skip
        if field.final == 1:
            tanh(u[first * tall - shift : last * tall - shift])
        for entry in range(first, last):
            add_scaled(u, entry * tall - shift, dx[entry], k, row[entry] * tall, tall)
        at += 1


@shared(
    lambda dtype: (
        field_like(dtype), tableau_like(dtype), drive_like(dtype), 0, Chunk(0, 0, 0), moves_like(dtype), 0,
        stages_like(dtype),
    )
)  # fmt: skip
def step(field_at, tableau_at, drive_at, piece_at, chunk_at, moves_at, rows_at, stages_at):
    """Take one step of `rows` rows from stages.z; when kept, leave every stage for `step_back`."""
    field, tableau, drive = read(field_at), read(tableau_at), read(drive_at)
    piece, chunk, moves = read(piece_at), read(chunk_at), read(moves_at)
    rows, stages = read(rows_at), read(stages_at)
    if rows == 0:
        return 0
    size = rows * field.tall
    driven = drive.size > 0
    for s in range(tableau.b.size):
        slot = s if stages.keep else 0
        y, k = stages.y[slot], stages.k[s]
        copy_row(stages.z, 0, y, 0, size)
        add_combination(tableau.a[s, :s], stages.k, y, size)
        if driven:
            set_driven(field, drive, piece, chunk, moves, rows, tableau.c[s], stages.driven)
        hidden_layers(field, stages, slot, rows, driven)
        clear_row(k, 0, size)
        find_increments(moves, tableau.c[s], stages.dx[slot])
        add_columns(field, stages, moves, slot, k)
    add_combination(tableau.b, stages.k, stages.z, size)
    return rows


@instruction
def take_step(typingctx, address, field, tableau, drive, piece, chunk, moves, rows, stages):
    """Call `step` by its address."""
    given = field, tableau, drive, piece, chunk, moves, rows, stages
    return calling(step, address, given)
