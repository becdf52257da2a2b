"""Differentiate a chunk of streams, piece by piece from the last, recomputing each piece's stages."""

from typing import NamedTuple

import numpy as np

from onlinecde.kernels.cpu.chunk_forward import list_piece, list_step, put_rows, take_rows
from onlinecde.kernels.cpu.compiled import borrow, keep_alive, kernel, part
from onlinecde.kernels.cpu.elementwise import clear_row, copy_row
from onlinecde.kernels.cpu.moves import is_time_leg, most_entries, new_moves, steps_on
from onlinecde.kernels.cpu.step import new_stages, take_step
from onlinecde.kernels.cpu.step_back import new_pull, take_step_back


class Gradients(NamedTuple):
    """Where gradients go; arrays that are not wanted are empty. Streams do not share an element."""

    z0: np.ndarray
    """(stream, hidden)"""
    dt: np.ndarray
    slopes: np.ndarray
    drive: np.ndarray
    """Shaped as in `PathArrays`."""


@part
def _put_slopes(path, piece, chunk, moves, slope, gradients):
    """Add the gradients of the moved entries of one step to those of the path."""
    time_leg = is_time_leg(path, piece)
    at = piece // 2 if path.rectilinear else piece
    skip = 1 if path.rectilinear else 0
    for channel in range(moves.pointer.size - 1):
        for entry in range(moves.pointer[channel], moves.pointer[channel + 1]):
            stream = chunk.first + moves.stream[moves.row[entry]] * chunk.stride
            if time_leg:
                gradients.dt[at, stream] += slope[0, entry]
            else:
                for power in range(slope.shape[0]):
                    gradients.slopes[power, at, channel - skip, stream] += slope[power, entry]


@kernel
def backward_chunk(packed, method, whole_path, lists, steps, z, gz, chunk, weights, gradients):
    """Gradients for the streams of one chunk, given those of z (knot, stream, hidden).

    `weights` is added to; `gradients` must begin as zeros.
    """
    field, tableau, path = borrow(packed), borrow(method), borrow(whole_path)
    tall, hidden, dtype = field.tall, field.hidden, field.weights.dtype
    first, stride, count = chunk.first, chunk.stride, chunk.streams
    entries, stage_count, degree = (
        most_entries(path, chunk),
        tableau.b.size,
        path.slopes.shape[0] - 1,
    )
    own_moves = new_moves(count, entries, field.channels, degree, field.weights)
    own_stages = new_stages(field, stage_count, count, entries, True, path.drive.size > 0)
    # Where time is the only channel there are no slopes, and dt alone is asked for.
    wanted = gradients.dt.size + gradients.slopes.size > 0
    own_pull = new_pull(field, stage_count, count, entries, degree, wanted, weights)
    moves, stages, pull = borrow(own_moves), borrow(own_stages), borrow(own_pull)
    most = steps
    for row in range(path.time_steps.shape[0]):
        most = max(most, steps_on(path, 2 * row, steps, chunk, count))
    tape = np.empty((most, count * tall), dtype)
    g = np.empty(count * tall, dtype)
    clear_row(g, 0, g.size)
    active = 0
    for piece in range(z.shape[0] - 2, -1, -1):
        while active < count and path.pieces[first + active * stride] > piece:
            active += 1
        for n in range(count):
            for i in range(hidden):
                g[n * tall + i] += gz[piece + 1, first + n * stride, i]
        for n in range(active):
            for i in range(tall):
                tape[0, n * tall + i] = z[piece, first + n * stride, i] if i < hidden else 0
        rows = list_piece(lists, path, piece, chunk, active, moves)
        last = steps_on(path, piece, steps, chunk, active) - 1
        # up the steps of the piece to have the state before each, then down again with the gradient
        for turn in range(2 * last + 1):
            number = turn if turn < last else 2 * last - turn
            rows = list_step(path, piece, number, steps, chunk, active, moves, rows)
            take_rows(moves, rows, tape[number], stages.z, tall)
            take_step(field.step, field, tableau, path.drive, piece, chunk, moves, rows, stages)
            if turn < last:
                copy_row(
                    tape, number * count * tall, tape, (number + 1) * count * tall, active * tall
                )
                put_rows(moves, rows, stages.z, tape[number + 1], tall)
            else:
                take_rows(moves, rows, g, pull.z, tall)
                take_step_back(
                    field.step_back, field, tableau, piece, chunk, moves, rows, stages, pull, gradients.drive
                )  # fmt: skip
                put_rows(moves, rows, pull.z, g, tall)
                if pull.slope.shape[1] > 0:
                    _put_slopes(path, piece, chunk, moves, pull.slope, gradients)
    for n in range(count):
        for i in range(hidden):
            gradients.z0[first + n * stride, i] = g[n * tall + i] + gz[0, first + n * stride, i]
    keep_alive(own_moves)
    keep_alive(own_stages)
    keep_alive(own_pull)
