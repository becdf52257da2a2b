"""Fetch a file: with resume, checked, and under its name only when whole."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onlinecde.data.errors import DataError

Progress = Callable[[int, int | None], None]
"""Called with the bytes there are so far and the bytes there will be, if known."""


def fetch(
    url: str,
    target: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
    attempts: int = 4,
    timeout: float = 60.0,
) -> Path:
    """Download `url` to `target`, or find it there already; return the path.

    What has come is kept in `target.part` and continued after a broken transfer, in this call (up
    to `attempts` times) or in the next. The result is checked against `sha256`; where none is
    known, the sum of the first download is written to `target.sha256` and later ones must agree.
    """
    target = Path(target)
    record = target.with_name(target.name + ".sha256")
    expected = sha256 or _recorded(record)
    if target.exists():
        if expected is None:
            _write_record(record, checksum(target), target.name)
        elif checksum(target) != expected:
            raise DataError(
                f"{target} has not the SHA-256 {expected}: it is damaged or another file. "
                "Delete it and fetch again."
            )
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    trouble = ""
    for _ in range(max(1, attempts)):
        try:
            whole = _transfer(url, part, progress, timeout, checked=expected is not None)
        except (
            urllib.error.URLError,
            http.client.HTTPException,
            ConnectionError,
            TimeoutError,
        ) as error:
            if isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500:
                raise DataError(
                    f"{url}: the server answers {error.code} {error.reason}: the address has "
                    "changed or needs an account. Download the file by hand into "
                    f"{target.parent}."
                ) from error
            trouble = f": {error}"
            continue
        if whole:
            break
    else:
        have = part.stat().st_size if part.exists() else 0
        raise DataError(
            f"{url}: the transfer broke off {attempts} times{trouble}. {have} bytes are kept in "
            f"{part}: run the same command again to go on from there."
        )
    found = checksum(part)
    if expected is not None and found != expected:
        part.unlink()
        raise DataError(
            f"{url}: the SHA-256 of the download is {found}, expected was {expected}. It was "
            "deleted: fetch again, and if that does not help, the publisher has changed the file."
        )
    part.replace(target)
    _tag_file(part).unlink(missing_ok=True)
    if sha256 is None:
        _write_record(record, found, target.name)
    return target


def checksum(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _transfer(
    url: str, part: Path, progress: Progress | None, timeout: float, *, checked: bool
) -> bool:
    """Bring what is missing of `part`; true when it is whole.

    Without a mark of the version begun with, and without a sum to check, it begins anew.
    """
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "onlinecde", "Accept-Encoding": "identity"}
    tag = _tag_file(part)
    if have and (checked or tag.exists()):
        headers["Range"] = f"bytes={have}-"
        if tag.exists():
            # Should the file have changed since, the server sends it whole.
            headers["If-Range"] = tag.read_text()
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return True
        # What we have is longer than the file, so it is not its beginning.
        part.unlink(missing_ok=True)
        return False
    with response:
        resumed = response.status == 206 and _starts_at(response) == have
        if response.status == 206 and not resumed:
            part.unlink(missing_ok=True)
            return False
        start = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else None
        _check_room(part, start, total)
        if not resumed:
            mark = response.headers.get("ETag") or response.headers.get("Last-Modified")
            if mark and not mark.startswith("W/"):
                tag.write_text(mark)
            else:
                tag.unlink(missing_ok=True)
        with part.open("ab" if resumed else "wb") as out:
            size = start
            while piece := response.read(1 << 18):
                out.write(piece)
                size += len(piece)
                if progress is not None:
                    progress(size, total)
    return total is None or size == total


def _starts_at(response: Any) -> int | None:
    """Where a partial answer begins, as its Content-Range says."""
    unit, _, span = (response.headers.get("Content-Range") or "").partition(" ")
    first = span.partition("-")[0]
    return int(first) if unit == "bytes" and first.isdecimal() else None


def _check_room(part: Path, have: int, total: int | None) -> None:
    free = shutil.disk_usage(part.parent).free
    if total is not None and total - have > free:
        raise DataError(
            f"{part.parent}: {total - have} bytes are still to come, {free} are free: make room, "
            "or choose another --data-dir."
        )


def _tag_file(part: Path) -> Path:
    return part.with_name(part.name + ".tag")


def _recorded(record: Path) -> str | None:
    if not record.exists():
        return None
    words = record.read_text().split()
    if not words or len(words[0]) != 64:
        raise DataError(f"{record} holds no SHA-256: delete it and fetch again.")
    return words[0]


def _write_record(record: Path, found: str, name: str) -> None:
    temporary = record.with_name(record.name + ".new")
    temporary.write_text(f"{found}  {name}\n")
    temporary.replace(record)
