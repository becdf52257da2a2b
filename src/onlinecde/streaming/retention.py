"""What is deleted in time, a little at once: rows, alarms, streams older than asked for; answers stay as they were."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from onlinecde.streaming.errors import StreamingError
from onlinecde.streaming.state import EngineState
from onlinecde.streaming.stores.base import Floor

STREAMS = 200
"""Streams looked at in one piece"""
SPARE_PAGES = 1_000
"""Free pages that a store keeps for what comes next"""


@dataclass(frozen=True)
class Retention:
    """What is deleted; None: nothing for that reason.

    What late events may still need stays in any case, and so do the rows from the state before it on.
    """

    keep: float | None = None
    """Rows more than this (the model's unit of time) before their stream's newest"""
    received: float | None = None
    """Rows received, alarms raised and events refused more than so many seconds ago, by the wall clock"""
    ended: float | None = None
    """Streams whose end was told more than so many seconds ago, with all that belongs to them"""
    idle: float | None = None
    """Streams that no event has changed for so many seconds, likewise"""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value >= 0:
                raise StreamingError(f"{name} is {value}: give a time of 0 or more.", "setting_bad")

    def __bool__(self) -> bool:
        return any(value is not None for value in vars(self).values())


@dataclass
class Deleted:
    """How much was deleted."""

    streams: int = 0
    rows: int = 0
    records: int = 0
    """Alarms, refused events and commits"""


def delete_old(
    state: EngineState, retention: Retention, wall: float, forget: Callable[[str], None]
) -> Generator[None, None, Deleted]:
    """Delete what is older than asked for; a generator that stops after each piece, each of them durable by itself.

    Args:
        state: of the engine.
        retention: what is deleted.
        wall: the wall clock, seconds.
        forget: deletes a stream.
    """
    store, deleted = state.store, Deleted()
    ended, idle = (None if age is None else wall - age for age in (retention.ended, retention.idle))
    while ended is not None or idle is not None:
        over = store.over(ended, idle, 20)
        yield
        for stream in over:
            kept = store.checkpoint(stream.number, float("inf"))
            while kept is not None and store.cut([Floor(stream.number, kept.time)])[1] == 0:
                yield
            forget(stream.name)
            deleted.streams += 1
            yield
        if not over:
            break
    if retention.keep is None and retention.received is None:
        yield from _give_back(state)
        return deleted
    before = None if retention.received is None else wall - retention.received
    old = None if before is None else store.sequence_at(before)
    after, least = 0, state.sequence
    while True:
        piece = store.floors(
            after, STREAMS, keep=retention.keep, lateness=state.settings.lateness, old=old
        )
        if piece is None:
            break
        floors, after, oldest = piece
        least = least if oldest is None else min(least, oldest)
        yield
        while floors:
            gone, done = store.cut(floors)
            deleted.rows, floors = deleted.rows + gone, floors[done:]
            yield
    while gone := store.drop_old(before, old or 0, least):
        deleted.records += gone
        yield
    yield from _give_back(state)
    return deleted


def _give_back(state: EngineState) -> Generator[None, None, None]:
    """Let the store grow smaller, where it has much room that is free."""
    free, before = state.store.compact(0), None
    while free > SPARE_PAGES and free != before:
        before, free = free, state.store.compact(100)
        yield
