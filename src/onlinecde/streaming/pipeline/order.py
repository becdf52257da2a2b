"""Second step: events of many streams into rows, all at once, where they come as they should."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from onlinecde.streaming.codec import PAIR
from onlinecde.streaming.pipeline.validate import Checked

if TYPE_CHECKING:
    from onlinecde.streaming.pipeline.merge import Merged, Tail
    from onlinecde.streaming.stores.base import RowRecord


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to be integrated, stream by stream, each stream's in order of time.

    First come the streams whose events lie after their newest row, in order, each channel once an instant. Then
    come the tails: streams whose rows from some time on are integrated again.
    """

    slots: np.ndarray
    """(stream,)"""
    lengths: np.ndarray
    """(stream,): how many rows of each"""
    times: np.ndarray
    """(row,)"""
    values: np.ndarray
    """(row, channel), NaN = not observed"""
    events: np.ndarray
    """(event,): positions in the batch, by row; of streams in order, as is all that follows but the last three"""
    pointers: np.ndarray
    """(row + 1,): row r is made of `events[pointers[r]:pointers[r + 1]]`"""
    packed: list[bytes]
    """The rows' events as they are stored"""
    tails: list[Tail] = field(default_factory=list)
    merged: list[Merged] = field(default_factory=list)
    """What became of the events of streams that are not in order, those without changed rows too"""
    noted: list[RowRecord] = field(default_factory=list)
    """Stored rows that only learned of another event's id"""

    @property
    def in_order(self) -> int:
        """How many streams are in order."""
        return len(self.slots) - len(self.tails)

    @cached_property
    def ends(self) -> np.ndarray:
        """(stream,): the row after the last of each stream."""
        return np.cumsum(self.lengths)

    def with_merged(self, tails: list[Tail], merged: list[Merged], noted: list[RowRecord]) -> Rows:
        """These rows and what the events that are not in order come to."""
        if not tails:
            return replace(self, merged=merged, noted=noted)
        again = [row for tail in tails for row in tail.rows]
        wide = self.values.shape[1]
        return replace(
            self,
            slots=np.append(self.slots, [tail.slot for tail in tails]),
            lengths=np.append(self.lengths, [len(tail.rows) for tail in tails]),
            times=np.append(self.times, [row.time for row in again]),
            values=np.concatenate([self.values, [row.dense(wide) for row in again]]),
            tails=tails,
            merged=merged,
            noted=noted,
        )


def order(
    checked: Checked, which: np.ndarray, last: np.ndarray, *, width: int, ahead: float
) -> tuple[Rows, np.ndarray]:
    """Rows of the events at positions `which`.

    Args:
        checked: the micro-batch.
        which: (event,) positions.
        last: (slot,) time of each stream's newest row.
        width: how many channels there are.
        ahead: how far an event may lie ahead of its stream's newest row.

    Returns:
        The rows of the streams that are in order, and the positions of the events of all others, in order of
        arrival. Events with an id are always among the others.
    """
    slots = checked.slots
    order = which[np.argsort(slots[which], kind="stable")]
    s, t, c = slots[order], checked.times[order], checked.channels[order]
    begins = _begins(s)
    since = np.empty_like(t)
    since[1:] = t[:-1]
    since[begins] = last[s[begins]]
    wrong = np.where(begins, t <= since, t < since)
    wrong |= (t - since > ahead) & np.isfinite(since)
    fresh = begins | (t != since)
    row = np.cumsum(fresh) - 1
    cell = row * width + c
    if len(row):
        taken = np.empty((row[-1] + 1) * width, np.int64)
        taken[cell] = np.arange(len(cell))
        wrong |= taken[cell] != np.arange(len(cell))
    if checked.ids is not None:
        wrong |= np.array([one is not None for one in checked.ids])[order]
    others = order[:0]
    if wrong.any():
        hard = np.zeros(len(last), bool)
        hard[s[wrong]] = True
        apart = hard[s]
        others = np.sort(order[apart])
        order, s, t, c, fresh = (a[~apart] for a in (order, s, t, c, fresh))
        row = np.cumsum(fresh) - 1
        cell = row * width + c
    starts = np.flatnonzero(fresh)
    x = checked.values[order]
    dense = np.full((len(starts), width), np.nan)
    dense.reshape(-1)[cell] = x
    pairs = np.empty(len(order), PAIR)
    pairs["channel"], pairs["value"] = c, x
    data = pairs.tobytes()
    pointers = np.append(starts, len(order))
    edges = (pointers * PAIR.itemsize).tolist()
    packed = [data[a:b] for a, b in pairwise(edges)]
    owner = s[starts]
    firsts = np.flatnonzero(np.diff(owner, prepend=-1))
    lengths = np.diff(np.append(firsts, len(owner)))
    return Rows(owner[firsts], lengths, t[starts], dense, order, pointers, packed), others


def _begins(s: np.ndarray) -> np.ndarray:
    """Where a new stream begins."""
    begins = np.ones(len(s), bool)
    begins[1:] = s[1:] != s[:-1]
    return begins
