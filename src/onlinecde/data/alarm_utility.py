"""`Utility`: what alarms are worth, as a data set defines it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Utility:
    """What an alarm and silence are worth at each row of a task, as its data set defines it."""

    alarm: np.ndarray
    """(stream, row) or (stream, query) float64; 0 where there is no label."""
    silence: np.ndarray
    """As `alarm`."""
    listed: ListedUtility | None = None
    """The same at all times for which the data set defines it."""

    @property
    def best(self) -> np.ndarray:
        """The most each row can be worth."""
        return np.maximum(self.alarm, self.silence)

    def select(self, streams: Tensor | slice, rows: int | None = None) -> Utility:
        """Only these streams, and only their first rows or queries."""
        at = streams if isinstance(streams, slice) else streams.cpu().numpy()
        listed = self.listed and self.listed.select(at)
        return Utility(self.alarm[at, :rows], self.silence[at, :rows], listed)

    def at(self, times: Tensor) -> Utility | None:
        """The worth at times (stream, query), NaN behind a stream's last; None if one of them is not listed.

        A data set defines what an hour is worth, not what half of it is: other times have no utility.
        """
        return self.listed and self.listed.at(times)


@dataclass(frozen=True, eq=False)
class ListedUtility:
    """What an alarm and silence are worth at listed times."""

    times: np.ndarray
    """(stream, entry) float64, rising; infinite behind a stream's last"""
    alarm: np.ndarray
    """(stream, entry) float64"""
    silence: np.ndarray
    """(stream, entry) float64"""

    def select(self, streams: np.ndarray | slice) -> ListedUtility:
        """Only these streams."""
        return replace(self, **{name: table[streams] for name, table in vars(self).items()})

    def at(self, times: Tensor) -> Utility | None:
        """The worth at times (stream, query); None where one of them is not listed."""
        asked = times.cpu().to(torch.float64)
        own = torch.from_numpy(self.times)
        entry = torch.searchsorted(own, asked.contiguous()).clamp(max=own.shape[1] - 1)
        there = ~asked.isnan()
        if not bool((own.gather(1, entry) == asked)[there].all()):
            return None
        place, real = entry.numpy(), there.numpy()
        alarm, silence = (
            np.where(real, np.take_along_axis(one, place, 1), 0.0)
            for one in (self.alarm, self.silence)
        )
        return Utility(alarm, silence, self)
