"""Intervals by subject: whole subjects drawn again with replacement, as weights on what is there.

A resample is a weight for each subject, how often it was drawn. Sums over subjects then cost one
matrix product; what ranks labels is sorted once, and each resample is one pass over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

_BLOCK = 64
SPECIFICITY = 0.9
"""The specificity at which sensitivity is read off."""


class Statistic(Protocol):
    """Something computed from weights of the subjects."""

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Weights (resample, subject) -> (resample,), NaN where it has no value."""
        ...


class Means:
    """A function of sums over subjects: `finish(sums (resample, k)) -> (resample,)`."""

    def __init__(self, sums: np.ndarray, finish: Callable[[np.ndarray], np.ndarray]) -> None:
        """`sums` (subject, k): what each subject adds."""
        self.sums, self.finish = np.asarray(sums, np.float64), finish

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.finish(weights @ self.sums)


class Ranking:
    """Scores against binary labels, sorted once; each resample is then one pass over the rows.

    Between two neighbouring scores of positive rows only the weight of the negative rows counts,
    so those are summed stretch by stretch and never sorted or scanned again.

    >>> ranking = Ranking(np.array([0.1, 0.4, 0.35]), np.array([0, 0, 1]), np.array([0, 1, 2]))
    >>> ranking.auc(np.ones((1, 3)))
    array([0.5])
    """

    def __init__(
        self,
        scores: np.ndarray,
        labels: np.ndarray,
        subjects: np.ndarray,
        counts: np.ndarray | None = None,
    ) -> None:
        """Scores, labels (0 or 1), subjects (numbers from 0) and what it counts in itself of each row, (row,)."""
        positive = labels == 1
        self._levels, level = np.unique(-scores[positive], return_inverse=True)  # highest first
        order = np.argsort(level, kind="stable")
        of_positive, of_negative = (
            None if counts is None else counts[one] for one in (positive, ~positive)
        )
        self._positive = _Stretches(
            subjects[positive][order], level[order], len(self._levels), _at(of_positive, order)
        )
        # Stretch 2g holds the negatives between levels g - 1 and g, 2g + 1 those at level g.
        negative = -scores[~positive]
        above = np.searchsorted(self._levels, negative, side="left")
        at = np.searchsorted(self._levels, negative, side="right")
        stretch = 2 * above + (at > above)
        order = np.argsort(stretch, kind="stable")
        self._negative = _Stretches(
            subjects[~positive][order],
            stretch[order],
            2 * len(self._levels) + 1,
            _at(of_negative, order),
        )
        self._last: tuple[np.ndarray, np.ndarray] | None = None

    def auc(self, weights: np.ndarray) -> np.ndarray:
        """Area under the ROC curve."""
        return self._all(weights)[:, 0]

    def auprc(self, weights: np.ndarray) -> np.ndarray:
        """Average precision."""
        return self._all(weights)[:, 1]

    def sensitivity(self, weights: np.ndarray) -> np.ndarray:
        """The most sensitivity with a specificity of 90 % or more."""
        return self._all(weights)[:, 2]

    def _all(self, weights: np.ndarray) -> np.ndarray:
        # The three are asked for one after the other with the same weights: one pass serves all.
        if self._last is None or self._last[0] is not weights:
            self._last = weights, np.array([self._one(row) for row in weights])
        return self._last[1]

    def _one(self, weights: np.ndarray) -> tuple[float, float, float]:
        positive, negative = self._positive.sums(weights), self._negative.sums(weights)
        hits, alarms = np.cumsum(positive), np.cumsum(negative)
        if not len(positive) or not hits[-1] or not alarms[-1]:
            return np.nan, np.nan, np.nan
        false = alarms[1::2]  # negatives at or above each level
        below = alarms[-1] - false + negative[1::2] / 2
        reached = hits + false
        # A level of which nothing was drawn, above all that was, has no precision, and no weight.
        precision = np.divide(hits, reached, out=np.zeros_like(hits), where=reached > 0)
        allowed = false <= (1 - SPECIFICITY) * alarms[-1] * (1 + 1e-12)
        return (
            float(positive @ below / (hits[-1] * alarms[-1])),
            float(positive @ precision / hits[-1]),
            float(hits[allowed].max(initial=0.0) / hits[-1]),
        )


class _Stretches:
    """Rows in order of their stretch: the weight of each stretch in one pass."""

    def __init__(
        self, subjects: np.ndarray, stretch: np.ndarray, count: int, counts: np.ndarray | None
    ) -> None:
        self.subjects, self.count, self.counts = subjects.astype(np.int32), count, counts
        self.present, self.starts = np.unique(stretch, return_index=True)

    def sums(self, weights: np.ndarray) -> np.ndarray:
        total = np.zeros(self.count)
        if len(self.present):
            each = weights.take(self.subjects)
            each = each if self.counts is None else each * self.counts
            total[self.present] = np.add.reduceat(each, self.starts)
        return total


def _at(counts: np.ndarray | None, order: np.ndarray) -> np.ndarray | None:
    return None if counts is None else counts[order]


class Average:
    """The mean of several statistics, over those that have a value."""

    def __init__(self, parts: Sequence[Statistic]) -> None:
        self.parts = parts

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        each = np.stack([part(weights) for part in self.parts])
        known = ~np.isnan(each)
        total, count = np.where(known, each, 0.0).sum(0), known.sum(0)
        return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)


@dataclass(frozen=True, eq=False)
class Cohort:
    """The subjects of some streams, and how they are to be drawn again.

    >>> cohort = Cohort.of(["ann", "bob", "ann"], resamples=100, seed=0)
    >>> cohort.codes.tolist(), cohort.count
    ([0, 1, 0], 2)
    """

    codes: np.ndarray
    """(stream,): whose each stream is, numbers from 0"""
    count: int
    resamples: int
    seed: int

    @classmethod
    def of(cls, subjects: Sequence[Hashable], *, resamples: int, seed: int) -> Cohort:
        """Number the subjects of streams; of a single one nothing can be drawn again."""
        numbers: dict[Hashable, int] = {}
        codes = np.array([numbers.setdefault(subject, len(numbers)) for subject in subjects])
        return cls(codes, len(numbers), resamples if len(numbers) > 1 else 0, seed)

    def owners(self, known: np.ndarray) -> np.ndarray:
        """Whose each label is: (label,) for the places (stream, ...) where `known` is true."""
        codes = self.codes.reshape(-1, *(1,) * (known.ndim - 1))
        return np.broadcast_to(codes, known.shape)[known]

    def sums(self, values: np.ndarray, owners: np.ndarray) -> np.ndarray:
        """Sums (subject, k) of values (label, k) over the labels of each subject."""
        return np.stack([np.bincount(owners, column, self.count) for column in values.T], 1)

    def value(self, statistic: Statistic) -> float:
        """The statistic with every subject drawn once."""
        return float(statistic(np.ones((1, self.count)))[0])

    def resample(self, statistics: Mapping[str, Statistic]) -> dict[str, np.ndarray]:
        """Each statistic on the same draws of the subjects: (resample,) by name."""
        found: dict[str, list[np.ndarray]] = {name: [np.empty(0)] for name in statistics}
        for weights in draws(self.count, self.resamples, self.seed):
            for name, statistic in statistics.items():
                found[name].append(statistic(weights))
        return {name: np.concatenate(parts) for name, parts in found.items()}


def draws(subjects: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each subject was drawn: blocks (at most 64, subject); the same for a seed, always."""
    random = np.random.default_rng(seed)
    for start in range(0, resamples, _BLOCK):
        size = min(_BLOCK, resamples - start)
        chosen = random.integers(0, subjects, (size, subjects))
        yield np.stack([np.bincount(row, minlength=subjects) for row in chosen]).astype(np.float64)


def shown(value: float, *, size: float | None = None, digits: int = 4) -> str:
    """`digits` after the point, one of hundreds; four figures of what is smaller than 0.01 or as large as 100,000.

    `size`: that of what the number stands beside. A difference of two metrics, or an end of an interval, is
    shown as they are, however small.

    >>> [shown(value) for value in (0.81234, 1.06e-06, 1234.5, 3.2e8, 0.0)]
    ['0.8123', '1.06e-06', '1,234.5', '3.2e+08', '0.0000']
    >>> shown(-0.00031, size=0.8, digits=3), shown(2e-7, size=1e-6)
    ('-0.000', '2e-07')
    """
    size = abs(value) if size is None else size
    if size and not 0.01 <= size < 1e5:
        return f"{value:.4g}"
    return f"{value:.{digits}f}" if size < 100 else f"{value:,.1f}"


@dataclass(frozen=True)
class Estimate:
    """A value and the interval that holds 95 % of its resamples; `reason` where one is missing."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    def __str__(self) -> str:
        if self.value is None:
            return "undefined"
        if self.low is None or self.high is None:
            return shown(self.value)
        low, high = (shown(end, size=abs(self.value)) for end in (self.low, self.high))
        return f"{shown(self.value)} ({low} to {high})"


@dataclass(frozen=True)
class Difference:
    """By how much the first of two models exceeds the second on the same subjects."""

    value: float | None
    low: float | None = None
    high: float | None = None
    above_zero: float | None = None
    """The share of resamples in which it is above zero."""
    reason: str | None = None

    def __str__(self) -> str:
        if self.value is None:
            return "undefined"
        if self.low is None or self.high is None:
            return f"{self.value:+.4f}"
        return f"{self.value:+.4f} ({self.low:+.4f} to {self.high:+.4f})"


def interval(value: float, drawn: np.ndarray) -> Estimate:
    """The value with the 2.5 and 97.5 percentiles of its resamples, those without a value left out."""
    known = drawn[~np.isnan(drawn)]
    if len(known) * 2 <= len(drawn):
        reason = "most resamples have no value: too few subjects" if len(drawn) else None
        return Estimate(value, reason=reason)
    low, high = np.quantile(known, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def difference(value: float, drawn: np.ndarray) -> Difference:
    """The difference with its interval, and how often it is above zero."""
    estimate = interval(value, drawn)
    known = drawn[~np.isnan(drawn)]
    above = float((known > 0).mean()) if estimate.low is not None else None
    return Difference(value, estimate.low, estimate.high, above, estimate.reason)
