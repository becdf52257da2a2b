"""One row of many live streams: a time leg and a value leg, the same bits as the solve over the history."""

from functools import cache

import numpy as np

from onlinecde.kernels.cpu.chunk_forward import put_rows, take_rows
from onlinecde.kernels.cpu.compiled import borrow, keep_alive, kernel, part
from onlinecde.kernels.cpu.first_use import ready
from onlinecde.kernels.cpu.inputs import Tableau
from onlinecde.kernels.cpu.moves import (
    Chunk,
    add_time_row,
    end_time_leg,
    find_moved,
    new_moves,
    set_step,
)
from onlinecde.kernels.cpu.packing import PackedField
from onlinecde.kernels.cpu.solve import CHUNK, run_each
from onlinecde.kernels.cpu.step import new_stages, take_step


@part
def _list_row(pointer, channel, dx, first, count, channels, moves):
    """Fill `moves` for a value leg from entries grouped by stream; -1 when an entry has no such channel."""
    begin, end = pointer[first], pointer[first + count]
    starts, position = moves.pointer, moves.position
    for j in range(channels + 1):
        starts[j] = 0
    for entry in range(begin, end):
        if channel[entry] < 1 or channel[entry] >= channels:
            return -1
        starts[channel[entry] + 1] += 1
    for j in range(channels):
        starts[j + 1] += starts[j]
    rows = 0
    for n in range(count):
        if pointer[first + n + 1] > pointer[first + n]:
            position[n] = rows
            moves.stream[rows] = n
            rows += 1
    for n in range(count):
        for entry in range(pointer[first + n], pointer[first + n + 1]):
            place = starts[channel[entry]]
            moves.row[place] = position[n]
            moves.slope[0, place] = dx[entry]
            starts[channel[entry]] += 1
    for j in range(channels, 0, -1):  # each start has moved on to the next
        starts[j] = starts[j - 1]
    starts[0] = 0
    find_moved(moves)
    return rows


@kernel
def _advance_chunk(
    packed, method, steps, z, dt, time_steps, pointer, channel, dx, drive, middle, new, first, count
):
    """Fill middle and new (stream, hidden) from z for `count` streams; -1 when a channel does not exist."""
    field, tableau = borrow(packed), borrow(method)
    tall, hidden = field.tall, field.hidden
    entries = count
    if pointer.size > 0:
        entries = max(count, pointer[first + count] - pointer[first])
    own_moves = new_moves(count, entries, field.channels, 0, field.weights)
    own_stages = new_stages(field, tableau.b.size, count, entries, False, drive.size > 0)
    moves, stages = borrow(own_moves), borrow(own_stages)
    chunk = Chunk(first, 1, count)
    state = np.empty(count * tall, field.weights.dtype)
    most = 1
    failed = 0
    for n in range(count):
        for i in range(hidden):
            state[n * tall + i] = z[first + n, i]
        for i in range(hidden, tall):
            state[n * tall + i] = 0
        if time_steps.size > 0:
            most = max(most, time_steps[first + n])
    legs = 2 if pointer.size > 0 else 1
    for leg in range(legs):
        rows = 0
        if leg == 1:
            rows = _list_row(pointer, channel, dx, first, count, field.channels, moves)
            if rows < 0:
                failed, rows = -1, 0
        for number in range(most if leg == 0 else steps):
            if leg == 0:
                rows = 0
                for n in range(count):
                    own = 1 if time_steps.size == 0 else time_steps[first + n]
                    if number < own:
                        add_time_row(moves, rows, n, number, own, dt[first + n])
                        rows += 1
                end_time_leg(moves, rows)
            else:
                set_step(moves, rows, number, steps)
            take_rows(moves, rows, state, stages.z, tall)
            take_step(field.step, field, tableau, drive, leg, chunk, moves, rows, stages)
            put_rows(moves, rows, stages.z, state, tall)
        out = middle if leg == 0 else new
        for n in range(count):
            for i in range(hidden):
                out[first + n, i] = state[n * tall + i]
    keep_alive(own_moves)
    keep_alive(own_stages)
    return failed


_NO_INDEX = np.empty(0, np.int64)
_NO_STEPS = np.empty(0, np.int32)


@cache
def _no_drive(dtype):
    return np.empty((0, 0, 0, 0), dtype)


def advance(
    field: PackedField, method: Tableau, z, dt, pointer, channel, dx, *, time_steps=None, drive=None, steps: int = 1,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """One time leg, then one value leg of each stream: the states (stream, hidden) after the one and the other.

    z: (stream, hidden). dt: (stream,). Stream n moves channels `channel[pointer[n]:pointer[n + 1]]`, each once and
    in any order, by the same entries of dx; channel 0 is time and not among them. time_steps: (stream,) int32.
    drive: (3, stream, width), at the start, in the middle and at the end. Bit for bit what `forward` gives.
    """
    return _advance(field, method, z, dt, pointer, channel, dx, time_steps, drive, steps, threads)


def advance_time(
    field: PackedField, method: Tableau, z, dt, *, time_steps=None, drive=None, threads: int = 1
) -> np.ndarray:
    """One time leg of each stream: z (stream, hidden) at a moment between observations. drive: (2, stream, width)."""
    nothing = np.empty(0, field.dtype)
    return _advance(
        field, method, z, dt, _NO_INDEX, _NO_INDEX, nothing, time_steps, drive, 1, threads
    )[0]


def _advance(field, method, z, dt, pointer, channel, dx, time_steps, drive, steps, threads):
    dtype = field.dtype
    ready("live", dtype)
    contiguous = np.ascontiguousarray
    z, dt, dx = contiguous(z, dtype), contiguous(dt, dtype), contiguous(dx, dtype)
    pointer, channel = contiguous(pointer, np.int64), contiguous(channel, np.int64)
    time_steps = _NO_STEPS if time_steps is None else np.ascontiguousarray(time_steps, np.int32)
    drive = _no_drive(dtype) if drive is None else np.ascontiguousarray(drive, dtype)[None]
    streams, legs = z.shape[0], 2 if pointer.size else 1
    if z.shape[1] != field.hidden or dt.shape != (streams,) or time_steps.size not in (0, streams):
        raise ValueError(f"z {z.shape}, dt {dt.shape} and time_steps {time_steps.shape} do not fit")
    if legs == 2 and (pointer.size != streams + 1 or pointer[-1] > min(channel.size, dx.size)):
        raise ValueError(
            f"pointer {pointer.shape} does not fit {streams} streams and {dx.size} entries"
        )
    if drive.size and drive.shape[1:] != (legs + 1, streams, field.compiled.width):
        raise ValueError(
            f"drive {drive.shape[1:]} must be ({legs + 1}, {streams}, {field.compiled.width})"
        )
    middle = np.empty_like(z)
    new = np.empty_like(z) if legs == 2 else middle

    def work(first):
        count = min(CHUNK, streams - first)
        failed = _advance_chunk(
            field.compiled,
            method,
            steps,
            z,
            dt,
            time_steps,
            pointer,
            channel,
            dx,
            drive,
            middle,
            new,
            first,
            count,
        )
        if failed:
            raise ValueError(f"a channel is not between 1 and {field.channels - 1}")

    if streams <= CHUNK:
        work(0)
    else:
        run_each(work, range(0, streams, CHUNK), threads)
    return middle, new
