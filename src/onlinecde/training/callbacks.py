"""What hears of a fit, a search or a table of the paper while it runs: displays, logs, whoever ends it early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Callback:
    """Hears how a fit goes, and of a search or a table also which trial or cell it is; does nothing by itself.

    Override what you want to hear. What a method raises ends the fit.

    >>> class Loud(Callback):
    ...     def epoch(self, entry, best):
    ...         print(entry["epoch"], best)
    """

    def begin(self, job: Any, number: int, jobs: int) -> None:
        """Before a trial of a search (`TrialReport`) or a cell of a table (`Cell`), number 1 to `jobs`."""

    def data(self, task: Any, epochs: int) -> None:
        """Before an update learns: the task of old and new streams, and epochs at most."""

    def batch(self, epoch: int, done: int, batches: int, loss: float) -> None:
        """After each batch, with the mean loss of the epoch so far."""

    def epoch(self, entry: dict[str, Any], best: bool) -> None:
        """After each epoch, with its line in the log and whether it is the best so far."""

    def note(self, text: str) -> None:
        """Something worth knowing that is no error."""

    def end(self, job: Any, result: Mapping[str, Any]) -> None:
        """After a trial or a cell, with what came of it."""
