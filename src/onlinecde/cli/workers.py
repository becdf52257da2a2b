"""Several processes of one command at once, watched until the last of them ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onlinecde.sharing import SIDE_BY_SIDE

if TYPE_CHECKING:
    from onlinecde.experiments import Table
    from onlinecde.training.callbacks import Callback
    from onlinecde.tuning import Tuned

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


def search_together(workers: int, out: Path, arguments: Sequence[str], callback: Callback) -> Tuned:
    """Let several processes search in one folder, and tell of each trial as it ends.

    A process that dies is not replaced: the others take up its trial.
    """
    from onlinecde.tuning import TuneError, read_study
    from onlinecde.tuning.study import DATABASE

    ended: set[int] = set()
    seen: list[int] = []

    def news() -> None:
        nonlocal seen
        files = [file for file in (out / DATABASE, out / f"{DATABASE}-wal") if file.exists()]
        now = [file.stat().st_mtime_ns for file in files]
        if now == seen or not (out / DATABASE).is_file():
            return
        seen = now
        try:
            trials = read_study(out).trials
        except Exception:  # the first worker is still making the study
            return
        for trial in trials:
            if trial.state != "running" and trial.number not in ended:
                ended.add(trial.number)
                callback.end(trial, asdict(trial))

    any_ended = work_together(workers, out, ["tune", *arguments], news=news, note=callback.note)
    if not any_ended or not (out / DATABASE).is_file():
        raise TuneError(f"no worker came to an end: {_last_words(out)}")
    return read_study(out)


def run_together(
    workers: int,
    out: Path,
    arguments: Sequence[str],
    tables: Sequence[Table],
    asked: Mapping[str, Any],
    retry: bool,
    callback: Callback,
) -> None:
    """Let several processes run the cells of tables, and tell of each cell as it ends.

    What a process that died left undone is for whoever comes next.
    """
    from onlinecde.experiments import ExperimentError, cells_of
    from onlinecde.experiments.grid import forget_failures, grid_of
    from onlinecde.experiments.running import read_result

    cells = [
        cell
        for table in tables
        if table.kind != "command"
        for cell in cells_of(grid_of(table), **asked)
    ]
    if retry:
        forget_failures(cells, out)
    waiting = [cell for cell in cells if read_result(out / cell.place, cell) is None]
    if not waiting:
        return
    count = len(waiting)

    def news() -> None:
        for cell in tuple(waiting):
            if (result := read_result(out / cell.place, cell)) is not None:
                waiting.remove(cell)
                callback.end(cell, result)

    callback.note(f"{count} cells, {workers} at a time")
    any_ended = work_together(
        workers, out, ["reproduce", *arguments], news=news, note=callback.note
    )
    if not any_ended and len(waiting) == count:
        raise ExperimentError(f"no worker came to an end: {_last_words(out)}")


def _last_words(folder: Path) -> str:
    """How the first process's log ends, for an error message."""
    log = folder / "worker-0.log"
    lines = log.read_text(errors="replace").strip().splitlines()
    return " ".join(lines[-3:]) or str(log)
