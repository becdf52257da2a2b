"""What a micro-batch comes to before it is committed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onlinecde.models import StreamState
from onlinecde.streaming.merging import Arrival, Merged
from onlinecde.streaming.ordering import Ordered
from onlinecde.streaming.rounds import Integrated
from onlinecde.streaming.rowcodec import Row
from onlinecde.streaming.store import RowRecord


@dataclass(frozen=True, eq=False)
class Tail:
    """A stream whose rows from some time on are integrated again."""

    slot: int
    arrivals: list[Arrival]
    merged: Merged
    base: int | StreamState
    """The state before the first of `rows`: its place in memory, or, where none there is old enough, itself"""
    lead: int
    """How many of `rows` lead up to the change and are not changed themselves"""
    rows: list[Row]
    known: dict[float, RowRecord]
    """Stored rows from the change on, by time"""

    @property
    def start(self) -> float:
        """Time of the first row that changes."""
        return self.rows[self.lead].time


@dataclass(frozen=True, eq=False)
class Work:
    """The rows a micro-batch comes to, and what the model makes of them."""

    ordered: Ordered
    tails: list[Tail]
    merged: list[Merged]
    """What became of the events of streams that needed care, those without changed rows too"""
    noted: list[RowRecord]
    """Stored rows that only learn of another event's id"""
    slots: np.ndarray
    """(stream,)"""
    lengths: np.ndarray
    """(stream,): how many rows of each"""
    times: np.ndarray
    """(row,)"""
    done: Integrated | None
