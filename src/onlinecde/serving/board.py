"""The board: all streams with what the model says of them now, in the order of who needs attention."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from onlinecde.serving.stream_clock import StreamClock
from onlinecde.streaming import Alarm, Answers, Engine, Overview, StreamingError

CHUNK = 400
"""Streams asked about in one go: an arriving event waits for one such piece of work, not for all"""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All streams at one moment."""

    overview: Overview
    now: np.ndarray
    """(stream,): the time it is on each"""
    probabilities: np.ndarray
    """(stream, output) at that time"""
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
    """Takes snapshots, at most one every `most_age` seconds, however many ask."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        clock: StreamClock,
        *,
        output: int = 0,
        most_age: float = 1.0,
    ) -> None:
        self.engine, self.clock, self.output = engine, clock, output
        self._executor, self._most_age = executor, most_age
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
        at = [i for i, name in enumerate(streams) if names is None or name in names]
        return Answers(
            tuple(streams[i] for i in at),
            snapshot.now[at],
            snapshot.outputs[at],
            snapshot.probabilities[at],
        )

    def _few(self, names: set[str]) -> Answers:
        known = [self.engine.stream(name) for name in sorted(names) if name in self.engine]
        known = [one for one in known if one.last_time is not None]
        now = self.clock.now(
            [one.last_time for one in known],
            [one.received for one in known],
            [np.nan if one.origin is None else one.origin for one in known],
        )
        return self.engine.predict_many([one.stream for one in known], now)

    async def _take(self) -> Snapshot:
        overview, opened = await self._do(self._look)
        now = self.clock.now(overview.last_times, overview.received, overview.origins)
        outputs, probabilities = overview.outputs.copy(), overview.probabilities.copy()
        for start in range(0, len(overview), CHUNK):
            names = overview.streams[start : start + CHUNK]
            part = slice(start, start + len(names))
            told = await self._do(lambda names=names, part=part: self._ask(names, now[part]))
            if told is not None:
                outputs[part], probabilities[part] = told.outputs, told.probabilities
                now[part] = told.times
        # Not in the engine's thread, and not in the loop's: no one waits for sorting.
        order = await asyncio.to_thread(self._order, overview, probabilities, opened)
        return Snapshot(overview, now, probabilities, outputs, opened, order, self.clock.wall())

    def _order(
        self, overview: Overview, probabilities: np.ndarray, opened: dict[str, Alarm]
    ) -> np.ndarray:
        risk = probabilities[:, self.output] if len(overview) else np.zeros(0)
        alarmed = np.fromiter(map(opened.__contains__, overview.streams), bool, len(overview))
        return attention(risk, risk - overview.previous, alarmed)

    def _look(self) -> tuple[Overview, dict[str, Alarm]]:
        opened: dict[str, Alarm] = {}
        for alarm in self.engine.alarms(unacknowledged=True):
            opened.setdefault(alarm.stream, alarm)
        return self.engine.overview(), opened

    def _ask(self, names: tuple[str, ...], at: np.ndarray) -> Answers | None:
        try:
            return self.engine.predict_many(names, at)
        except StreamingError:
            pass
        # Rows have come since the overview: the question is then about those. A stream may be gone too.
        try:
            newest = [self.engine.stream(name).last_time for name in names]
            return self.engine.predict_many(names, np.maximum(at, np.array(newest, np.float64)))
        except StreamingError:
            return None

    async def _do(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
