"""What a running server holds: the engine, the queue to it, who listens, the clock that ticks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from onlinecde.serving.audit_log import SUMMARY_SECONDS, AuditLog
from onlinecde.serving.event_formats import EventReader, Sent
from onlinecde.serving.ingest import Committed, GroupCommit
from onlinecde.serving.jobs import Job, Jobs
from onlinecde.serving.live import Hub
from onlinecde.serving.metrics import Metrics
from onlinecde.serving.models import Alarm as AlarmAnswer
from onlinecde.serving.models import OutputNames
from onlinecde.serving.opening import warm_up
from onlinecde.serving.overview import Board
from onlinecde.serving.problems import Problem
from onlinecde.serving.readiness import Readiness
from onlinecde.serving.reloading import Reload
from onlinecde.serving.request_log import LOGGER, REQUEST, note
from onlinecde.serving.security import Client, Rates
from onlinecde.serving.sessions import Sessions
from onlinecde.serving.settings import ServeSettings
from onlinecde.serving.shares import Shares
from onlinecde.serving.tokens import TokenBook
from onlinecde.serving.webhooks import Webhooks
from onlinecde.streaming import (
    Answers,
    CodecError,
    Engine,
    StoreBusy,
    StoreError,
    StoreFull,
    StreamingError,
    UnknownStream,
)
from onlinecde.streaming.pieces import Progress
from onlinecde.streaming.pipeline.validate import is_name
from onlinecde.streaming.retention import Deleted, Retention
from onlinecde.streaming.served import served_model
from onlinecde.streaming.shadow import ShadowStatus
from onlinecde.streaming.stream_clock import StreamClock
from onlinecde.training import model_folder

Result = TypeVar("Result")

_TOLD = {
    "alarm_unknown": (404, "number"),
    "no_rows": (404, "stream"),
    "before_last_row": (422, "at"),
    "time_absurd": (422, "at"),
    "time_not_finite": (422, "at"),
    "span_bad": (422, "since"),
    "stream_bad": (422, "stream"),
    "stream_limit": (422, "stream"),
    "static_needed": (422, "static"),
    "static_bad": (422, "static"),
    "origin_bad": (422, "origin"),
    "origin_fixed": (409, "origin"),
    "by_bad": (422, "by"),
    "horizon_bad": (422, "horizon"),
    "before_cut": (410, "since"),
    "model_changed": (409, None),
    "shadow_exists": (409, None),
    "shadow_none": (404, None),
    "shadow_behind": (409, "stream"),
    "shadow_failed": (409, None),
    "shadow_unfit": (422, "folder"),
}
"""Status and field of what an engine cannot take, by its code"""


class Service:
    """One engine, served. All work on the engine is done by one thread, in order."""

    def __init__(
        self,
        engine: Engine,
        settings: ServeSettings,
        tokens: TokenBook | None = None,
        reload: Reload | None = None,
    ) -> None:
        self.engine, self.settings, self.tokens = engine, settings, tokens
        # Static features of a model that has no schema are put in order by their names.
        self.reader = EventReader(
            {name: place for place, name in enumerate(engine.channels)},
            () if engine.schema.static else settings.features,
            most=settings.limits.events_per_request,
            static_fault=engine.static_fault,
        )
        self.clock = StreamClock(settings.units_per_second, settings.silence, latest=engine.latest)
        engine.stream_clock = self.clock
        names = OutputNames.of(
            engine.kind, settings.classes, engine.outputs, engine.model.own_intervals
        )
        plain = engine.bins is None and engine.forecasts is None
        self.names = names if plain else replace(names, risks=engine.risks)
        self.hub = Hub(self.names_within)
        self.sessions = Sessions(tokens, seconds=settings.session_seconds)
        self.audit = AuditLog(settings.audit)
        self.reload = reload or Reload()
        self.reload.steps.append(self.audit.reopen)
        self.rates = Rates(settings.limits.requests_per_second, settings.limits.burst)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine")
        limits = settings.limits
        fair = lambda: tokens is not None and len(tokens) > 1  # noqa: E731
        self.bodies = Shares(limits.bodies_bytes, fair=fair)
        """Bytes of bodies being read now"""
        self.reading = asyncio.Lock()
        """Whoever turns a large body into events"""
        self.sockets = Shares(limits.sockets, fair=fair)
        queue = Shares(limits.queued_events, fair=fair)
        self.metrics = Metrics(engine, queue, self.sessions)
        self.commits = GroupCommit(
            engine,
            self._executor,
            queue=queue,
            batch_events=settings.limits.batch_events,
            metrics=self.metrics,
            hub=self.hub,
            in_pieces=self.do_in_pieces,
            job_seconds=settings.limits.job_seconds,
        )
        self.board = Board(
            engine,
            self.do,
            self.do_in_pieces,
            self.clock,
            output=engine.watched_output,
            most_age=0.9 * settings.tick,
        )
        self.webhooks = Webhooks(
            engine, settings.webhooks, self.do, lambda alarm: AlarmAnswer.of(alarm, self.names)
        )
        self.metrics.add_webhooks(self.webhooks)
        self.hub.on_alarms = self.webhooks.alarmed
        self.readiness = Readiness(self._store_problem)
        self._looking: asyncio.Future[None] | None = None
        self._long_work = asyncio.Lock()
        self.jobs = Jobs(self.problem_of)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to take events and to tick."""
        await self.webhooks.start()
        self.commits.start()
        every = [
            self._tick(),
            self._keep_house(),
            self._sum_up_audit(),
            self._look(),
            self._follow(),
            self.commits.rework(),
        ]
        self._tasks = [asyncio.create_task(one) for one in every]
        note("started", model=self.engine.model_hash[:12], streams=len(self.engine))

    async def close(self) -> None:
        """Take nothing more, commit what was taken, close the store."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.jobs.close()
        await self.commits.close()
        await self.webhooks.close()
        await asyncio.get_running_loop().run_in_executor(self._executor, self.engine.close)
        self._executor.shutdown()
        self.audit.close()
        note("stopped")

    def take(self, sent: Sent, client: Client, *, as_job: bool = False) -> asyncio.Future[Any]:
        """Queue events of a client, if all are of streams that are its business; the future holds what became of them.

        as_job: the future may hold a `Job` instead, where that is long work.
        """
        if not client.all_streams:
            for stream in sent.batch.streams:
                client.check_stream(stream)
        audit = partial(self._audit_events, client.name, REQUEST.get())

        def begin_job(answer: asyncio.Future[Committed]) -> Job:
            async def work(job: Job) -> dict[str, Any]:
                done = await asyncio.shield(answer)
                return done.as_json(self.engine.channels, full="read" in client.scopes)

            answer.add_done_callback(audit)
            return self.jobs.begin("events", client.name, work)

        answer = self.commits.enter(sent, client.name, begin_job if as_job else None)
        answer.add_done_callback(audit)
        return answer

    def _audit_events(self, who: str, request: str | None, answer: asyncio.Future[Any]) -> None:
        if self.audit.file is None or answer.cancelled() or answer.exception() is not None:
            return
        if isinstance(done := answer.result(), Committed):
            self.audit.sent(who, request, done.counts, done.receipts.sequence)

    async def _sum_up_audit(self) -> None:
        while True:
            await asyncio.sleep(SUMMARY_SECONDS)
            with contextlib.suppress(Problem):  # it was logged
                self.audit.summarise()

    async def do(self, work: Callable[[], Result]) -> Result:
        """Work on the engine, in its thread; its errors become problems."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except StreamingError as error:
            raise self.problem_of(error) from error

    async def metrics_text(self) -> bytes:
        """For Prometheus; where the engine is at work for longer than a moment, of it what it said before."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self.do(self.metrics.look))
            self._looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([self._looking], timeout=1.0)
        return self.metrics.text()

    async def do_in_pieces(
        self,
        pieces: Iterator[Result | Progress | None],
        gone: Callable[[], Awaitable[bool]] | None = None,
        heard: Callable[[Progress], None] = lambda progress: None,
    ) -> Result:
        """Long work on the engine (`streaming.pieces`): one piece of all such work at a time; an event waits for one.

        It ends where whoever asked is `gone`; its progress is `heard`.
        """
        while True:
            async with self._long_work:
                if gone is not None and await gone():
                    raise Problem(499, "client_gone", "whoever asked is gone.")
                result = await self.do(lambda: next(pieces))
            if isinstance(result, Progress):
                heard(result)
            elif result is not None:
                return result

    def names_within(self, horizon: float | None) -> OutputNames:
        """How answers are told of the risk within a horizon; None: as they are where none is asked for."""
        if horizon is None:
            return self.names
        try:
            self.engine.check_horizon(horizon)
        except StreamingError as error:
            raise self.problem_of(error) from error
        risks = partial(self.engine.risks, horizon=horizon)
        return replace(self.names, risks=risks, watched=horizon == self.engine.horizon)

    def changed(self, stream: str) -> None:
        """A stream's alarms are others now, or it was deleted: let everyone look anew."""
        self.board.forget()
        self.hub.changed([stream])

    async def _store_problem(self) -> Problem | None:
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._executor, self.engine.check_writable
            )
        except Exception as error:
            problem = self.problem_of(error, logged=not isinstance(error, StoreError))
            problem.__cause__ = error
            return problem
        return None

    def problem_of(
        self, error: BaseException, *, events: bool = False, logged: bool = True
    ) -> Problem:
        """What a client is told of an engine's error; `events`: who sent some, and may do so again."""
        if isinstance(error, Problem):
            return error
        if isinstance(error, UnknownStream):
            return Problem(404, error.code, str(error), field="stream")
        if isinstance(error, StoreError):
            wait = 30.0 if isinstance(error, StoreFull) else 2.0
            known = {StoreFull: "the store's disk is full", StoreBusy: "the store is busy"}
            content = known.get(type(error), "the store failed")
            if logged:
                note("store failed", logging.ERROR, code=error.code)
            what = "nothing was applied, send again later" if events else "try again later"
            return Problem(503, error.code, f"{content}: {what}.", retry_after=wait)
        if isinstance(error, StreamingError):
            status, field = _TOLD.get(error.code, (422, None))
            return Problem(status, error.code, str(error), field=field)
        LOGGER.error("failed", exc_info=error)
        return Problem(500, "failed", "something went wrong; it was logged.")

    async def answers(self, done: Committed) -> Answers:
        """What the model says of a request's streams after the newest row of each, changed by it or not."""
        changed = done.answers()
        others = set(filter(is_name, done.sent.batch.streams)) - set(changed.streams)
        if not others:
            return changed
        known = await self.do(lambda: self._newest(sorted(others)))
        return Answers.joined(changed, known)

    def _newest(self, names: Sequence[str]) -> Answers:
        results = []
        for name in names:
            with contextlib.suppress(UnknownStream, CodecError):
                info = self.engine.stream(name)
                results += [] if info.last_time is None else [info]
        wide = (len(results), self.engine.outputs)
        return Answers(
            tuple(info.stream for info in results),
            np.array([info.last_time for info in results], np.float64),
            np.array([info.outputs for info in results], np.float64).reshape(wide),
            np.array([info.probabilities for info in results], np.float64).reshape(wide),
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.settings.tick)
            every, some = self.hub.ticked()
            if not every and not some:
                continue
            try:
                answers = await self.board.at_now(None if every else some)
            except Exception as error:
                note("tick failed", logging.WARNING, code=self.problem_of(error).code)
            else:
                self.hub.publish("tick", answers)

    async def _look(self) -> None:
        """Raise alarms between rows, in pieces between which events are taken."""
        nothing = Answers.none(self.engine.outputs)
        while True:
            seconds = self.settings.looks_every(self.engine.policy)
            await asyncio.sleep(1.0 if seconds is None else seconds)
            pieces = iter(()) if seconds is None else self.engine.look_pieces()
            try:
                while (done := await self._piece(pieces)) is not None:
                    self.metrics.looks.inc(done.looks)
                    if done.alarms:
                        self.board.forget()
                        self.hub.publish("alarms", nothing, done.alarms)
            except Exception as error:
                note("look failed", logging.WARNING, code=self.problem_of(error).code)

    async def _piece(self, pieces: Iterator[Result]) -> Result | None:
        """The next piece of long work on the engine, None where there is none: one of all such work at a time."""
        async with self._long_work:
            return await self.do(lambda: next(pieces, None))

    async def _keep_house(self) -> None:
        retention, idle = self.settings.retention, self.settings.evict_after
        while True:
            await asyncio.sleep(self.settings.housekeeping)
            try:
                if idle is not None and (
                    gone := await self.do(lambda: self.engine.evict_idle(idle))
                ):
                    note("evicted", streams=gone)
                if retention:
                    await self._delete_old(retention)
            except Exception as error:
                note("housekeeping failed", logging.WARNING, code=self.problem_of(error).code)

    async def _delete_old(self, retention: Retention) -> None:
        pieces, result = self.engine.retain_pieces(retention), None
        while not isinstance(result, Deleted):
            began = time.perf_counter()
            async with self._long_work:
                result = await self.do(lambda: next(pieces))
            await self._rest(began)
        if result.streams:
            self.board.forget()
        if result != Deleted():
            note("deleted", streams=result.streams, rows=result.rows, records=result.records)

    async def _rest(self, began: float) -> None:
        """Leave the engine to others, so that work in the background has a bounded share of it."""
        share = self.settings.background_share
        await asyncio.sleep((time.perf_counter() - began) * (1.0 / share - 1.0))

    # Another model beside the one that serves

    async def begin_shadow(self, folder: str) -> ShadowStatus:
        """Begin to build the model in a folder; it is read beside the service, not in the engine's thread."""
        try:
            home = await asyncio.to_thread(model_folder, folder)
            served = await asyncio.to_thread(served_model, home)
            await asyncio.to_thread(warm_up, served)
        except (ValueError, OSError) as error:
            raise Problem(
                422, "folder_bad", f"the model cannot be read: {error}", field="folder"
            ) from error
        return await self.do(lambda: self.engine.shadow.begin(home, served))

    async def shadow_status(self) -> ShadowStatus:
        """How far it is, for whoever asks and for the metrics."""
        self.metrics.shadow = await self.do(self.engine.shadow.status)
        return self.metrics.shadow

    async def promote_shadow(self) -> ShadowStatus:
        """Let it take over: it catches up in pieces, then one transaction."""
        status = await self.shadow_status()
        if status.state == "building":
            message = f"it is not built yet: {status.built} of {status.streams} streams are."
            raise Problem(409, "shadow_building", message, retry_after=5)
        pieces, result = self.engine.shadow.promote_pieces(), None
        while not isinstance(result, ShadowStatus):
            async with self._long_work:
                result = await self.do(lambda: next(pieces))
        self.board.output = self.engine.watched_output
        self.board.forget()
        note("model changed", model=self.engine.model_hash[:12])
        return result

    async def _follow(self) -> None:
        """Build another model and keep it up to date, or delete what is left of one, a piece at a time."""
        shadow = self.engine.shadow
        while True:
            began, more = time.perf_counter(), False
            try:
                if shadow.at_work:
                    async with self._long_work:
                        more = await self.do(shadow.piece)
                    await self.shadow_status()
            except Exception as error:
                note("shadow failed", logging.WARNING, code=self.problem_of(error).code)
            await (self._rest(began) if more else asyncio.sleep(0.5))
