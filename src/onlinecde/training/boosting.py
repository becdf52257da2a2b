"""Boosting: the log-odds of a label as a sum of steps of single numbers, found one after the other.

Each round looks at some of the numbers, drawn by lot, and adds the step that lowers the loss most, at a
fraction of the height that would be best: many small steps, each where the rest is wrong, hold for
others than those learned from. A readout trained by gradients on so fine a view learns its patients by
heart instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

ROUNDS = 2000
"""Steps are added in so many rounds at most."""
BINS = 128
"""Bins of a number; each distinct value has its own where there are fewer."""
RATE = 0.06
"""Share of the best height that a step is given."""
LOOKED_AT = 0.3
"""Share of the numbers that a round looks at."""
RIDGE = 5.0
"""What is added to the curvature of the loss where a height is found."""
LEAST = 200
"""Lines on either side of a step, or a hundredth of all where that is less."""
PATIENCE = 30
"""Rounds without a lower loss on other lines before boosting ends."""


@dataclass(frozen=True)
class FoundSteps:
    """Steps as `Steps.put` takes them, and the loss on the other lines."""

    base: float
    place: list[int]
    low: list[float]
    high: list[float]
    height: list[float]
    loss: float


def boost(
    lines: np.ndarray,
    labels: np.ndarray,
    others: np.ndarray,
    other_labels: np.ndarray,
    *,
    most: int,
    seed: int = 0,
) -> FoundSteps:
    """Steps for lines (line, number) with labels (line,) of 0 and 1, as many as lower the loss on others.

    They stand at `most` places at most. Between the bins on either side of it a step is a straight
    line from centre to centre.
    """
    if not len(lines) or not len(others):
        return FoundSteps(0.0, [], [], [], [], float("nan"))
    numbers = lines.shape[1]
    cuts = [_cuts(lines[:, number]) for number in range(numbers)]
    codes, other_codes = (_codes(some, cuts) for some in (lines, others))
    centres = [_centres(lines[:, n], codes[n], len(cuts[n]) + 1) for n in range(numbers)]
    able = np.array([n for n in range(numbers) if len(cuts[n])], np.int64)
    rate = float(np.clip(labels.mean(), 1e-4, 1 - 1e-4))
    base = float(np.log(rate / (1 - rate)))
    drawn = torch.Generator().manual_seed(seed)
    odds, other_odds = np.full(len(lines), base), np.full(len(others), base)
    least = max(1, min(LEAST, len(lines) // 100))
    heights: dict[tuple[int, int], float] = {}
    best, best_loss, best_round = (base, dict(heights)), _loss(other_odds, other_labels), 0
    many = max(1, round(LOOKED_AT * len(able)))
    for number in range(1, ROUNDS + 1 if len(able) else 1):
        some = able[torch.randperm(len(able), generator=drawn)[:many].numpy()]
        found = _best_step(codes, some, odds, labels, least)
        if found is None:
            continue
        place, bin_, left, right = found
        if (place, bin_) not in heights and len(heights) == most:
            break
        odds += np.where(codes[place] <= bin_, left, right)
        other_odds += np.where(other_codes[place] <= bin_, left, right)
        base += left
        heights[place, bin_] = heights.get((place, bin_), 0.0) + right - left
        loss = _loss(other_odds, other_labels)
        if loss < best_loss:
            best, best_loss, best_round = (base, dict(heights)), loss, number
        elif number - best_round >= PATIENCE:
            break
    base, heights = best
    where = sorted(heights)
    return FoundSteps(
        base,
        [place for place, _ in where],
        [float(centres[place][bin_]) for place, bin_ in where],
        [float(centres[place][bin_ + 1]) for place, bin_ in where],
        [heights[key] for key in where],
        best_loss,
    )


def _best_step(
    codes: np.ndarray, some: np.ndarray, odds: np.ndarray, labels: np.ndarray, least: int
) -> tuple[int, int, float, float] | None:
    """The number, the last bin before the step, and what is added before and after it."""
    # Here, so that nobody who lays no steps waits for numba.
    from onlinecde.kernels.cpu.bins import sums_by_bin

    chance = 1 / (1 + np.exp(-odds))
    sums = sums_by_bin(codes, some, chance - labels, chance * (1 - chance), BINS)
    before = sums.cumsum(1)
    after = before[:, -1:] - before
    fit = (before[:, :, 2] >= least) & (after[:, :, 2] >= least)
    if not fit.any():
        return None
    gain = sum(part[:, :, 0] ** 2 / (part[:, :, 1] + RIDGE) for part in (before, after))
    at, bin_ = np.unravel_index(np.where(fit, gain, -np.inf).argmax(), fit.shape)
    left, right = (
        -RATE * part[at, bin_, 0] / (part[at, bin_, 1] + RIDGE) for part in (before, after)
    )
    return int(some[at]), int(bin_), float(left), float(right)


def _cuts(values: np.ndarray) -> np.ndarray:
    """The last value of each bin of a number but one: its distinct values, or quantiles of them.

    They are values that are there, so no bin between two of them is empty.
    """
    distinct = np.unique(values)
    if len(distinct) <= BINS:
        return distinct[:-1]
    shares = np.linspace(0, 1, BINS + 1)[1:-1]
    return np.unique(np.quantile(values, shares, method="lower"))


def _codes(lines: np.ndarray, cuts: list[np.ndarray]) -> np.ndarray:
    """(number, line) uint8: the bin of every number."""
    return np.stack(
        [np.searchsorted(ends, lines[:, n]).astype(np.uint8) for n, ends in enumerate(cuts)]
    )


def _centres(values: np.ndarray, codes: np.ndarray, bins: int) -> np.ndarray:
    """(bin,): the mean of a number in each of its bins."""
    lines = np.bincount(codes, minlength=bins)
    return np.bincount(codes, values.astype(np.float64), minlength=bins) / np.maximum(lines, 1)


def _loss(odds: np.ndarray, labels: np.ndarray) -> float:
    return float((np.logaddexp(0, odds) - odds * labels).mean())
