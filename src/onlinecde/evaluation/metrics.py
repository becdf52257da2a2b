"""What a task is judged by. Each metric is defined once, as a function of weights of the subjects:
weights of 1 give its value, counts of drawn subjects its resamples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from torch import Tensor

from onlinecde.evaluation.bootstrap import Average, Cohort, Means, Ranking, Statistic
from onlinecde.evaluation.predictions import MetricError, as_probabilities
from onlinecde.evaluation.questions import Question, UndefinedMetric, questions
from onlinecde.evaluation.time_to_event import Concordance, integrated_brier, surprise
from onlinecde.models.forecasts import MIDDLE, crps
from onlinecde.models.readout import Readout

Direction = Literal["max", "min"]

BINS = 15
"""Bins of equal width for the calibration error."""


@dataclass(frozen=True)
class Metric:
    """One metric: its name for readers, which way is better, and its definition."""

    name: str
    title: str
    direction: Direction
    kinds: tuple[str, ...]
    """Kinds of tasks it can be computed for."""
    define: Callable[[Question], Statistic]
    """The metric of a question as a function of the weights of its subjects.

    Raises UndefinedMetric where it has no value with weights of 1."""
    in_units: bool = False
    """Whether it has the labels' unit: of several outputs, each is divided by the deviation of its labels
    before all are averaged."""
    resampled: bool = True
    """Whether resamples say how sure it is. A distance does not: noise makes it grow."""

    def value(self, predicted: Tensor, labels: Tensor, edges: Sequence[float] = ()) -> float:
        """The metric of one question, without gaps, as `Question` takes it."""
        return float(self.define(Question(predicted, labels, edges=edges))(np.ones((1, 1)))[0])


def score(task_kind: str, metric: str, outputs: Tensor, labels: Tensor, head: Readout) -> float:
    """The metric of raw outputs against labels, over every label that is there.

    outputs (..., output) as `predict_task` gives them; labels (...,), or (..., output) for several
    questions, NaN (or -1 for a class) where there is none. Several questions are averaged, those
    without both classes left out; RMSE and MAE of several outputs, each in deviations of its labels.

    Raises:
        MetricError: no such metric, or not one for this kind of task.
        UndefinedMetric: it has no value on these labels.

    >>> import torch
    >>> head = Readout(1, 1, "binary")
    >>> score("binary", "auc", torch.tensor([[0.1], [2.0], [0.3]]), torch.tensor([0.0, 1, 1]), head)
    1.0
    """
    chosen = metric_for(task_kind, metric)
    edges = () if head.bins is None else head.bins.edges.tolist()
    return chosen_score(chosen, task_kind, as_probabilities(head, outputs), labels, edges)


def score_or_none(
    task_kind: str, metric: str, outputs: Tensor, labels: Tensor, head: Readout
) -> float | None:
    """`score`, or None where the metric has no value on these labels."""
    try:
        return score(task_kind, metric, outputs, labels, head)
    except UndefinedMetric:
        return None


def chosen_score(
    metric: Metric,
    task_kind: str,
    probabilities: Tensor,
    labels: Tensor,
    edges: Sequence[float] = (),
) -> float:
    """`score` from probabilities (..., output), in float64; of time to an event with the edges of its bins."""
    values, reasons = [], []
    asked = questions(task_kind, probabilities, labels)
    for predicted, wanted, _ in asked:
        try:
            if not bool(predicted.isfinite().all()):
                raise UndefinedMetric("the model puts out numbers that are not finite.")
            unit = _label_unit(metric, wanted, len(asked))
            values.append(metric.value(predicted, wanted, edges) / unit)
        except UndefinedMetric as error:
            reasons.append(str(error))
    if not values:
        raise UndefinedMetric(reasons[0])
    return sum(values) / len(values)


def resampled_metrics(
    names: Sequence[str],
    task_kind: str,
    probabilities: Tensor,
    labels: Tensor,
    cohort: Cohort,
    edges: Sequence[float] = (),
) -> dict[str, Statistic]:
    """A statistic of the cohort's weights for each metric that can be resampled and has a value.

    probabilities (..., output) and labels as `score` takes them; `cohort` has the same streams.
    """
    asked = []
    for predicted, wanted, known in questions(task_kind, probabilities, labels):
        owners = cohort.owners(known.numpy())
        asked.append((Question(predicted, wanted, owners, cohort.count, edges=edges), wanted))

    def of(metric: Metric) -> Statistic:
        parts: list[Statistic] = []
        for question, wanted in asked:
            try:
                unit = _label_unit(metric, wanted, len(asked))
                parts.append(_divided(metric.define(question), unit))
            except UndefinedMetric:
                continue
        return parts[0] if len(parts) == 1 else Average(parts)

    defined = {name: metric_named(name) for name in names}
    return {name: of(metric) for name, metric in defined.items() if metric.resampled}


def _divided(statistic: Statistic, unit: float) -> Statistic:
    return statistic if unit == 1.0 else lambda weights: statistic(weights) / unit


def _label_unit(metric: Metric, labels: Tensor, outputs: int) -> float:
    """What a metric of one of several outputs is divided by, for outputs have units of their own; else 1."""
    if not metric.in_units or outputs == 1:
        return 1.0
    if not labels.numel():
        raise UndefinedMetric("there is no label to compare with.")
    deviation = float(labels.double().std(correction=0))
    if deviation == 0:
        raise UndefinedMetric(f"every label is {float(labels[0]):g}: they have no deviation.")
    return deviation


def better(metric: str) -> Direction:
    """Whether more ("max") or less ("min") of a metric is better."""
    return metric_named(metric).direction


def metric_for(task_kind: str, metric: str) -> Metric:
    """The metric of this name, if it belongs to tasks of this kind."""
    chosen = metric_named(metric)
    if task_kind not in chosen.kinds:
        fitting = ", ".join(name for name, m in METRICS.items() if task_kind in m.kinds)
        raise MetricError(
            f"'{metric}' is not for {task_kind} tasks: choose one of {fitting or 'none'}."
        )
    return chosen


OWN_UTILITY = "utility_own"
"""The utility of alarms from the boundary on that a model found in training."""
EXCESS = "excess"
"""The metric that is a log loss less that of the best possible, where that is known."""


def metric_title(name: str, time_unit: str = "") -> str:
    """A metric's name for readers.

    >>> metric_title("auc@12", "hours")
    'AUROC within 12 hours'
    """
    if name == OWN_UTILITY:
        return "Utility at its own boundary"
    if name == EXCESS:
        return "Log loss above the best possible"
    base, at, horizon = name.partition("@")
    title = METRICS[base].title if base in METRICS else base.capitalize()
    return f"{title} within {horizon} {time_unit}".rstrip() if at else title


def metric_named(name: str) -> Metric:
    """A metric by name; with "@12" behind it a binary one, of whether an event comes within that time.

    >>> metric_named("brier@6").kinds
    ('time-to-event',)
    """
    base, at, horizon = name.partition("@")
    if base not in METRICS:
        raise MetricError(f"there is no metric '{name}': choose one of {', '.join(METRICS)}.")
    binary = METRICS[base]
    if not at:
        return binary
    try:
        time = float(horizon)
    except ValueError:
        time = 0.0
    if "binary" not in binary.kinds or not 0 < time < float("inf"):
        raise MetricError(
            f"there is no metric '{name}': give a binary one and a time, such as auc@12."
        )
    return replace(
        binary,
        name=name,
        title=metric_title(name),
        kinds=_WAITING,
        define=lambda question: binary.define(question.within(time)),
    )


def _ranked(read: Callable[[Ranking], Statistic]) -> Callable[[Question], Statistic]:
    """Read off the ranking of labels; of classes, the mean over those that occur, each against the rest."""

    def define(question: Question) -> Statistic:
        question.check_labels()
        present = np.unique(question.labels)
        if question.predicted.ndim == 2:
            if len(present) < 2:
                only = int(present[0])
                raise UndefinedMetric(f"every label is class {only}: it takes two classes or more.")
            return Average([read(question.ranking(int(number))) for number in present])
        if len(present) < 2:
            only = int(present[0])
            raise UndefinedMetric(
                f"every label is {only}: it takes both classes to rank one above the other."
            )
        return read(question.ranking())

    return define


def _mean(
    loss: Callable[[np.ndarray, np.ndarray], np.ndarray],
    finish: Callable[[np.ndarray], np.ndarray] = lambda mean: mean,
) -> Callable[[Question], Statistic]:
    """The mean over labels of `loss(predictions, labels)` (label,), and what is made of it."""

    def define(question: Question) -> Statistic:
        question.check_labels()
        each = loss(question.predicted, question.labels)
        sums = question.sums([each, np.ones(len(each))])
        return Means(sums, lambda total: finish(total[:, 0] / total[:, 1]))

    return define


def _right(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (p.argmax(1) if p.ndim == 2 else (p > 0.5)) == y


def _squared(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    if p.ndim == 1:
        return (p - y) ** 2
    return (p**2).sum(1) + 1 - 2 * np.take_along_axis(p, y[:, None], 1)[:, 0]


def _surprise(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    true = np.take_along_axis(p, y[:, None], 1)[:, 0] if p.ndim == 2 else np.where(y == 1, p, 1 - p)
    # Probabilities of exactly 0 come from rounding: as far from it as float64 can tell.
    return -np.log(np.maximum(true, np.finfo(np.float64).eps))


def _calibration_error(question: Question) -> Statistic:
    """The distance of what was predicted in a bin from what came true, weighted by its labels."""
    question.check_labels()
    p, y = question.predicted, question.labels
    place = np.searchsorted(np.linspace(0, 1, BINS + 1), p, side="right") - 1
    gaps = [np.where(place == number, p - y, 0.0) for number in range(BINS + 1)]
    sums = question.sums([*gaps, np.ones(len(p))])
    return Means(sums, lambda total: np.abs(total[:, :-1]).sum(1) / total[:, -1])


def _explained(question: Question) -> Statistic:
    """R²: the share of the labels' variance that is explained."""
    question.check_labels()
    p, y = _point(question.predicted), question.labels
    if (y == y[0]).all():
        raise UndefinedMetric(f"every label is {float(y[0]):g}: there is nothing to explain.")
    # Distances from the mean of all: squares of labels far from 0 would drown what they differ by.
    away = y - y.mean()
    sums = question.sums([(p - y) ** 2, away, away**2, np.ones(len(y))])

    def finish(total: np.ndarray) -> np.ndarray:
        errors, from_mean, squared, count = total.T
        variance = squared - from_mean**2 / count
        alike = variance <= 1e-12 * squared  # one label all over: nothing to explain
        return np.where(alike, np.nan, 1 - errors / variance)

    return Means(sums, finish)


def _point(p: np.ndarray) -> np.ndarray:
    """A number, or of quantiles (label, level) the middle one."""
    return p if p.ndim == 1 else p[:, MIDDLE]


_TWO = ("binary", "multilabel")
_CLASSES = ("binary", "multiclass", "multilabel")
_NUMBERS = ("regression", "forecast")
_WAITING = ("time-to-event",)

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("auc", "AUROC", "max", _CLASSES, _ranked(lambda r: r.auc)),
        Metric("auprc", "AUPRC", "max", _TWO, _ranked(lambda r: r.auprc)),
        Metric(
            "sensitivity",
            "Sensitivity at 90 % specificity",
            "max",
            _TWO,
            _ranked(lambda r: r.sensitivity),
        ),
        Metric("accuracy", "Accuracy", "max", _CLASSES, _mean(_right)),
        Metric("brier", "Brier score", "min", _CLASSES, _mean(_squared)),
        Metric("log_loss", "Log loss", "min", _CLASSES, _mean(_surprise)),
        Metric("ece", "Calibration error", "min", _TWO, _calibration_error, resampled=False),
        Metric("crps", "CRPS", "min", ("forecast",), _mean(crps), in_units=True),
        Metric(
            *("rmse", "RMSE", "min", _NUMBERS),
            _mean(lambda p, y: (_point(p) - y) ** 2, np.sqrt),
            in_units=True,
        ),
        Metric(
            *("mae", "MAE", "min", _NUMBERS),
            _mean(lambda p, y: np.abs(_point(p) - y)),
            in_units=True,
        ),
        Metric("r2", "R²", "max", _NUMBERS, _explained),
        Metric("concordance", "Concordance", "max", _WAITING, Concordance),
        Metric("integrated_brier", "Integrated Brier score", "min", _WAITING, integrated_brier),
        Metric("nll", "Negative log-likelihood", "min", _WAITING, surprise),
    )
}
"""The metrics by name. "auc" of a multiclass task is the mean over the classes that occur, each
against the rest."""
