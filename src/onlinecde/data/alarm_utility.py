"""`Utility`: what alarms are worth, as a data set defines it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class UtilityCurve:
    """What an alarm and silence are worth by the time from the event: straight between corners, 0 after the last.

    Before the first corner, and where no event comes, they are worth what they are at the first corner.

    >>> curve = UtilityCurve(torch.tensor([10.0, torch.inf]), (-2, 0), (0, 1), (0, -3))
    >>> worth = curve.at(torch.tensor([[9.0, 10.0, 11.0], [9.0, 10.0, 11.0]]))
    >>> worth.alarm.tolist(), worth.silence.tolist()
    ([[0.5, 1.0, 0.0], [0.0, 0.0, 0.0]], [[-1.5, -3.0, 0.0], [0.0, 0.0, 0.0]])
    """

    event: Tensor
    """(stream,) float64: when the event comes, whether or not it is seen; infinite where none does"""
    corners: tuple[float, ...]
    """Times from the event, rising"""
    alarm: tuple[float, ...]
    """What an alarm is worth at each corner"""
    silence: tuple[float, ...]

    def at(self, times: Tensor) -> Utility:
        """The worth at times (stream, query); 0 where a time is NaN."""
        since = (times.to(self.event) - self.event[:, None]).cpu().numpy()
        alarm, silence = (
            np.where(np.isnan(since), 0.0, np.interp(since, self.corners, worth, right=0.0))
            for worth in (self.alarm, self.silence)
        )
        return Utility(alarm, silence, self)


@dataclass(frozen=True, eq=False)
class Utility:
    """What an alarm and silence are worth at each label of a task, as its data set defines it."""

    alarm: np.ndarray
    """(stream, row) or (stream, query) float64; 0 where there is no label."""
    silence: np.ndarray
    """As `alarm`."""
    curve: UtilityCurve | None = None
    """The same at any other time, where the data set says so."""

    @property
    def best(self) -> np.ndarray:
        """The most each row can be worth."""
        return np.maximum(self.alarm, self.silence)

    def select(self, streams: Tensor | slice, rows: int | None = None) -> Utility:
        """Only these streams, and only their first rows or queries."""
        at = streams if isinstance(streams, slice) else streams.cpu().numpy()
        curve = self.curve and replace(self.curve, event=self.curve.event[at])
        return Utility(self.alarm[at, :rows], self.silence[at, :rows], curve)

    def at(self, times: Tensor, labelled: Tensor) -> Utility | None:
        """The worth at times (stream, query), 0 where there is no label; None where only that at rows is defined."""
        if self.curve is None:
            return None
        return self.curve.at(times.where(labelled.to(times.device), torch.nan))
