"""Where and with what a number was made: commit, versions, hardware, and the memory it took."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from onlinecde.sharing import side_by_side
from onlinecde.version import __version__


def circumstances(device: torch.device | str) -> dict[str, Any]:
    """Commit, code, versions, hardware and time: what belongs beside every number."""
    return {
        "commit": commit(),
        "source": source(),
        "versions": versions(),
        "hardware": hardware(torch.device(device)),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@cache
def commit() -> str | None:
    """The commit that this package runs from, followed by "+" where files differ from it."""
    here = Path(__file__).parent

    def ask(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # Some other checkout around an installed package tells nothing about it.
    if ask("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    revision = ask("rev-parse", "HEAD")
    changed = ask("status", "--porcelain", "--untracked-files=no", "--", "../..")
    return None if revision is None else revision + ("+" if changed else "")


@cache
def source() -> str:
    """A hash of the package's own code and tables: tells which commit ran where git cannot."""
    home = Path(__file__).parents[1]
    digest = hashlib.blake2b(digest_size=12)
    for file in sorted(home.rglob("*")):
        if file.suffix in (".py", ".toml", ".sql", ".cu", ".cuh"):
            digest.update(file.relative_to(home).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


@cache
def versions() -> dict[str, str]:
    """Of everything that may change a number."""
    import numpy

    return {
        "onlinecde": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def hardware(device: torch.device) -> dict[str, str | int]:
    """The processor, its cores and threads, and the GPU where one was used."""
    content: dict[str, str | int] = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
    }
    if (processes := side_by_side()) > 1:
        content["side_by_side"] = processes
    if device.type == "cuda" and torch.cuda.is_available():
        content["gpu"] = torch.cuda.get_device_name(device)
    return content


@cache
def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


@dataclass
class Memory:
    """Peak memory of a block of code, in bytes; None where it cannot be measured."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: str) -> Iterator[Memory]:
    """Measure the peak inside: allocated on the GPU, or by how much this process grew on the CPU."""
    memory = Memory()
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        yield memory
        memory.bytes = torch.cuda.max_memory_allocated()
        return
    before = _forget_peak()
    yield memory
    after = _status("VmHWM")
    if before is not None and after is not None:
        memory.bytes = max(0, after - before)


def _forget_peak() -> int | None:
    """Give back what is free, let the kernel count this process's peak anew; its memory now."""
    import ctypes
    import gc

    versions()  # what is imported here is not counted below
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        # glibc keeps what was freed: the next block would take it and seem to need nothing.
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _status("VmRSS")


def _status(name: str) -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
