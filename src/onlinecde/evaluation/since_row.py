"""How good answers are by how long ago something was last observed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from onlinecde.controls.path import rows_at
from onlinecde.data import Task
from onlinecde.evaluation.bootstrap import Cohort, Estimate, interval
from onlinecde.evaluation.metrics import Metric, chosen_score, metric_named, resampled_metrics
from onlinecde.evaluation.naive import JUDGED_BY
from onlinecde.evaluation.questions import UndefinedMetric
from onlinecde.models.readout import known_labels
from onlinecde.series.empty_rows import filled_queries

SHORT = 0.2
"""The shortest bin ends at a plain number beneath which about this share of the times lie."""


@dataclass(frozen=True)
class SinceRow:
    """Answers given `start` to `end` after a stream's last row."""

    start: float
    end: float | None
    """None: however long after."""
    streams: int
    labels: int
    loss: Estimate
    """By `loss_of` the task."""


def by_time_since_row(
    task: Task, split: str, risk: Tensor, labels: Tensor, cohort: Cohort
) -> tuple[SinceRow, ...]:
    """The table by time since the last row, of a task that is asked at query times; empty where all are at rows.

    risk (stream, query, output) and labels (stream, query, ...) of a split.
    """
    since = time_since_row(task, split)
    edges = elapsed_edges(since)
    found = []
    for start, end in pairwise(edges):
        here = (since >= start) & (since < end)
        unknown = -1 if task.kind == "multiclass" else torch.nan
        away = ~here if labels.ndim == 2 else ~here[:, :, None]
        chosen = labels.masked_fill(away, unknown)
        known = known_labels(task.kind, chosen)
        if not bool(known.any()):
            continue
        loss = estimate_of(metric_named(loss_of(task)), task, risk, chosen, cohort)
        streams = int(known.reshape(len(known), -1).any(1).sum())
        last = None if end == torch.inf else end
        found.append(SinceRow(start, last, streams, int(known.sum()), loss))
    return tuple(found)


def loss_of(task: Task) -> str:
    """The metric of how good single answers are: log loss, of time to an event within its horizon, RMSE of numbers."""
    if task.horizon is not None:
        return f"log_loss@{task.horizon:.6g}"
    return JUDGED_BY[task.kind]


def time_since_row(task: Task, split: str) -> Tensor:
    """How long before each query its stream had its last row, (stream, query) float64; NaN where none is asked."""
    series, times = task.split(split)[0], task.split_times(split)
    assert times is not None
    clock = filled_queries(series, times)
    row = rows_at(series.times, series.rows, clock, series.streams)
    since = clock - series.times.gather(1, row)
    return since.masked_fill(times.isnan(), torch.nan).cpu()


def elapsed_edges(since: Tensor) -> tuple[float, ...]:
    """Edges of the bins: from a plain number on each twice the last, and the last one open; empty without any.

    >>> elapsed_edges(torch.tensor([[0.0, 1.2, 3.0, 4.0, 9.0]]))
    (0.0, 2.0, 4.0, 8.0, 16.0, inf)
    """
    later = since[since > 0]
    if not len(later):
        return ()
    size = (
        float(later.quantile(SHORT))
        if len(later) < 1e6
        else float(later.sort().values[int(SHORT * len(later))])
    )
    tens = 10.0 ** torch.tensor(size).log10().floor().item()
    step = max(plain * tens for plain in (1, 2, 5) if plain * tens <= size * (1 + 1e-9))
    return (0.0, *(float(f"{step * 2**power:.12g}") for power in range(4)), torch.inf)


def estimate_of(
    metric: Metric, task: Task, risk: Tensor, labels: Tensor, cohort: Cohort
) -> Estimate:
    """A metric with its interval."""
    try:
        value = chosen_score(metric, task.kind, risk, labels, task.edges)
    except UndefinedMetric as error:
        return Estimate(None, reason=str(error))
    statistics = resampled_metrics([metric.name], task.kind, risk, labels, cohort, task.edges)
    return interval(value, cohort.resample(statistics)[metric.name])
