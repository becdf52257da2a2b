"""`KnownRisk`: what simulated data know beyond the labels, at any time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class RiskCurve:
    """The best possible risk as a function of time, in pieces of (level + slope x) / (1 + weight x).

    x goes from 0 to 1 while time goes from `delay` after a piece's start on, for a length of `span`. Bayes' rule
    gives just this where nothing has been observed yet of what was due at a time uniform in the span.

    >>> whole = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    >>> curve = RiskCurve(torch.tensor([2.0]), whole, whole + 0.5, -whole, 0 * whole, delay=0.0, span=1.0)
    >>> curve.at(torch.tensor([[-1.0, 0.5, 1.0, 1.5, 3.0]]))
    tensor([[   nan, 0.5000, 1.5000, 1.0000,    nan]], dtype=torch.float64)
    """

    until: Tensor
    """(stream,) float64: how long the risk is known"""
    starts: Tensor
    """(stream, piece) float64, rising; infinite behind a stream's last piece"""
    level: Tensor
    """(stream, piece) float64, as `slope` and `weight`"""
    slope: Tensor
    weight: Tensor
    delay: float
    span: float

    def at(self, times: Tensor) -> Tensor:
        """The risk at times (stream, query): (stream, query) float64, NaN where it is not known."""
        times = times.to(self.starts)
        piece = torch.searchsorted(self.starts, times.contiguous(), right=True) - 1
        place = piece.clamp(min=0)
        start, level, slope, weight = (
            table.gather(1, place) for table in (self.starts, self.level, self.slope, self.weight)
        )
        x = ((times - start - self.delay) / self.span).clamp(0, 1)
        known = (piece >= 0) & (times <= self.until[:, None])
        return ((level + slope * x) / (1 + weight * x)).masked_fill(~known, torch.nan)

    def select(self, streams: Tensor | slice) -> RiskCurve:
        """Only these streams."""
        tables = {n: x[streams] for n, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **tables)


@dataclass(frozen=True, eq=False)
class KnownRisk:
    """What simulated data know beyond the labels."""

    risk: Tensor
    """(stream, row) or (stream, query): the best possible prediction of each label; NaN where there is none."""
    event_times: Tensor
    """(stream,): when the event came, in the task's unit; infinite where none did."""
    curve: RiskCurve | None = None
    """The best possible prediction at any other time, where it can be worked out."""

    def select(self, streams: Tensor | slice, rows: int | None = None) -> KnownRisk:
        """Only these streams, and only their first rows or queries."""
        curve = self.curve and self.curve.select(streams)
        return KnownRisk(self.risk[streams, :rows], self.event_times[streams], curve)

    def at(self, times: Tensor) -> KnownRisk | None:
        """The same with the risk at times (stream, query), given all observed up to each; None where unknown.

        >>> from onlinecde.data import simulate_ward
        >>> ward = simulate_ward(20, seed=0)
        >>> hours = torch.arange(4.0)[None].expand(20, 4)
        >>> torch.equal(ward.task.known_risk.at(hours).risk[:, 0], ward.online_risk[:, 0])
        True
        """
        return self.curve and replace(self, risk=self.curve.at(times))
