"""The same number of trials for every model of a table: settings by lot, judged on the validation split.

    python -m benchmarks.search physionet-2019 --trials 20 --workers 8 --out results/search-physionet-2019.json

Settings that all models have are drawn from the same spans, sizes from the paper's. What a trial draws
depends on its table, model and number alone, so that any process anywhere draws the same, and more trials are
the same ones and some more. After four epochs a trial ends where most others of its model were better by then.
`fit`'s recipe is not searched here: its settings are `fit`'s defaults. Started again, or by several processes at
once, the search goes on in its folder. The test split is never looked at.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from onlinecde.data import Task
from onlinecde.experiments import load_table
from onlinecde.experiments.cells import Cell, cells_of
from onlinecde.experiments.machine import circumstances
from onlinecde.experiments.sources import cell_task
from onlinecde.files import claim, replace_file
from onlinecde.sharing import SIDE_BY_SIDE
from onlinecde.training import FitSettings, fit, read_log
from onlinecde.training.callbacks import Callback
from onlinecde.tuning.search import NotWorthIt
from onlinecde.tuning.spaces import Span

FORMAT = "onlinecde search 1"
RECIPE = "Online NCDE, fit's recipe"
READOUTS = (None, 32, 64, 128, 256)
"""Widths of the readout's MLP; None: a linear layer."""
TRAINING = {
    "lr": Span(3e-4, 5e-3, log=True),
    "weight_decay": Span(1e-3, 1.0, log=True),
    "average": Span(0.99, 0.998),
}
EVERY = {"channel_dropout": Span(0.0, 0.3), "gain": Span(0.2, 1.0, log=True)}
STACKED = {"hidden": Span(32, 256, log=True), "layers": Span(1, 2)}
ODE = {"hidden": Span(32, 256, log=True), "width": Span(32, 196), "depth": Span(1, 4)}
CDE = {"hidden": (32, 64, 128), "width": (32, 64, 128), "depth": Span(1, 3)}
"""In powers of two: kernels are compiled once for each size."""
FIRST, FEW = 4, 4
"""A trial ends early from this epoch on, and beside at least so many others."""
EARLY = "most others were better by then"
SIZES: Mapping[str, Mapping[str, Span | tuple[int, ...]]] = {
    "gru": STACKED,
    "gru-dt": STACKED,
    "gru-dt-intensity": STACKED,
    "gru-d": {"hidden": STACKED["hidden"]},
    "ode-rnn": ODE,
    "neural-cde": {**CDE, "count_gain": Span(0.05, 0.3, log=True)},
}


def drawn(cell: Cell, number: int) -> Cell:
    """A trial: the cell with settings by lot."""
    lot = random.Random(f"{cell.table}/{cell.column.name}/{number}")
    fitted = {name: _draw(span, lot) for name, span in TRAINING.items()}
    model: dict[str, Any] = {name: _draw(span, lot) for name, span in EVERY.items()}
    model["readout_width"] = lot.choice(READOUTS)
    model |= {name: _draw(span, lot) for name, span in SIZES[cell.column.model].items()}
    return replace(cell, fit={**cell.fit, **fitted}, model={**cell.model, **model})


def _draw(span: Span | tuple[int, ...], lot: random.Random) -> float | int:
    if isinstance(span, tuple):
        return lot.choice(span)
    low, high = (math.log(x) if span.log else x for x in (span.low, span.high))
    if span.whole and not span.log:
        return lot.randint(int(span.low), int(span.high))
    found = lot.uniform(low, high)
    found = math.exp(found) if span.log else found
    return round(found) if span.whole else float(f"{found:.3g}")


def trials_of(table: str, trials: int) -> list[tuple[Cell, int, Path]]:
    """Trials with where they are written, the first of every model before the second of any."""
    cells = cells_of(load_table(table), seeds=[0])
    searched = [cell for cell in cells if cell.column.name != RECIPE]
    return [
        (drawn(cell, number), number, Path(table, cell.place.parts[-2], f"{number:03}.json"))
        for number in range(trials)
        for cell in searched
    ]


class _Beside(Callback):
    """Ends a trial that falls behind the others in its folder's folder, finished or not."""

    def __init__(self, folder: Path, metric: str) -> None:
        self.folder, self.metric = folder, f"validation_{metric}"
        self.history: list[float] = []

    def epoch(self, entry: dict[str, Any], best: bool) -> None:
        log = read_log(self.folder)
        self.history = [each[self.metric] for each in log[: entry["epoch"] - 1]]
        self.history.append(entry[self.metric])
        many = len(self.history)
        reached = [_best_by(each, many) for each in self._others()]
        others = [value for value in reached if value is not None]
        if many >= FIRST and len(others) >= FEW and max(self.history) < median(others):
            raise NotWorthIt

    def _others(self) -> Iterator[list[float]]:
        for place in self.folder.parent.iterdir():
            # Others begin and end meanwhile.
            with contextlib.suppress(OSError, ValueError):
                if place.suffix == ".json":
                    yield json.loads(place.read_text(encoding="utf-8")).get("history", [])
                elif place.is_dir() and place != self.folder:
                    yield [each[self.metric] for each in read_log(place)]


def _best_by(history: Sequence[float], epochs: int) -> float | None:
    return max(history[:epochs]) if len(history) >= epochs else None


def run(cell: Cell, number: int, task: Task, folder: Path, device: str) -> dict[str, Any]:
    """One trial: what was drawn and what came of it. Its folder is for going on, and gone in the end."""
    told: dict[str, Any] = {"column": cell.column.name, "number": number}
    told |= {"model": cell.model, "fit": cell.fit}
    callback = _Beside(folder, task.metric)
    try:
        done = fit(
            task,
            cell.column.model,
            folder,
            model_settings=cell.model,
            settings=FitSettings(**cell.fit),
            device=device,
            callback=callback,
        )
        ended, history = done.ended, [entry[callback.metric] for entry in done.history]
    except NotWorthIt:
        ended, history = EARLY, callback.history
    except ValueError as error:
        # Training diverged. A GPU without room is not the settings' fault, and no trial.
        shutil.rmtree(folder, ignore_errors=True)
        return {**told, "failed": str(error), **circumstances(device)}
    shutil.rmtree(folder)
    told |= {"validation": max(history), "ended": ended, "history": history}
    return {**told, **circumstances(device)}


def work(
    table: str,
    trials: int,
    home: Path,
    device: str,
    load: Callable[[Cell], Task] = cell_task,
) -> None:
    """Run trials that nobody has run or is running, until none is left."""
    task: Task | None = None
    for cell, number, place in trials_of(table, trials):
        file = home / place
        mine = claim(file.with_suffix(".lock"))
        if mine is None:
            continue
        try:
            if file.exists():
                continue
            task = load(cell) if task is None else task
            told = run(cell, number, task, file.with_suffix(""), device)
            replace_file(file, json.dumps(told) + "\n")
            print(
                told["column"], number, told.get("validation"), told.get("failed", ""), flush=True
            )
        finally:
            mine.release()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def gathered(table: str, trials: int, home: Path) -> dict[str, Any]:
    """What the first so many trials of every model came to, and by what code on what machines.

    Those that are not there yet are left out.
    """
    made: list[dict[str, Any]] = []
    found = []
    for cell, number, place in trials_of(table, trials):
        if not (home / place).exists():
            continue
        told = json.loads((home / place).read_text(encoding="utf-8"))
        by = {name: told.get(name) for name in ("commit", "source", "versions", "hardware")}
        if by not in made:
            made.append(by)
        names = (*EVERY, "readout_width", *SIZES[cell.column.model])
        drew = {name: told["model"][name] for name in names}
        drew |= {name: told["fit"][name] for name in TRAINING}
        came = {
            name: told[name]
            for name in ("failed", "validation", "ended", "history")
            if name in told
        }
        found.append(
            {
                "column": cell.column.name,
                "number": number,
                "drew": drew,
                **came,
                "made": made.index(by),
            }
        )
    return {"made": made, "trials": found}


def by_model(told: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The trials of each model."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for trial in told["trials"]:
        found.setdefault(trial["column"], []).append(trial)
    return found


def search_table(told: Mapping[str, Any]) -> str:
    """How many trials every model had and what they came to, as Markdown."""
    lines = ["| model | trials | ended early | diverged | best |", "|---|---:|---:|---:|---:|"]
    for name, trials in by_model(told).items():
        fine = [trial for trial in trials if "failed" not in trial]
        early = sum(trial["ended"] == EARLY for trial in fine)
        best = max((trial["validation"] for trial in fine), default=math.nan)
        failed = len(trials) - len(fine)
        lines.append(f"| {name} | {len(trials)} | {early} | {failed} | {best:.3f} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", help="a table of `onlinecde reproduce`, as physionet-2019")
    parser.add_argument("--trials", type=int, default=40, help="of every model")
    parser.add_argument("--workers", type=int, default=1, help="trials at the same time")
    parser.add_argument(
        "--home", type=Path, default=Path("out/search"), help="folder of the trials"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="gather the trials in this file")
    parser.add_argument("--gather", action="store_true", help="run nothing, gather what there is")
    asked = parser.parse_args(words)
    if asked.gather:
        pass
    elif asked.workers > 1:
        command = [sys.executable, "-m", "benchmarks.search", asked.table]
        command += ["--trials", str(asked.trials), "--home", str(asked.home)]
        command += ["--device", asked.device]
        threads = str(max(1, (os.cpu_count() or 1) // asked.workers))
        env = {"OMP_NUM_THREADS": threads, **os.environ, SIDE_BY_SIDE: str(asked.workers)}
        crew = [subprocess.Popen(command, env=env) for _ in range(asked.workers)]
        for process in crew:
            process.wait()
    else:
        device = asked.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        work(asked.table, asked.trials, asked.home, device)
    if asked.out is not None:
        command = f"python -m benchmarks.search {asked.table} --trials {asked.trials}"
        told = {
            "format": FORMAT,
            "table": asked.table,
            "command": f"{command} --out {asked.out}",
            **gathered(asked.table, asked.trials, asked.home),
        }
        lines = [json.dumps(trial) for trial in told.pop("trials")]
        head = json.dumps(told, indent=1).removesuffix("\n}")
        asked.out.write_text(
            head + ',\n "trials": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n", encoding="utf-8"
        )
        told = json.loads(asked.out.read_text(encoding="utf-8"))
        print(search_table(told))
        if missing := len(trials_of(asked.table, asked.trials)) - len(lines):
            print(f"{missing} trials are missing: the same command goes on.")


if __name__ == "__main__":
    main()
