"""How often the vector field was evaluated, counted over every solve in a block of code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor


class Evaluations:
    """Vector-field evaluations so far, as the paper counts them: one for a whole batch of streams."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def add(self, nfe: Tensor) -> None:
        """Take in one solve: nfe (stream,); a batch is evaluated as often as its busiest stream."""
        self._parts.append(nfe.max())

    @property
    def total(self) -> int:
        return int(torch.stack(self._parts).sum()) if self._parts else 0


_counting: ContextVar[tuple[Evaluations, ...]] = ContextVar("counting", default=())


@contextmanager
def counting_evaluations() -> Iterator[Evaluations]:
    """Count the evaluations of all solves inside the block.

    >>> import onlinecde as oc
    >>> series = oc.SeriesBatch.from_arrays([[0.0, 1.0, 2.0]], [[[1.0], [2.0], [0.5]]])
    >>> with counting_evaluations() as count:
    ...     y = oc.NeuralCDE(channels=1, hidden=4)(series)
    >>> count.total  # two rows after the first, two legs a row, four stages a leg
    16
    """
    count = Evaluations()
    token = _counting.set((*_counting.get(), count))
    try:
        yield count
    finally:
        _counting.reset(token)


@contextmanager
def uncounted() -> Iterator[None]:
    """Nobody counts what is solved inside the block."""
    token = _counting.set(())
    try:
        yield
    finally:
        _counting.reset(token)


def note_evaluations(nfe: Tensor) -> None:
    """Tell whoever is counting of one solve, nfe (stream,)."""
    if torch.compiler.is_compiling():
        return
    for count in _counting.get():
        count.add(nfe)
