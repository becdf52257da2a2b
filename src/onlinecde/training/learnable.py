"""Whether a training split holds anything to learn from; asked before anything is trained."""

from __future__ import annotations

import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.series import SeriesBatch
from onlinecde.training.callbacks import Callback
from onlinecde.training.settings import FitError


def check_learnable(task: Task, series: SeriesBatch, labels: Tensor, callback: Callback) -> None:
    """Refuse a training split with one class, without a label or without a value; note empty channels."""
    known = labels[labels >= 0 if task.kind == "multiclass" else ~labels.isnan()]
    if not known.numel():
        raise FitError(f"the training split of '{task.name}' has no label: label more streams.")
    if task.kind != "regression" and len(torch.unique(known)) < 2:
        name = task.classes[int(known[0])] if task.classes else str(int(known[0]))
        raise FitError(
            f"the training split of '{task.name}' has one class alone ({name}): there is nothing to tell "
            "apart. Give streams of another class, or another split seed."
        )
    seen = series.observed[series.real].any(0)
    if not bool(seen.any()):
        raise FitError(
            f"no channel of '{task.name}' is ever observed in the training split: check the columns of "
            "channels and values."
        )
    empty = [name for name, ever in zip(series.channels, seen.tolist(), strict=True) if not ever]
    if empty:
        callback.note(
            f"never observed in the training split, so nothing can be learned of: {', '.join(empty)}"
        )
