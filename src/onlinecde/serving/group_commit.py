"""Group commit: all that has arrived becomes one micro-batch, one commit, and many answers."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from onlinecde.serving.event_formats import Columns
from onlinecde.serving.problems import Problem
from onlinecde.streaming import Answers, Engine, EventBatch, Outcome, Receipts, Refusal

GATHER = 0.001
"""Seconds between two small micro-batches: commits cost the same for one row and for ten"""
SMALL = 500
"""Events; with as many waiting there is nothing to wait for"""
MOST_REFUSALS = 100
"""Refusals told one by one in an answer; the rest is counted"""


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of the events of one request."""

    columns: Columns
    sequence: int
    counts: dict[str, int]
    refusals: list[tuple[int, Refusal]]
    """(event of this request, why)"""
    receipts: Receipts

    def as_json(self, channels: Sequence[str]) -> dict[str, Any]:
        """Counts, and why events were refused, by the item of the request they came in."""
        told = []
        for event, refusal in self.refusals[:MOST_REFUSALS]:
            field, message = refusal.field, refusal.message
            item = self.columns.of[event]
            if self.columns.rows[item] and field in ("value", "channel"):
                named = self.columns.channels[event]
                name = named if isinstance(named, str) else channels[int(named)]
                field = f"values.{name[:40]}"
                message = message if refusal.field == "channel" else f"{name[:40]}: {message}"
            told.append(
                {
                    "index": item,
                    "code": refusal.code,
                    "field": field,
                    "message": message,
                }
            )
        notes = [
            note
            for stream, said in self.receipts.notes.items()
            if stream in self.columns.names
            for note in said
        ]
        return {
            **({"notes": notes} if notes else {}),
            "sequence": self.sequence,
            "events": len(self.columns),
            "counts": self.counts,
            "refusals": told,
            "refusals_left_out": len(self.refusals) - len(told),
        }

    def answers(self) -> Answers:
        """What the model now says of the streams in this request, of those the micro-batch changed."""
        wanted = set(filter(lambda name: isinstance(name, str), self.columns.names))
        found = self.receipts.answers
        at = [place for place, name in enumerate(found.streams) if name in wanted]
        return Answers(
            tuple(found.streams[place] for place in at),
            found.times[at],
            found.outputs[at],
            found.probabilities[at],
        )


@dataclass(slots=True)
class _Waiting:
    columns: Columns
    answer: asyncio.Future[Committed]


class GroupCommit:
    """Queues the events of many requests and applies all that has arrived at once.

    `submit` answers after the commit. The queue is bounded: what does not fit is refused with a
    `Problem` (429) that says when to try again. `tell` hears of each commit's receipts.
    """

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        *,
        queued_events: int,
        batch_events: int,
        tell: Callable[[Receipts, float], None] = lambda receipts, seconds: None,
    ) -> None:
        self.engine = engine
        self.queued = 0
        """Events that wait or are being applied"""
        self._executor = executor
        self._most, self._batch = queued_events, batch_events
        self._tell = tell
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closing = False
        self._rate = 20_000.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to apply what arrives."""
        self._task = asyncio.create_task(self._drain())

    async def close(self) -> None:
        """Take nothing more, apply what was taken, and end."""
        self._closing = True
        self._arrived.set()
        if self._task is not None:
            await self._task

    async def submit(self, columns: Columns) -> Committed:
        """The receipt of these events, after their commit."""
        return await self.enter(columns)

    def enter(self, columns: Columns) -> asyncio.Future[Committed]:
        """Queue these events; the future holds their receipt, after their commit."""
        if self._closing:
            raise Problem(503, "closing", "the server is going down: send again.", retry_after=5)
        if self.queued + len(columns) > self._most and self.queued:
            wait = min(30.0, self.queued / max(self._rate, 1.0))
            raise Problem(
                429, "overloaded", "more events wait than the server takes: send again later.", retry_after=wait
            )  # fmt: skip
        answer: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(columns, answer))
        self.queued += len(columns)
        if self.queued >= self._most // 2:
            self._room.clear()
        self._arrived.set()
        return answer

    async def room(self) -> None:
        """Wait until the queue is less than half full."""
        await self._room.wait()

    async def _drain(self) -> None:
        loop, ended = asyncio.get_running_loop(), 0.0
        while True:
            await self._arrived.wait()
            rest = GATHER - (time.perf_counter() - ended)
            if rest > 0 and self.queued < SMALL and not self._closing:
                await asyncio.sleep(rest)
            jobs = self._take()
            if not jobs:
                if self._closing:
                    return
                self._arrived.clear()
                continue
            starts = np.cumsum([0, *(len(job.columns) for job in jobs)]).tolist()
            began = time.perf_counter()
            try:
                receipts = await loop.run_in_executor(self._executor, self._apply, jobs, starts)
            except Exception as error:
                for job in jobs:
                    if not job.answer.done():
                        job.answer.set_exception(error)
            else:
                seconds = time.perf_counter() - began
                self._rate += 0.2 * (starts[-1] / max(seconds, 1e-6) - self._rate)
                self._answer(jobs, starts, receipts)
                self._tell(receipts, seconds)
            ended = time.perf_counter()
            self.queued -= starts[-1]
            if self.queued < self._most // 2:
                self._room.set()

    def _take(self) -> list[_Waiting]:
        jobs, events = [], 0
        while self._waiting and (not jobs or events + len(self._waiting[0].columns) <= self._batch):
            job = self._waiting.popleft()
            events += len(job.columns)
            jobs.append(job)
        return jobs

    def _apply(self, jobs: list[_Waiting], starts: list[int]) -> Receipts:
        parts = [job.columns for job in jobs]
        return self.engine.apply(merged(parts, self.engine.channels, self.engine.static_fault))

    def _answer(self, jobs: list[_Waiting], starts: list[int], receipts: Receipts) -> None:
        refused: dict[int, list[tuple[int, Refusal]]] = {}
        for event in sorted(receipts.refusals):
            job = bisect_right(starts, event) - 1
            refused.setdefault(job, []).append((event - starts[job], receipts.refusals[event]))
        for place, job in enumerate(jobs):
            if job.answer.done():  # whoever asked has gone; the events are in all the same
                continue
            part = receipts.outcomes[starts[place] : starts[place + 1]]
            found = np.bincount(part, minlength=len(Outcome)).tolist()
            counts = {outcome.name.lower(): found[outcome] for outcome in Outcome}
            job.answer.set_result(
                Committed(job.columns, receipts.sequence, counts, refused.get(place, []), receipts)
            )


def merged(
    parts: Sequence[Columns],
    channels: Sequence[str],
    static_fault: Callable[[str, Any], Refusal | None] = lambda stream, static: None,
) -> EventBatch:
    """The events of many requests as one batch, in order of arrival.

    Of the static features given for a stream the first that `static_fault` finds nothing wrong with count;
    items with others that are wrong are refused.
    """
    names: list[Any] = []
    pointers, ids, events = [], None, 0
    static: dict[str, Any] = {}
    refused: dict[int, Refusal] = {}
    for part in parts:
        pointers.append(np.array(part.of, np.int64) + len(names))
        names += part.names
        for item, stream, told in part.static:
            wrong = told if isinstance(told, Refusal) else static_fault(stream, told)
            if wrong is None:
                static.setdefault(stream, told)
            else:
                own = range(bisect_left(part.of, item), bisect_right(part.of, item))
                refused.update(dict.fromkeys((events + event for event in own), wrong))
        events += len(part)
    if any(part.ids is not None for part in parts):
        ids = [one for part in parts for one in (part.ids or [None] * len(part))]
    codes = [part.channels for part in parts]
    if not all(isinstance(code, np.ndarray) for code in codes):
        codes = [
            [channels[place] for place in code.tolist()] if isinstance(code, np.ndarray) else code
            for code in codes
        ]
    return EventBatch(
        names,
        _joined([part.times for part in parts]),
        _joined(codes),
        _joined([part.values for part in parts]),
        ids,
        of=np.concatenate(pointers),
        static=static or None,
        refused=refused or None,
    )


def _joined(columns: list[Any]) -> Any:
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns) if len(columns) > 1 else columns[0]
    return [
        one for column in columns
        for one in (column.tolist() if isinstance(column, np.ndarray) else column)
    ]  # fmt: skip
