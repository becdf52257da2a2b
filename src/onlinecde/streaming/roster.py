"""What is shown of each stream without asking the model: a table in memory of all that have a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

READ_TOGETHER = 2_000
"""Streams read from the store in one piece of work"""


class Roster:
    """Streams by number: their names, and what the engine or the store has last said of each.

    A stream in memory may be further on than its entry here, until `put` brings that up to date.
    """

    def __init__(self, outputs: int) -> None:
        self._kind = np.dtype(
            [
                ("number", "i8"),
                ("rows", "i8"),
                ("last", "f8"),
                ("received", "f8"),
                ("origin", "f8"),
                ("previous", "f8"),
                ("outputs", "f8", (outputs,)),
            ]
        )
        self.clear()

    def clear(self) -> None:
        """Forget all of it."""
        self.table, self.names = np.empty(0, self._kind), np.empty(0, object)
        self.read_until = 0
        """Streams up to this number were read from the store"""
        self.complete = False
        """Whether all streams of the store are here or in memory"""

    def entries(self, count: int) -> np.ndarray:
        """Empty entries, to be filled in for `put`."""
        return np.empty(count, self._kind)

    def put(self, entries: np.ndarray, names: Sequence[str]) -> None:
        """Add streams, in the place of those of the same number."""
        numbers = entries["number"]
        place = np.searchsorted(self.table["number"], numbers)
        known = place < len(self.table)
        known[known] = self.table["number"][place[known]] == numbers[known]
        self.table[place[known]] = entries[known]
        if not known.all():
            fresh = np.array(names, object)[~known]
            table = np.concatenate([self.table, entries[~known]])
            order = np.argsort(table["number"], kind="stable")
            self.table, self.names = table[order], np.concatenate([self.names, fresh])[order]

    def take(self, number: int) -> None:
        """Remove a stream."""
        kept = self.table["number"] != number
        self.table, self.names = self.table[kept], self.names[kept]
