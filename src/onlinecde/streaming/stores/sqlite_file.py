"""The file of a SQLite store, owned by one engine at a time and closed to other users."""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from pathlib import Path

from onlinecde.streaming.errors import StoreBusy, StoreError

_LOGGER = logging.getLogger("onlinecde.streaming")
_owned: dict[tuple[int, int], str] = {}
"""Device and inode of the files that stores of this process own, with their names"""
_owning = threading.Lock()


class OwnedFile:
    """A store's file, locked for this process under every name it has, and closed to other users.

    A second engine on it would undo what the first holds in memory. The lock is on the file itself, so that
    links lead to the same one and there is no file beside it to delete; a process that dies lets go of it.
    """

    def __init__(self, file: Path, real: Path) -> None:
        self._file, self._real = file, real
        with _owning:
            # Closing any descriptor of a file drops the locks that SQLite has on it in this process: one
            # that is owned here is not opened a second time.
            if _identity(real) in _owned:
                raise self._busy()
            try:
                self._handle = os.open(real, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise StoreError(
                    f"{file} cannot be written ({error.strerror}): give a file that this user may write, in a "
                    "folder that this user may write, on a disk that is not read-only."
                ) from error
            try:
                self._lock()
                status = os.fstat(self._handle)
                self._identity = status.st_dev, status.st_ino
                self.check()
                self._close_to_others()
            except BaseException:
                os.close(self._handle)
                raise
            _owned[self._identity] = str(file)

    def _lock(self) -> None:
        try:
            import fcntl
        except (
            ImportError
        ):  # not on this system: the sequence of commits still tells two writers apart
            return
        try:
            if sys.platform == "linux":  # where these locks and SQLite's do not see each other
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:  # a byte far beyond those that SQLite locks
                fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2**60)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise self._busy() from error
            raise StoreError(
                f"{self._file} cannot be locked ({error.strerror}): use a local disk."
            ) from error

    def _busy(self) -> StoreBusy:
        return StoreBusy(
            f"{self._file} is in use by another engine: stop that one, or give another file."
        )

    def _close_to_others(self) -> None:
        """Take other users' rights to the file, and to what SQLite keeps beside it, as it will to new ones."""
        for name in ("", "-wal", "-shm"):
            part = self._real.with_name(self._real.name + name)
            try:
                mode = part.stat().st_mode & 0o777
                if mode & 0o077:
                    part.chmod(mode & 0o700)
                    _LOGGER.warning(
                        "store closed to other users",
                        extra={"told": {"part": name or "file", "mode_before": f"{mode:04o}"}},
                    )
            except FileNotFoundError:
                continue
            except PermissionError:  # another user's file
                _LOGGER.warning(
                    "store open to other users", extra={"told": {"part": name or "file"}}
                )

    def check(self) -> None:
        """Refuse to go on where the name leads to another file by now."""
        if _identity(self._real) != self._identity:
            raise StoreError(
                f"{self._file} was deleted, moved or replaced while it was in use: stop this engine, and put "
                "the file back in its place."
            )

    def release(self) -> None:
        """Let go of the file; after SQLite has closed it."""
        with _owning:
            if _owned.pop(self._identity, None) is not None:
                os.close(self._handle)


def _identity(file: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None where there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
