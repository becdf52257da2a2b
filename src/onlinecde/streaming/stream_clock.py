"""What time it is on a stream, so that an answer can move, and an alarm rise, while no data comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class StreamClock:
    """Maps the wall clock to the streams' own time.

    A stream with an origin (the wall clock at its time 0) is at `(wall - origin) * rate`; without one,
    its newest row is taken to be from the moment it was received. Never before the newest row, whatever the
    wall clock does, and never more than `silent_after` after it: from there on the answer stands still. Nor
    after `latest`, up to which the model can be asked.

    >>> clock = StreamClock(rate=1 / 3600, silent_after=24.0, wall=lambda: 7200.0)
    >>> clock.now([0.5, 0.5, 3.0], received=[5400.0, 0.0, 0.0], origins=[float("nan"), 3600.0, 3600.0]).tolist()
    [1.0, 1.0, 3.0]
    """

    rate: float
    """Units of stream time a second"""
    silent_after: float
    wall: Callable[[], float] = time.time
    latest: float = float("inf")

    def now(self, last_times: Any, received: Any, origins: Any, wall: Any = None) -> np.ndarray:
        """(stream,): the time it is on each at a wall clock (seconds, one or one for each), default: now."""
        wall, last = self.wall() if wall is None else wall, np.asarray(last_times, np.float64)
        origin = np.asarray(origins, np.float64)
        passed = last + (wall - np.asarray(received, np.float64)) * self.rate
        content = np.where(np.isnan(origin), passed, (wall - origin) * self.rate)
        return np.maximum(
            last, np.minimum(content, np.minimum(last + self.silent_after, self.latest))
        )
