"""The metrics once more, as functions of the subjects' weights: what resampling needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from onlinecde.training.bootstrap import Average, Cohort, Means, Ranking, Statistic
from onlinecde.training.metrics import (
    METRICS,
    Metric,
    UndefinedMetric,
    label_unit,
    questions,
    r2_from_sums,
)


def resampled_metrics(
    names: Sequence[str],
    task_kind: str,
    probabilities: Tensor,
    labels: Tensor,
    cohort: Cohort,
) -> dict[str, Statistic]:
    """A statistic for each metric that can be resampled; with weights of 1 it gives what `score` gives.

    The calibration error cannot: a distance grows when noise is added, so that its resamples lie
    above it.

    probabilities (..., output) and labels as `score` takes them; `cohort` has the same streams.
    """
    rankings: dict[tuple[int, int], Ranking] = {}

    def of(metric: Metric) -> Statistic:
        parts: list[Statistic] = []
        asked = questions(task_kind, probabilities, labels)
        for number, (found, wanted, known) in enumerate(asked):
            owner = cohort.owners(known.numpy())
            p, y = found.double().numpy(), wanted.numpy()
            if metric.name not in _RANKED:
                columns, finish = _SUMS[metric.name]
                try:
                    unit = label_unit(metric, wanted, len(asked))
                except UndefinedMetric:
                    continue
                sums = cohort.sums(columns(p, y), owner)
                parts.append(Means(sums, lambda total, f=finish, u=unit: f(total) / u))
                continue
            for column in [-1] if p.ndim == 1 else np.unique(y):
                # One ranking of a question serves all that is read off it.
                if (number, int(column)) not in rankings:
                    scores, positive = (p, y) if column < 0 else (p[:, column], y == column)
                    rankings[number, int(column)] = Ranking(scores, np.asarray(positive), owner)
                parts.append(getattr(rankings[number, int(column)], metric.name))
        return parts[0] if len(parts) == 1 else Average(parts)

    return {name: of(METRICS[name]) for name in names if name in _RANKED or name in _SUMS}


_RANKED = ("auc", "auprc", "sensitivity")


def _mean_of(
    loss: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda p, y: np.stack([loss(p, y), np.ones(len(y))], 1)


def _ratio(total: np.ndarray) -> np.ndarray:
    return total[:, 0] / total[:, 1]


def _right(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (p.argmax(1) if p.ndim == 2 else (p > 0.5)) == y


def _squared(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    if p.ndim == 1:
        return (p - y) ** 2
    return (p**2).sum(1) + 1 - 2 * np.take_along_axis(p, y[:, None], 1)[:, 0]


def _surprise(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    true = np.take_along_axis(p, y[:, None], 1)[:, 0] if p.ndim == 2 else np.where(y == 1, p, 1 - p)
    return -np.log(np.maximum(true, np.finfo(np.float64).eps))


def _moments(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    # Distances from the mean of all: squares of labels far from 0 would drown what they differ by.
    away = y - y.mean()
    return np.stack([(p - y) ** 2, away, away**2, np.ones(len(y))], 1)


def _r2(total: np.ndarray) -> np.ndarray:
    errors, away, squared, count = total.T
    alike = squared - away**2 / count <= 1e-12 * squared  # one label all over: nothing to explain
    return np.where(alike, np.nan, r2_from_sums(errors, away, squared, count))


_SUMS: dict[
    str,
    tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]],
] = {
    "accuracy": (_mean_of(_right), _ratio),
    "brier": (_mean_of(_squared), _ratio),
    "log_loss": (_mean_of(_surprise), _ratio),
    "rmse": (_mean_of(_squared), lambda total: np.sqrt(_ratio(total))),
    "mae": (_mean_of(lambda p, y: np.abs(p - y)), _ratio),
    "r2": (_moments, _r2),
}
