"""Which streams step, and which channels move them: the lists one step of a piece works through.

A chunk is every `stride`-th stream from `first` on: longest first like the batch, and with its share of the
long ones. In it streams are numbered locally; those that step are numbered again, without gaps, as `rows`.
"""

from typing import NamedTuple

import numpy as np

from onlinecde.kernels.cpu.compiled import calling, instruction, part, read, shared
from onlinecde.kernels.cpu.elementwise import fma
from onlinecde.kernels.cpu.inputs import path_like


class Chunk(NamedTuple):
    """Every `stride`-th stream from `first` on, so many of them."""

    first: int
    stride: int
    streams: int


class Moves(NamedTuple):
    """The moved entries of one step, grouped by channel in ascending order."""

    stream: np.ndarray
    """(row,): the local number of each row that steps."""
    size: np.ndarray
    """(row,): the length of its step in u."""
    start: np.ndarray
    """(row,): u where its step begins."""
    pointer: np.ndarray
    """(channel + 1,): entries pointer[j] to pointer[j + 1] belong to channel j."""
    moved: np.ndarray
    """(channel + 1,): the channels that have entries, ascending, then -1."""
    row: np.ndarray
    """(entry,): the row that the entry moves."""
    slope: np.ndarray
    """(degree + 1, entry)."""
    position: np.ndarray
    """(stream,): the row of each local stream; used while the lists are built."""


@part
def new_moves(streams, entries, channels, degree, like):
    """Room for the moves of so many streams and entries, in the dtype of `like`."""
    return Moves(
        np.empty(streams, np.int64),
        np.empty(streams, like.dtype),
        np.empty(streams, like.dtype),
        np.empty(channels + 1, np.int64),
        np.empty(channels + 1, np.int64),
        np.empty(entries + 1, np.int64),
        np.empty((degree + 1, entries + 1), like.dtype),
        np.empty(streams, np.int64),
    )


def moves_like(dtype) -> Moves:
    """Moves of the types that `new_moves` gives."""
    whole, real = np.empty(0, np.int64), np.empty(0, dtype)
    return Moves(whole, real, real, whole, whole, whole, np.empty((0, 0), dtype), whole)


@part
def is_time_leg(path, piece):
    """Whether only time moves on the piece."""
    return path.rectilinear and piece % 2 == 0


@part
def steps_on(path, piece, steps, chunk, active):
    """The largest number of steps any of the active streams takes on the piece."""
    if not is_time_leg(path, piece):
        return steps
    if path.time_steps.size == 0:
        return 1
    most = 0
    for n in range(active):
        most = max(most, path.time_steps[piece // 2, chunk.first + n * chunk.stride])
    return most


@part
def list_time_leg(path, piece, step, chunk, active, moves):
    """Fill `moves` for one step of a time leg: the streams that have not yet finished it."""
    row = piece // 2
    count = 0
    for n in range(active):
        stream = chunk.first + n * chunk.stride
        steps = 1 if path.time_steps.size == 0 else path.time_steps[row, stream]
        if step < steps:
            add_time_row(moves, count, n, step, steps, path.dt[row, stream])
            count += 1
    end_time_leg(moves, count)
    return count


@part
def add_time_row(moves, row, stream, step, steps, dt):
    """Enter one stream that takes step number `step` of `steps` along the time channel."""
    one = moves.size.dtype.type(1)
    moves.stream[row] = stream
    moves.size[row] = one / moves.size.dtype.type(steps)
    moves.start[row] = moves.size.dtype.type(step) / moves.size.dtype.type(steps)
    moves.row[row] = row
    moves.slope[0, row] = dt
    for power in range(1, moves.slope.shape[0]):
        moves.slope[power, row] = 0


@part
def end_time_leg(moves, count):
    """Give all `count` entries to the time channel."""
    moves.pointer[0] = 0
    for channel in range(1, moves.pointer.size):
        moves.pointer[channel] = count
    moves.moved[0], moves.moved[1] = 0 if count > 0 else -1, -1


@shared(lambda dtype: (path_like(dtype), 0, Chunk(0, 0, 0), 0, moves_like(dtype)))
def channel_lists(path_at, piece_at, chunk_at, active_at, moves_at):
    """Fill `moves` for a value leg or a dense piece: the streams with a moved channel, and what moves them."""
    path, piece, chunk = read(path_at), read(piece_at), read(chunk_at)
    active, moves = read(active_at), read(moves_at)
    at = piece // 2 if path.rectilinear else piece
    skip = 1 if path.rectilinear else 0  # a value leg does not move channel 0
    first, stride = chunk.first, chunk.stride
    channels = path.slopes.shape[2]
    position, pointer, row, slope = moves.position[:active], moves.pointer, moves.row, moves.slope
    for n in range(active):
        position[n] = 0
    for channel in range(channels):
        moved = path.moved[at, channel, first::stride]
        for n in range(active):
            position[n] |= moved[n]
    count = 0
    for n in range(active):
        moves.stream[count] = n
        rank = count
        count += position[n]
        position[n] = rank
    entry = 0
    pointer[0] = 0
    for channel in range(channels):
        pointer[channel + skip] = entry
        moved = path.moved[at, channel, first::stride]
        constant = path.slopes[0, at, channel, first::stride]
        # written always, kept only if moved: cheaper than a branch nobody can predict
        for n in range(active):
            row[entry] = position[n]
            slope[0, entry] = constant[n]
            entry += moved[n]
        for power in range(1, path.slopes.shape[0]):
            entry = pointer[channel + skip]
            coefficient = path.slopes[power, at, channel, first::stride]
            for n in range(active):
                slope[power, entry] = coefficient[n]
                entry += moved[n]
    pointer[channels + skip] = entry
    find_moved(moves)
    return count


@instruction
def list_channels(typingctx, address, path, piece, chunk, active, moves):
    """Call `channel_lists` by its address."""
    return calling(channel_lists, address, (path, piece, chunk, active, moves))


@part
def find_moved(moves):
    """List the channels that have entries."""
    count = 0
    for channel in range(moves.pointer.size - 1):
        moves.moved[count] = channel
        count += moves.pointer[channel + 1] > moves.pointer[channel]
    moves.moved[count] = -1


@part
def set_step(moves, count, step, steps):
    """Every row takes step number `step` of `steps`."""
    size = moves.size.dtype.type(1) / moves.size.dtype.type(steps)
    start = moves.size.dtype.type(step) / moves.size.dtype.type(steps)
    for row in range(count):
        moves.size[row] = size
        moves.start[row] = start


@part
def most_entries(path, chunk):
    """The largest number of moved entries on any piece of the chunk."""
    most = chunk.streams
    for at in range(path.moved.shape[0]):
        entries = 0
        for channel in range(path.moved.shape[1]):
            moved = path.moved[at, channel, chunk.first :: chunk.stride]
            for n in range(chunk.streams):
                entries += moved[n]
        most = max(most, entries)
    return most


@part
def find_increments(moves, stage_c, out):
    """out[entry] = dX of the entry at a stage, times the length of the step."""
    row, size, start, slope = moves.row, moves.size, moves.start, moves.slope
    for entry in range(moves.pointer[moves.pointer.size - 1]):
        length = size[row[entry]]
        at = fma(stage_c, length, start[row[entry]])
        value = slope[slope.shape[0] - 1, entry]
        for power in range(slope.shape[0] - 2, -1, -1):
            value = fma(value, at, slope[power, entry])
        out[entry] = value * length
