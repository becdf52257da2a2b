"""Ingest by group commit: all that has arrived becomes one micro-batch, one commit, and many answers."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onlinecde.serving.event_formats import Sent
from onlinecde.serving.models import Receipt, RefusedEvent
from onlinecde.serving.problems import Problem
from onlinecde.streaming import Answers, Engine, EventBatch, Receipts, Refusal
from onlinecde.streaming.events import counts_of

if TYPE_CHECKING:
    from onlinecde.serving.live import Hub
    from onlinecde.serving.metrics import Metrics

GATHER = 0.001
"""Seconds between two small micro-batches: commits cost the same for one row and for ten"""
SMALL = 500
"""Events; with as many waiting there is nothing to wait for"""
MOST_REFUSALS = 100
"""Refusals told one by one in an answer; the rest is counted"""


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of the events of one request."""

    sent: Sent
    counts: dict[str, int]
    refusals: list[tuple[int, Refusal]]
    """(event of this request, why)"""
    receipts: Receipts
    """Of the whole micro-batch"""

    def as_json(self, channels: Sequence[str]) -> dict[str, Any]:
        """Counts, and why events were refused, by the item of the request they came in."""
        named = [self._refused(channels, *one) for one in self.refusals[:MOST_REFUSALS]]
        notes = [
            note
            for stream, remarks in self.receipts.notes.items()
            if stream in self.sent.batch.streams
            for note in remarks
        ]
        return Receipt.of(
            self.receipts,
            notes,
            named,
            events=len(self.sent.batch),
            counts=self.counts,
            refusals_left_out=len(self.refusals) - len(named),
        )

    def _refused(self, channels: Sequence[str], event: int, refusal: Refusal) -> dict[str, Any]:
        batch, field, message = self.sent.batch, refusal.field, refusal.message
        assert batch.of is not None
        item = int(batch.of[event])
        if self.sent.is_row[item] and field in ("value", "channel"):
            channel = batch.channels[event]
            name = channel if isinstance(channel, str) else channels[int(channel)]
            field = f"values.{name[:40]}"
            message = message if refusal.field == "channel" else f"{name[:40]}: {message}"
        return RefusedEvent.fill(index=item, code=refusal.code, field=field, message=message)

    def answers(self) -> Answers:
        """The model's answers for the streams in this request, of those the micro-batch changed."""
        names = {name for name in self.sent.batch.streams if isinstance(name, str)}
        return self.receipts.answers.of(names)


@dataclass(slots=True)
class _Waiting:
    sent: Sent
    answer: asyncio.Future[Committed]


class GroupCommit:
    """Queues the events of many requests and applies all that has arrived at once.

    `enter` gives a future that is done after the commit. The queue is bounded: what does not fit is refused with a
    `Problem` (429) that says when to try again. Each commit is counted in `metrics` and published at `hub`.
    """

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        *,
        queued_events: int,
        batch_events: int,
        metrics: Metrics,
        hub: Hub,
    ) -> None:
        self.engine = engine
        self.queued = 0
        """Events that wait or are being applied"""
        self._executor = executor
        self._most, self._batch = queued_events, batch_events
        self._metrics, self._hub = metrics, hub
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

    def enter(self, sent: Sent) -> asyncio.Future[Committed]:
        """Queue these events; the future holds their receipt, after their commit."""
        if self._closing:
            raise Problem(503, "closing", "the server is going down: send again.", retry_after=5)
        if self.queued + len(sent.batch) > self._most and self.queued:
            wait = min(30.0, self.queued / max(self._rate, 1.0))
            raise Problem(
                429, "overloaded", "more events wait than the server takes: send again later.", retry_after=wait
            )  # fmt: skip
        answer: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(sent, answer))
        self.queued += len(sent.batch)
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
            starts = np.cumsum([0, *(len(job.sent.batch) for job in jobs)]).tolist()
            began = time.perf_counter()
            try:
                receipts = await loop.run_in_executor(self._executor, self._apply, jobs)
            except Exception as error:
                for job in jobs:
                    if not job.answer.done():
                        job.answer.set_exception(error)
            else:
                seconds = time.perf_counter() - began
                self._rate += 0.2 * (starts[-1] / max(seconds, 1e-6) - self._rate)
                self._answer(jobs, starts, receipts)
                self._metrics.applied.observe(seconds)
                self._metrics.batch.observe(len(receipts))
                if self._hub.listeners:
                    self._hub.publish("rows", receipts.answers, receipts.alarms)
            ended = time.perf_counter()
            self.queued -= starts[-1]
            if self.queued < self._most // 2:
                self._room.set()

    def _take(self) -> list[_Waiting]:
        jobs, events = [], 0
        while self._waiting and (
            not jobs or events + len(self._waiting[0].sent.batch) <= self._batch
        ):
            job = self._waiting.popleft()
            events += len(job.sent.batch)
            jobs.append(job)
        return jobs

    def _apply(self, jobs: list[_Waiting]) -> Receipts:
        parts = [job.sent.batch for job in jobs]
        return self.engine.apply(EventBatch.joined(parts, self.engine.channels))

    def _answer(self, jobs: list[_Waiting], starts: list[int], receipts: Receipts) -> None:
        refused: dict[int, list[tuple[int, Refusal]]] = {}
        for event in sorted(receipts.refusals):
            job = bisect_right(starts, event) - 1
            refused.setdefault(job, []).append((event - starts[job], receipts.refusals[event]))
        for place, job in enumerate(jobs):
            if job.answer.done():  # whoever asked has gone; the events are in all the same
                continue
            part = receipts.outcomes[starts[place] : starts[place + 1]]
            job.answer.set_result(
                Committed(job.sent, counts_of(part), refused.get(place, []), receipts)
            )
