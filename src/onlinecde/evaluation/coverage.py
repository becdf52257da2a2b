"""How many labels of unseen streams lie inside a regression's intervals, and how wide these are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from onlinecde.data import Task
from onlinecde.evaluation.bootstrap import Cohort, Estimate, Means, interval
from onlinecde.evaluation.naive import output_names
from onlinecde.models import Intervals
from onlinecde.models.forecasts import QuantileIntervals


@dataclass(frozen=True)
class Coverage:
    """Of one output's intervals of one level; every subject counts alike, however many labels it has."""

    output: str
    """Its name; empty for the only one"""
    level: float
    """The share of labels the intervals are for"""
    share: Estimate
    """The share of labels inside"""
    width: Estimate
    """From the lower to the upper end, in the output's unit"""
    labels: int
    subjects: int

    @property
    def in_words(self) -> str:
        """What was found."""
        of = f" of {self.output}" if self.output else ""
        return f"intervals{of} for {100 * self.level:g} % of labels hold {self.share}, and are {self.width} wide"

    @property
    def warning(self) -> str | None:
        """That fewer labels are inside than should be, in words; None where it may be chance."""
        if self.share.high is None or self.share.high >= self.level:
            return None
        of = f" of {self.output}" if self.output else ""
        return (
            f"intervals for {100 * self.level:g} % of labels{of} hold {self.share} of them here: these streams are not "
            "like those of validation"
        )


def coverage(
    intervals: Intervals | QuantileIntervals,
    task: Task,
    predicted: Tensor,
    labels: Tensor,
    cohort: Cohort,
) -> tuple[Coverage, ...]:
    """Measure the intervals around numbers (stream, ..., output), or of quantiles; labels (stream, ...)."""
    numbers = predicted.double().numpy()
    bounds = {level: intervals.bounds(numbers, level) for level in intervals.levels}
    wanted = labels.double().numpy().reshape(bounds[intervals.widest][0].shape)
    names = output_names(task) if task.outputs > 1 else [""]
    found = []
    for output, name in enumerate(names):
        known = ~np.isnan(wanted[..., output])
        if not known.any():
            continue
        owners = cohort.owners(known)
        count = np.bincount(owners, minlength=cohort.count)
        for level in intervals.levels:
            lower, upper = (ends[..., output][known] for ends in bounds[level])
            label = wanted[..., output][known]
            inside = (label >= lower) & (label <= upper)
            sums = cohort.sums(np.stack([inside, upper - lower], 1).astype(np.float64), owners)
            share = sums / np.maximum(count, 1)[:, None]
            each = np.column_stack([share, count > 0])
            statistics = {
                "share": Means(each, lambda total: total[:, 0] / total[:, 2]),
                "width": Means(each, lambda total: total[:, 1] / total[:, 2]),
            }
            drawn = cohort.resample(statistics)
            values = {n: interval(cohort.value(s), drawn[n]) for n, s in statistics.items()}
            here = int(known.sum()), int((count > 0).sum())
            found.append(Coverage(name, level, values["share"], values["width"], *here))
    return tuple(found)
