"""Files written whole or not at all."""

import os
from pathlib import Path


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
