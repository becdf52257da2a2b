"""Boosted trees on features of the past, alone: the bar that a model has to clear, over several splits.

    python -m benchmarks.trees physionet-2012 --setting sets=abc --vary splits=field-1,field-2,field-3,field-4,field-5

`--vary` names a setting of the data set (or `seed`) and its values, one task each; without it there is one task.
Settings of the trees are those of `evaluate --against trees`; they were chosen on validation splits.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onlinecde.cli.command_line import named_values
from onlinecde.data import load
from onlinecde.evaluation import evaluate
from onlinecde.evaluation.trees import FEATURE_FRACTION, L2, LEARNING_RATE, LEAVES, fit_trees
from onlinecde.experiments.machine import circumstances
from onlinecde.files import replace_file


def judged(name: str, settings: dict[str, Any], threads: int) -> dict[str, Any]:
    """The metrics of trees fitted on one task, on its test split and on its validation split."""
    task = load(name, **settings)
    began = time.monotonic()
    trees = fit_trees(task, threads=threads)
    seconds = round(time.monotonic() - began, 1)
    found: dict[str, Any] = {"settings": settings, "trees": trees.trees, "seconds": seconds}
    for split in ("validation", "test"):
        metrics = evaluate(trees, task, split, bootstrap=0).metrics
        found[split] = {name: one.value for name, one in metrics.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="of the data set, as `onlinecde data list` has it")
    parser.add_argument("--setting", action="append", default=[], help="NAME=VALUE of the data set")
    parser.add_argument("--vary", default="", help="NAME=VALUE,VALUE,...: a task for each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    fixed = named_values(asked.setting)
    varied, _, values = asked.vary.partition("=")
    tasks = [fixed | named_values([f"{varied}={value}"]) for value in values.split(",") if varied]
    found = []
    for settings in tasks or [fixed]:
        found.append(judged(asked.name, settings, asked.threads))
        shown = {
            name: round(value, 4) for name, value in found[-1]["test"].items() if value is not None
        }
        print(settings, f"{found[-1]['trees']} trees, {found[-1]['seconds']} s", shown, flush=True)
    means = {}
    for metric, value in found[0]["test"].items():
        if value is not None:
            each = [one["test"][metric] for one in found]
            means[metric] = {"mean": float(np.mean(each)), "deviation": float(np.std(each))}
            print(f"{metric:12} {means[metric]['mean']:.4f} +- {means[metric]['deviation']:.4f}")
    if asked.out is not None:
        told = {
            "format": "onlinecde trees 1",
            "data": asked.name,
            "recipe": {
                "learning_rate": LEARNING_RATE,
                "leaves": LEAVES,
                "feature_fraction": FEATURE_FRACTION,
                "lambda_l2": L2,
            },
            **circumstances("cpu"),
            "test": means,
            "each": found,
        }
        replace_file(asked.out, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
