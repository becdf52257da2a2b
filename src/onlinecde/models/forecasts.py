"""Forecasts of values: quantiles of what a channel will read, as a change from what was last observed of it.

For one channel and one horizon a model puts out nine numbers r. The middle one moves the median and the others are
steps away from it: with c the last observed value, u the usual change in training, and s(r) = softplus(r) > 0,

    median = c + u g r_5,   upper quantiles = median + u w (s(r_6) + ... ),    lower ones = median - u w (s(r_4) + ...),

so that quantiles never cross, and a readout of zeros repeats the last value. g and w are 1 until `fit` has measured on
validation streams by how much changes and widths are overstated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from onlinecde.models.intervals import IntervalsError

LEVELS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
"""The quantiles of a forecast"""
MIDDLE = LEVELS.index(0.5)
INTERVALS = {0.8: (0.1, 0.9), 0.9: (0.05, 0.95)}
"""Intervals by the share of values that they are to hold: the quantiles at their ends"""


def _weights() -> tuple[float, ...]:
    """What each level stands for when quantiles are averaged over all levels from 0 to 1: up to halfway to the next."""
    ends = [0.0, *((a + b) / 2 for a, b in pairwise(LEVELS)), 1.0]
    return tuple(b - a for a, b in pairwise(ends))


WEIGHTS = _weights()


def by_level(numbers: Tensor) -> Tensor:
    """Quantiles (..., forecast * level) as (..., forecast, level)."""
    return numbers.unflatten(-1, (-1, len(LEVELS)))


def crps(quantiles: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The continuous ranked probability score (...) of quantiles (..., level), by its integral over levels.

    Twice the mean pinball loss over all levels; of a forecast whose quantiles are one number, the absolute error.

    >>> crps(np.full((1, 9), 3.0), np.array([5.0]))
    array([2.])
    """
    error = values[..., None] - quantiles
    levels = np.array(LEVELS)
    return 2 * (np.maximum(levels * error, (levels - 1) * error) * np.array(WEIGHTS)).sum(-1)


def pinball(outputs: Tensor, labels: Tensor, unit: Tensor | None) -> Tensor:
    """Half the CRPS (...) of quantiles (..., level) for labels (...), in units (forecast,)."""
    error = labels[..., None] - outputs
    levels, weights = (torch.tensor(x, dtype=outputs.dtype).to(outputs) for x in (LEVELS, WEIGHTS))
    each = (torch.maximum(levels * error, (levels - 1) * error) * weights).sum(-1)
    return each if unit is None else each / unit.to(each)


class Forecasts(nn.Module):
    """Turns a readout's numbers into quantiles around the last value; one entry for each channel and horizon.

    >>> forecasts = Forecasts(9).put([0], [6.0], start=[1.2], unit=[0.5])
    >>> bool((forecasts(torch.zeros(9), torch.tensor([2.0]))[MIDDLE] == 2.0))
    True
    """

    channel: Tensor
    """(forecast,) int64: the position of each forecast's channel"""
    horizon: Tensor
    """(forecast,) float64: how far ahead, in the unit of the series' time"""
    start: Tensor
    """(forecast,): what stands for the last value of a channel that was never observed, its mean in training"""
    unit: Tensor
    """(forecast,): the usual change in training"""
    shrink: Tensor
    """(forecast,): what changes of the median are multiplied with"""
    widen: Tensor
    """(forecast,): what distances from the median are multiplied with"""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        if outputs % len(LEVELS):
            raise ValueError(
                f"outputs is {outputs}: a forecast has {len(LEVELS)} quantiles for each channel and horizon."
            )
        count = outputs // len(LEVELS)
        self.register_buffer("channel", torch.zeros(count, dtype=torch.int64))
        self.register_buffer("horizon", torch.arange(1.0, count + 1, dtype=torch.float64))
        for name, value in (("start", 0.0), ("unit", 1.0), ("shrink", 1.0), ("widen", 1.0)):
            self.register_buffer(name, torch.full((count,), value))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Forecasts:
        horizon = self.horizon
        super()._apply(fn, recurse)
        # Times are float64 whatever the model's dtype.
        self.horizon = horizon.to(self.horizon.device)
        return self

    def __len__(self) -> int:
        return len(self.channel)

    @property
    def laid(self) -> bool:
        """Whether `put` has said what is forecast."""
        return bool((self.unit != 1).any() or self.start.any() or self.channel.any())

    def put(
        self,
        channel: Sequence[int],
        horizon: Sequence[float],
        *,
        start: Sequence[float],
        unit: Sequence[float],
    ) -> Forecasts:
        """Say of each forecast its channel, horizon, first value and usual change; returns itself."""
        given = {"channel": channel, "horizon": horizon, "start": start, "unit": unit}
        for name, numbers in given.items():
            if len(numbers) != len(self):
                raise ValueError(f"{len(numbers)} entries of {name} for {len(self)} forecasts.")
            getattr(self, name).copy_(torch.as_tensor(numbers))
        return self

    def forward(self, numbers: Tensor, last: Tensor) -> Tensor:
        """Quantiles (..., forecast * level) of a readout's numbers of that shape and last values (..., forecast)."""
        numbers = by_level(numbers)
        step = nn.functional.softplus(numbers)
        below = step[..., :MIDDLE].flip(-1).cumsum(-1).flip(-1)
        above = step[..., MIDDLE + 1 :].cumsum(-1)
        away = torch.cat([-below, torch.zeros_like(above[..., :1]), above], -1)
        move = self.shrink[:, None] * numbers[..., MIDDLE : MIDDLE + 1]
        move = move + self.widen[:, None] * away
        return (last[..., None] + self.unit[:, None] * move).flatten(-2)

    def first(self, streams: int) -> Tensor:
        """Last values (stream, forecast) of streams of which nothing was observed."""
        return self.start.expand(streams, -1).clone()

    def after(self, last: Tensor, x: Tensor) -> Tensor:
        """Last values (stream, forecast) after a row x (stream, channel), NaN for what was not observed."""
        seen = x.to(last)[:, self.channel]
        return torch.where(seen.isnan(), last, seen)

    def along(self, values: Tensor) -> Tensor:
        """Last values (stream, row, forecast) after each row of values (stream, row, channel)."""
        seen = values[:, :, self.channel]
        row = torch.arange(seen.shape[1], device=seen.device)[:, None]
        newest = torch.where(seen.isnan(), -1, row).cummax(1).values
        last = seen.gather(1, newest.clamp(min=0))
        return torch.where(newest < 0, self.start, last)

    def extra_repr(self) -> str:
        return f"{len(self)} forecasts of {len(LEVELS)} quantiles"


def points(quantiles: np.ndarray) -> np.ndarray:
    """The middle quantile of each forecast (..., forecast), of quantiles (..., forecast * level)."""
    return quantiles[..., MIDDLE :: len(LEVELS)]


class QuantileIntervals:
    """Intervals read off a forecast's own quantiles, asked as `Intervals` are."""

    levels = tuple(INTERVALS)
    widest = max(INTERVALS)

    @staticmethod
    def bounds(quantiles: np.ndarray, level: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends (..., forecast) of quantiles (..., forecast * level); level: default the widest.

        Raises:
            IntervalsError: there are none of this level.
        """
        level = QuantileIntervals.widest if level is None else level
        if level not in INTERVALS:
            shown = ", ".join(f"{each:g}" for each in INTERVALS)
            raise IntervalsError(f"there are no intervals of level {level:g}: choose {shown}.")
        lower, upper = (
            quantiles[..., LEVELS.index(end) :: len(LEVELS)] for end in INTERVALS[level]
        )
        return lower, upper
