"""Events of many streams into rows, all at once, where they come as they should."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from onlinecde.streaming.rowcodec import PAIR


@dataclass(frozen=True, eq=False)
class Ordered:
    """Rows of streams whose events lie after their newest row, in order, each channel once an instant."""

    events: np.ndarray
    """(event,): positions in the batch, by row"""
    slots: np.ndarray
    """(row,): whose row it is; the rows of a stream side by side, in order of time"""
    times: np.ndarray
    """(row,)"""
    pointers: np.ndarray
    """(row + 1,): row r is made of `events[pointers[r]:pointers[r + 1]]`"""
    values: np.ndarray
    """(row, channel), NaN = not observed"""
    packed: list[bytes]
    """The rows' events as they are stored"""
    others: np.ndarray
    """(event,): positions of the events of streams that need more care, in order of arrival"""


def order_events(
    which: np.ndarray,
    slots: np.ndarray,
    times: np.ndarray,
    channels: np.ndarray,
    values: np.ndarray,
    last: np.ndarray,
    *,
    wide: int,
    ahead: float,
    careful: np.ndarray | None = None,
) -> Ordered:
    """Rows of the events at positions `which`, each of stream `slots` (event,) with newest row `last[slot]`.

    `careful` (event,) marks events whose streams are left to `merging` whatever they look like.
    """
    order = which[np.argsort(slots[which], kind="stable")]
    s, t, c = slots[order], times[order], channels[order]
    begins = _begins(s)
    since = np.empty_like(t)
    since[1:] = t[:-1]
    since[begins] = last[s[begins]]
    wrong = np.where(begins, t <= since, t < since)
    wrong |= (t - since > ahead) & np.isfinite(since)
    fresh = begins | (t != since)
    row = np.cumsum(fresh) - 1
    cell = row * wide + c
    if len(row):
        taken = np.empty((row[-1] + 1) * wide, np.int64)
        taken[cell] = np.arange(len(cell))
        wrong |= taken[cell] != np.arange(len(cell))
    if careful is not None:
        wrong |= careful[order]
    others = order[:0]
    if wrong.any():
        hard = np.zeros(len(last), bool)
        hard[s[wrong]] = True
        apart = hard[s]
        others = np.sort(order[apart])
        order, s, t, c, fresh = (a[~apart] for a in (order, s, t, c, fresh))
        row = np.cumsum(fresh) - 1
        cell = row * wide + c
    starts = np.flatnonzero(fresh)
    x = values[order]
    dense = np.full((len(starts), wide), np.nan)
    dense.reshape(-1)[cell] = x
    pairs = np.empty(len(order), PAIR)
    pairs["channel"], pairs["value"] = c, x
    data = pairs.tobytes()
    pointers = np.append(starts, len(order))
    edges = (pointers * PAIR.itemsize).tolist()
    packed = [data[a:b] for a, b in pairwise(edges)]
    return Ordered(order, s[starts], t[starts], pointers, dense, packed, others)


def _begins(s: np.ndarray) -> np.ndarray:
    """Where a new stream begins."""
    begins = np.ones(len(s), bool)
    begins[1:] = s[1:] != s[:-1]
    return begins
