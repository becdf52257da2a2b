"""Files written whole or not at all."""

import os
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
