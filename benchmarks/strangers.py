"""Tables that `fit`'s defaults were not made on: `fit`, GRU-D, boosted trees and naive predictions on the same splits.

    python -m benchmarks.strangers --data DIR --work OUT --out benchmarks/results/strangers.json

Each table is made by `benchmarks.strangers_tables` from data in DIR (none of it is part of the project), and then
learned as a stranger would: `onlinecde fit` with nothing but the names of columns and a limit, GRU-D with `--model
gru-d`, and `onlinecde evaluate --against gru-d --against trees`. Small tables are split several times. A split whose
result is in OUT is not computed again.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.strangers_tables import TABLES
from onlinecde.cli.app import app
from onlinecde.experiments.machine import circumstances
from onlinecde.files import replace_file

LOSS = {"binary": "log_loss", "multiclass": "log_loss", "regression": "rmse"}
SHOWN = {
    "binary": ("auc", "auprc", "log_loss"),
    "multiclass": ("accuracy", "log_loss"),
    "regression": ("rmse", "mae"),
}


def command(*words: Any) -> float:
    """Run the command line here; the CPU seconds it took. What it says is shown only where it fails."""
    before, said = time.process_time(), io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            app(args=list(map(str, words)), standalone_mode=False)
    except Exception as error:
        raise SystemExit(
            f"onlinecde {' '.join(map(str, words))}\n{said.getvalue()}\n{error}"
        ) from error
    return round(time.process_time() - before, 1)


def judged(name: str, data: Path, work: Path, limits: list[str], split_seed: int) -> dict[str, Any]:
    """One task on one split: each model's metrics and CPU seconds, and the naive predictions'."""
    table = TABLES[name]
    tables, runs = work / "tables" / name, work / "runs" / f"{name}-{split_seed}"
    if not (tables / "done").exists():
        tables.mkdir(parents=True, exist_ok=True)
        table.make(data, tables)
        (tables / "done").touch()
    words = [str(tables / w) if (tables / w).is_file() else w for w in table.words]
    words += ["--split-seed", str(split_seed), *limits]
    cpu = {"fit": command("fit", *words, "--out", runs / "fit")}
    cpu["gru-d"] = command("fit", *words, "--model", "gru-d", "--out", runs / "gru-d")
    found = runs / "evaluation.json"
    others = ["--against", runs / "gru-d", "--against", "trees"]
    # Where the task has its labels: strangers' tables are mostly judged so.
    command("evaluate", runs / "fit", *others, "--bootstrap", 200, "--json", found)
    told = json.loads(found.read_text())
    models = {}
    every = [told["evaluation"], *told["against"]]
    for label, one in zip(("fit", "gru-d", "trees"), every, strict=True):
        models[label] = {
            metric: estimate["value"]
            for metric, estimate in one["metrics"].items()
            if metric in SHOWN[one["kind"]]
        }
    first = every[0]
    naive = {one["name"]: one["naive"] for one in first["naive"]}
    log = [json.loads(line) for line in (runs / "fit/log.jsonl").read_text().splitlines()]
    return {
        "kind": first["kind"],
        "streams": first["streams"],
        "labels": first["labels_given"],
        "models": models,
        "naive": naive,
        "cpu_seconds": cpu,
        "epochs": len(log),
    }


def summary(name: str, splits: list[dict[str, Any]]) -> dict[str, Any]:
    """The means over splits, and whether the bars hold."""
    kind = splits[0]["kind"]
    loss, rank = LOSS[kind], SHOWN[kind][0]
    models = {
        model: {
            metric: float(np.mean([one["models"][model][metric] for one in splits]))
            for metric in SHOWN[kind]
        }
        for model in splits[0]["models"]
    }
    # The label before is known to nobody who needs a prediction.
    guesses = {
        guess: float(np.mean([one["naive"][guess] for one in splits]))
        for guess in splits[0]["naive"]
        if guess != "label before" and all(guess in one["naive"] for one in splits)
    }
    mine, sign = models["fit"], 1 if kind == "regression" else -1
    return {
        "what": TABLES[name].what,
        "kind": kind,
        "splits": len(splits),
        "models": models,
        "naive": guesses,
        "loss": loss,
        "rank": rank,
        "at_or_below_gru_d": mine[loss] <= models["gru-d"][loss],
        "at_or_below_naive": all(mine[loss] <= guess for guess in guesses.values()),
        "at_or_above_trees": sign * mine[rank] <= sign * models["trees"][rank],
        "each": splits,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of raw data")
    parser.add_argument("--work", type=Path, required=True, help="folder for tables and runs")
    parser.add_argument("--task", action="append", choices=list(TABLES), help="default: all")
    parser.add_argument("--max-time", help="of each fit, as 4min")
    parser.add_argument("--epochs", help="of each fit, at most")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    given = {"--epochs": asked.epochs, "--max-time": asked.max_time}
    limits = [word for name, value in given.items() if value for word in (name, value)]
    found: dict[str, Any] = {}
    for name in asked.task or list(TABLES):
        splits = []
        for split_seed in range(TABLES[name].splits):
            kept = asked.work / "results" / f"{name}-{split_seed}.json"
            if not kept.is_file():
                kept.parent.mkdir(parents=True, exist_ok=True)
                one = judged(name, asked.data, asked.work, limits, split_seed)
                replace_file(kept, json.dumps(one))
            splits.append(json.loads(kept.read_text()))
        found[name] = summary(name, splits)
        print(time.strftime("%H:%M:%S"), name, f"{splits[0]['epochs']} epochs", flush=True)
        for model, metrics in found[name]["models"].items():
            print(f"  {model:8}", {m: round(v, 4) for m, v in metrics.items()}, flush=True)
        print("  naive   ", {m: round(v, 4) for m, v in found[name]["naive"].items()}, flush=True)
    if asked.out is not None:
        told = {
            "format": "onlinecde strangers 1",
            "command": "python -m benchmarks.strangers --data DIR --work OUT"
            + "".join(f" --task {name}" for name in asked.task or ())
            + f" {' '.join(limits)} --out benchmarks/results/strangers.json",
            **circumstances("cpu"),
            "tasks": found,
        }
        replace_file(asked.out, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
