"""An evaluation part by part: a multiclass task class by class, several numbers output by output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from onlinecde.evaluation.metrics import METRICS
from onlinecde.evaluation.questions import UndefinedMetric, questions


@dataclass(frozen=True)
class ClassScore:
    """One class of a multiclass task, against the rest; None where there is nothing to divide by."""

    name: str
    labels: int
    precision: float | None
    recall: float | None
    auc: float | None


@dataclass(frozen=True)
class OutputScore:
    """One output of a regression, or one forecast; None where a metric has no value."""

    name: str
    labels: int
    rmse: float | None
    mae: float | None
    r2: float | None
    crps: float | None = None

    @property
    def in_words(self) -> str:
        """Its metrics, in the output's unit."""
        values = {"RMSE": self.rmse, "MAE": self.mae, "R²": self.r2, "CRPS": self.crps}
        said = [f"{name} {value:.4g}" for name, value in values.items() if value is not None]
        return f"{', '.join(said) or 'undefined'}; {self.labels} labels"


def by_class(probabilities: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """`per_class` and `confusion` of an `Evaluation`, from probabilities (..., class) and labels (...,)."""
    predicted, wanted, _ = questions("multiclass", probabilities, labels)[0]
    if not len(wanted) or not bool(predicted.isfinite().all()):
        return {}
    count = len(classes)
    pairs = wanted.numpy() * count + predicted.argmax(1).numpy()
    matrix = np.bincount(pairs, minlength=count**2).reshape(count, count)
    right, said, given = (
        each.tolist() for each in (matrix.diagonal(), matrix.sum(0), matrix.sum(1))
    )
    table = tuple(
        ClassScore(
            name=name,
            labels=given[number],
            precision=right[number] / said[number] if said[number] else None,
            recall=right[number] / given[number] if given[number] else None,
            auc=_value("auc", predicted[:, number], (wanted == number).to(predicted)),
        )
        for number, name in enumerate(classes)
    )
    return {"per_class": table, "confusion": tuple(tuple(row) for row in matrix.tolist())}


def by_output(
    predictions: Tensor, labels: Tensor, names: Sequence[str], kind: str = "regression"
) -> tuple[OutputScore, ...]:
    """`per_output` of an `Evaluation`, from numbers and labels (..., output), or quantiles of forecasts."""
    asked = questions(kind, predictions, labels)
    metrics = ("rmse", "mae", "r2", *(("crps",) if kind == "forecast" else ()))
    return tuple(
        OutputScore(name, len(wanted), *(_value(m, predicted, wanted) for m in metrics))
        for name, (predicted, wanted, _) in zip(names, asked, strict=True)
    )


def _value(metric: str, predicted: Tensor, labels: Tensor) -> float | None:
    try:
        return METRICS[metric].value(predicted, labels)
    except UndefinedMetric:
        return None
