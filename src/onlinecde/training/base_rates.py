"""How often each class comes: what the loss weighs by it, and where the readout starts."""

from __future__ import annotations

import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.models import OnlineModel
from onlinecde.training.folding import last_layer
from onlinecde.training.settings import FitError, FitSettings

START = 0.3
"""The readout's last weights start at this many times their usual size."""


@torch.no_grad()
def start_at_base_rate(model: OnlineModel, task: Task, *, balanced: bool = False) -> None:
    """Let a fresh model say the base rate of each label, and little else, before it has learned.

    The rates are those of the training split, half a label more counted of each class; with
    `balanced`, as a loss with balanced classes sees them. Targets of a regression are scaled to
    mean 0 already: it is left as it is.

    >>> import onlinecde as oc
    >>> task = oc.data.simulate_ward(40, seed=0).task
    >>> model = oc.training.build_model(task, "gru")
    >>> start_at_base_rate(model, task)
    >>> bool(torch.isclose(model.readout.layers.bias.sigmoid(), task.split("train")[1].nanmean(), atol=0.01))
    True
    """
    last = last_layer(model)
    if task.kind == "regression" or last is None:
        return
    _, labels = task.split("train")
    weight = class_weight(task) if balanced else 1.0
    if task.kind == "multiclass":
        start = (weight * _counts(labels, len(task.classes)) + 0.5).log().log_softmax(0)
    else:
        told = labels.reshape(-1, last.out_features)
        ones, zeros = ((told == label).sum(0).double() for label in (1, 0))
        start = (weight * ones + 0.5).log() - (zeros + 0.5).log()
    last.bias.copy_(start)
    last.weight.mul_(START)


def class_weight(task: Task) -> Tensor:
    """Weights that make classes count alike: of the positives, or (class,) for multiclass."""
    _, labels = task.split("train")
    if task.kind == "multiclass":
        counts = _counts(labels, len(task.classes))
        return counts.sum() / (len(task.classes) * counts.clamp(min=1))
    if task.kind == "regression":
        raise FitError("class_weights are for classes, and this task is a regression.")
    known = labels[~labels.isnan()]
    positive = known.sum().double()
    return (known.numel() - positive) / positive.clamp(min=1)


def loss_weight(task: Task, settings: FitSettings) -> Tensor | None:
    """`class_weight` where the settings ask for balanced classes."""
    return class_weight(task) if settings.class_weights == "balanced" else None


def _counts(labels: Tensor, classes: int) -> Tensor:
    return torch.bincount(labels[labels >= 0], minlength=classes).double()
