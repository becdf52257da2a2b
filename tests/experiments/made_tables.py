"""Small tables on the simulated ward, as a user would write one."""

import json
from pathlib import Path

WARD = """
title = "A small ward"
about = "Three columns, each its own model."
down = "data set"
across = "model"
seeds = [0]

[solver]
method = "rk4"

[[columns]]
name = "GRU"
model = "gru"
settings = {{ hidden = 6 }}
fit = {{ epochs = {epochs} }}

[[columns]]
name = "Online NCDE"
model = "neural-cde"
settings = {{ control = "rectilinear", counts = true, hidden = 6, width = 6, depth = 1 }}
fit = {{ epochs = {epochs} }}

[[columns]]
name = "GRU-D"
model = "gru-d"
settings = {{ hidden = 6 }}
fit = {{ epochs = {epochs} }}

[[rows]]
name = "Deterioration"
data = "simulated-ward"
metric = "auc"
data_settings = {{ streams = 60 }}
[rows.published]
"GRU" = {{ mean = 0.7, std = 0.01 }}
"Online NCDE" = {{ mean = 0.8, std = 0.02, nfe = 1.5 }}
"""


def ward_table(folder: Path, epochs: int = 2, folds: int = 0) -> str:
    """Write the table into a folder, with folds or without; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("ward-folds.toml" if folds else "ward.toml")
    file.write_text(f"folds = {folds}\n" * bool(folds) + WARD.format(epochs=epochs))
    return str(file)


def results(folder: Path, by: str = "column") -> dict[str, dict]:
    """All results in a folder, by "column" or by "run" (fold and seed)."""
    part = {"run": -2, "column": -3}[by]
    return {
        file.relative_to(folder).parts[part]: json.loads(file.read_text())
        for file in sorted(folder.rglob("result.json"))
    }


def numbers(result: dict) -> tuple:
    """All of a result that must not depend on when and where it was made."""
    losses = result["log"]["train_loss"], result["log"]["validation_loss"]
    return result["test"], result["validation"], result["best_epoch"], *losses
