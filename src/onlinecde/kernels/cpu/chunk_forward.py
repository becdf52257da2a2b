"""Solve a chunk of streams forwards, piece by piece in lock-step."""

import numpy as np

from onlinecde.kernels.cpu.compiled import borrow, keep_alive, kernel, part
from onlinecde.kernels.cpu.elementwise import copy_row, dot
from onlinecde.kernels.cpu.moves import (
    is_time_leg,
    list_channels,
    list_time_leg,
    new_moves,
    set_step,
    steps_on,
)
from onlinecde.kernels.cpu.step import new_stages, take_step


@part
def take_rows(moves, rows, source, out, size):
    """out[row] = source[stream of the row], rows of `size` numbers."""
    for row in range(rows):
        copy_row(source, moves.stream[row] * size, out, row * size, size)


@part
def put_rows(moves, rows, source, out, size):
    """out[stream of the row] = source[row], rows of `size` numbers."""
    for row in range(rows):
        copy_row(source, row * size, out, moves.stream[row] * size, size)


@part
def list_step(path, piece, number, steps, chunk, active, moves, rows):
    """Fill `moves` for step `number` of a piece and count its rows, given those of `list_channels`."""
    if is_time_leg(path, piece):
        return list_time_leg(path, piece, number, chunk, active, moves)
    set_step(moves, rows, number, steps)
    return rows


@part
def list_piece(lists, path, piece, chunk, active, moves):
    """Fill `moves` as far as it is the same for all steps of a piece; `lists`: the address of `channel_lists`."""
    if is_time_leg(path, piece):
        return 0
    return list_channels(lists, path, piece, chunk, active, moves)


@part
def _add_parts(tall, tableau, path, piece, chunk, moves, stages, projection, parts):
    """Add what each moved entry gave to this step, projected, to parts (piece, stream, channel, output)."""
    listed = 0
    while moves.moved[listed] >= 0:
        channel = moves.moved[listed]
        for entry in range(moves.pointer[channel], moves.pointer[channel + 1]):
            stream = chunk.first + moves.stream[moves.row[entry]] * chunk.stride
            for output in range(parts.shape[3]):
                for s in range(tableau.b.size):
                    u_start = s * stages.u.shape[1] + entry * tall
                    share = tableau.b[s] * stages.dx[s, entry]
                    moved = dot(projection, output * tall, stages.u, u_start, tall)
                    parts[piece, stream, channel, output] += share * moved
        listed += 1


@kernel
def forward_chunk(packed, method, whole_path, lists, steps, z, chunk, projection, parts):
    """Fill z (knot, stream, hidden) from z[0] for the streams of one chunk.

    With a projection (output, tall) also fill parts (piece, stream, channel, output), which must begin as zeros.
    """
    field, tableau, path = borrow(packed), borrow(method), borrow(whole_path)
    tall, hidden = field.tall, field.hidden
    first, stride, count = chunk.first, chunk.stride, chunk.streams
    entries = count * field.channels
    own_moves = new_moves(count, entries, field.channels, path.slopes.shape[0] - 1, field.weights)
    own_stages = new_stages(
        field, tableau.b.size, count, entries, parts.size > 0, path.drive.size > 0
    )
    moves, stages = borrow(own_moves), borrow(own_stages)
    state = np.empty(count * tall, field.weights.dtype)
    for n in range(count):
        for i in range(tall):
            state[n * tall + i] = z[0, first + n * stride, i] if i < hidden else 0
    active = count
    for piece in range(z.shape[0] - 1):
        while active > 0 and path.pieces[first + (active - 1) * stride] <= piece:
            active -= 1
        rows = list_piece(lists, path, piece, chunk, active, moves)
        for number in range(steps_on(path, piece, steps, chunk, active)):
            rows = list_step(path, piece, number, steps, chunk, active, moves, rows)
            take_rows(moves, rows, state, stages.z, tall)
            take_step(field.step, field, tableau, path.drive, piece, chunk, moves, rows, stages)
            put_rows(moves, rows, stages.z, state, tall)
            if parts.size > 0:
                _add_parts(tall, tableau, path, piece, chunk, moves, stages, projection, parts)
        for n in range(count):
            for i in range(hidden):
                z[piece + 1, first + n * stride, i] = state[n * tall + i]
    keep_alive(own_moves)
    keep_alive(own_stages)
