"""What all benchmarks share: fair timing, the machine in words, a results file, a ratio table."""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Timing:
    """How long a call took, in seconds."""

    best: float
    median: float
    runs: int


def best_of(
    call: Callable[[], Any], *, seconds: float = 2.0, least: int = 3, most: int = 1000
) -> Timing:
    """Time `call` until `seconds` have passed, at least `least` and at most `most` times.

    The best run is the one least disturbed by others on the machine. One run is made first and not
    counted, unless it alone takes longer than `seconds`; garbage is collected beforehand and not
    while timing, and a GPU is waited for.
    """
    return _summary(_runs(call, seconds, least, most))


def side_by_side(
    ours: Callable[[], Any], peer: Callable[[], Any], *, seconds: float = 2.0, rounds: int = 3
) -> tuple[Timing, Timing]:
    """Time two calls in turn, each for about `seconds` in all, so that other load meets both."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for runs, call in zip(taken, (ours, peer), strict=True):
            runs += _runs(call, seconds / rounds, least=1, most=1000)
    return _summary(taken[0]), _summary(taken[1])


def _runs(call: Callable[[], Any], seconds: float, least: int, most: int) -> list[float]:
    gc.collect()
    gc.disable()
    try:
        warm_up = _once(call)
        taken = [warm_up] if warm_up > seconds else []
        while len(taken) < least or (sum(taken) < seconds and len(taken) < most):
            taken.append(_once(call))
    finally:
        gc.enable()
    return taken


def _summary(taken: list[float]) -> Timing:
    return Timing(min(taken), statistics.median(taken), len(taken))


def _once(call: Callable[[], Any]) -> float:
    _wait_for_gpu()
    start = time.perf_counter()
    call()
    _wait_for_gpu()
    return time.perf_counter() - start


def _wait_for_gpu() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def machine() -> dict[str, Any]:
    """The hardware and the system, in words."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpu": gpus or None,
        "load": round(os.getloadavg()[0], 1),
        "system": platform.platform(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions(*packages: str) -> dict[str, str]:
    """Python and the given packages, as installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


@dataclass(frozen=True)
class Comparison:
    """One thing done by us and by a peer; `at_least` is the ratio that must hold, if any."""

    case: str
    ours: Timing
    peer: Timing
    at_least: float | None = None

    @property
    def ratio(self) -> float:
        """How many times faster than the peer we are, best run against best run."""
        return self.peer.best / self.ours.best

    @property
    def holds(self) -> bool:
        return self.at_least is None or self.ratio >= self.at_least

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "holds": self.holds}


def print_ratios(
    title: str,
    peer: str,
    comparisons: Sequence[Comparison],
    notes: Sequence[str],
    console: Console | None = None,
) -> None:
    """Print a table of best times and ratios, with what is needed to judge them below it."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("case")
    for column in ("onlinecde", peer, "ratio", "must hold"):
        table.add_column(column, justify="right")
    for one in comparisons:
        table.add_row(
            one.case,
            _in_words(one.ours.best),
            _in_words(one.peer.best),
            f"{one.ratio:,.1f}x",
            "" if one.at_least is None else f"{one.at_least:g}x {'yes' if one.holds else 'NO'}",
        )
    console = console or Console()
    console.print(table)
    for note in notes:
        console.print(note, highlight=False)


def _in_words(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def describe(hardware: dict[str, Any], installed: dict[str, str]) -> list[str]:
    """The machine and the versions as lines of text."""
    gpu = f", {', '.join(hardware['gpu'])}" if hardware["gpu"] else ""
    return [
        f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['threads']} threads used, "
        f"{hardware['memory_gb']} GB{gpu}; load {hardware['load']}",
        ", ".join(f"{name} {version}" for name, version in installed.items()),
    ]


def write_results(
    file: Path,
    *,
    command: Sequence[str],
    settings: dict[str, Any],
    hardware: dict[str, Any],
    installed: dict[str, str],
    results: Sequence[dict[str, Any]],
) -> None:
    """Write what was measured, where and by which command, as JSON; whole or not at all."""
    content = {
        "command": shlex.join(command),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hardware": hardware,
        "versions": installed,
        "settings": settings,
        "results": list(results),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    part.write_text(json.dumps(content, indent=2) + "\n")
    part.replace(file)


def shown(number: float) -> str:
    """A number for a reader: four digits that count, thousands set apart, no powers of ten."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
