"""What the steps beside the recipe's readout are worth, to it and to models that have none of their own.

    python -m benchmarks.results_steps out/reproduce --out results/sepsis-steps.json

From the runs of `onlinecde reproduce physionet-2019-folds`: AUROC on each fold of each model without steps, of
the steps alone, and of the mean of both. The steps are those of the recipe of the same fold, which know no
model: they were found from its training patients, as many as served the validation patients.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from onlinecde.artifacts import load
from onlinecde.evaluation.metrics import score
from onlinecde.evaluation.predictions import predict_task
from onlinecde.experiments import load_table
from onlinecde.experiments.cells import cells_of
from onlinecde.experiments.machine import circumstances
from onlinecde.experiments.sources import cell_task
from onlinecde.models import NeuralCDE

FORMAT = "onlinecde steps 1"
TABLE = "physionet-2019-folds"
RECIPE = "Online NCDE, fit's recipe"
OTHERS = ("GRU-dt-intensity", "GRU-D")


def measured(home: Path) -> dict[str, Any]:
    """AUROC by fold of every model without and with steps, and of the steps alone."""
    models: dict[str, dict[str, list[float]]] = {
        name: {"without": [], "with": []} for name in (RECIPE, *OTHERS)
    }
    alone: list[float] = []
    columns = {name: cells_of(load_table(TABLE), only=[f"*/{name}"]) for name in models}
    for place, cell in enumerate(columns[RECIPE]):
        recipe = load(home / cell.place / "run" / "model").eval()
        assert isinstance(recipe, NeuralCDE)
        assert recipe.steps is not None
        series, labels = cell_task(cell).split("test")
        recipe.steps.share.fill_(1)
        steps = predict_task(recipe, series, "row")
        alone.append(score("binary", "auc", steps, labels, recipe.readout))
        recipe.steps.share.zero_()
        for name, found in models.items():
            model = recipe
            if name != RECIPE:
                model = load(home / columns[name][place].place / "run" / "model").eval()
            said = predict_task(model, series, "row")
            found["without"].append(score("binary", "auc", said, labels, recipe.readout))
            found["with"].append(score("binary", "auc", (said + steps) / 2, labels, recipe.readout))
        print(cell.title, {name: f"{found['with'][-1]:.4f}" for name, found in models.items()})
    return {"models": models, "steps": alone}


def steps_table(told: Mapping[str, Any]) -> str:
    """Means over the folds as Markdown."""
    lines = ["| model | without steps | with steps | folds |", "|---|---:|---:|---:|"]
    for name, found in told["models"].items():
        folds = ", ".join(f"{value:.3f}" for value in found["with"])
        lines.append(f"| {name} | {_mean(found['without'])} | {_mean(found['with'])} | {folds} |")
    folds = ", ".join(f"{value:.3f}" for value in told["steps"])
    return "\n".join([*lines, f"| steps alone |  | {_mean(told['steps'])} | {folds} |"])


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path, help="folder of `onlinecde reproduce`")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    found = {
        "format": FORMAT,
        "command": f"python -m benchmarks.results_steps {asked.home} --out {asked.out}",
        **circumstances("cpu"),
        **measured(asked.home),
    }
    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(steps_table(found))


if __name__ == "__main__":
    main()
