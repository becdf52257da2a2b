"""Boosted trees on features of the past: what a practitioner would use instead, fitted on a task and judged beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from onlinecde.controls import Measurability
from onlinecde.data import DataError, Task
from onlinecde.data.forecasting import Forecast, channel_means, forecast_truth, last_values
from onlinecde.data.task import Kind
from onlinecde.evaluation.past_features import past_features
from onlinecde.models.forecasts import LEVELS, MIDDLE
from onlinecde.models.readout import known_labels
from onlinecde.models.time_bins import taken
from onlinecde.series import Schema, SeriesBatch

NAME = "boosted trees"
LEARNING_RATE, LEAVES, FEATURE_FRACTION, L2 = 0.02, 15, 0.3, 10.0
MOST, PATIENCE = 3_000, 100
"""Trees at most, and rounds without a better validation loss after which no more are grown"""
WITHOUT_VALIDATION = 600
"""Trees where no validation label says when to stop"""
Features = Callable[[SeriesBatch, np.ndarray], np.ndarray]
_CELLS = 2_000_000
"""(stream, row, channel) of which statistics are computed at once"""
OBJECTIVES: dict[Kind, tuple[str, str]] = {
    "binary": ("binary", "binary_logloss"),
    "multilabel": ("binary", "binary_logloss"),
    "multiclass": ("multiclass", "multi_logloss"),
    "regression": ("regression", "rmse"),
    "time-to-event": ("binary", "binary_logloss"),
    "forecast": ("regression", "rmse"),
}
"""Of each kind of task, in LightGBM's words: what is minimised, and what stops it"""


@dataclass(frozen=True, eq=False)
class Trees:
    """Boosted trees, fitted by `fit_trees`; asked as a model is, they answer with probabilities or numbers."""

    boosters: tuple[Any, ...]
    """One for each output; one for all classes; of time to an event one for the hazard of each bin; of forecasts one
    for the change of each from the last value"""
    kind: Kind
    outputs: int
    schema: Schema
    edges: tuple[float, ...]
    """Where bins end, of time to an event"""
    labels: int
    """How many they were trained on"""
    forecast: Forecast | None = None
    errors: np.ndarray | None = None
    """(forecast, level): quantiles of their errors on validation, 0 in the middle"""
    means: np.ndarray | None = None
    """(forecast,): what stands for a last value where there is none"""

    measurability: ClassVar[Measurability] = Measurability.CONTINUOUS
    asking: ClassVar[str] = "hold"

    @property
    def trees(self) -> int:
        """How many there are in all."""
        return sum(booster.num_trees() for booster in self.boosters)

    def __call__(self, batch: SeriesBatch, at: Tensor | None = None) -> Tensor:
        """Probabilities or numbers after each row, (stream, row, output), or at query times (stream, query, output).

        Where a stream has no row, or a query is NaN, stands 0.
        """
        asked = batch.times.masked_fill(~batch.real, torch.nan) if at is None else at
        if asked.ndim == 1:
            asked = asked.expand(len(batch), -1)
        found = np.zeros((*asked.shape, self.outputs))
        series, asked = self._aligned(batch), asked.cpu().double().numpy()
        last = None if self.forecast is None else self._last(series, asked)
        for streams, features in _in_parts(series, asked):
            if len(features):
                here = ~np.isnan(asked[streams])
                answers = self._answers(features)
                if last is not None:
                    answers = (last[streams][here] + answers)[..., None] + self.errors
                    answers = answers.reshape(len(answers), -1)
                found[streams][here] = answers
        return torch.from_numpy(found)

    def predict_split(self, task: Task, split: str) -> Tensor:
        """What they say of a split, where its labels are: (stream, output), or (stream, row or query, output)."""
        found = self(task.split(split)[0], _asked(task, split))
        return found[:, 0] if task.per == "stream" else found

    def check(self, task: Task) -> None:
        """Refuse a task of another kind, or one that shares no channel with that which they were fitted on."""
        if (task.kind, task.outputs, task.edges) != (self.kind, self.outputs, self.edges):
            raise ValueError(
                f"task '{task.name}' is {task.kind} with {task.outputs} outputs, the trees were fitted for "
                f"{self.kind} with {self.outputs}: fit trees on a task of its own kind."
            )
        task.under(self.schema)

    def _aligned(self, batch: SeriesBatch) -> SeriesBatch:
        return self.schema.align(batch.to("cpu"))[0]

    def _last(self, series: SeriesBatch, asked: np.ndarray) -> np.ndarray:
        """The last value of each forecast's channel, (stream, query, forecast)."""
        assert self.forecast is not None
        assert self.means is not None
        times = torch.from_numpy(asked).nan_to_num(torch.inf)
        latest = forecast_truth(series, self.forecast).latest(times).double().numpy()
        return np.where(np.isnan(latest), self.means, latest)

    def _answers(self, features: np.ndarray) -> np.ndarray:
        """(question, feature) -> (question, output)"""
        threads = torch.get_num_threads()
        found = [booster.predict(features, num_threads=threads) for booster in self.boosters]
        if self.kind == "multiclass":
            return found[0]
        answers = np.stack(found, 1)
        return answers if self.kind != "time-to-event" else 1 - np.cumprod(1 - answers, 1)


def fit_trees(
    task: Task, *, seed: int = 0, threads: int | None = None, features: Features = past_features
) -> Trees:
    """Fit boosted trees on a task's training split, stopped by its validation split.

    LightGBM on `past_features` at every label: 15 leaves, a learning rate of 0.02, 30 % of the features a tree. The
    same task and seed give the same trees on the same machine.

    Args:
        task: of any kind, with labels per stream, row or time. Of time to an event, hazards are learned bin by bin.
        seed: of the features that trees are shown.
        threads: default: as many as torch works with.
        features: what they are told of series at query times, as `past_features`.

    Raises:
        ModuleNotFoundError: LightGBM is not installed.
        DataError: the task has no training split.

    >>> from onlinecde.data import simulate_ward
    >>> task = simulate_ward(60, seed=1).task
    >>> trees = fit_trees(task, threads=1)
    >>> trees.predict_split(task, "test").shape[:2] == task.split("test")[1].shape
    True
    """
    try:
        import lightgbm
    except ImportError as error:
        raise ModuleNotFoundError(
            f"boosted trees need LightGBM ({error}): pip install 'onlinecde[trees]'."
        ) from error
    if not len(task.splits.get("train", ())):
        raise DataError(
            f"task '{task.name}' has no training split: there is nothing to fit trees on."
        )
    task = task.under(schema := task.schema)
    objective, metric = OBJECTIVES[task.kind]
    settings: dict[str, Any] = {
        "objective": objective,
        "metric": metric,
        "learning_rate": LEARNING_RATE,
        "num_leaves": LEAVES,
        "feature_fraction": FEATURE_FRACTION,
        "lambda_l2": L2,
        "num_threads": threads or torch.get_num_threads(),
        "seed": seed,
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
    }
    if task.kind == "multiclass":
        settings["num_class"] = task.outputs
    train = _labelled(task, "train", features)
    stopping = (
        _labelled(task, "validation", features) if len(task.splits.get("validation", ())) else None
    )
    boosters = []
    for output in range(train.labels.shape[1]):
        data = lightgbm.Dataset(**train.of(output), params=settings)
        more: dict[str, Any] = {"num_boost_round": WITHOUT_VALIDATION}
        if stopping is not None and len((judged := stopping.of(output))["label"]):
            held = lightgbm.Dataset(**judged, reference=data)
            stop = lightgbm.early_stopping(PATIENCE, verbose=False)
            more = {"num_boost_round": MOST, "valid_sets": [held], "callbacks": [stop]}
        boosters.append(lightgbm.train(settings, data, **more))
    kept = (tuple(boosters), task.kind, task.outputs, schema, task.edges, len(train.features))
    if task.forecast is None:
        return Trees(*kept)
    judged = stopping if stopping is not None else train
    errors = [
        _error_quantiles(booster.predict(judged.features), judged.labels[:, output])
        for output, booster in enumerate(boosters)
    ]
    return Trees(*kept, task.forecast, np.stack(errors), channel_means(task).numpy())


def _error_quantiles(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Quantiles (level,) of errors (label,), of the middle one 0."""
    errors = (labels - predicted)[~np.isnan(labels)]
    quantiles = np.quantile(errors, LEVELS) if len(errors) else np.zeros(len(LEVELS))
    quantiles[MIDDLE] = 0.0
    return np.concatenate([np.minimum(quantiles[:MIDDLE], 0), np.maximum(quantiles[MIDDLE:], 0)])


def _asked(task: Task, split: str) -> Tensor:
    """Where the labels of a split are, (stream, query), NaN behind a stream's last."""
    series = task.split(split)[0]
    if task.per == "time":
        times = task.split_times(split)
        assert times is not None
        return times
    if task.per == "row":
        return series.times.masked_fill(~series.real, torch.nan)
    return series.times.gather(1, series.rows[:, None] - 1)


@dataclass(frozen=True, eq=False)
class _Labelled:
    """The labels of a split, and the features of the past where they are."""

    features: np.ndarray
    """(question, feature)"""
    labels: np.ndarray
    """(question, output); NaN where there is none"""
    weights: np.ndarray | None
    """(question, output); None for 1"""

    def of(self, output: int) -> dict[str, Any]:
        """What a LightGBM data set of one output takes."""
        known = ~np.isnan(self.labels[:, output])
        weight = None if self.weights is None else self.weights[known, output]
        return {"data": self.features[known], "label": self.labels[known, output], "weight": weight}


def _labelled(task: Task, split: str, features: Features) -> _Labelled:
    series, labels = task.split(split)
    labels = labels.cpu()
    if task.forecast is not None:
        labels = labels - last_values(task, split).to(labels)
    known = known_labels(task.kind, labels)
    weights = None
    if task.kind == "time-to-event":
        # Of each bin, whether the event came among those there at its beginning, as far as they were followed.
        exposed, came = taken(torch.tensor(task.edges, dtype=torch.float64), labels.double())
        known = known[..., None] & (exposed > 0)
        labels, weights = came, exposed.reshape(len(series), -1, task.outputs).numpy()
    wanted = labels.double().masked_fill(~known, torch.nan)
    wanted = wanted.reshape(
        len(series), -1, 1 if task.kind == "multiclass" else task.answers
    ).numpy()
    some = ~np.isnan(wanted).all(2)
    asked = np.where(some, _asked(task, split).cpu().numpy(), np.nan)
    parts = [part for _, part in _in_parts(series.to("cpu"), asked, features)]
    return _Labelled(
        np.concatenate(parts), wanted[some], None if weights is None else weights[some]
    )


def _in_parts(
    series: SeriesBatch, asked: np.ndarray, features: Features = past_features
) -> Iterator[tuple[slice, np.ndarray]]:
    """Features of a few streams at a time."""
    size = max(1, _CELLS // (series.values.shape[1] * series.values.shape[2]))
    for start in range(0, len(series), size):
        streams = slice(start, start + size)
        yield streams, features(series[streams], asked[streams])
