"""Rows as bytes: the values as received, what corrections replaced, and event ids."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

from onlinecde.streaming.store import RowRecord

MOST_CORRECTIONS = 1_000
"""Corrections a row keeps, and ids beyond one for each value: it is written whole with each"""
PAIR = np.dtype([("channel", "<u2"), ("value", "<f8")])
"""One event in `RowRecord.events`: position of its channel, value as received; packed, little-endian"""


@dataclass
class Row:
    """A row as received."""

    time: float
    values: dict[int, float] = field(default_factory=dict)
    """channel -> value that counts"""
    superseded: list[tuple[int, float]] = field(default_factory=list)
    """(channel, value) that corrections replaced, oldest first"""
    ids: list[str] = field(default_factory=list)
    seen: set[tuple[int, float] | str] = field(init=False, compare=False, repr=False)
    """All of `superseded` and `ids`, to be looked up"""

    def __post_init__(self) -> None:
        self.seen = {*self.superseded, *self.ids}

    @property
    def full(self) -> bool:
        """Whether it has been corrected, or told again by other ids, as often as a row may be."""
        return max(len(self.superseded), len(self.ids) - len(self.values)) >= MOST_CORRECTIONS

    def correct(self, channel: int, value: float) -> None:
        """Another value for a channel; the old one is superseded."""
        old = (channel, self.values[channel])
        self.superseded.append(old)
        self.seen.add(old)
        self.values[channel] = value

    def note(self, event_id: str) -> None:
        """Remember an event's id."""
        self.ids.append(event_id)
        self.seen.add(event_id)

    def copy(self) -> Row:
        """A row that may be changed."""
        return Row(self.time, dict(self.values), list(self.superseded), list(self.ids))

    def dense(self, channels: int) -> np.ndarray:
        """(channel,) float64, NaN = not observed."""
        x = np.full(channels, np.nan)
        x[list(self.values)] = list(self.values.values())
        return x


def encode_row(row: Row) -> tuple[bytes, str | None]:
    """`events` and `more` of a stored row."""
    events = np.array(list(row.values.items()), PAIR).tobytes()
    if not row.superseded and not row.ids:
        return events, None
    told = {"superseded": [[c, v.hex()] for c, v in row.superseded], "ids": row.ids}
    return events, json.dumps({name: some for name, some in told.items() if some})


def decode_row(record: RowRecord) -> Row:
    """A stored row as it was received."""
    pairs = np.frombuffer(record.events, PAIR)
    values = dict(zip(pairs["channel"].tolist(), pairs["value"].tolist(), strict=True))
    if record.more is None:
        return Row(record.time, values)
    told = json.loads(record.more)
    superseded = [(c, float.fromhex(v)) for c, v in told.get("superseded", ())]
    return Row(record.time, values, superseded, list(told.get("ids", ())))


def dense_rows(records: list[RowRecord], channels: int) -> np.ndarray:
    """(row, channel) float64 of stored rows, NaN = not observed."""
    x = np.full((len(records), channels), np.nan)
    pairs = np.frombuffer(b"".join(record.events for record in records), PAIR)
    lengths = [len(record.events) // PAIR.itemsize for record in records]
    x[np.repeat(np.arange(len(records)), lengths), pairs["channel"]] = pairs["value"]
    return x
