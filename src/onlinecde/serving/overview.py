"""The board: all streams with what the model says of them now, in the order of who needs attention."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onlinecde.serving.request_log import note
from onlinecde.streaming import (
    Alarm,
    Answers,
    Engine,
    Overview,
    StoreError,
    StreamInfo,
    StreamingError,
    UnknownStream,
)
from onlinecde.streaming.stream_clock import StreamClock

CHUNK = 400
"""Streams asked about in one go: an arriving event waits for one such piece of work, not for all"""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All streams at one moment."""

    overview: Overview
    now: np.ndarray
    """(stream,): the time it is on each"""
    probabilities: np.ndarray
    """(stream, output) at that time; NaN where a stream cannot be asked"""
    outputs: np.ndarray
    alarms: dict[str, Alarm]
    """The newest alarm that is open, by stream"""
    order: np.ndarray
    """(stream,): positions, what needs attention first"""
    taken: float
    """Wall clock"""


def attention(risk: np.ndarray, trend: np.ndarray, alarmed: np.ndarray) -> np.ndarray:
    """Positions by attention: open alarms first, then by risk and half of what it rose by.

    >>> attention(np.array([0.2, 0.9, 0.5]), np.array([0.0, 0.0, 0.4]), np.array([True, False, False])).tolist()
    [0, 1, 2]
    """
    rise = np.clip(np.nan_to_num(trend), 0, None)
    return np.lexsort((-(risk + 0.5 * rise), ~alarmed))


class Board:
    """Takes snapshots, at most one every `most_age` seconds, however many ask.

    do: runs work on the engine in the engine's thread.
    """

    def __init__(
        self,
        engine: Engine,
        do: Callable[[Callable[[], Any]], Awaitable[Any]],
        clock: StreamClock,
        *,
        output: int = 0,
        most_age: float = 1.0,
    ) -> None:
        self.engine, self.clock, self.output = engine, clock, output
        self._do, self._most_age = do, most_age
        self._bad: set[str] = set()
        """Streams that cannot be asked, and of which that was logged"""
        self._last: tuple[float, Snapshot] | None = None
        self._turn = asyncio.Lock()

    def forget(self) -> None:
        """Let the next who asks have a new snapshot: something was acknowledged or deleted."""
        self._last = None

    async def snapshot(self) -> Snapshot:
        """All streams, no older than `most_age`."""
        async with self._turn:
            if self._last is None or time.monotonic() - self._last[0] > self._most_age:
                self._last = (time.monotonic(), await self._take())
            return self._last[1]

    async def at_now(self, names: set[str] | None) -> Answers:
        """What the model says now of some streams that have a row, None: of all."""
        if names is not None and len(names) <= CHUNK:
            return await self._do(lambda: self._few(names))
        snapshot = await self.snapshot()
        streams = snapshot.overview.streams
        every = Answers(streams, snapshot.now, snapshot.outputs, snapshot.probabilities)
        return every if names is None else every.of(names)

    def _few(self, names: set[str]) -> Answers:
        known = [one for one in map(self._info, sorted(names)) if one is not None]
        now = self.clock.now(
            [one.last_time for one in known],
            [one.received for one in known],
            [np.nan if one.origin is None else one.origin for one in known],
        )
        return self._ask(tuple(one.stream for one in known), now)

    def _info(self, name: str) -> StreamInfo | None:
        """A stream that has a row; None for one that has none, is gone, or cannot be read."""
        try:
            result = self.engine.stream(name)
        except StoreError:
            raise
        except StreamingError as error:
            self._note_bad(name, error)
            return None
        return None if result.last_time is None else result

    async def _take(self) -> Snapshot:
        overview, opened = await self._do(self._look)
        now = self.clock.now(overview.last_times, overview.received, overview.origins)
        outputs, probabilities = overview.outputs.copy(), overview.probabilities.copy()
        for start in range(0, len(overview), CHUNK):
            names = overview.streams[start : start + CHUNK]
            part = slice(start, start + len(names))
            content = await self._do(lambda names=names, part=part: self._ask(names, now[part]))
            outputs[part], probabilities[part] = content.outputs, content.probabilities
            now[part] = content.times
        # Not in the engine's thread, and not in the loop's: no one waits for sorting.
        order = await asyncio.to_thread(self._order, overview, probabilities, opened)
        return Snapshot(overview, now, probabilities, outputs, opened, order, self.clock.wall())

    def _order(
        self, overview: Overview, probabilities: np.ndarray, opened: dict[str, Alarm]
    ) -> np.ndarray:
        risk = self.engine.risks(probabilities)[:, self.output] if len(overview) else np.zeros(0)
        alarmed = np.fromiter(map(opened.__contains__, overview.streams), bool, len(overview))
        return attention(risk, risk - overview.previous, alarmed)

    def _look(self) -> tuple[Overview, dict[str, Alarm]]:
        opened: dict[str, Alarm] = {}
        for alarm in self.engine.alarms(unacknowledged=True):
            opened.setdefault(alarm.stream, alarm)
        return self.engine.overview(), opened

    def _ask(self, names: tuple[str, ...], at: np.ndarray) -> Answers:
        """What the model says of each at its time, or at its newest row where rows have come since.

        One that cannot be asked has NaN for an answer, and keeps none of the others from theirs.
        """
        try:
            result = self.engine.predict_many(names, at, clamp=True)
            self._bad.difference_update(names)
            return result
        except StoreError:
            raise
        except StreamingError as error:
            if len(names) == 1:
                self._note_bad(names[0], error)
                nothing = np.full((1, self.engine.outputs), np.nan)
                return Answers(names, at, nothing, nothing)
        half = len(names) // 2
        first, second = self._ask(names[:half], at[:half]), self._ask(names[half:], at[half:])
        return Answers.joined(first, second)

    def _note_bad(self, name: str, error: StreamingError) -> None:
        """Log, once, that a stream cannot be asked; one that is gone is no news."""
        if name not in self._bad and not isinstance(error, UnknownStream):
            self._bad.add(name)
            note("stream has no answer", logging.WARNING, code=error.code)
