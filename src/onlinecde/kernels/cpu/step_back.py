"""One Runge-Kutta step backwards: the exact gradient of what `step` computed and kept."""

from typing import NamedTuple

import numpy as np

from onlinecde.kernels.cpu.compiled import calling, instruction, part, read, shared
from onlinecde.kernels.cpu.elementwise import (
    add_scaled,
    clear_row,
    dot,
    fma,
    through_activation,
    through_column,
)
from onlinecde.kernels.cpu.inputs import drive_like, field_like, tableau_like
from onlinecde.kernels.cpu.moves import Chunk, moves_like
from onlinecde.kernels.cpu.products import add_outer, product
from onlinecde.kernels.cpu.step import stages_like


class Pull(NamedTuple):
    """Gradients in the backward sweep through a step; slots and rows as in `Stages`."""

    z: np.ndarray
    """(row * tall,): of the state after the step; `step_back` leaves that of the state before it."""
    y: np.ndarray
    """(stage, row * tall)."""
    h: np.ndarray
    """(stage * depth, row * wide): of the hidden layers, before their activations."""
    k: np.ndarray
    """(row * tall,): of one stage's increment."""
    slope: np.ndarray
    """(degree + 1, entry), summed over stages; no entries: not wanted."""
    weights: np.ndarray
    """Flat gradient blocks, summed over everything the worker does."""
    left: np.ndarray
    right: np.ndarray
    """(stage * row,): rows of two arrays whose outer products are summed."""
    zeros: np.ndarray
    ones: np.ndarray
    nowhere: np.ndarray
    """Constants: a row of zeros, a row of one 1, and an index that is 0 throughout."""


def pull_like(dtype) -> Pull:
    """A pull of the types that `new_pull` gives."""
    flat, slots = np.empty(0, dtype), np.empty((0, 0), dtype)
    whole = np.empty(0, np.int64)
    return Pull(flat, slots, slots, flat, slots, flat, whole, whole, flat, flat, whole)


@part
def new_pull(field, stages, rows, entries, degree, slopes, weights):
    """Room for the gradients of up to so many rows and moved entries."""
    like = field.weights
    tall, wide = field.tall, field.wide
    zeros = np.empty(max(tall, wide), like.dtype)
    clear_row(zeros, 0, zeros.size)
    ones = np.empty(1, like.dtype)
    ones[0] = 1
    nowhere = np.empty(stages * rows, np.int64)
    for i in range(nowhere.size):
        nowhere[i] = 0
    return Pull(
        np.empty(rows * tall, like.dtype),
        np.empty((stages, rows * tall), like.dtype),
        np.empty((stages * field.depth, rows * wide), like.dtype),
        np.empty(rows * tall, like.dtype),
        np.empty((degree + 1, entries if slopes else 0), like.dtype),
        weights,
        np.empty(stages * rows, np.int64),
        np.empty(stages * rows, np.int64),
        zeros,
        ones,
        nowhere,
    )


@part
def _gather_upstream(tableau, s, pull, size):
    """pull.k = b_s g + sum over later stages r of a_rs g_y_r."""
    k, z, factor = pull.k[:size], pull.z[:size], tableau.b[s]
    for i in range(size):
        k[i] = factor * z[i]
    for r in range(s + 1, tableau.b.size):
        factor = tableau.a[r, s]
        if factor != 0:
            y = pull.y[r][:size]
            for i in range(size):
                k[i] = fma(factor, y[i], k[i])


@part
def _columns_back(field, stages, moves, s, stage_c, pull):
    """From the stage's increment to its last hidden layer; stages.u becomes the gradient before tanh."""
    tall, wide = field.tall, field.wide
    u, dx, out = stages.u[s], stages.dx[s], pull.h[s * field.depth + field.depth - 1]
    row, slope = moves.row, pull.slope
    curve = u.dtype.type(-1 if field.final == 1 else 0)
    listed = 0
    while moves.moved[listed] >= 0:
        channel = moves.moved[listed]
        first, last = moves.pointer[channel], moves.pointer[channel + 1]
        for entry in range(first, last):
            at = row[entry] * tall
            if slope.shape[1] > 0:
                length = moves.size[row[entry]]
                share = length * dot(pull.k, at, u, entry * tall, tall)
                place = fma(stage_c, length, moves.start[row[entry]])
                for power in range(slope.shape[0]):
                    slope[power, entry] += share
                    share *= place
            through_column(u, entry * tall, pull.k, at, dx[entry], curve, tall)
        start = field.column_start_transposed + channel * field.hidden * wide
        product(
            field.product, u, 0, tall, stages.identity, first, field.transposed, start, field.hidden, wide,
            out, 0, wide, out, 0, row, first, last - first,
        )  # fmt: skip
        listed += 1


@part
def _layers_back(field, stages, s, rows, pull):
    """From the last hidden layer to the stage's input."""
    tall, wide, depth = field.tall, field.wide, field.depth
    start = field.column_start_transposed
    for layer in range(depth - 1, -1, -1):
        slot = s * depth + layer
        g = pull.h[slot]
        size = rows * wide
        through_activation(
            field.activation, g[:size], stages.h[slot][:size], stages.kept[slot][:size]
        )
        outer = wide if layer > 0 else tall
        out = pull.h[slot - 1] if layer > 0 else pull.y[s]
        start -= field.width * outer
        product(
            field.product, g, 0, wide, stages.identity, 0, field.transposed, start, field.width, outer,
            pull.zeros, 0, 0, out, 0, stages.identity, 0, rows,
        )  # fmt: skip


@part
def _add_linear(field, left, left_stride, right, right_stride, count, outer, inner, pull, start):
    """Add the gradient of a linear map's weight (outer, padded inner) and bias, from the rows listed in pull."""
    out = pull.weights
    add_outer(
        field.outer, left, 0, left_stride, pull.left, 0, right, 0, right_stride, pull.right, 0, count, outer, inner,
        out, start,
    )  # fmt: skip
    add_outer(
        field.outer, pull.ones, 0, 0, pull.nowhere, 0, left, 0, left_stride, pull.left, 0, count, 1, left_stride,
        out, start + outer * inner,
    )  # fmt: skip


@part
def _add_weight_gradients(field, stages, moves, rows, count, pull):
    """Sum the weights' gradients over all rows and stages of the step."""
    tall, wide, depth = field.tall, field.wide, field.depth
    capacity = stages.z.size // tall
    entries = stages.u.shape[1] // tall
    left, right = pull.left, pull.right
    start = 0
    for layer in range(depth):
        for s in range(count):
            for row in range(rows):
                left[s * rows + row] = (s * depth + layer) * capacity + row
                right[s * rows + row] = (
                    (s * depth + layer - 1) if layer > 0 else s
                ) * capacity + row
        if layer > 0:
            _add_linear(
                field, pull.h, wide, stages.h, wide, count * rows, field.width, wide, pull, start
            )
            start += (field.width + 1) * wide
        else:
            _add_linear(
                field, pull.h, wide, stages.y, tall, count * rows, field.width, tall, pull, start
            )
            start += field.width * tall + wide
    listed = 0
    while moves.moved[listed] >= 0:
        channel = moves.moved[listed]
        first = moves.pointer[channel]
        size = moves.pointer[channel + 1] - first
        for s in range(count):
            for entry in range(size):
                left[s * size + entry] = s * entries + first + entry
                right[s * size + entry] = (s * depth + depth - 1) * capacity + moves.row[
                    first + entry
                ]
        place = start + channel * (field.hidden * wide + tall)
        _add_linear(
            field, stages.u, tall, stages.h, wide, count * size, field.hidden, wide, pull, place
        )
        listed += 1


@part
def _add_drive_gradient(field, tableau, piece, chunk, moves, rows, pull, out):
    """Add to the gradient of the drive, at the knots or of the piece's coefficients."""
    for s in range(tableau.b.size):
        g = pull.h[s * field.depth]
        for row in range(rows):
            stream = chunk.first + moves.stream[row] * chunk.stride
            at = fma(tableau.c[s], moves.size[row], moves.start[row])
            for i in range(field.width):
                value = g[row * field.wide + i]
                if out.shape[0] == 1:
                    out[0, piece, stream, i] += value - at * value
                    out[0, piece + 1, stream, i] += at * value
                else:
                    for power in range(out.shape[0]):
                        out[power, piece, stream, i] += value
                        value *= at


@shared(
    lambda dtype: (
        field_like(dtype), tableau_like(dtype), 0, Chunk(0, 0, 0), moves_like(dtype), 0, stages_like(dtype),
        pull_like(dtype), drive_like(dtype),
    )
)  # fmt: skip
def step_back(
    field_at,
    tableau_at,
    piece_at,
    chunk_at,
    moves_at,
    rows_at,
    stages_at,
    pull_at,
    drive_gradient_at,
):
    """Take pull.z from after the step to before it, and add the gradients of all that went in."""
    field, tableau, piece = read(field_at), read(tableau_at), read(piece_at)
    chunk, moves, rows = read(chunk_at), read(moves_at), read(rows_at)
    stages, pull, drive_gradient = read(stages_at), read(pull_at), read(drive_gradient_at)
    if rows == 0:
        return 0
    size = rows * field.tall
    count = tableau.b.size
    for power in range(pull.slope.shape[0]):
        for entry in range(pull.slope.shape[1]):
            pull.slope[power, entry] = 0
    for s in range(count - 1, -1, -1):
        _gather_upstream(tableau, s, pull, size)
        clear_row(pull.h, (s * field.depth + field.depth - 1) * pull.h.shape[1], rows * field.wide)
        _columns_back(field, stages, moves, s, tableau.c[s], pull)
        _layers_back(field, stages, s, rows, pull)
    _add_weight_gradients(field, stages, moves, rows, count, pull)
    if drive_gradient.size > 0:
        _add_drive_gradient(field, tableau, piece, chunk, moves, rows, pull, drive_gradient)
    one = pull.z.dtype.type(1)
    for s in range(count):
        add_scaled(pull.y, s * pull.y.shape[1], one, pull.z, 0, size)
    return rows


@instruction
def take_step_back(
    typingctx, address, field, tableau, piece, chunk, moves, rows, stages, pull, drive_gradient
):
    """Call `step_back` by its address."""
    given = field, tableau, piece, chunk, moves, rows, stages, pull, drive_gradient
    return calling(step_back, address, given)
