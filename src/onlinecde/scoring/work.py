"""The folder that a scoring of files works in: lines by bucket, scores, and how far it has come."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onlinecde.data import DataError
from onlinecde.files import Claim, claim, replace_file

if TYPE_CHECKING:
    import polars as pl

FORMAT = "onlinecde scoring 1"
STATE, LOCK = "state.json", ".lock"
_LENGTH = struct.Struct("<Q")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class FullDiskError(DataError):
    """The disk is full: with more room, the same command goes on."""


class WorkFolder:
    """A folder of growing files and what is known of them; killed at any moment, the next one goes on from `save`.

    One process works in it at a time. What was begun for another model, other tables or another question is
    thrown away.
    """

    def __init__(self, folder: Path, fingerprint: Mapping[str, Any]) -> None:
        self.folder = folder
        with room_on_disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            mine = claim(folder / LOCK)
        if mine is None:
            raise DataError(f"another process is working in {folder}: wait for it to end.")
        self._lock: Claim | None = mine
        self.state: dict[str, Any] = {}
        self.resumed = self.begun_anew = False
        try:
            self._open(json.loads(json.dumps(fingerprint)))
        except BaseException:
            self.close()
            raise

    def _open(self, fingerprint: Any) -> None:
        try:
            known = json.loads((self.folder / STATE).read_text())
        except FileNotFoundError:
            known = None
        except ValueError:
            known = {}
        if known is not None:
            self.resumed = known.get("format") == FORMAT and known["fingerprint"] == fingerprint
            self.begun_anew = not self.resumed
        if self.resumed and known is not None:
            self.state = known
        else:
            self.state = {"format": FORMAT, "fingerprint": fingerprint, "sizes": {}}
        self._drop_unsaved()

    def _drop_unsaved(self) -> None:
        """Take back what was written after the last `save`."""
        sizes = self.state["sizes"]
        for file in self.folder.iterdir():
            if file.is_dir():
                shutil.rmtree(file)
            elif file.name not in (STATE, LOCK) and file.name not in sizes:
                file.unlink()
        for name, size in sizes.items():
            file = self.folder / name
            there = file.stat().st_size if file.exists() else -1
            if there < size:
                raise DataError(
                    f"{file} has {there} bytes, not {size}: the folder is damaged. Delete {self.folder} and start "
                    "the same command again: it begins anew."
                )
            if there > size:
                os.truncate(file, size)

    def save(self) -> None:
        """Make all that was written until now what the next process goes on from."""
        with room_on_disk(self.folder):
            replace_file(self.folder / STATE, json.dumps(self.state))

    def append(self, name: str, frame: pl.DataFrame) -> None:
        """Put lines at the end of a file."""
        packed = io.BytesIO()
        frame.write_ipc_stream(packed, compression="lz4")
        body = packed.getbuffer()
        with room_on_disk(self.folder), (self.folder / name).open("ab") as file:
            file.write(_LENGTH.pack(len(body)))
            file.write(body)
        sizes = self.state["sizes"]
        sizes[name] = sizes.get(name, 0) + _LENGTH.size + len(body)

    def parts(self, name: str) -> Iterator[pl.DataFrame]:
        """The lines of a file, in the order they were appended; empty where there is no file."""
        import polars as pl

        if name not in self.state["sizes"]:
            return
        with (self.folder / name).open("rb") as file:
            while head := file.read(_LENGTH.size):
                body = file.read(_LENGTH.unpack(head)[0])
                yield pl.read_ipc_stream(io.BytesIO(body))

    def write(self, name: str, data: bytes) -> None:
        """Write a file at once."""
        with room_on_disk(self.folder):
            replace_file(self.folder / name, data)
        self.state["sizes"][name] = len(data)

    def remove(self, *names: str) -> None:
        """Forget files; their room is free after the next `save`."""
        for name in names:
            self.state["sizes"].pop(name, None)

    def free(self, *names: str) -> None:
        """Delete files that a saved state no longer knows."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Delete the folder: all is done."""
        self.close()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Let others work in it."""
        if self._lock is not None:
            self._lock.release()
        self._lock = None


@contextmanager
def room_on_disk(place: Path) -> Iterator[None]:
    """Say of a full disk that it is full, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise disk_is_full(place) from error


def disk_is_full(place: Path) -> FullDiskError:
    """The error for a full disk."""
    return FullDiskError(
        f"the disk is full, at {place}: make room (all in all about twice the size of the tables), and start "
        "the same command again: it goes on where it stopped."
    )
