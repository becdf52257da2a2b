"""Boosting: single-feature step functions added to a trained readout, as many as serve the validation split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from onlinecde.data import Task
from onlinecde.evaluation.predictions import predict_split
from onlinecde.models import NeuralCDE, OnlineModel
from onlinecde.training.callbacks import Callback
from onlinecde.training.growing import validation_scores
from onlinecde.training.objectives import loss_weight
from onlinecde.training.settings import FitSettings, seed_for

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


STREAMS = 512
"""Streams looked at together."""


def fit_steps(
    model: OnlineModel, task: Task, settings: FitSettings, callback: Callback
) -> dict[str, Any] | None:
    """Lay the steps of a model that has room for some, as many as serve the validation split.

    Returns how many there are, and the validation loss and metric with them; None where there are
    none: then the readout's log-odds stay as they are.
    """
    if not isinstance(model, NeuralCDE) or model.readout.steps is None:
        return None
    if settings.objective != "label":
        return None  # they are of the label's log-odds
    (lines, labels), (others, other_labels) = (
        _seen(model, task, name) for name in ("train", "validation")
    )
    found = boost(
        lines,
        labels,
        others,
        other_labels,
        most=model.readout.steps.count,
        seed=seed_for("steps", settings.seed),
    )
    if not found.place:
        callback.note(
            "no single-feature step lowers the validation loss: boosting adds none to the readout"
        )
        return None
    weight = loss_weight(task, settings)
    base = found.base + (0.0 if weight is None else float(weight.log()))
    model.readout.steps.put(base, found.place, found.low, found.high, found.height)
    _, labels = task.split("validation")
    outputs = predict_split(model, task, "validation")
    scores = validation_scores(model, task, settings, outputs, labels)
    value = scores[f"validation_{task.metric}"]
    shown = "" if value is None else f", {task.metric} {value:.4f}"
    callback.note(
        f"boosting adds {len(found.place)} single-feature steps to the readout; with them validation "
        f"loss {scores['validation_loss']:.4f}{shown}"
    )
    return {"steps": len(found.place), **scores}


def _seen(model: NeuralCDE, task: Task, split: str) -> tuple[np.ndarray, np.ndarray]:
    """What the readout sees of the path where there is a label, (line, number), and the labels (line,)."""
    series, labels = task.split(split)
    times = task.split_times(split) if task.per == "time" else None
    lines, wanted = [], []
    with torch.no_grad():
        for at in torch.arange(len(series)).split(STREAMS):
            batch = model.prepare(series[at].to(model.device))
            view = model.seen_of(batch, None if times is None else times[at.to(times.device)])
            assert view is not None
            known = labels[at.to(labels.device)].to(view)
            if task.per == "stream":
                view, known = view[:, -1:], known.reshape(len(at), 1)
            known = known[:, : view.shape[1]]
            here = ~known.isnan()
            lines.append(view[here].cpu())
            wanted.append(known[here].cpu())
    return torch.cat(lines).float().numpy(), torch.cat(wanted).double().numpy()
