"""Read files from a folder, a zip or a tar as distributed, without unpacking and without trust.

Nothing is ever written: members are read into memory. Names that climb out of the archive, sizes
no data set has, and archives cut short are refused.
"""

from __future__ import annotations

import fnmatch
import gzip
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from onlinecde.data.errors import DataError

ARCHIVE_ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
LARGEST_TOTAL = 16 << 30
"""Bytes of all members together; the largest of our data sets, SpeechCommands, has 3.3 GB."""
LARGEST_RATIO = 120
"""Unpacked to packed, of archives above `SMALL` bytes: `.psv` files reach 6, bombs 1000."""
SMALL = 32 << 20


@dataclass(frozen=True)
class Member:
    """One file of a source; `name` is its path inside it, with forward slashes."""

    name: str
    data: bytes
    origin: str
    """What to call it in an error: `archive.zip:folder/file`."""


def read_members(
    paths: Sequence[str | os.PathLike[str]],
    wanted: Callable[[str], bool],
    *,
    largest_total: int = LARGEST_TOTAL,
) -> Iterator[Member]:
    """Yield the members whose name is `wanted`, folders in order of name, archives in their own.

    Each path is a file, a folder (read with what lies below it, and with the archives directly in
    it) or an archive.

    Raises `DataError` for an archive that is damaged, cut short, or set to harm.
    """
    budget = _Budget(largest_total)
    for path in _spread([Path(p) for p in paths]):
        if path.is_dir():
            files = (p for p in path.rglob("*") if p.is_file() and not _is_archive(p))
            for file in sorted(files):
                name = file.relative_to(path.parent).as_posix()
                if wanted(name):
                    yield Member(name, _read_plain(file, budget), str(file))
        elif not path.exists():
            raise DataError(f"{path} does not exist: check the path.")
        elif not _is_archive(path):
            if wanted(path.name):
                yield Member(path.name, _read_plain(path, budget), str(path))
        elif path.name.endswith(".zip"):
            yield from _read_zip(path, wanted, budget)
        else:
            yield from _read_tar(path, wanted, budget)


def by_pattern(*patterns: str) -> Callable[[str], bool]:
    """Wanted are names whose last parts match one of the glob patterns."""

    def wanted(name: str) -> bool:
        return any(fnmatch.fnmatchcase("/" + name, "*/" + pattern) for pattern in patterns)

    return wanted


def read_one(paths: Sequence[str | os.PathLike[str]], pattern: str) -> Member:
    """The one member that matches `pattern`."""
    found = list(read_members(paths, by_pattern(pattern)))
    if len(found) != 1:
        shown = ", ".join(str(p) for p in paths)
        what = (
            "no file" if not found else f"{len(found)} files ({', '.join(m.origin for m in found)})"
        )
        raise DataError(f"{shown}: {what} called {pattern}; there must be exactly one.")
    return found[0]


class _Budget:
    """Counts the bytes read, so that no source can fill the memory."""

    def __init__(self, total: int) -> None:
        self.total = self.left = total

    def take(self, size: int, origin: str) -> None:
        self.left -= size
        if self.left < 0:
            raise DataError(
                f"{origin}: unpacked, this source holds more than {self.total / 2**30:.3g} GiB: "
                "it is not one of the known data sets, or was made to fill the memory. "
                "Check where it comes from."
            )


def _is_archive(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith(ARCHIVE_ENDINGS)


def _spread(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        yield path
        if path.is_dir():
            yield from sorted(p for p in path.iterdir() if _is_archive(p))


def _check_name(name: str, archive: Path) -> None:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or (parts.parts and ":" in parts.parts[0]):
        raise DataError(
            f"{archive}: the member {name!r} points outside the archive: it was made to harm. "
            "Fetch it again from the official address."
        )


def _read_plain(path: Path, budget: _Budget) -> bytes:
    if path.name.endswith(".gz"):
        with _clear_errors(path), gzip.open(path) as file:
            return _read_counted(file.read, budget, path)
    budget.take(path.stat().st_size, str(path))
    return path.read_bytes()


def _read_counted(read: Callable[[int], bytes], budget: _Budget, path: Path) -> bytes:
    pieces, total = [], 0
    while piece := read(1 << 24):
        budget.take(len(piece), str(path))
        total += len(piece)
        _check_ratio(total, path)
        pieces.append(piece)
    return b"".join(pieces)


def line_blocks(
    path: Path, size: int, *, start: int = 0, limit: int | None = None
) -> Iterator[bytes]:
    """A text file, plain or packed by gzip, in blocks of whole lines of about `size` bytes.

    Args:
        path: the file.
        size: of a block; the line it ends in is read to its end.
        start: how many bytes, unpacked, are left out at the beginning.
        limit: how many blocks at most.
    """
    packed = path.name.lower().endswith(".gz")
    with _clear_errors(path), gzip.open(path) if packed else path.open("rb") as file:
        total = file.seek(start)
        while limit is None or limit > 0:
            block = file.read(size) + file.readline()
            total += len(block)
            if packed:
                _check_ratio(total, path)
            if not block:
                return
            yield block
            limit = None if limit is None else limit - 1


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (
        EOFError,
        OSError,
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        raise DataError(
            f"{path}: the archive is damaged or was cut short ({error}): fetch it again."
        ) from error
    except (NotImplementedError, RuntimeError) as error:
        raise DataError(
            f"{path}: the archive cannot be read ({error}): pack it again with ordinary "
            "compression and no password."
        ) from error


def _read_zip(path: Path, wanted: Callable[[str], bool], budget: _Budget) -> Iterator[Member]:
    with _clear_errors(path):
        archive = zipfile.ZipFile(path)
    with archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        for entry in entries:
            _check_name(entry.filename, path)
        _check_ratio(sum(entry.file_size for entry in entries), path)
        for entry in entries:
            if wanted(entry.filename):
                budget.take(entry.file_size, str(path))
                with _clear_errors(path):
                    # zipfile stops at the declared size and checks the sum of what it read.
                    data = archive.read(entry)
                yield Member(entry.filename, data, f"{path}:{entry.filename}")


def _read_tar(path: Path, wanted: Callable[[str], bool], budget: _Budget) -> Iterator[Member]:
    total = 0
    with _clear_errors(path), tarfile.open(path, "r|*") as archive:
        for entry in archive:
            _check_name(entry.name, path)
            if not entry.isfile():
                # Folders hold nothing; links and devices are no data.
                continue
            total += entry.size
            _check_ratio(total, path)
            name = entry.name.removeprefix("./")
            file = archive.extractfile(entry) if wanted(name) else None
            if file is not None:
                budget.take(entry.size, str(path))
                data = file.read()
                if len(data) != entry.size:
                    raise EOFError(f"{name} ends early")
                yield Member(name, data, f"{path}:{name}")


def _check_ratio(total: int, path: Path) -> None:
    packed = path.stat().st_size
    if total > SMALL and total > LARGEST_RATIO * packed:
        raise DataError(
            f"{path}: {packed} bytes would unpack to {total}, {total // max(packed, 1)} times as "
            "much: no data set is like that, it was made to fill the memory. Check where it comes "
            "from."
        )
