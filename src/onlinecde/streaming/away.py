"""The streams that are followed by the clock while their states are not in memory."""

from __future__ import annotations

import numpy as np

KIND = np.dtype(
    [
        ("number", "i8"),
        ("last", "f8"),
        ("received", "f8"),
        ("origin", "f8"),
        ("looked", "f8"),
        ("last_alarm", "f8"),
        ("armed", "?"),
    ]
)
"""What the clock and the alarm policy need of a stream, in the words of `EngineState`"""


class Away:
    """A table of such streams, `KIND`, by number."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget them all."""
        self.table = np.empty(0, KIND)
        self.complete = False
        """Whether all such streams of the store are here"""

    def __len__(self) -> int:
        return len(self.table)

    def put(self, streams: np.ndarray) -> None:
        """Add streams, in the place of those of the same number."""
        if len(streams):
            self.take(streams["number"])
            table = np.concatenate([self.table, streams])
            self.table = table[np.argsort(table["number"])]

    def take(self, numbers: np.ndarray) -> None:
        """Remove those of some streams that are here."""
        place, here = self._places(numbers)
        if here.any():
            self.table = np.delete(self.table, place[here])

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """Those of some streams that are here, by number."""
        place, here = self._places(np.sort(numbers))
        return self.table[place[here]]

    def _places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where streams are, and whether they are here."""
        if not len(self.table):
            return np.zeros(len(numbers), np.int64), np.zeros(len(numbers), bool)
        place = np.searchsorted(self.table["number"], numbers)
        place = np.minimum(place, len(self.table) - 1)
        return place, self.table["number"][place] == numbers
