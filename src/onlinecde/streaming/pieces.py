"""Long work on an engine in pieces of bounded size, between which others have their turn.

Such work is an iterator: each `next` does one piece, of about `PIECE_SECONDS`, and gives a `Progress`, or None, until
the last gives the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

Result = TypeVar("Result")

PIECE_SECONDS = 0.01
"""How long a piece should take: what an arriving event waits for at most"""


class Progress(NamedTuple):
    """How much of some work is done."""

    done: int
    total: int


def result_of(pieces: Iterator[Result | Progress | None]) -> Result:
    """All pieces, one after the other, and what the last one gives."""
    for one in pieces:
        if one is not None and not isinstance(one, Progress):
            return one
    raise AssertionError("pieces end with a result")
