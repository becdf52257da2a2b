"""Chunks of streams on a few threads: compiled code releases the GIL, so ordinary threads do.

numba's own `parallel=True` aborts the process when two Python threads enter it at once on its default
layer; a plain pool has no such state, and any number of callers may share it.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from onlinecde.kernels.cpu.moves import Chunk

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
