"""Folders written whole or not at all, and files read without trusting them."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


class ArtifactError(ValueError):
    """A model folder that cannot be written or must not be trusted; the message says what is wrong."""


def read_file(home: Path, name: str, most: int) -> bytes:
    """The bytes of a plain file in the folder, at most `most`; links and devices are refused."""
    # Opening must neither follow a link nor wait for the other end of a pipe.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with os.fdopen(os.open(home / name, flags), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ArtifactError(f"{home}: {name} is not a plain file.")
            if about.st_size > most:
                raise ArtifactError(f"{home}: {name} has {about.st_size} bytes, more than {most}.")
            return file.read(most)
    except FileNotFoundError:
        raise ArtifactError(f"{home}: {name} is missing: this is not a saved model.") from None
    except OSError as error:
        if (home / name).is_symlink():
            raise ArtifactError(f"{home}: {name} is a link, not a file.") from error
        raise ArtifactError(f"{home}: {name} cannot be read ({error}).") from error


def identity(folder: Path) -> tuple[int, int] | None:
    """Changes when another folder takes the place of this one."""
    try:
        about = folder.stat()
    except OSError:
        return None
    return about.st_ino, about.st_ctime_ns


def check_target(target: Path, overwrite: bool, mark: str) -> None:
    """Refuse a target that is there, unless it may be overwritten and holds the file `mark`."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ArtifactError(f"{target} is a file or a link: give the name of a folder.")
    if target.is_dir() and any(target.iterdir()):
        if not overwrite:
            raise ArtifactError(
                f"{target} is there already: give another folder, or overwrite=True."
            )
        if not (target / mark).is_file():
            raise ArtifactError(f"{target} holds something else than a model: give another folder.")


def write(files: Mapping[str, bytes], target: Path, overwrite: bool) -> None:
    """Write the files into a new folder beside the target, then let it take the target's place.

    Raises:
        ArtifactError: the disk does not take them.
    """
    try:
        _write(files, target, overwrite)
    except OSError as error:
        raise ArtifactError(f"{target} cannot be written: {error}.") from error


def replace_file(home: Path, name: str, data: bytes) -> None:
    """Let a file of a folder be another, in one move.

    Raises:
        ArtifactError: the disk does not take it.
    """
    try:
        handle, made = tempfile.mkstemp(prefix=f".{name}.", suffix=".partial", dir=home)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(made).chmod(stat.S_IMODE((home / name).stat().st_mode))
            Path(made).replace(home / name)
        except BaseException:
            Path(made).unlink(missing_ok=True)
            raise
        _sync(home)
    except OSError as error:
        raise ArtifactError(f"{home / name} cannot be written: {error}.") from error


def _write(files: Mapping[str, bytes], target: Path, overwrite: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        for name, data in files.items():
            with (made / name).open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        made.chmod(0o755)
        _sync(made)
        try:
            made.rename(target)
        except OSError:
            if not (overwrite and target.is_dir()):
                raise
            _exchange(made, target)
        _sync(target.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _exchange(new: Path, old: Path) -> None:
    """Let two folders change places: in one move on Linux, elsewhere in two, one after the other."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    here, swap = -100, 2
    if hasattr(library, "renameat2") and (
        library.renameat2(here, os.fsencode(new), here, os.fsencode(old), swap) == 0
    ):
        return
    aside = new.with_suffix(".old")
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        aside.rename(old)
        raise
    aside.rename(new)


def _sync(folder: Path) -> None:
    """Make the folder's entries last through a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
