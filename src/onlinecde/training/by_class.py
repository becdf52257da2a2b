"""A multiclass task class by class: what each is taken for, and how well it is told from the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from onlinecde.training.metrics import METRICS, UndefinedMetric, questions


@dataclass(frozen=True)
class ClassScore:
    """One class of a multiclass task, against the rest; None where there is nothing to divide by."""

    name: str
    labels: int
    precision: float | None
    recall: float | None
    auc: float | None


def by_class(probabilities: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """`per_class` and `confusion` of an `Evaluation`, from probabilities (..., class) and labels (...,)."""
    from torchmetrics.functional import classification as functional

    found, wanted, _ = questions("multiclass", probabilities, labels)[0]
    if not len(wanted) or not bool(found.isfinite().all()):
        return {}
    matrix = functional.multiclass_confusion_matrix(found, wanted, num_classes=len(classes))
    right, said, given = matrix.diag().tolist(), matrix.sum(0).tolist(), matrix.sum(1).tolist()
    table = []
    for number, name in enumerate(classes):
        try:
            area = float(METRICS["auc"].compute(found[:, number], (wanted == number).to(found)))
        except UndefinedMetric:
            area = None
        table.append(
            ClassScore(
                name=name,
                labels=given[number],
                precision=right[number] / said[number] if said[number] else None,
                recall=right[number] / given[number] if given[number] else None,
                auc=area,
            )
        )
    return {"per_class": tuple(table), "confusion": tuple(tuple(row) for row in matrix.tolist())}
