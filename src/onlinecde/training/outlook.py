"""More to learn than labels: what is observed in the time to come, how often, and as what."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from onlinecde.series import SeriesBatch

ALIKE = 0.3
"""How much observations of one channel in one stretch of time repeat each other: n of them count as n / (1 + ALIKE
(n - 1))."""
FAR = 5.0
"""Values end at so many deviations."""


class Outlook:
    """Targets that series give themselves, at each time t and for each of some stretches ahead, from t to t + w.

    Of each channel the mean of what is observed, in deviations, and how often it is, and how many rows come. A label
    says little of a stream and its values say much, of the same hidden course: a state that foresees them has learned
    what the label needs too.

    Args:
        series: the training split, whose means, deviations and rates are where predictions start.
        ahead: the stretches, in the unit of the series' time.

    >>> series = SeriesBatch.from_arrays([[0.0, 1.0, 4.0]], [[[1.0], [3.0], [8.0]]])
    >>> mean, count, share = Outlook(series, [2.0]).targets(series, series.times)
    >>> count[0, :, 0], share[0, :, 0]
    (tensor([[1., 1.],
            [0., 0.],
            [0., 0.]], dtype=torch.float64), tensor([1., 1., 0.], dtype=torch.float64))
    """

    def __init__(self, series: SeriesBatch, ahead: Sequence[float]) -> None:
        self.ahead = torch.as_tensor(tuple(ahead), dtype=torch.float64, device=series.device)
        values = series.values.double()
        there = ~values.isnan()
        counts = there.sum((0, 1))
        self.mean = values.nan_to_num().sum((0, 1)) / counts.clamp(min=1)
        square = (values - self.mean).nan_to_num().square().sum((0, 1)) / counts.clamp(min=1)
        self.deviation = torch.where(square > 0, square.sqrt(), 1.0)
        last = series.times.gather(1, series.rows[:, None] - 1)[:, 0]
        seen = (last - series.times[:, 0]).sum().clamp(min=torch.finfo(torch.float32).tiny)
        events = torch.cat([counts, series.rows.sum()[None]]).double() + 0.5
        self.usual = events / seen * self.ahead[:, None]
        """(stretch, channel + 1): how many observations, and rows, to expect of anybody"""

    @property
    def columns(self) -> int:
        """How many numbers `loss` takes for each time."""
        return len(self.ahead) * (2 * len(self.mean) + 1)

    def targets(self, batch: SeriesBatch, clock: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What comes of a batch after the times clock (stream, query).

        Returns:
            The mean of each channel's values (stream, query, stretch, channel), 0 where there are none; how many
            there are and, last, how many rows (stream, query, stretch, channel + 1); and the share of each stretch
            (stream, query, stretch) in which the stream is followed: until its last row, or the last time asked.
        """
        values = (batch.values.double() - self.mean) / self.deviation
        there = ~values.isnan()
        events = torch.cat([there, batch.real[:, :, None]], 2).double()
        values = values.clamp(-FAR, FAR).nan_to_num(0.0)
        before = nn.functional.pad(torch.cat([values, events], 2).cumsum(1), (0, 0, 1, 0))
        times = batch.times.masked_fill(~batch.real, torch.inf).contiguous()
        edges = torch.cat([clock[:, :, None], clock[:, :, None] + self.ahead], 2)
        row = torch.searchsorted(times, edges.flatten(1).contiguous(), right=True)
        passed = before.gather(1, row[:, :, None].expand(-1, -1, before.shape[2]))
        passed = passed.unflatten(1, edges.shape[1:])
        sums, counts = (passed[:, :, 1:] - passed[:, :, :1]).split(
            [len(self.mean), len(self.mean) + 1], -1
        )
        last = batch.times.amax(1).maximum(clock.amax(1))
        share = ((last[:, None, None] - clock[:, :, None]) / self.ahead).clamp(0, 1)
        return sums / counts[..., :-1].clamp(min=1), counts, share

    def loss(self, numbers: Tensor, batch: SeriesBatch, clock: Tensor, known: Tensor) -> Tensor:
        """The mean loss over the times clock (stream, query) that are known (stream, query), stretches and channels.

        Half the squared error of values, and the Poisson likelihood of counts; numbers (stream, query, column).
        """
        mean, counts, share = self.targets(batch, clock)
        channels = len(self.mean)
        numbers = numbers.unflatten(-1, (len(self.ahead), 2 * channels + 1))
        values, rates = numbers.split([channels, channels + 1], -1)
        n = counts[..., :-1]
        weight = n / (1 + ALIKE * (n - 1).clamp(min=0))
        errors = weight.to(values) * (values - mean.to(values)).square() / 2
        expected = (rates + self.usual.log().to(rates)).exp() * share[..., None].to(rates)
        misses = expected - counts.to(rates) * rates
        each = errors.mean((-2, -1)) + misses.mean((-2, -1))
        return torch.where(known, each, 0.0).sum() / known.sum().clamp(min=1)
