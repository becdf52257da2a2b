"""One cell, run: trained, chosen on validation, looked at once on test, and written down."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onlinecde.artifacts import load as load_model
from onlinecde.artifacts import read_manifest
from onlinecde.data import Task
from onlinecde.evaluation.evaluating import judge
from onlinecde.evaluation.metrics import METRICS, UndefinedMetric, score
from onlinecde.evaluation.predictions import as_probabilities, predict_split
from onlinecde.experiments.cells import Cell
from onlinecde.experiments.machine import circumstances, peak_memory
from onlinecde.experiments.samples import sample_task
from onlinecde.experiments.slips import SlippedCDE, slipped_model, slipped_task
from onlinecde.files import replace_file
from onlinecde.models import NeuralCDE, OnlineModel
from onlinecde.solvers import Solver, counting_evaluations
from onlinecde.training import FitSettings, fit, read_log
from onlinecde.training.callbacks import Callback
from onlinecde.training.objectives import start_at_base_rate
from onlinecde.training.query_times import asked_task
from onlinecde.training.settings import seed_for

RESULT = "result.json"
_DIGEST = "digest"


def run_cell(
    cell: Cell, task: Task, folder: Path, *, device: str = "auto", callback: Callback | None = None
) -> dict[str, Any]:
    """Run a cell in its folder and write its result there; a killed one goes on where it was."""
    started = time.monotonic()
    _make_room(cell, folder)
    ready = slipped_task(sample_task(task, cell.budget.streams, cell.budget.rows), cell.slips)
    with peak_memory(device) as memory:
        model, history = _trained(cell, ready, folder / "run", device, callback)
    metric = f"validation_{ready.metric}"
    # `fit` chose this epoch on the validation split; the test split is seen below, once.
    best = history[read_manifest(folder / "run" / "model").extra["validation"]["epoch"] - 1]
    count = _evaluations(cell, model, ready)
    test, every = _measured(cell, model, ready)
    epochs = len(history)
    result = {
        "cell": _cell_name(cell),
        "status": "done",
        "digest": cell.digest,
        "settings": cell.settings,
        "metric": cell.row.metric,
        "validation": best[metric],
        "test": test,
        "test_metrics": every,
        "streams": {name: len(at) for name, at in ready.splits.items()},
        "weights": sum(p.numel() for p in model.parameters()),
        "epochs": epochs,
        "best_epoch": best["epoch"],
        "nfe_per_epoch": sum(e["nfe"] for e in history) / epochs if count is None else count,
        "nfe_counted": "in training" if count is None else "one epoch of the trained model",
        "seconds_per_epoch": sum(e["seconds"] for e in history) / epochs,
        "seconds": sum(e["seconds"] for e in history),
        "seconds_this_start": round(time.monotonic() - started, 3),
        "peak_memory_bytes": memory.bytes,
        "log": {
            name: [entry[name] for entry in history]
            for name in ("train_loss", "validation_loss", metric, "nfe", "seconds")
        },
        **circumstances(next(model.parameters()).device),
    }
    write_result(folder, result)
    for name in ("checkpoint", "tensorboard"):
        _remove(folder / "run" / name)
    return result


def record_failure(cell: Cell, folder: Path, error: Exception, device: str) -> dict[str, Any]:
    """Write down that a cell failed, and why."""
    result = {
        "cell": _cell_name(cell),
        "status": "failed",
        "digest": cell.digest,
        "reason": f"{type(error).__name__}: {error}",
        "settings": cell.settings,
        **circumstances(torch.device("cpu" if device == "auto" else device)),
    }
    write_result(folder, result)
    return result


def read_result(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """The result of a cell, if there is one and it was made with the cell's settings."""
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) and result.get("digest") == cell.digest else None


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Whoever looks finds the whole file, the old one, or none."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / RESULT, json.dumps(result, indent=1) + "\n")


def _make_room(cell: Cell, folder: Path) -> None:
    """Clear away what was begun with other settings."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = folder / _DIGEST
    if not begun.exists() or begun.read_text() != cell.digest:
        _remove(folder / "run")
        begun.write_text(cell.digest)


def _trained(
    cell: Cell, task: Task, run: Path, device: str, callback: Callback | None
) -> tuple[OnlineModel, list[dict[str, Any]]]:
    if (run / "model" / "manifest.json").exists():
        where = "cuda" if device == "auto" and torch.cuda.is_available() else device
        model = load_model(run / "model", classes=[SlippedCDE])
        return model.to("cpu" if where == "auto" else where), read_log(run)
    settings = FitSettings(**cell.fit)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for("weights", settings.seed))
        model = slipped_model(task, cell.column.model, cell.model, cell.slips)
        if cell.protocol.name == "clean":
            asked = asked_task(task, settings)
            start_at_base_rate(model, asked, balanced=settings.class_weights == "balanced")
    about = {
        "source": "experiment",
        "name": cell.row.data,
        "arguments": cell.settings["data"],
    }
    done = fit(task, model, run, settings=settings, source=about, device=device, callback=callback)
    return done.model, list(done.history)


def _measured(
    cell: Cell, model: OnlineModel, task: Task
) -> tuple[float | None, dict[str, float | None]]:
    """The row's metric on the test split, and every other; None where one has no value there."""
    _, labels = task.split("test")
    outputs = predict_split(model, task, "test")
    every = _every_metric(model, task, outputs)

    def metric(outputs: Tensor, wanted: Tensor) -> float:
        return score(task.kind, cell.row.metric, outputs, wanted, model.readout)

    try:
        if not cell.batch_rmse:
            return metric(outputs, labels), every
        size = cell.fit["batch_size"]
        parts = zip(outputs.split(size), labels.cpu().split(size), strict=True)
        each = [metric(answers, wanted) for answers, wanted in parts]
        return sum(each) / len(each), every
    except UndefinedMetric:
        return None, every


def _every_metric(model: OnlineModel, task: Task, outputs: Tensor) -> dict[str, float | None]:
    """From the same outputs; the data set's utility at the threshold best on validation."""
    head: Any = model.readout
    risks = {"test": as_probabilities(head, outputs)}
    if task.utility is not None and len(task.splits["validation"]):
        asked = predict_split(model, task, "validation")
        risks["validation"] = as_probabilities(head, asked)
    fitting = [metric for metric in METRICS.values() if task.kind in metric.kinds]
    judged = judge("", risks, task, "test", fitting, bootstrap=0)
    return {name: estimate.value for name, estimate in judged.metrics.items()}


def _evaluations(cell: Cell, model: OnlineModel, task: Task) -> int | None:
    """Evaluations of the adaptive solver in one epoch's forward passes of the trained model."""
    if cell.counted_by is None or not isinstance(model, NeuralCDE):
        return None
    trained = model.solver
    model.solver = Solver(**cell.counted_by)
    try:
        with counting_evaluations() as count:
            for split in ("train", "validation"):
                predict_split(model, task, split, batch_size=1024)
    finally:
        model.solver = trained
    return count.total


def _cell_name(cell: Cell) -> dict[str, Any]:
    return {
        "table": cell.table,
        "row": cell.row.name,
        "column": cell.column.name,
        **({} if cell.fold is None else {"fold": cell.fold}),
        "seed": cell.seed,
        "protocol": cell.protocol.name,
        "budget": cell.budget.name,
        "demo": cell.demo,
    }


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
