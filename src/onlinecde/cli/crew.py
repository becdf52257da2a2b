"""Several processes of one command at once, watched until the last of them ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from onlinecde.sharing import SIDE_BY_SIDE

_PAUSE = 0.5


def work_together(
    workers: int,
    folder: Path,
    arguments: Sequence[str],
    *,
    news: Callable[[], None],
    note: Callable[[str], None],
) -> bool:
    """Run `onlinecde ARGUMENTS` in several processes that share a folder; whether any came to an end.

    What they print goes to `worker-N.log` in the folder. `news` is called twice a second and once
    in the end, `note` where a process died; it is not replaced. All end when this is interrupted. They
    are told how many they are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    command = [sys.executable, "-c", "from onlinecde.cli import main; main()", *arguments]
    logs = [folder / f"worker-{number}.log" for number in range(workers)]
    crew = []
    for log in logs:
        with log.open("w") as file:
            crew.append(
                subprocess.Popen(
                    command,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={"OMP_NUM_THREADS": threads, **os.environ, SIDE_BY_SIDE: str(workers)},
                )
            )
    ended: set[int] = set()
    try:
        while len(ended) < workers:
            time.sleep(_PAUSE)
            news()
            for number, process in enumerate(crew):
                if number not in ended and process.poll() is not None:
                    ended.add(number)
                    if process.returncode not in (0, 1):
                        note(f"worker {number} ended with {process.returncode}: {logs[number]}")
    finally:
        for process in crew:
            if process.poll() is None:
                process.terminate()
                process.wait()
    news()
    return any(process.returncode in (0, 1) for process in crew)


def last_words(folder: Path) -> str:
    """How the first process's log ends, for an error message."""
    log = folder / "worker-0.log"
    lines = log.read_text(errors="replace").strip().splitlines()
    return " ".join(lines[-3:]) or str(log)


def option_words(told: Mapping[str, str | Sequence[str] | None]) -> list[str]:
    """Options as a command line has them; None and empty ones are left out.

    >>> option_words({"--out": "runs", "--only": ["*/GRU", "*/GRU-D"], "--seeds": None})
    ['--out', 'runs', '--only', '*/GRU', '--only', '*/GRU-D']
    """
    words = []
    for name, value in told.items():
        for each in [value] if isinstance(value, str) else value or []:
            words += [name, each]
    return words
