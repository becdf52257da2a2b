"""Intervals of a regression: the usual error by predicted number from training streams, factors from validation.

Labels of a subject resemble each other, so that subjects count alike, however many labels they have. A factor is the
least that holds the labels of n subjects of validation so well that, with one more subject of which nothing is known,
the share is still the level: c_1 + ... + c_n >= level * (n + 1), where c_i is the share of subject i's labels inside.
Of a new subject from the same source, a label drawn by lot is then inside with at least that probability, over draws
of all subjects (Lee, Barber, Willett 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.evaluation.predictions import predict_split
from onlinecde.models import Intervals, OnlineModel
from onlinecde.training.callbacks import Callback

LEVELS = (0.8, 0.9)
POINTS = 10
"""Predicted numbers at which the usual error is measured, at most."""
SUBJECTS_OF_POINT = 50
"""Training subjects for each of them, at least."""
LEAST = 0.1
"""The usual error anywhere, as a share of that of all labels, at least."""


def fit_intervals(
    model: OnlineModel,
    task: Task,
    validation: Tensor,
    callback: Callback,
    levels: Sequence[float] = LEVELS,
) -> Intervals | None:
    """Measure intervals of a fitted regression; None for other kinds, and where there are too few subjects.

    validation: its outputs on the validation split, as `predict_split` gives them.
    """
    if task.kind != "regression":
        return None
    owners, predicted, labels = _labelled(task, "validation", validation)
    counts = [len(np.unique(owners[output])) for output in range(task.outputs)]
    least = min(counts)
    enough = tuple(level for level in levels if level * (least + 1) <= least)
    if missing := [level for level in levels if level not in enough]:
        needed = int(np.ceil(missing[0] / (1 - missing[0]) - 1e-9))
        shown = ", ".join(f"{level:g}" for level in missing)
        callback.note(
            f"no intervals of level {shown}: {least} labelled validation subjects are too few, {missing[0]:g} takes "
            f"{needed}"
        )
    if not enough:
        return None
    outputs = predict_split(model, task, "train")
    curves = [usual_error(*one) for one in zip(*_labelled(task, "train", outputs), strict=True)]
    unit = Intervals(
        levels=(0.5,),
        factors=((1.0,) * task.outputs,),
        numbers=tuple(tuple(numbers.tolist()) for numbers, _ in curves),
        errors=tuple(tuple(errors.tolist()) for _, errors in curves),
        subjects=least,
    )
    scores = []
    for output in range(task.outputs):
        row = np.zeros((len(labels[output]), task.outputs))
        row[:, output] = predicted[output]
        error = unit.usual_errors(row)[:, output]
        scores.append(np.abs(labels[output] - predicted[output]) / error)
    factors = tuple(
        tuple(conformal_factor(scores[o], owners[o], level) for o in range(task.outputs))
        for level in enough
    )
    return Intervals(enough, factors, unit.numbers, unit.errors, least)


def usual_error(
    owners: np.ndarray, predicted: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Predicted numbers and the mean absolute error around each; owners, predicted, labels (label,)."""
    weight = _weights(owners)
    error = np.abs(labels - predicted)
    overall = float((weight * error).sum() / weight.sum()) or 1.0
    points = int(np.clip(len(np.unique(owners)) // SUBJECTS_OF_POINT, 1, POINTS))
    order = np.argsort(predicted, kind="stable")
    # Bins of equal weight, and in each the middle of what was predicted.
    bins = np.minimum(
        (np.cumsum(weight[order]) / weight.sum() * points - 1e-9).astype(int), points - 1
    )
    numbers, errors = [], []
    for one in range(points):
        here = order[bins == one]
        if len(here) and (not numbers or np.median(predicted[here]) > numbers[-1]):
            numbers.append(float(np.median(predicted[here])))
            errors.append(float((weight[here] * error[here]).sum() / weight[here].sum()))
    return np.array(numbers), np.maximum(errors, LEAST * overall)


def conformal_factor(scores: np.ndarray, owners: np.ndarray, level: float) -> float:
    """The least factor with c_1 + ... + c_n >= level * (n + 1), as the module says; scores, owners (label,).

    >>> conformal_factor(np.arange(9.0), np.arange(9), 0.8), conformal_factor(np.arange(9.0), np.arange(9), 0.9)
    (7.0, 8.0)
    """
    order = np.argsort(scores, kind="stable")
    inside = np.cumsum(_weights(owners)[order])
    needed = level * (len(np.unique(owners)) + 1)
    place = np.searchsorted(inside, needed * (1 - 1e-12), side="left")
    return float(scores[order][place])


def _weights(owners: np.ndarray) -> np.ndarray:
    """(label,): 1 for each subject, shared by its labels."""
    _, place, count = np.unique(owners, return_inverse=True, return_counts=True)
    return 1 / count[place]


def _labelled(
    task: Task, split: str, outputs: Tensor
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Whose each label of a split is, what was predicted, and the label: of each output, (label,)."""
    _, labels = task.split(split)
    wanted = labels.cpu().double().reshape(*outputs.shape)
    numbers: dict[object, int] = {}
    codes = [
        numbers.setdefault(task.subjects[at], len(numbers)) for at in task.splits[split].tolist()
    ]
    owner = torch.tensor(codes).reshape(-1, *(1,) * (outputs.ndim - 2))
    known = ~wanted.isnan()
    found = [
        (
            owner.expand(known.shape[:-1])[known[..., output]].numpy(),
            outputs[..., output].double()[known[..., output]].numpy(),
            wanted[..., output][known[..., output]].numpy(),
        )
        for output in range(task.outputs)
    ]
    return tuple(map(list, zip(*found, strict=True)))  # pyright: ignore[reportReturnType]
