"""Whether a risk of 10 % means 10 of 100: reliability bins, and the line through them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onlinecde.evaluation.bootstrap import Cohort, Estimate, Means, interval

_TINY = 1e-12


@dataclass(frozen=True)
class Bin:
    """Rows of like risk: what was predicted of them on average, and how many it came true for."""

    predicted: float
    observed: float
    low: float | None
    high: float | None
    labels: int


@dataclass(frozen=True)
class Calibration:
    """Reliability in bins of equal number, and `logit P(y = 1) = intercept + slope * logit p`.

    A perfect model has slope 1 and intercept 0; a slope below 1 means risks too extreme. Intervals
    of bins are by resampling subjects, those of the line from a sandwich covariance by subject.
    """

    bins: tuple[Bin, ...]
    slope: Estimate
    intercept: Estimate


def calibration(
    probabilities: np.ndarray,
    labels: np.ndarray,
    owners: np.ndarray,
    cohort: Cohort,
    *,
    bins: int = 10,
    counts: np.ndarray | None = None,
) -> Calibration:
    """Calibration of probabilities (label,) against labels 0 or 1 (label,) of subjects `owners` (label,).

    Equal risks share a bin, so that there may be fewer bins than asked for. `counts` (label,): what each label counts
    in itself, by default 1.

    >>> two = Cohort.of(["ann", "bob"], resamples=0, seed=0)
    >>> found = calibration(np.array([0.1, 0.9]), np.array([0, 1]), two.codes, two, bins=2)
    >>> [one.observed for one in found.bins]
    [0.0, 1.0]
    """
    counts = np.ones(len(labels)) if counts is None else counts
    edges = np.unique(np.quantile(probabilities, np.linspace(0, 1, bins + 1)[1:-1]))
    place = np.searchsorted(edges, probabilities, side="right")
    found = []
    for number in np.unique(place):
        here = place == number
        part = np.stack([labels[here] * counts[here], counts[here]], 1)
        rate = Means(cohort.sums(part, owners[here]), lambda total: total[:, 0] / total[:, 1])
        observed = float(np.average(labels[here], weights=counts[here]))
        spread = interval(observed, cohort.resample({"rate": rate})["rate"])
        mean = float(np.average(probabilities[here], weights=counts[here]))
        found.append(Bin(mean, observed, spread.low, spread.high, int(here.sum())))
    slope, intercept = calibration_line(probabilities, labels, counts, owners, cohort)
    return Calibration(tuple(found), slope, intercept)


def calibration_line(
    probabilities: np.ndarray,
    labels: np.ndarray,
    counts: np.ndarray,
    owners: np.ndarray,
    cohort: Cohort,
) -> tuple[Estimate, Estimate]:
    """Slope and intercept of `Calibration` by maximum likelihood (Newton's method); all arrays (label,)."""

    def undefined(reason: str) -> tuple[Estimate, Estimate]:
        return Estimate(None, reason=reason), Estimate(None, reason=reason)

    if len(np.unique(labels)) < 2:
        return undefined("it takes both classes to fit a line.")
    p = np.clip(probabilities, _TINY, 1 - _TINY)
    x = np.stack([np.ones_like(p), np.log(p) - np.log1p(-p)], 1)
    if np.ptp(x[:, 1]) < 1e-9:
        return undefined("every risk is the same: there is no line to fit.")
    # Centred and scaled, so that Newton's steps are well conditioned from wherever risks lie.
    centre, scale = x[:, 1].mean(), x[:, 1].std()
    x[:, 1] = (x[:, 1] - centre) / scale
    beta = np.array([0.0, 0.0])
    for _ in range(100):
        mean = 1 / (1 + np.exp(-np.clip(x @ beta, -500, 500)))
        information = (x * (counts * mean * (1 - mean))[:, None]).T @ x
        if np.linalg.cond(information) > 1e14 or np.abs(beta).max() > 1e3:
            return undefined("risks and labels are separated: no finite line fits best.")
        step = np.linalg.solve(information, x.T @ (counts * (labels - mean)))
        beta = beta + step
        if np.abs(step).max() < 1e-10:
            break
    else:
        return undefined("the fit of the line did not converge.")
    pulls = cohort.sums(x * (counts * (labels - mean))[:, None], owners)
    inverse = np.linalg.inv(information)
    covariance = inverse @ (pulls.T @ pulls) @ inverse
    # Back to the units of the logit: beta0 + beta1 (l - centre) / scale.
    back = np.array([[1.0, -centre / scale], [0.0, 1 / scale]])
    intercept, slope = back @ beta
    spread = 1.96 * np.sqrt(np.diag(back @ covariance @ back.T))
    if cohort.count < 2:
        return Estimate(float(slope)), Estimate(float(intercept))
    return (
        Estimate(float(slope), float(slope - spread[1]), float(slope + spread[1])),
        Estimate(float(intercept), float(intercept - spread[0]), float(intercept + spread[0])),
    )
