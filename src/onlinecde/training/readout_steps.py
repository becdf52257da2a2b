"""The steps that stand beside a readout: found from the training split, when the rest is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.evaluation.metrics import score_or_none
from onlinecde.evaluation.predictions import predict_task
from onlinecde.models import NeuralCDE, OnlineModel
from onlinecde.series import SeriesBatch
from onlinecde.training.base_rates import loss_weight
from onlinecde.training.batches import seed_for
from onlinecde.training.boosting import boost
from onlinecde.training.callbacks import Callback
from onlinecde.training.settings import FitSettings

STREAMS = 512
"""Streams looked at together."""


def fit_steps(
    model: OnlineModel, task: Task, settings: FitSettings, callback: Callback
) -> dict[str, Any] | None:
    """Lay the steps of a model that has room for some, as many as serve the validation split.

    Returns how many there are, and the validation loss and metric with them; None where there are
    none: then the readout's log-odds stay as they are.
    """
    if not isinstance(model, NeuralCDE) or model.readout.steps is None:
        return None
    (lines, labels), (others, other_labels) = (
        _seen(model, *task.split(name), task.per) for name in ("train", "validation")
    )
    found = boost(
        lines,
        labels,
        others,
        other_labels,
        most=model.readout.steps.count,
        seed=seed_for("steps", settings.seed),
    )
    if not found.place:
        callback.note(
            "no step of a single number lowers the validation loss: none stands beside the readout"
        )
        return None
    weight = loss_weight(task, settings)
    base = found.base + (0.0 if weight is None else float(weight.log()))
    model.readout.steps.put(base, found.place, found.low, found.high, found.height)
    series, labels = task.split("validation")
    scores = validation_scores(model, task, settings, predict_task(model, series, task.per), labels)
    value = scores[f"validation_{task.metric}"]
    shown = "" if value is None else f", {task.metric} {value:.4f}"
    callback.note(
        f"{len(found.place)} steps of single numbers stand beside the readout; with them validation "
        f"loss {scores['validation_loss']:.4f}{shown}"
    )
    return {"steps": len(found.place), **scores}


def validation_scores(
    model: OnlineModel, task: Task, settings: FitSettings, outputs: Tensor, labels: Tensor
) -> dict[str, float | None]:
    """Loss and metric of outputs on the validation split, the metric None where it has no value."""
    head, labels = model.readout, labels.cpu()
    return {
        "validation_loss": float(head.loss(outputs, labels, loss_weight(task, settings))),
        f"validation_{task.metric}": score_or_none(task.kind, task.metric, outputs, labels, head),
    }


def _seen(
    model: NeuralCDE, series: SeriesBatch, labels: Tensor, per: str
) -> tuple[np.ndarray, np.ndarray]:
    """What the readout sees of the path where there is a label, (line, number), and the labels (line,)."""
    lines, wanted = [], []
    with torch.no_grad():
        for at in torch.arange(len(series)).split(STREAMS):
            batch = model.prepare(series[at].to(model.device))
            path = model.path(batch)
            view = model.seen(path.rows, model.ages(path.times, model.stamps(batch)))
            assert view is not None
            known = labels[at].to(view)
            if per == "stream":
                view, known = view[:, -1:], known.reshape(len(at), 1)
            known = known[:, : view.shape[1]]
            here = ~known.isnan()
            lines.append(view[here].cpu())
            wanted.append(known[here].cpu())
    return torch.cat(lines).float().numpy(), torch.cat(wanted).double().numpy()
