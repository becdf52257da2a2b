"""Who works on what: a file that is held by a living process, and by no other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Claim:
    """A file locked by this process until it is let go or the process ends, however it ends."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        """Let others have it."""
        os.close(self._handle)


def claim(file: Path, *, wait: bool = False) -> Claim | None:
    """Take hold of a file, made if need be; None where a living process holds it already.

    The kernel lets go when a process dies, so that what a killed one held is free at once.
    """
    import fcntl

    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(handle)
        return None
    return Claim(handle)


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Hold a file for a while, waiting for whoever has it."""
    mine = claim(file, wait=True)
    assert mine is not None
    try:
        yield
    finally:
        mine.release()
