"""The board: all streams with what the model says of them now, in the order of who needs attention."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onlinecde.serving.request_log import note
from onlinecde.streaming import (
    Alarm,
    Answers,
    Engine,
    Overview,
    StreamingError,
    UnknownStream,
)
from onlinecde.streaming.stream_clock import StreamClock

CHUNK = 400
"""Streams asked about in one go: an arriving event waits for one such piece of work, not for all"""
ASKED = 4_000
"""Streams asked for each snapshot: with more, half of them those that need attention most, the others in turns"""


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
    asked: np.ndarray
    """Positions of the streams that were asked for this snapshot; the others as they were answered last"""
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
        in_pieces: Callable[[Iterator[Any]], Awaitable[Any]],
        clock: StreamClock,
        *,
        output: int = 0,
        most_age: float = 1.0,
    ) -> None:
        self.engine, self.clock, self.output = engine, clock, output
        self._do, self._in_pieces, self._most_age = do, in_pieces, most_age
        self._bad: set[str] = set()
        """Streams that cannot be asked, and of which that was logged"""
        self._last: tuple[float, Snapshot] | None = None
        self._turn = asyncio.Lock()
        self._turned = 0
        self._rows, self._times = np.full(0, -1), np.zeros(0)
        self._outputs = np.zeros((0, engine.outputs))
        """By number of the stream: how many rows it had, the time and the outputs when it was asked last"""

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
        """What the model says now of some streams that have a row; None: of all that the snapshot asked."""
        if names is not None and len(names) <= CHUNK:
            return await self._do(lambda: self._ask(sorted(names)))
        snapshot = await self.snapshot()
        streams = snapshot.overview.streams
        asked = snapshot.asked.tolist()
        if names is not None:
            asked = [place for place in asked if streams[place] in names]
        return Answers(
            tuple(streams[place] for place in asked),
            snapshot.now[asked],
            snapshot.outputs[asked],
            snapshot.probabilities[asked],
        )

    async def _take(self) -> Snapshot:
        opened = await self._do(self._opened)
        overview = await self._in_pieces(self.engine.overview_pieces())
        now, outputs, probabilities = self._last_known(overview)
        asked = self._chosen(overview, probabilities, opened)
        for start in range(0, len(asked), CHUNK):
            part = asked[start : start + CHUNK]
            names = [overview.streams[place] for place in part.tolist()]
            content = await self._do(lambda names=names: self._ask(names))
            place_of = dict(zip(names, part.tolist(), strict=True))
            there = [place_of[name] for name in content.streams]
            # One that cannot be asked has NaN for an answer, and keeps none of the others from theirs.
            outputs[part], probabilities[part] = np.nan, np.nan
            outputs[there], probabilities[there] = content.outputs, content.probabilities
            now[there] = content.times
        self._remember(overview, asked, now, outputs)
        # Not in the engine's thread, and not in the loop's: no one waits for sorting.
        order = await asyncio.to_thread(self._order, overview, probabilities, opened)
        wall = self.clock.wall()
        return Snapshot(overview, now, probabilities, outputs, opened, order, asked, wall)

    def _last_known(self, overview: Overview) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Time, outputs and probabilities of each stream when it was asked last, or at a newer row of it."""
        wanted = int(overview.numbers.max(initial=0)) + 1
        if wanted > len(self._rows):
            more = 2 * wanted - len(self._rows)
            self._rows = np.append(self._rows, np.full(more, -1))
            self._times = np.append(self._times, np.zeros(more))
            shape = (more, overview.outputs.shape[1])
            self._outputs = np.concatenate([self._outputs, np.zeros(shape)])
        numbers = overview.numbers
        same = self._rows[numbers] == overview.rows
        now = np.where(same, self._times[numbers], overview.last_times)
        outputs = np.where(same[:, None], self._outputs[numbers], overview.outputs)
        return now, outputs, self.engine.probabilities(outputs)

    def _remember(
        self, overview: Overview, asked: np.ndarray, now: np.ndarray, outputs: np.ndarray
    ) -> None:
        numbers = overview.numbers[asked]
        self._rows[numbers], self._times[numbers] = overview.rows[asked], now[asked]
        self._outputs[numbers] = outputs[asked]

    def _chosen(
        self, overview: Overview, probabilities: np.ndarray, opened: dict[str, Alarm]
    ) -> np.ndarray:
        """The streams to be asked: all, or those that need attention most and, in turns, the others."""
        if len(overview) <= ASKED:
            return np.arange(len(overview))
        first = self._order(overview, probabilities, opened)[: ASKED // 2]
        turn = (self._turned + np.arange(ASKED // 2)) % len(overview)
        self._turned = int(turn[-1]) + 1
        return np.unique(np.concatenate([first, turn]))

    def _order(
        self, overview: Overview, probabilities: np.ndarray, opened: dict[str, Alarm]
    ) -> np.ndarray:
        risk = self.engine.risks(probabilities)[:, self.output] if len(overview) else np.zeros(0)
        alarmed = np.zeros(len(overview), bool)
        if opened:
            alarmed[:] = [name in opened for name in overview.streams]
        return attention(risk, risk - overview.previous, alarmed)

    def _opened(self) -> dict[str, Alarm]:
        """The newest open alarm of each stream that has one."""
        opened: dict[str, Alarm] = {}
        for alarm in self.engine.alarms(unacknowledged=True):
            opened.setdefault(alarm.stream, alarm)
        return opened

    def _ask(self, names: Sequence[str]) -> Answers:
        """What the model says now of those of some streams that can be asked."""
        result, unreadable = self.engine.predict_now(names)
        self._bad.difference_update(result.streams)
        for name, error in unreadable.items():
            self._note_bad(name, error)
        return result

    def _note_bad(self, name: str, error: StreamingError) -> None:
        """Log, once, that a stream cannot be asked; one that is gone is no news."""
        if name not in self._bad and not isinstance(error, UnknownStream):
            self._bad.add(name)
            note("stream has no answer", logging.WARNING, code=error.code)
