"""Files written whole or not at all, and files that a living process holds, so that no other works on the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_folder(folder: Path, what: str) -> None:
    """Refuse a place no folder can be made at, before there is work to lose; `what` asked for it, as "--out"."""
    for place in (folder, *folder.parents):
        if place.exists() or place.is_symlink():
            if not place.is_dir():
                raise ValueError(f"{what} {folder}: {place} is a file. Give the name of a folder.")
            return


def check_file(file: Path | None, what: str) -> None:
    """Refuse a place no file can be written to, before there is work to lose; None is none."""
    if file is None:
        return
    if file.is_dir():
        raise ValueError(f"{what} {file} is a folder. Give the name of a file.")
    check_folder(file.parent, what)


def replace_file(file: Path, data: str | bytes, mode: int = 0o666) -> None:
    """Write a file; whoever looks, at any moment, finds all of the old one or all of the new one.

    `mode` are its permissions, less the umask. It is on disk when this returns.
    """
    part = file.with_name(f".{file.name}.{os.getpid()}.partial")
    part.unlink(missing_ok=True)
    try:
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with os.fdopen(handle, "wb") as open_file:
            open_file.write(data.encode() if isinstance(data, str) else data)
            open_file.flush()
            os.fsync(open_file.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


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
