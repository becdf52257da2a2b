"""`Engine`: follows many streams with one model, in micro-batches, durably."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from onlinecde.models import OnlineModel
from onlinecde.streaming import answers, history, looks, transfer
from onlinecde.streaming.alarms import Alarm
from onlinecde.streaming.answers import Overview, StreamInfo
from onlinecde.streaming.errors import (
    StoreCorrupt,
    StoreDamaged,
    StreamingError,
    UnknownStream,
)
from onlinecde.streaming.events import (
    Answers,
    Event,
    EventBatch,
    Outcome,
    Receipts,
    Refusal,
)
from onlinecde.streaming.history import Curve, HistoryRow, RowExplanation
from onlinecde.streaming.looks import Looked
from onlinecde.streaming.pieces import Progress, result_of
from onlinecde.streaming.pipeline.apply import apply_batch, apply_in_pieces
from onlinecde.streaming.pipeline.long_tails import LongWork, rework
from onlinecde.streaming.pipeline.validate import is_name, is_text, name_fault
from onlinecde.streaming.rebuild import rebuild as rebuild_store
from onlinecde.streaming.rebuild import repair as repair_stream
from onlinecde.streaming.retention import Deleted, Retention, delete_old
from onlinecde.streaming.served import served_model
from onlinecde.streaming.settings import EngineSettings
from onlinecde.streaming.shadow import Shadow
from onlinecde.streaming.state import EngineState, Totals, lost_name
from onlinecde.streaming.stores.base import Store, StreamRecord
from onlinecde.streaming.stores.memory import MemoryStore
from onlinecde.streaming.stream_clock import StreamClock

Result = TypeVar("Result")


class Engine:
    """Follows streams: events in, receipts and answers out; what is acknowledged is in the store.

    Any thread may call any method: one lock lets them in one by one.

    Args:
        model: a folder that `oc.save` wrote, or a model (then `channels` names its channels).
        store: where events, states and answers go; `SQLiteStore(file)`, default `MemoryStore()`.
        channels: names of the model's channels.
        clock: wall clock in seconds; recorded with commits, never mixed with the streams' own times.
        rebuild: where the store belongs to another model, integrate all its rows again under this one.
        progress: hears how many streams of how many are rebuilt; the rebuild is undone where it raises.
        stream_clock: what time it is on the streams; without it, looks between rows are made when the next row comes.
        settings: fields of `EngineSettings` by name: `lateness`, `policy`, ...

    >>> import onlinecde as oc
    >>> engine = Engine(oc.NeuralCDE(channels=2, hidden=8), channels=["hr", "bp"], lateness=1.0)
    >>> receipts = engine.apply([Event("bed 7", 0.0, "hr", 80.0), Event("bed 7", 0.0, "hr", 80.0)])
    >>> [receipt.outcome.name for receipt in receipts]
    ['APPLIED', 'DUPLICATE']
    >>> engine.predict("bed 7", at=1.5).shape
    (1,)
    """

    def __init__(
        self,
        model: OnlineModel | str | os.PathLike[str],
        store: Store | None = None,
        *,
        channels: Sequence[str] | None = None,
        clock: Callable[[], float] = time.time,
        stream_clock: StreamClock | None = None,
        rebuild: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
        **settings: Any,
    ) -> None:
        served = served_model(model, channels)
        self.settings = EngineSettings(**settings)
        self.store = MemoryStore() if store is None else store
        self.clock = clock
        self.refuses_long_work = False
        """Whether `apply` raises `LongWork` where it would take more than a piece; for who calls `apply_pieces` then"""
        self._lock = threading.RLock()
        self._state = EngineState(served, self.store, self.settings)
        self._describe()
        known = self.store.head().model
        if rebuild and known is not None and known != served.hash:
            rebuild_store(self._state, progress)
        self._state.settle()
        self.stream_clock = stream_clock
        self._state.preload()
        self.shadow = Shadow(self)
        """Another model beside this one"""
        self._state.on_commit = self.shadow.heard

    def _describe(self) -> None:
        """What is public of the model that serves."""
        served, state = self._state.served, self._state
        self.model, self.model_hash, self.kind = served.model, served.hash, served.kind
        self.channels, self.units, self.schema = served.channels, served.units, served.schema
        self.outputs, self.bins = served.model.outputs, served.bins
        self.forecasts = served.forecasts
        self.policy, self.watched_output = state.policy, state.watched_output
        self.horizon, self.latest = state.horizon, state.limits.latest

    def _follow(self, new: EngineState) -> None:
        """Go on with another model, which the store has taken already."""
        old = self._state
        old.retired, old.on_commit = True, lambda commit: None
        new.stream_clock, new.on_commit = old.stream_clock, self.shadow.heard
        looking = new.policy is not None and new.policy.every is not None
        new.looked_at = (old.looked_at or self.clock()) if looking and old.stream_clock else None
        self._state = new
        self._describe()
        new.settle()

    def apply(self, events: EventBatch | Sequence[Event]) -> Receipts:
        """One micro-batch: validate, order, merge, integrate, commit; then the receipts.

        When this returns, everything acknowledged is in the store. When it raises (`StoreError`:
        the store failed), nothing of the batch was applied, and it may be sent again: what the store
        took in all the same is then a duplicate.
        """
        batch = events if isinstance(events, EventBatch) else EventBatch.from_events(events)
        try:
            with self._ready() as state:
                receipts = apply_batch(state, batch, self.clock())
        except LongWork:
            if self.refuses_long_work:
                raise
            receipts = result_of(self.apply_pieces(batch))
        if not self.refuses_long_work:
            for _ in self.rework_pieces():
                pass
        return receipts

    def apply_pieces(
        self, events: EventBatch | Sequence[Event]
    ) -> Iterator[Receipts | Progress | None]:
        """`apply`, piece by piece, with the engine free in between, where late events reach far back or rows are many.

        Answers after earlier rows that late events change are given by `rework_pieces`, afterwards.
        """
        batch = events if isinstance(events, EventBatch) else EventBatch.from_events(events)
        return self._in_pieces(
            lambda state: apply_in_pieces(state, batch, self.clock), writing=True
        )

    def rework_pieces(self) -> Iterator[Progress]:
        """Give rows that late events changed far back their new answers; a killed engine has this to go on with."""
        while self._state.totals.reworks:
            with self._ready() as state:
                number = next(iter(state.totals.reworks), None)
            if number is None:
                return
            pieces = self._in_pieces(
                lambda state, n=number: rework(state, n, self.clock()), writing=True
            )
            yield from (one for one in pieces if one is not None)

    @cached_property
    def plausible(self) -> dict[str, tuple[float, float]]:
        """Channel -> least and largest plausible value, NaN for no bound."""
        spans = self.settings.ranges(self.schema).T.tolist()
        return {
            name: (least, most) for name, (least, most) in zip(self.channels, spans, strict=True)
        }

    @property
    def stream_clock(self) -> StreamClock | None:
        """What time it is on the streams."""
        return self._state.stream_clock

    @stream_clock.setter
    def stream_clock(self, clock: StreamClock | None) -> None:
        with self._lock:
            self._state.follow_clock(clock, 0.0 if clock is None else self.clock())

    def look(self) -> tuple[Alarm[str], ...]:
        """Look at all streams, in memory or not, at the times that have come since they were last looked at.

        Alarms between rows are raised by the policy and durable when this returns. There are none without a policy
        that has `every`, and without a `stream_clock`.
        """
        return tuple(alarm for piece in self.look_pieces() for alarm in piece.alarms)

    def look_pieces(self) -> Iterator[Looked]:
        """`look`, piece by piece, with the engine free in between."""
        policy = self.policy
        if policy is None or policy.every is None or self.stream_clock is None:
            return
        with self._ready() as state:
            wall = self.clock()
            pieces = looks.pieces(state, policy, wall)
        for piece in pieces:
            with self._ready() as state:
                result = looks.look(state, policy, piece, wall)
            yield result
        with self._ready() as state:
            state.looked_at = wall

    def open_stream(
        self,
        stream: str,
        *,
        static: Mapping[str, Any] | Sequence[float] | None = None,
        origin: float | None = None,
    ) -> StreamInfo:
        """Make a stream known before its first event; needed where the model takes static features.

        static: raw values by name, what is absent being missing, or numbers in the model's order.

        Again with the same features and origin it changes nothing; with others it is refused.
        """
        with self._ready() as state:
            if not is_name(stream):
                raise StreamingError(f"stream is {stream!r}: give a printable name.", "stream_bad")
            if origin is not None and not np.isfinite(origin):
                raise StreamingError(f"origin is {origin}: give a finite time.", "origin_bad")
            features, wrong = state.served.check_static(stream, static)
            slot = state.slot(stream)
            if slot >= 0:
                given = None if features is None else tuple(np.frombuffer(features, "<f8").tolist())
                if static is not None and (wrong or given != state.static.get(slot)):
                    raise StreamingError(
                        f"stream {stream!r} was opened with other static features.", "static_bad"
                    )
                info = answers.stream_info(state, slot)
                if origin is not None and origin != info.origin:
                    was = "no origin" if info.origin is None else f"origin {info.origin!r}"
                    raise StreamingError(
                        f"stream {stream!r} was opened with {was}, which stays: give the origin before the "
                        "first event, or forget the stream.",
                        "origin_fixed",
                    )
                return info
            wrong = name_fault(stream) or wrong
            if wrong is not None:
                raise StreamingError(wrong.message, wrong.code)
            if state.totals.streams >= state.settings.most_streams:
                raise StreamingError("there are as many streams as are allowed.", "stream_limit")
            with state.transaction(self.clock()) as change:
                record = StreamRecord(change.totals.next_stream, stream, features, origin)
                change.totals.streams += 1
                change.totals.next_stream += 1
                change.commit.opened.append(record)
            info = answers.stream_info(state, state.add([record])[0])
            return replace(info, notes=state.served.static_notes(stream, static))

    def static_fault(self, stream: str, static: Any) -> Refusal | None:
        """What is wrong with static features for a stream; None where they would do."""
        return self._state.served.check_static(stream, static)[1]

    def predict(self, stream: str, at: float | None = None) -> np.ndarray:
        """Outputs (output,) of a stream at a time from its newest row on, default: the newest row."""
        outputs = self.predict_many([stream], at).outputs[0]
        if not np.isfinite(outputs).all():
            raise StreamingError(f"stream {stream!r} has no finite answer at {at!r}.", "not_finite")
        return outputs

    def predict_many(
        self, streams: Sequence[str], at: Any = None, *, clamp: bool = False
    ) -> Answers:
        """Outputs of many streams in one call; at: None, a number, or one time for each.

        With `clamp`, a time before a stream's newest row is taken as the newest row's. Where the model
        has no finite answer, the outputs are NaN.
        """
        with self._reading() as state, state.visiting(filter(is_name, streams)) as unreadable:
            for name, error in unreadable.items():
                raise state.unreadable(name, error)
            slots = np.array([self._slot(state, name) for name in streams], np.int64)
            state.use(slots, self.clock())
            return answers.predict_streams(state, streams, slots, at, clamp)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs (..., output) through the head's link."""
        return self._state.served.probabilities(outputs)

    def risks(self, probabilities: np.ndarray, horizon: float | None = None) -> np.ndarray:
        """Of time to an event: P(it comes within a horizon), (..., 1), of an answer's probabilities (..., bin).

        horizon: default `engine.horizon`, that of the risk that alarms watch. Other probabilities are given back.
        """
        return self._state.served.risks(probabilities, self.horizon if horizon is None else horizon)

    def check_horizon(self, horizon: float) -> None:
        """Raise StreamingError for a horizon that the model has no answer for."""
        self._state.served.horizon(horizon)

    def stream(self, stream: str) -> StreamInfo:
        """What is known of one stream."""
        with self._reading() as state:
            resident, slot = stream in state.slot_of, self._slot(state, stream)
            state.use(np.array([slot]), self.clock())
            return answers.stream_info(state, slot, resident)

    def state(self, stream: str) -> bytes:
        """The newest state of a stream as `StateCodec` writes it: what is stored, bit for bit."""
        with self._reading() as state:
            slot = np.array([self._slot(state, stream)])
            return state.codec.encode(state.newest(slot))[0]

    def export(self, stream: str) -> bytes:
        """A stream as a parcel: what another engine or a Spark job needs to go on with it exactly.

        It holds the newest state, and the rows within the allowed lateness; earlier history stays here.
        """
        with self._reading() as state:
            slot = self._slot(state, stream)
            states = self.store.states([int(state.number[slot])])
            if not states:
                raise StreamingError(f"stream {stream!r} has no row yet.", "no_rows")
            record = self.store.streams([states[0].stream])[0]
            since = states[0].time - state.settings.lateness
            return transfer.pack(self.store, record, states[0], since)

    def take(self, parcels: Iterable[bytes]) -> list[str]:
        """Go on with streams that were followed elsewhere, all of them or, where one is refused, none.

        Raises StreamingError for streams that are known already, parcels of another model, and those
        whose rows do not reach back as far as the lateness allowed here.
        """
        with self._ready() as state:
            names = transfer.take_in(state, parcels, self.clock())
            state.away.complete = False
            return names

    def __contains__(self, stream: object) -> bool:
        with self._reading() as state:
            return is_name(stream) and state.slot(stream) >= 0  # pyright: ignore[reportArgumentType]

    def __len__(self) -> int:
        """How many streams are known."""
        return self._totals()[0].streams

    def overview(self) -> Overview:
        """All streams that have a row, those not in memory too, by name, and the answer after the newest of each."""
        return result_of(self.overview_pieces()).by_name()

    def overview_pieces(self) -> Iterator[Overview | Progress | None]:
        """`overview` in the order in which streams were opened, piece by piece: None until it is done."""
        return self._in_pieces(answers.overview)

    def predict_now(self, streams: Sequence[str]) -> tuple[Answers, dict[str, StreamingError]]:
        """Outputs of many streams at the time it is on each by the stream clock; those without a row are left out.

        Those that cannot be read have an error, by name. It does not count as use, and brings none into memory.
        """
        with self._reading() as state:
            return answers.predict_now(state, streams)

    def history(
        self,
        stream: str,
        since: float | None = None,
        until: float | None = None,
        *,
        most: int | None = None,
    ) -> list[HistoryRow]:
        """Rows as received with the answers given, in order of time; `most` keeps the newest."""
        with self._reading() as state, self._naming(stream):
            since, until = history.span(since, until, float("-inf"), float("inf"))
            return history.history(state, self._number(state, stream), since, until, most)

    def curve(
        self,
        stream: str,
        since: float | None = None,
        until: float | None = None,
        *,
        points: int = 200,
        most_rows: int | None = None,
    ) -> Curve:
        """The answer in continuous time on a grid; `until` may lie after the newest row.

        most_rows: tell at most so many rows, spread evenly over those in the span; default: all.
        """
        return result_of(
            self.curve_pieces(stream, since, until, points=points, most_rows=most_rows)
        )

    def curve_pieces(
        self,
        stream: str,
        since: float | None = None,
        until: float | None = None,
        *,
        points: int = 200,
        most_rows: int | None = None,
    ) -> Iterator[Curve | Progress | None]:
        """`curve`, piece by piece: None until it is done, with the engine free in between."""
        if not 2 <= points <= 10_000:
            raise StreamingError(f"points is {points}: give 2 to 10,000.", "points_bad")
        if most_rows is not None and most_rows < 2:
            raise StreamingError(f"most_rows is {most_rows}: give at least 2.", "points_bad")

        def begin(state: EngineState) -> Generator[None, None, Curve]:
            slot = self._slot(state, stream)
            span = history.curve_span(state, slot, since, until)
            return history.curve(state, slot, *span, points, most_rows)

        return self._in_pieces(begin)

    def explain(
        self, stream: str, last: int = 20, *, horizon: float | None = None
    ) -> list[RowExplanation]:
        """What moved the answer, row by row, for the newest `last` rows; the parts add up.

        Of time to an event, what moved the log-odds of the risk within a horizon.
        """
        return result_of(self.explain_pieces(stream, last, horizon=horizon))

    def explain_pieces(
        self, stream: str, last: int = 20, *, horizon: float | None = None
    ) -> Iterator[list[RowExplanation] | Progress | None]:
        """`explain`, piece by piece: None until it is done, with the engine free in between."""
        if last < 1:
            raise StreamingError(f"last is {last}: give at least 1.", "last_bad")
        return self._in_pieces(
            lambda state: history.explain(
                state, self._slot(state, stream), last, self.horizon if horizon is None else horizon
            )
        )

    def _in_pieces(
        self,
        begin: Callable[[EngineState], Generator[Progress | None, None, Result]],
        *,
        writing: bool = False,
    ) -> Iterator[Result | Progress | None]:
        """What a generator returns, with the lock held in each of its pieces and free between them (`pieces`).

        Between two pieces anything may have changed: streams may have rows, be out of memory, or gone.
        """
        work, progress = None, None
        while True:
            with self._ready() if writing else self._reading() as state:
                work = work or begin(state)
                try:
                    progress = next(work)
                except StopIteration as done:
                    result = done.value
                    break
            yield progress
        yield result

    def alarms(
        self, stream: str | None = None, *, unacknowledged: bool = False
    ) -> list[Alarm[str]]:
        """Alarms raised, newest first."""
        with self._reading() as state:
            if stream is None:
                return self._named(self.store.alarms(unacknowledged=unacknowledged))
            with self._naming(stream):
                number = self._number(state, stream)
                return self._named(self.store.alarms(number, unacknowledged=unacknowledged))

    def acknowledge(self, number: int, by: str) -> Alarm[str]:
        """Mark an alarm as seen; durable. A second time changes nothing."""
        with self._ready():
            if not is_text(by):
                raise StreamingError(f"by is {by!r}: say who has seen it.", "by_bad")
            alarm = self.store.acknowledge(number, self.clock(), by)
            if alarm is None:
                raise StreamingError(f"there is no alarm {number}.", "alarm_unknown")
            return self._named([alarm])[0]

    def alarms_from(self, number: int, most: int = 100) -> list[Alarm[str]]:
        """Alarms from a number on, oldest first; numbers grow by one with each alarm raised, and none comes again."""
        with self._reading():
            return self._named(self.store.alarms_from(number, most))

    def kept(self, key: str) -> str | None:
        """A text that `keep` has kept under a key."""
        with self._reading():
            return self.store.kept(key)

    def keep(self, key: str, text: str) -> None:
        """Keep a small text in the store, durably, in the place of what was there under the same key."""
        with self._ready():
            self.store.keep(key, text)

    def _named(self, alarms: Sequence[Alarm[int]]) -> list[Alarm[str]]:
        streams = self.store.streams(sorted({alarm.stream for alarm in alarms}))
        names = {stream.number: stream.name for stream in streams}
        return [Alarm(**{**asdict(one), "stream": names[one.stream]}) for one in alarms]

    @property
    def counters(self) -> Mapping[str, int]:
        """Durable totals: received and how that ended, rows, streams, alarms, commits."""
        totals, sequence = self._totals()
        ended = {one.name.lower(): totals.outcomes[one.name.lower()] for one in Outcome}
        return {
            "received": sum(ended.values()),
            **ended,
            "rows": totals.rows,
            "streams": totals.streams,
            "alarms": totals.alarms,
            "commits": sequence,
        }

    def _totals(self) -> tuple[Totals, int]:
        """Durable totals and the number of the last commit, without waiting for whoever is at work on the engine."""
        if self._state.settled:
            return self._state.totals, self._state.sequence
        with self._reading() as state:
            return state.totals, state.sequence

    @property
    def refusals(self) -> Mapping[str, int]:
        """Durable totals of refused events by code."""
        return dict(self._totals()[0].refused)

    @property
    def resident(self) -> int:
        """How many streams are in memory."""
        return len(self._state)

    def evict(self, streams: Sequence[str]) -> int:
        """Drop streams from memory (their states are in the store); how many were there."""
        with self._ready() as state:
            names = dict.fromkeys(streams)
            gone = state.drop([state.slot_of[name] for name in names if name in state.slot_of])
            state.shrink()
            return gone

    def evict_idle(self, seconds: float) -> int:
        """Drop from memory what no event has changed, and nobody read, for so long by the wall clock."""
        with self._ready() as state:
            gone = state.drop_idle(self.clock() - seconds)
            state.shrink()
            return gone

    def prune(self, keep: float) -> int:
        """Delete stored rows more than `keep` (model time) older than their stream's newest; how many.

        What late events may still need is kept in any case, and so are the rows since the newest
        checkpoint before that. A store whose rows were pruned cannot be rebuilt for another model.
        """
        if not keep >= 0:
            raise StreamingError(f"keep is {keep}: give a time of 0 or more.", "setting_bad")
        return result_of(self.retain_pieces(Retention(keep=keep))).rows

    def retain_pieces(self, retention: Retention) -> Iterator[Deleted | Progress | None]:
        """Delete what is older than asked for, piece by piece, with the engine free in between.

        While another model is being built beside this one, no rows are deleted that it has not seen.
        """
        if self.shadow.status().state == "building":
            retention = replace(retention, keep=None, received=None)
        return self._in_pieces(
            lambda state: delete_old(state, retention, self.clock(), self.forget), writing=True
        )

    def end_stream(self, stream: str) -> None:
        """Note that a stream has ended, durably: `Retention.ended` counts from now, unless another event comes."""
        with self._ready() as state:
            self.store.end(self._number(state, stream), self.clock())

    def repair(self, stream: str) -> None:
        """Integrate a stream's stored rows again: for a state that is damaged (`CodecError`)."""
        with self._ready() as state:
            repair_stream(state, self.store.streams([self._number(state, stream)])[0])

    def check_writable(self) -> None:
        """Raise `StoreError` where the store would not take a commit now."""
        with self._ready():
            self.store.check_writable()

    def forget(self, stream: str) -> None:
        """Delete a stream and everything known of it, from memory and store, be its state readable or not."""
        with self._ready() as state:
            number = self._number(state, stream)
            slots = [state.slot_of[stream]] if stream in state.slot_of else []
            with state.transaction(
                0.0, lambda done: self.store.forget(number, done.totals.text())
            ) as change:
                change.totals.streams -= 1
                change.totals.reworks.pop(number, None)
                change.then.append(lambda: state.drop(slots))
                change.then.append(lambda: state.away.take(np.array([number])))
                change.then.append(lambda: state.roster.take(number))

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            self.store.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _ready(self) -> Iterator[EngineState]:
        """The streams in memory, for one caller at a time, and in agreement with the store."""
        with self._lock:
            self._state.settle()
            yield self._state

    @contextmanager
    def _reading(self) -> Iterator[EngineState]:
        """The streams in memory; where the store is away after a failed commit, as it was acknowledged last."""
        with self._lock:
            self._state.settle_to_read()
            yield self._state

    @contextmanager
    def _naming(self, stream: str) -> Iterator[None]:
        """Where part of the store's file cannot be read, the error names the stream that it was read for."""
        try:
            yield
        except (StoreCorrupt, StoreDamaged) as error:
            if repr(stream) in str(error):
                raise
            raise StoreDamaged(f"stream {stream!r}: {error}") from error

    def _number(self, state: EngineState, stream: str) -> int:
        """The number of a stream in the store, for which its state need not be read."""
        slot = state.slot_of.get(stream, -1) if isinstance(stream, str) else -1
        if slot >= 0:
            return int(state.number[slot])
        with self._naming(stream):
            record = self.store.find([stream])[0] if is_text(stream) else None
        if record is None and self.store.names_lost:
            raise lost_name(stream)
        if record is None:
            raise UnknownStream(f"there is no stream {stream!r}.")
        return record.number

    def _slot(self, state: EngineState, stream: str) -> int:
        slot = state.slot_of.get(stream, -1) if isinstance(stream, str) else -1
        if slot < 0 and is_name(stream):
            with self._naming(stream):
                slot = state.slot(stream)
        if slot < 0:
            raise UnknownStream(f"there is no stream {stream!r}.")
        return slot
