"""Ingest by group commit: all that has arrived becomes one micro-batch, one commit, and many answers."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onlinecde.serving.event_formats import Sent
from onlinecde.serving.models import Receipt, RefusedEvent
from onlinecde.serving.problems import Problem
from onlinecde.serving.request_log import note
from onlinecde.serving.shares import Shares
from onlinecde.streaming import Answers, Engine, EventBatch, Receipts, Refusal
from onlinecde.streaming.events import counts_of
from onlinecde.streaming.pieces import Progress
from onlinecde.streaming.pipeline.long_tails import LongWork

if TYPE_CHECKING:
    from onlinecde.serving.jobs import Job
    from onlinecde.serving.live import Hub
    from onlinecde.serving.metrics import Metrics

GATHER = 0.001
"""Seconds between two small micro-batches: commits cost the same for one row and for ten"""
SMALL = 500
"""Events; with as many waiting there is nothing to wait for"""
_BRIEF = {
    "too_late": "it comes later than is allowed.",
    "time_ahead": "it lies too far after what was received before: check its unit and origin.",
    "row_full": "its row was corrected too often.",
    "state_unreadable": "the stream cannot take events at the moment.",
    "stream_limit": "no further stream can be opened.",
}
"""Messages for those who may not read, in the place of such as quote from the stream's past"""
MOST_REFUSALS = 100
"""Refusals told one by one in an answer; the rest is counted"""
SHARED_SECONDS = 0.015
"""How long a micro-batch may take where several clients send, so that whoever sends little waits little"""
ACTIVE_SECONDS = 5.0
"""How long ago a client has sent last that counts as one of several"""


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of the events of one request."""

    sent: Sent
    counts: dict[str, int]
    refusals: list[tuple[int, Refusal]]
    """(event of this request, why)"""
    receipts: Receipts
    """Of the whole micro-batch; where the request was taken in parts, of the last"""
    earlier: tuple[Receipts, ...] = ()
    """Of the micro-batches that its other parts were in"""

    def as_json(self, channels: Sequence[str], *, full: bool = True) -> dict[str, Any]:
        """Counts, and why events were refused, by the item of the request they came in.

        full: say of the store's past too what is of use to those who may read: without it, how many commits there
        were and what times a stream is at are left out.
        """
        named = [self._refused(channels, *one) for one in self.refusals[:MOST_REFUSALS]]
        if not full:
            named = [{**one, "message": _BRIEF.get(one["code"], one["message"])} for one in named]
        notes = [
            note
            for receipts in (*self.earlier, self.receipts)
            for stream, remarks in receipts.notes.items()
            if stream in self.sent.batch.streams
            for note in remarks
        ]
        return Receipt.of(
            self.receipts,
            notes,
            named,
            **({"sequence": self.receipts.sequence} if full else {}),
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
        result = self.receipts.answers.of(names)
        for receipts in reversed(self.earlier):
            names -= set(result.streams)
            result = Answers.joined(result, receipts.answers.of(names))
        return result


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request of which some or all events wait."""

    sent: Sent
    client: str
    answer: asyncio.Future[Any]
    as_job: Callable[[asyncio.Future[Committed]], Job] | None = None
    """Makes a job of it, where it is long work; the future will hold the receipt"""
    heard: Callable[[Progress], None] = lambda progress: None
    taken: int = 0
    """Events in micro-batches so far"""
    open: int = 0
    """Micro-batches with some of its events that have not ended"""
    outcomes: list[np.ndarray] = field(default_factory=list)
    refusals: list[tuple[int, Refusal]] = field(default_factory=list)
    earlier: tuple[Receipts, ...] = ()

    @property
    def left(self) -> int:
        """Events not yet in a micro-batch."""
        return len(self.sent.batch) - self.taken


class _Part(NamedTuple):
    """The events of a request that are in one micro-batch."""

    job: _Waiting
    start: int
    stop: int

    @property
    def streams(self) -> set[str]:
        """Names of their streams."""
        return {name for name in self.batch().streams if isinstance(name, str)}

    def batch(self) -> EventBatch:
        """They alone."""
        whole = self.job.sent.batch
        if self.stop - self.start == len(whole):
            return whole
        return whole.part(self.start, self.stop)


class GroupCommit:
    """Queues the events of many requests and applies all that has arrived at once.

    `enter` gives a future that is done after the commit. The queue is bounded: what does not fit is refused with a
    `Problem` (429) that says when to try again. Each commit is counted in `metrics` and published at `hub`.

    What needs long work (late events that reach far back, many rows of a stream) is set aside and done in pieces
    (`in_pieces`) beside the micro-batches of others.

    Where several clients send, each has its share of the queue and of each micro-batch, which is then small, and large
    requests are taken in parts: one that sends without end holds up no other.
    """

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        *,
        queue: Shares,
        batch_events: int,
        metrics: Metrics,
        hub: Hub,
        in_pieces: Callable[..., Awaitable[Any]],
        job_seconds: float,
    ) -> None:
        self.engine = engine
        engine.refuses_long_work = True
        self.queue = queue
        """Events that wait or are being applied, by client"""
        self._executor = executor
        self._batch = batch_events
        self._metrics, self._hub = metrics, hub
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._active: OrderedDict[str, float] = OrderedDict()
        """When each client has sent last, in that order"""
        self._in_pieces, self._job_seconds = in_pieces, job_seconds
        self._long: deque[_Part] = deque()
        """Of long work: the one that is being done, and those that wait for it"""
        self._returned: list[_Part] = []
        """Parts to be tried again before any other"""
        self._long_task: asyncio.Task[None] | None = None
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

    def enter(
        self,
        sent: Sent,
        client: str,
        as_job: Callable[[asyncio.Future[Committed]], Job] | None = None,
    ) -> asyncio.Future[Any]:
        """Queue these events; the future holds their receipt, after their commit.

        as_job: makes a job of long work that takes longer than `job_seconds`; the future then holds the job.
        """
        if self._closing:
            raise Problem(503, "closing", "the server is going down: send again.", retry_after=5)
        events = len(sent.batch)
        if not self.queue.take(client, events):
            wait = min(30.0, self.queue.total / max(self._rate, 1.0))
            raise Problem(
                429, "overloaded", "more events wait than the server takes: send again later.", retry_after=wait
            )  # fmt: skip
        answer = asyncio.get_running_loop().create_future()
        owner = client if self.queue.fair() else ""
        self._waiting.setdefault(owner, deque()).append(_Waiting(sent, client, answer, as_job))
        self._active[owner] = time.monotonic()
        self._active.move_to_end(owner)
        if self.queue.total >= self.queue.most // 2:
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
            if rest > 0 and self.queue.total < SMALL and not self._closing:
                await asyncio.sleep(rest)
            parts = self._beside_long_work(self._returned + self._take())
            self._returned = []
            if not parts:
                if self._closing and not self._long:
                    return
                self._arrived.clear()
                continue
            starts = np.cumsum([0, *(part.stop - part.start for part in parts)]).tolist()
            began = time.perf_counter()
            try:
                receipts = await loop.run_in_executor(self._executor, self._apply, parts)
            except LongWork as work:
                self._returned = self._set_aside(parts, work.streams)
                continue
            except Exception as error:
                self._fail(parts, error)
            else:
                seconds = time.perf_counter() - began
                self._rate += 0.2 * (starts[-1] / max(seconds, 1e-6) - self._rate)
                self._answer(parts, starts, receipts)
                self._metrics.committed(len(receipts), seconds)
            ended = time.perf_counter()
            self._give_back(parts)

    def _give_back(self, parts: list[_Part]) -> None:
        for part in parts:
            self.queue.give_back(part.job.client, part.stop - part.start)
        if self.queue.total < self.queue.most // 2:
            self._room.set()

    def _beside_long_work(self, parts: list[_Part]) -> list[_Part]:
        """Without those of streams at which long work goes on: they wait for its end."""
        if not self._long:
            return parts
        busy = set().union(*(part.streams for part in self._long))
        return self._set_aside(parts, busy)

    def _set_aside(self, parts: list[_Part], busy: set[str]) -> list[_Part]:
        """Let parts with events of some streams wait in order for long work; the others."""
        others = []
        for part in parts:
            if busy.isdisjoint(names := part.streams):
                others.append(part)
                continue
            busy |= names
            self._long.append(part)
            if part.job.as_job is not None:
                asyncio.get_running_loop().call_later(self._job_seconds, _become_job, part.job)
        if self._long and self._long_task is None:
            self._long_task = asyncio.create_task(self._do_long_work())
        return others

    async def _do_long_work(self) -> None:
        """The first part that waits, in pieces, between which others have their turn; then the others try again."""
        part, began = self._long[0], time.perf_counter()
        try:
            pieces = self.engine.apply_pieces(part.batch())
            receipts = await self._in_pieces(pieces, heard=lambda one: part.job.heard(one))
        except Exception as error:
            self._fail([part], error)
        else:
            self._answer([part], [0, len(receipts)], receipts)
            self._metrics.committed(len(receipts), time.perf_counter() - began)
        self._give_back([part])
        await self.rework()
        self._returned += list(self._long)[1:]
        self._long.clear()
        self._long_task = None
        self._arrived.set()

    async def rework(self) -> None:
        """Give rows that late events changed their new answers."""
        try:
            pieces = chain(self.engine.rework_pieces(), [True])
            await self._in_pieces(pieces)
        except Exception as error:
            note("rework failed", logging.WARNING, code=getattr(error, "code", "failed"))

    def _take(self) -> list[_Part]:
        """The next micro-batch: of each client as much as of the others, those that send least first."""
        now = time.monotonic()
        while self._active and now - next(iter(self._active.values())) > ACTIVE_SECONDS:
            self._active.popitem(last=False)
        several = len(self._waiting) > 1 or len(self._active) > 1
        left = self._batch
        if several:
            left = min(left, max(SMALL, int(self._rate * SHARED_SECONDS)))
        parts: list[_Part] = []
        owners = sorted(
            self._waiting, key=lambda owner: sum(job.left for job in self._waiting[owner])
        )
        for place, owner in enumerate(owners):
            jobs, share = self._waiting[owner], left // (len(owners) - place)
            while jobs and share > 0:
                job = jobs[0]
                stop = len(job.sent.batch)
                if job.left > share:
                    if several:
                        stop = _end_of_row(job.sent.batch, job.taken + share)
                    elif parts:
                        break
                parts.append(_Part(job, job.taken, stop))
                share, left = share - (stop - job.taken), left - (stop - job.taken)
                job.taken = stop
                job.open += 1
                if not job.left:
                    jobs.popleft()
            if not jobs:
                del self._waiting[owner]
        return parts

    def _apply(self, parts: list[_Part]) -> Receipts:
        batches = [part.batch() for part in parts]
        return self.engine.apply(EventBatch.joined(batches, self.engine.channels))

    def _fail(self, parts: list[_Part], error: Exception) -> None:
        """End the requests of a micro-batch that failed; what of them was not yet in one is dropped."""
        for part in parts:
            job = part.job
            job.open -= 1
            if not job.answer.done():
                job.answer.set_exception(_partly(error) if job.earlier or job.open else error)
            if job.left:
                self.queue.give_back(job.client, job.left)
                job.taken = len(job.sent.batch)
                owner = next(one for one, jobs in self._waiting.items() if job in jobs)
                self._waiting[owner].remove(job)
                if not self._waiting[owner]:
                    del self._waiting[owner]

    def _answer(self, parts: list[_Part], starts: list[int], receipts: Receipts) -> None:
        refused: dict[int, list[tuple[int, Refusal]]] = {}
        for event in sorted(receipts.refusals):
            place = bisect_right(starts, event) - 1
            within = event - starts[place] + parts[place].start
            refused.setdefault(place, []).append((within, receipts.refusals[event]))
        self._metrics.marked(receipts.implausible)
        if self._hub.listeners or receipts.alarms:
            self._hub.publish("rows", receipts.answers, receipts.alarms)
        for place, (job, _, _) in enumerate(parts):
            job.open -= 1
            if job.answer.done():  # whoever asked has gone; the events are in all the same
                continue
            job.outcomes.append(receipts.outcomes[starts[place] : starts[place + 1]])
            job.refusals += refused.get(place, [])
            if job.left or job.open:
                job.earlier += (receipts,)
                continue
            job.refusals.sort(key=lambda one: one[0])
            counts = counts_of(np.concatenate(job.outcomes))
            job.answer.set_result(Committed(job.sent, counts, job.refusals, receipts, job.earlier))


def _become_job(job: _Waiting) -> None:
    """Answer a request whose work is long with a job."""
    if job.as_job is not None and not job.answer.done():
        answer, job.answer = job.answer, asyncio.get_running_loop().create_future()
        started, job.as_job = job.as_job(job.answer), None
        job.heard = started.heard
        answer.set_result(started)


def _partly(error: Exception) -> Problem:
    return Problem(
        503,
        getattr(error, "code", "failed"),
        "only a part of the events was applied: send all of them again later, those that are known are duplicates.",
        retry_after=2,
    )


def _end_of_row(batch: EventBatch, stop: int) -> int:
    """The end of the item that the event before `stop` came in, so that no row is cut."""
    assert batch.of is not None
    return int(np.searchsorted(batch.of, batch.of[stop - 1], side="right"))
