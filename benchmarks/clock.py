"""Who knows most between rows? Models of the simulated ward as `fit` trains them, beside the best possible.

    python -m benchmarks.clock --out out/clock --workers 2 --json benchmarks/results/clock.json

Each seed is a ward of its own to learn from, as `onlinecde demo` has it; all are asked every hour, and at rows, on one
ward of 4,000 patients that none was trained or validated on. Models lie in --out: started again, it goes on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shlex
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.artifacts import load as load_model
from onlinecde.data import Task, simulate_ward
from onlinecde.evaluation.bootstrap import draws
from onlinecde.evaluation.predictions import predict_task
from onlinecde.experiments.machine import circumstances
from onlinecde.training import fit
from onlinecde.training.defaults import resolve

UNSEEN = 202_711
"""The seed of the ward that is judged, which no choice was made on"""
EMPTY = {"asking": "empty-rows"}
NEURAL, ROWS = "Neural CDE", ("GRU", "GRU-dt", "GRU-dt-intensity", "GRU-D")
FORESEES = ", with an outlook"


def columns() -> dict[str, tuple[str, dict[str, Any]]]:
    """The model and what is said of its training, by name; outlooks of others are those of the Neural CDE."""
    found: dict[str, tuple[str, dict[str, Any]]] = {
        NEURAL: ("neural-cde", {"trees": False}),
        f"{NEURAL}, labels alone": ("neural-cde", {"outlook": (), "trees": False}),
        "ODE-RNN": ("ode-rnn", {}),
    }
    for name in ROWS:
        found[f"{name}, holding"] = (name.lower(), {})
        found[f"{name}, empty rows"] = (name.lower(), EMPTY)
    for name in ("ODE-RNN", *(f"{one}, empty rows" for one in ROWS[2:])):
        model, more = found[name]
        found[name + FORESEES] = (model, {**more, "outlook": None})
    return found


@cache
def ward(seed: int, streams: int) -> Task:
    return simulate_ward(streams, seed=seed).task


@cache
def asked(streams: int) -> dict[str, Task]:
    """The ward that is judged, every hour and at rows."""
    rows = ward(UNSEEN, streams)
    return {"clock": rows.asked("every=1h"), "rows": rows}


def train(job: tuple[str, int, int, int, Path]) -> None:
    """Fit one column on one ward, or go on with it."""
    column, seed, streams, epochs, folder = job
    torch.set_num_threads(1)
    model, changes = columns()[column]
    task = ward(seed, streams)
    if changes.get("outlook", ()) is None:
        changes = {**changes, "outlook": resolve(task, "neural-cde").training.outlook}
    ways = {"epochs": epochs, "stop": 8, "plateau": 4, "seed": seed, "device": "cpu"}
    fit(task, model, folder, **ways, **changes)
    print(f"{column}, seed {seed}: done", flush=True)


def judged(folder: Path, unseen: int) -> dict[str, np.ndarray]:
    """By patient (stream,): the sum of the log loss above the best possible by the clock and at rows, and expected."""
    torch.set_num_threads(1)
    model = load_model(folder / "model")
    found = {}
    for name, task in asked(unseen).items():
        outputs = predict_task(model, task.series, task.per, times=task.queries, batch_size=512)
        found[name], found[f"{name}, expected"] = _excess(task, outputs[..., 0].double().sigmoid())
    return found


def _excess(task: Task, said: Tensor) -> tuple[np.ndarray, np.ndarray]:
    assert task.known_risk is not None
    risk, labels = task.known_risk.risk, task.labels[:, : said.shape[1]].double()
    known = ~(labels.isnan() | risk[:, : said.shape[1]].isnan())
    best = risk[:, : said.shape[1]].where(known, 0.5).clamp(1e-9, 1 - 1e-9)
    said = said.where(known, 0.5).clamp(1e-9, 1 - 1e-9)
    gained, lost = (best / said).log(), ((1 - best) / (1 - said)).log()
    # What labels say, and its mean over all labels there could have been, which only the best possible knows.
    return (
        (torch.where(labels == 1, gained, lost) * known).sum(1).numpy(),
        ((best * gained + (1 - best) * lost) * known).sum(1).numpy(),
    )


def main() -> None:
    """Fit what is missing, judge, print a table."""
    parser = argparse.ArgumentParser(description="Who knows most between rows?")
    parser.add_argument("--out", type=Path, default=Path("out/clock"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--streams", type=int, default=4000)
    parser.add_argument("--unseen", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=["*"], help="columns, by pattern")
    parser.add_argument("--fit-only", action="store_true", help="judge nothing yet")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = [name for name in columns() if any(fnmatch(name, one) for one in given.only)]
    places = {
        (n, s): given.out / n.replace(", ", "-") / f"seed-{s}" for n in names for s in given.seeds
    }
    jobs = [
        (name, seed, given.streams, given.epochs, folder)
        for (name, seed), folder in places.items()
        if not (folder / "model" / "manifest.json").exists()
    ]
    for seed in {job[1] for job in jobs}:
        ward(seed, given.streams)
    with multiprocessing.get_context("fork").Pool(given.workers, maxtasksperchild=1) as pool:
        for _ in pool.imap_unordered(train, jobs, chunksize=1):
            pass
    if given.fit_only:
        return
    tasks = asked(given.unseen)
    with multiprocessing.get_context("fork").Pool(given.workers, maxtasksperchild=1) as pool:
        every = pool.starmap(judged, [(folder, given.unseen) for folder in places.values()], 1)
    sums = dict(zip(places, every, strict=True))
    found = _table(names, given.seeds, sums, tasks)
    for line in found:
        print(line)
    if given.json is not None:
        command = shlex.join(["python", "-m", "benchmarks.clock", *sys.argv[1:]])
        content = {
            "command": command,
            **circumstances("cpu"),
            "unseen": given.unseen,
            "models": found,
        }
        given.json.write_text(json.dumps(content, indent=1) + "\n")


def _table(
    names: list[str], seeds: list[int], sums: dict[tuple[str, int], Any], tasks: dict[str, Task]
) -> list[dict[str, Any]]:
    """A line a model: excess in .0001, the mean over seeds, with intervals by patient; beside the first model's."""
    lines = []
    for name in names:
        line: dict[str, Any] = {"model": name}
        for judged_at, task in tasks.items():
            times = (~task.labels.isnan()).sum(1).double().numpy()
            weights = np.concatenate(list(draws(len(times), 2000, seed=0)))
            total = weights @ times
            for way in (judged_at, f"{judged_at}, expected"):
                mine, first = (
                    np.mean([sums[one, seed][way] for seed in seeds], 0) for one in (name, names[0])
                )
                drawn, other = (1e4 * (weights @ one) / total for one in (mine, first))
                line[way] = {
                    "excess": _rounded(1e4 * mine.sum() / times.sum()),
                    "interval": _interval(drawn),
                    "seeds": [
                        _rounded(1e4 * sums[name, s][way].sum() / times.sum()) for s in seeds
                    ],
                    "above_first": _rounded(1e4 * (mine - first).sum() / times.sum()),
                    "above_first_interval": _interval(drawn - other),
                    "share_of_it": round(float(first.sum() / mine.sum()), 3),
                    "share_interval": _interval(other / drawn, 3),
                }
        lines.append(line)
    return lines


def _interval(drawn: np.ndarray, places: int = 1) -> list[float]:
    return [round(float(one), places) for one in np.quantile(drawn, [0.025, 0.975])]


def _rounded(number: float) -> float:
    return round(float(number), 1)


if __name__ == "__main__":
    main()
