"""A value with its interval, the difference of two, and how numbers are written for people."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
