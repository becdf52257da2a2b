"""The public functions: arrays in, arrays out, streams shared out among threads."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from onlinecde.kernels.cpu.chunk_backward import Gradients, backward_chunk
from onlinecde.kernels.cpu.chunk_forward import forward_chunk
from onlinecde.kernels.cpu.first_use import ready
from onlinecde.kernels.cpu.inputs import PathArrays, Tableau
from onlinecde.kernels.cpu.moves import Chunk, channel_lists
from onlinecde.kernels.cpu.packing import (
    FieldGradient,
    PackedField,
    aligned_zeros,
    gradient_size,
    unpack_gradient,
)
from onlinecde.kernels.cpu.products import outer_address
from onlinecde.kernels.cpu.step_back import step_back


def tableau(a, b, c, dtype) -> Tableau:
    """Butcher's coefficients (stage, stage), (stage,), (stage,) in dtype, without final stages of no weight."""
    b = np.asarray(b, dtype)
    used = len(b)
    while used > 1 and b[used - 1] == 0:
        used -= 1
    a = np.ascontiguousarray(np.asarray(a, dtype)[:used, :used])
    return Tableau(
        a, np.ascontiguousarray(b[:used]), np.ascontiguousarray(np.asarray(c, dtype)[:used])
    )


def forward(
    field: PackedField, path: PathArrays, z0, method: Tableau, *, steps: int = 1, threads: int = 1
) -> np.ndarray:
    """z (knot, stream, hidden) at every knot, from z0 (stream, hidden); past its last piece a stream stands still."""
    nothing = np.empty((0, 0), field.dtype)
    return _forward(field, path, z0, method, steps, threads, nothing, nothing.reshape(0, 0, 0, 0))


def contributions(
    field: PackedField,
    path: PathArrays,
    z0,
    method: Tableau,
    projection,
    *,
    steps: int = 1,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """z as `forward` gives it, and how much each channel moved `projection @ z` on each piece.

    projection: (output, hidden). The second array is (piece, stream, channel, output): the sum over steps and stages
    of b dX_j projection @ f_j. Summed over channels it is the change of projection @ z over the piece.
    """
    pieces, streams = int(path.pieces.max(initial=0)), path.pieces.size
    projection = np.asarray(projection, field.dtype)
    rows = np.zeros((len(projection), field.compiled.tall), field.dtype)
    rows[:, : field.hidden] = projection
    parts = np.zeros((pieces, streams, field.channels, len(projection)), field.dtype)
    return _forward(field, path, z0, method, steps, threads, rows, parts), parts


def _forward(field, path, z0, method, steps, threads, projection, parts):
    _check(field, path, method)
    streams = path.pieces.size
    z = np.empty((int(path.pieces.max(initial=0)) + 1, streams, field.hidden), field.dtype)
    z[0] = z0
    ready("forward", field.dtype)
    lists = channel_lists.address(field.dtype)

    def work(share):
        for chunk in share:
            forward_chunk(field.compiled, method, path, lists, steps, z, chunk, projection, parts)

    run_each(work, share_out(streams, threads), threads)
    return z


class PathGradient(NamedTuple):
    """Gradients of a path, shaped as they were given; None where not asked for. Zero where nothing moved."""

    dt: np.ndarray | None
    slopes: np.ndarray | None
    drive: np.ndarray | None


def backward(
    gz, z, field: PackedField, path: PathArrays, method: Tableau, *, steps: int = 1, threads: int = 1,
    path_gradient: bool = False, drive_gradient: bool = False,
) -> tuple[np.ndarray, FieldGradient, PathGradient]:  # fmt: skip
    """Exact gradients of sum(gz * z), z (knot, stream, hidden) being what `forward` returned.

    Returns the gradients of z0 (stream, hidden), of the field and of the path.
    """
    _check(field, path, method)
    if field.compiled.transposed.size == 0:
        raise ValueError("the field was packed with gradient=False")
    gz, z = np.ascontiguousarray(gz, field.dtype), np.ascontiguousarray(z, field.dtype)
    if z.shape != gz.shape or z.shape != (
        path.pieces.max(initial=0) + 1,
        path.pieces.size,
        field.hidden,
    ):
        raise ValueError(
            f"z {z.shape} and its gradient {gz.shape} must be what `forward` returned for this path"
        )
    streams = path.pieces.size
    nothing = np.empty((0, 0), field.dtype)
    wanted = path_gradient
    out = Gradients(
        np.empty((streams, field.hidden), field.dtype),
        np.zeros_like(path.dt) if wanted else nothing,
        np.zeros_like(path.slopes) if wanted else nothing.reshape(0, 0, 0, 0),
        np.zeros_like(path.drive) if drive_gradient else nothing.reshape(0, 0, 0, 0),
    )
    shares = share_out(streams, threads)
    size = gradient_size(field.compiled)
    weights = [aligned_zeros(size, field.dtype) for _ in shares]
    ready("backward", field.dtype)
    lists = channel_lists.address(field.dtype)
    compiled = field.compiled._replace(
        outer=outer_address(field.dtype), step_back=step_back.address(field.dtype)
    )

    def work(worker):
        for chunk in shares[worker]:
            backward_chunk(compiled, method, path, lists, steps, z, gz, chunk, weights[worker], out)

    run_each(work, range(len(shares)), threads)
    for other in weights[1:]:
        weights[0] += other
    dt = out.dt if wanted and path.rectilinear else None
    slopes = (out.slopes[0] if path.rectilinear else out.slopes) if wanted else None
    drive = out.drive if drive_gradient else None
    if drive is not None and drive.shape[0] == 1:
        drive = drive[0]
    return out.z0, unpack_gradient(field.compiled, weights[0]), PathGradient(dt, slopes, drive)


def _check(field: PackedField, path: PathArrays, method: Tableau) -> None:
    """Compiled code trusts its input: refuse here what would make it read beyond an array."""
    channels = path.slopes.shape[2] + path.rectilinear
    if channels != field.channels:
        raise ValueError(f"the path has {channels} channels, the field {field.channels}")
    if not field.dtype == path.dtype == method.b.dtype:
        raise TypeError(
            f"field {field.dtype}, path {path.dtype} and method {method.b.dtype} must be of one dtype"
        )
    if path.drive.size and path.drive.shape[2:] != (path.pieces.size, field.compiled.width):
        raise ValueError(f"drive {path.drive.shape} must end in (stream, width)")


# Chunks of streams on a few threads: compiled code releases the GIL, so ordinary threads do. numba's own
# `parallel=True` aborts the process when two Python threads enter it at once on its default layer; a plain pool
# has no such state, and any number of callers may share it.

CHUNK = 64
"""The most streams in lock-step: enough to fill the tiles, few enough for the working arrays to stay in cache."""

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
_guard = threading.Lock()


def share_out(streams: int, threads: int) -> list[list[Chunk]]:
    """Cut a batch into chunks: for each worker those it solves, one after the other.

    Chunks interleave, so that each has its share of the long streams.
    """
    workers = max(1, min(threads, streams))
    stride = workers * -(-streams // (workers * CHUNK))
    every = [
        Chunk(n, stride, (streams - n + stride - 1) // stride) for n in range(min(stride, streams))
    ]
    return [every[n::workers] for n in range(workers)]


def run_each(work, items, threads: int) -> None:
    """Call work(item) for every item on up to `threads` threads, one of them the caller's."""
    items = list(items)
    workers = min(threads, len(items))

    def run(worker):
        for item in items[worker::workers]:
            work(item)

    if workers <= 1:
        for item in items:
            work(item)
        return
    others = [_pool(workers - 1).submit(run, worker) for worker in range(1, workers)]
    try:
        run(0)
    finally:
        for other in others:
            other.result()


def _pool(helpers: int) -> ThreadPoolExecutor:
    key = (
        os.getpid(),
        helpers,
    )  # a forked child must not wait for threads that were not copied with it
    with _guard:
        if key not in _pools:
            _pools[key] = ThreadPoolExecutor(helpers, thread_name_prefix="onlinecde-kernel")
        return _pools[key]


def _forget_lock() -> None:
    global _guard
    _guard = threading.Lock()  # it may have been held by a thread that the fork left behind


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_lock)
