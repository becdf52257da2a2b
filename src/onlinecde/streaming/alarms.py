"""Alarms: what one is, and the rule by which a new row raises one."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Generic, TypeVar

import numpy as np

from onlinecde.streaming.errors import StreamingError

Stream = TypeVar("Stream", str, int)


@dataclass(frozen=True, slots=True)
class Alarm(Generic[Stream]):
    """A stream's probability rose to the threshold at one of its rows."""

    number: int
    stream: Stream
    """Its name; in a store, its number"""
    time: float
    """of the row, in the model's unit of time"""
    probability: float
    threshold: float
    raised: float
    """Wall clock, seconds, when it was raised"""
    acknowledged: float | None = None
    """Wall clock, seconds; None while it is open"""
    by: str | None = None


@dataclass(frozen=True)
class AlarmRule:
    """When a row raises an alarm.

    threshold: probability of output `output`, or number of a regression, at which an alarm is raised; None
        for no alarms.
    output: the output that is watched.
    within: of time to an event, the horizon of the risk that is watched; default: the model's first.
    """

    threshold: float | None = None
    output: int = 0
    within: float | None = None

    def check_outputs(self, outputs: int, kind: str) -> None:
        """Raise StreamingError for a rule that this kind of model can never meet, or never be below."""
        if not 0 <= self.output < outputs:
            raise StreamingError(
                f"output is {self.output}: the model has no such output.", "setting_bad"
            )
        threshold = self.threshold
        if threshold is None or (kind == "regression" and isfinite(threshold)):
            return
        if kind == "regression" or not 0 <= threshold <= 1:
            wanted = "a finite number" if kind == "regression" else "a probability from 0 to 1"
            raise StreamingError(
                f"threshold is {threshold}: give {wanted}, or none.", "setting_bad"
            )

    def raised(
        self, watched: np.ndarray, before: np.ndarray, times: np.ndarray, wall: float
    ) -> list[tuple[int, tuple[float, float, float, float]]]:
        """The rows that raise an alarm: those at which the watched number rises to the threshold.

        Args:
            watched: (row,) after each row; NaN where a row cannot raise one.
            before: (row,) after the row before it; NaN where there is none.
            times: (row,)
            wall: the wall clock, seconds.

        Returns:
            (row, the fields of `Alarm` after `stream`) of each.
        """
        if self.threshold is None:
            return []
        risen = (watched >= self.threshold) & ~(before >= self.threshold)
        return [
            (row, (float(times[row]), float(watched[row]), self.threshold, wall))
            for row in np.flatnonzero(risen).tolist()
        ]
