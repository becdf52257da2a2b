"""A regression of several numbers output by output: each in its own unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from onlinecde.training.metrics import METRICS, UndefinedMetric, questions


@dataclass(frozen=True)
class OutputScore:
    """One output of a regression; None where a metric has no value."""

    name: str
    labels: int
    rmse: float | None
    mae: float | None
    r2: float | None

    @property
    def in_words(self) -> str:
        """Its metrics, in the output's unit."""
        values = {"RMSE": self.rmse, "MAE": self.mae, "R²": self.r2}
        said = [f"{name} {value:.4g}" for name, value in values.items() if value is not None]
        return f"{', '.join(said) or 'undefined'}; {self.labels} labels"


def by_output(predictions: Tensor, labels: Tensor, names: Sequence[str]) -> tuple[OutputScore, ...]:
    """`per_output` of an `Evaluation`, from numbers and labels (stream, output)."""
    table = []
    asked = questions("regression", predictions, labels)
    for name, (found, wanted, _) in zip(names, asked, strict=True):
        values = {}
        for metric in ("rmse", "mae", "r2"):
            try:
                values[metric] = float(METRICS[metric].compute(found, wanted))
            except UndefinedMetric:
                values[metric] = None
        table.append(OutputScore(name, len(wanted), **values))
    return tuple(table)
