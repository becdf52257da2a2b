"""What a task is judged by: predictions of a whole split, and one number from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from onlinecde.models import OnlineModel
from onlinecde.models.readout import Readout
from onlinecde.series import SeriesBatch

Direction = Literal["max", "min"]

BINS = 15
"""Bins of equal width for the calibration error."""
SPECIFICITY = 0.9
"""The specificity at which sensitivity is read off."""


class MetricError(ValueError):
    """A metric that does not exist, or does not belong to a task of this kind."""


class UndefinedMetric(MetricError):  # noqa: N818 - a finding more than a fault
    """A metric without a value on these labels: one class only, no label; the message says why."""


@dataclass(frozen=True)
class Metric:
    """One metric: its name for readers, which way is better, and what it can be computed for."""

    name: str
    title: str
    direction: Direction
    kinds: tuple[str, ...]
    compute: Callable[[Tensor, Tensor], Tensor | float]
    """(probabilities or numbers, labels), both without gaps -> the value.

    One question: (n,), (n,). Multiclass: (n, class) and int64 (n,)."""
    in_units: bool = False
    """Whether it has the labels' unit: of several outputs, each is divided by the deviation of its labels
    before all are averaged."""


def predict_task(
    model: OnlineModel,
    series: SeriesBatch,
    per: Literal["stream", "row"],
    *,
    batch_size: int = 256,
) -> Tensor:
    """Raw outputs on the CPU, in the order of the streams.

    (stream, output) after the last row with `per="stream"`; (stream, row, output) with `per="row"`,
    where what stands in the padding repeats the last row. Streams of like length go together, so
    that padding costs little; the model is left in the mode it was in.

    >>> import onlinecde as oc
    >>> series = oc.SeriesBatch.from_arrays([[0.0, 1.0], [0.0]], [[[1.0], [2.0]], [[3.0]]])
    >>> predict_task(oc.GRU(channels=1, hidden=4, outputs=2), series, "row").shape
    torch.Size([2, 2, 2])
    """
    if per not in ("stream", "row"):
        raise MetricError(f"per is {per!r}: choose 'stream' or 'row'.")
    series = model.aligned(series)
    was_training = model.training
    model.eval()
    order, parts = series.length_buckets(batch_size), []
    try:
        with torch.no_grad():
            for at in order:
                batch = model.prepare(series[at].to(model.device))
                outputs = model(batch, final=per == "stream").cpu()
                if per == "row":
                    # Padding repeats the last row, here as within a batch.
                    short = series.times.shape[1] - outputs.shape[1]
                    outputs = torch.cat([outputs, outputs[:, -1:].expand(-1, short, -1)], 1)
                parts.append(outputs)
    finally:
        model.train(was_training)
    return torch.cat(parts)[torch.cat(order).argsort()]


def score(task_kind: str, metric: str, outputs: Tensor, labels: Tensor, head: Readout) -> float:
    """The metric of raw outputs against labels, over every label that is there.

    outputs (..., output) as `predict_task` gives them; labels (...,), or (..., output) for several
    questions, NaN (or -1 for a class) where there is none. Several questions are averaged, those
    without both classes left out; RMSE and MAE of several outputs, each in deviations of its labels.

    Raises:
        MetricError: no such metric, or not one for this kind of task.
        UndefinedMetric: it has no value on these labels.

    >>> head = Readout(1, 1, "binary")
    >>> score("binary", "auc", torch.tensor([[0.1], [2.0], [0.3]]), torch.tensor([0.0, 1, 1]), head)
    1.0
    """
    chosen = metric_for(task_kind, metric)
    return chosen_score(chosen, task_kind, as_probabilities(head, outputs), labels)


def score_or_none(
    task_kind: str, metric: str, outputs: Tensor, labels: Tensor, head: Readout
) -> float | None:
    """`score`, or None where the metric has no value on these labels."""
    try:
        return score(task_kind, metric, outputs, labels, head)
    except UndefinedMetric:
        return None


def as_probabilities(head: Readout, outputs: Tensor) -> Tensor:
    """Raw outputs (..., output) as probabilities in float64; numbers of a regression as they are.

    Equal outputs get equal probabilities, so that ties stay ties: the last bit of a sigmoid depends
    on where in memory its argument stands.
    """
    outputs = outputs.detach().double()
    if head.kind not in ("binary", "multilabel"):
        return head.probabilities(outputs)
    values, place = outputs.unique(return_inverse=True)
    return head.probabilities(values)[place]


def chosen_score(metric: Metric, task_kind: str, probabilities: Tensor, labels: Tensor) -> float:
    """`score` from probabilities (..., output), in float64."""
    values, reasons = [], []
    asked = questions(task_kind, probabilities, labels)
    for found, wanted, _ in asked:
        try:
            _check_values(found)
            unit = label_unit(metric, wanted, len(asked))
            values.append(float(metric.compute(found, wanted)) / unit)
        except UndefinedMetric as error:
            reasons.append(str(error))
    if not values:
        raise UndefinedMetric(reasons[0])
    return sum(values) / len(values)


def label_unit(metric: Metric, labels: Tensor, outputs: int) -> float:
    """What a metric of one of several outputs is divided by, for outputs have units of their own; else 1."""
    if not metric.in_units or outputs == 1:
        return 1.0
    _some(labels)
    deviation = float(labels.double().std(correction=0))
    if deviation == 0:
        raise UndefinedMetric(f"every label is {float(labels[0]):g}: they have no deviation.")
    return deviation


def questions(
    task_kind: str, probabilities: Tensor, labels: Tensor
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each question's probabilities (n,), its labels (n,), and where these were (bool).

    Multiclass is one question, with probabilities (n, class).
    """
    probabilities, labels = probabilities.cpu(), labels.cpu()
    if task_kind == "multiclass":
        known = labels >= 0
        return [(probabilities[known], labels[known].to(torch.int64), known)]
    if labels.ndim == probabilities.ndim - 1:
        labels = labels.unsqueeze(-1)
    if labels.shape != probabilities.shape:
        raise MetricError(
            f"outputs have shape {tuple(probabilities.shape)}, labels {tuple(labels.shape)}: they "
            "must agree, but for a single output."
        )
    known = ~labels.isnan()
    each = zip(probabilities.unbind(-1), labels.unbind(-1), known.unbind(-1), strict=True)
    return [(f[k], w[k].to(probabilities), k) for f, w, k in each]


def better(metric: str) -> Direction:
    """Whether more ("max") or less ("min") of a metric is better."""
    return _known(metric).direction


def metric_for(task_kind: str, metric: str) -> Metric:
    """The metric of this name, if it belongs to tasks of this kind."""
    chosen = _known(metric)
    if task_kind not in chosen.kinds:
        fitting = ", ".join(name for name, m in METRICS.items() if task_kind in m.kinds)
        raise MetricError(
            f"'{metric}' is not for {task_kind} tasks: choose one of {fitting or 'none'}."
        )
    return chosen


def _known(metric: str) -> Metric:
    if metric not in METRICS:
        raise MetricError(f"there is no metric '{metric}': choose one of {', '.join(METRICS)}.")
    return METRICS[metric]


def _some(labels: Tensor) -> None:
    if not labels.numel():
        raise UndefinedMetric("there is no label to compare with.")


def _check_values(found: Tensor) -> None:
    if not bool(found.isfinite().all()):
        raise UndefinedMetric("the model puts out numbers that are not finite.")


def _both(labels: Tensor) -> Tensor:
    """Labels (n,) int64 of which both classes occur, for metrics that rank one above the other."""
    _some(labels)
    if bool((labels == labels[0]).all()):
        raise UndefinedMetric(
            f"every label is {int(labels[0])}: it takes both classes to rank one above the other."
        )
    return labels.to(torch.int64)


def _functional() -> Any:
    # Heavy: only who computes a metric pays for it.
    import torchmetrics.functional as functional

    return functional


def _auc(found: Tensor, labels: Tensor) -> Tensor | float:
    if found.ndim == 1:
        return _functional().classification.binary_auroc(found, _both(labels))
    _some(labels)
    present = labels.unique().tolist()
    if len(present) < 2:
        raise UndefinedMetric(f"every label is class {present[0]}: it takes two classes or more.")
    each = [_auc(found[:, c], (labels == c).to(found)) for c in present]
    return sum(float(value) for value in each) / len(each)


def _auprc(found: Tensor, labels: Tensor) -> Tensor:
    return _functional().classification.binary_average_precision(found, _both(labels))


def _sensitivity(found: Tensor, labels: Tensor) -> Tensor:
    return _functional().classification.binary_sensitivity_at_specificity(
        found, _both(labels), min_specificity=SPECIFICITY
    )[0]


def _accuracy(found: Tensor, labels: Tensor) -> Tensor:
    _some(labels)
    functional = _functional().classification
    if found.ndim == 2:
        return functional.multiclass_accuracy(
            found, labels, num_classes=found.shape[1], average="micro"
        )
    return functional.binary_accuracy(found, labels.to(torch.int64))


def _brier(found: Tensor, labels: Tensor) -> Tensor:
    _some(labels)
    if found.ndim == 2:
        wanted = torch.nn.functional.one_hot(labels, found.shape[1]).to(found)
        return _functional().mean_squared_error(found, wanted) * found.shape[1]
    return _functional().mean_squared_error(found, labels)


def _log_loss(found: Tensor, labels: Tensor) -> Tensor:
    _some(labels)
    # Probabilities of exactly 0 or 1 come from rounding: as far from it as float64 can tell.
    tiny = torch.finfo(found.dtype).eps
    if found.ndim == 2:
        return torch.nn.functional.nll_loss(found.clamp(min=tiny).log(), labels)
    return torch.nn.functional.binary_cross_entropy(found.clamp(tiny, 1 - tiny), labels)


def _ece(found: Tensor, labels: Tensor) -> Tensor:
    _some(labels)
    return _functional().classification.binary_calibration_error(
        found, labels.to(torch.int64), n_bins=BINS
    )


def _rmse(found: Tensor, labels: Tensor) -> Tensor:
    _some(labels)
    return _functional().mean_squared_error(found, labels, squared=False)


def _mae(found: Tensor, labels: Tensor) -> Tensor:
    _some(labels)
    return _functional().mean_absolute_error(found, labels)


def _r2(found: Tensor, labels: Tensor) -> Tensor:
    _some(labels)
    if bool((labels == labels[0]).all()):
        raise UndefinedMetric(f"every label is {float(labels[0]):g}: there is nothing to explain.")
    # torchmetrics takes residuals below 1e-4 for none: a target in small units would be explained by anything.
    away = labels - labels.mean()
    return r2_from_sums(((found - labels) ** 2).sum(), away.sum(), (away**2).sum(), len(labels))


def r2_from_sums(errors: Any, away: Any, away_squared: Any, count: Any) -> Any:
    """R² from sums over labels: squared errors, distances from any one number, their squares, how many."""
    return 1 - errors / (away_squared - away**2 / count)


_TWO = ("binary", "multilabel")
_CLASSES = ("binary", "multiclass", "multilabel")
_NUMBERS = ("regression",)

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("auc", "AUROC", "max", _CLASSES, _auc),
        Metric("auprc", "AUPRC", "max", _TWO, _auprc),
        Metric("sensitivity", "Sensitivity at 90 % specificity", "max", _TWO, _sensitivity),
        Metric("accuracy", "Accuracy", "max", _CLASSES, _accuracy),
        Metric("brier", "Brier score", "min", _CLASSES, _brier),
        Metric("log_loss", "Log loss", "min", _CLASSES, _log_loss),
        Metric("ece", "Calibration error", "min", _TWO, _ece),
        Metric("rmse", "RMSE", "min", _NUMBERS, _rmse, in_units=True),
        Metric("mae", "MAE", "min", _NUMBERS, _mae, in_units=True),
        Metric("r2", "R²", "max", _NUMBERS, _r2),
    )
}
"""The metrics by name. "auc" of a multiclass task is the mean over the classes that occur, each
against the rest."""
