"""`Engine`: follows many streams with one model, in micro-batches, durably."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from onlinecde.models import OnlineModel
from onlinecde.streaming import moving, questions, reading
from onlinecde.streaming.applying import apply_batch
from onlinecde.streaming.errors import StreamingError, UnknownStream
from onlinecde.streaming.events import (
    Answers,
    Event,
    EventBatch,
    Outcome,
    Receipts,
    Refusal,
)
from onlinecde.streaming.following import Following, Settings, limits_of
from onlinecde.streaming.identity import served_model
from onlinecde.streaming.intake import is_name, is_text
from onlinecde.streaming.memory_store import MemoryStore
from onlinecde.streaming.rebuilding import rebuild as rebuild_store
from onlinecde.streaming.rebuilding import repair as repair_stream
from onlinecde.streaming.store import AlarmRecord, Commit, Store, StreamRecord
from onlinecde.streaming.views import (
    Alarm,
    Curve,
    HistoryRow,
    Overview,
    RowExplanation,
    StreamInfo,
)

Found = TypeVar("Found")


class Engine:
    """Follows streams: events in, receipts and answers out; what is acknowledged is in the store.

    model: a folder that `oc.save` wrote, or a model (then `channels` names its channels).
    store: where events, states and answers go; `SQLiteStore(file)`, default `MemoryStore()`.
    lateness: how far behind its stream's newest row an event may lie, in the model's unit of time.
    horizon: how far from the training times an event's time may lie; default 1e5 time scales.
    ahead: how far an event may lie ahead of its stream's newest row; default `horizon`.
    recent: how many states a stream keeps in memory, so that late events are cheap.
    checkpoint_rows: a state is kept in the store for good every so many rows of a stream.
    resident: how many streams are kept in memory; those idle longest go first, and come back when needed.
    most_streams: events that would open more streams than this are refused.
    threshold: probability of output `output`, or number of a regression, at which an alarm is raised; None
        for no alarms.
    clock: wall clock in seconds; recorded with commits, never mixed with the streams' own times.
    rebuild: where the store belongs to another model, integrate all its rows again under this one.
    progress: hears how many streams of how many are rebuilt; the rebuild is undone where it raises.

    Any thread may call any method: one lock lets them in one by one.

    >>> import onlinecde as oc
    >>> engine = Engine(oc.NeuralCDE(channels=2, hidden=8, width=8), channels=["hr", "bp"])
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
        lateness: float = 0.0,
        horizon: float | None = None,
        ahead: float | None = None,
        recent: int = 8,
        checkpoint_rows: int = 32,
        resident: int = 100_000,
        most_streams: int = 1_000_000,
        threshold: float | None = None,
        output: int = 0,
        clock: Callable[[], float] = time.time,
        rebuild: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        served = served_model(model, channels)
        for name, size in (
            ("recent", recent),
            ("checkpoint_rows", checkpoint_rows),
            ("resident", resident),
            ("most_streams", most_streams),
        ):
            if size < 1:
                raise StreamingError(f"{name} is {size}: give at least 1.", "setting_bad")
        for name, span in (("lateness", lateness), ("ahead", ahead)):
            if span is not None and not 0 <= span < float("inf"):
                raise StreamingError(f"{name} is {span}: give a time of 0 or more.", "setting_bad")
        if not 0 <= output < served.model.outputs:
            raise StreamingError(
                f"output is {output}: the model has no such output.", "setting_bad"
            )
        kind: str = getattr(getattr(served.model, "readout", None), "kind", "regression")
        _check_threshold(threshold, kind)
        settings = Settings(
            float(lateness),
            float("inf") if ahead is None else ahead,
            recent,
            checkpoint_rows,
            resident,
            most_streams,
            threshold,
            output,
        )
        self.model, self.model_hash = served.model, served.hash
        self.channels, self.units = served.channels, served.units
        self.schema = served.schema
        self.outputs, self.lateness = served.model.outputs, float(lateness)
        self.latest = limits_of(served.model, horizon).latest
        self.threshold, self.output = threshold, output
        self.kind = kind
        self.store = MemoryStore() if store is None else store
        self.clock = clock
        self._lock = threading.RLock()
        self._following = Following(served, self.store, settings, horizon)
        known = self.store.head().model
        if rebuild and known is not None and known != served.hash:
            rebuild_store(self._following, progress)
        self._following.settle()
        self._following.preload()

    def apply(self, events: EventBatch | Sequence[Event]) -> Receipts:
        """One micro-batch: validate, order, merge, integrate, commit; then the receipts.

        When this returns, everything acknowledged is in the store. When it raises (`StoreError`:
        the store failed), nothing of the batch was applied, and it may be sent again: what the store
        took in all the same is then a duplicate.
        """
        batch = events if isinstance(events, EventBatch) else EventBatch.from_events(events)
        with self._ready() as following:
            return apply_batch(following, batch, self.clock())

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
        with self._ready() as following:
            if not is_name(stream):
                raise StreamingError(f"stream is {stream!r}: give a printable name.", "stream_bad")
            if origin is not None and not np.isfinite(origin):
                raise StreamingError(f"origin is {origin}: give a finite time.", "origin_bad")
            features, wrong = following.check_static(stream, static)
            slot = following.slot(stream)
            if slot >= 0:
                told = None if features is None else tuple(np.frombuffer(features, "<f8").tolist())
                if static is not None and (wrong or told != following.static.get(slot)):
                    raise StreamingError(
                        f"stream {stream!r} was opened with other static features.", "static_bad"
                    )
                info = questions.stream_info(following, slot)
                if origin is not None and origin != info.origin:
                    was = "no origin" if info.origin is None else f"origin {info.origin!r}"
                    raise StreamingError(
                        f"stream {stream!r} was opened with {was}, which stays: give the origin before the "
                        "first event, or forget the stream.",
                        "origin_fixed",
                    )
                return info
            if wrong is not None:
                raise StreamingError(wrong.message, wrong.code)
            if following.totals.streams >= following.settings.most_streams:
                raise StreamingError("there are as many streams as are allowed.", "stream_limit")
            totals = following.totals.count(np.empty(0, np.int64), {}, 0)
            record = StreamRecord(totals.next_stream, stream, features, origin)
            totals.streams, totals.next_stream = totals.streams + 1, totals.next_stream + 1
            commit = Commit(following.sequence + 1, self.clock(), totals.text(), opened=[record])
            try:
                self.store.commit(commit)
            except BaseException:
                following.doubtful = True
                raise
            following.sequence, following.totals = commit.sequence, totals
            info = questions.stream_info(following, following.add([record])[0])
            return replace(info, notes=following.static_notes(stream, static))

    def static_fault(self, stream: str, static: Any) -> Refusal | None:
        """What is wrong with static features for a stream; None where they would do."""
        return self._following.check_static(stream, static)[1]

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
        with self._reading() as following:
            slots = np.array([self._slot(following, name) for name in streams], np.int64)
            if not len(slots):
                nothing = np.empty((0, self.outputs))
                return Answers((), np.empty(0), nothing, nothing)
            times = questions.times(following, streams, slots, at, clamp)
            outputs = reading.ask(following, following.residents.newest(slots), times)
            return Answers(tuple(streams), times, outputs, following.probabilities(outputs))

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs (..., output) as probabilities, by the readout's kind."""
        return self._following.probabilities(outputs)

    def stream(self, stream: str) -> StreamInfo:
        """What is known of one stream."""
        with self._reading() as following:
            resident = stream in following.residents.slot_of
            return questions.stream_info(following, self._slot(following, stream), resident)

    def state(self, stream: str) -> bytes:
        """The newest state of a stream as `StateCodec` writes it: what is stored, bit for bit."""
        with self._reading() as following:
            slot = np.array([self._slot(following, stream)])
            return following.codec.encode(following.residents.newest(slot))[0]

    def export(self, stream: str) -> bytes:
        """A stream as a parcel: what another engine or a Spark job needs to go on with it exactly.

        It holds the newest state, and the rows within the allowed lateness; earlier history stays here.
        """
        with self._reading() as following:
            slot = self._slot(following, stream)
            held = following.residents
            states = self.store.states([int(held.number[slot])])
            if not states:
                raise StreamingError(f"stream {stream!r} has no row yet.", "no_rows")
            found = self.store.streams([states[0].stream])[0]
            since = states[0].time - following.settings.lateness
            return moving.pack(self.store, found, states[0], since)

    def take(self, parcels: Iterable[bytes]) -> list[str]:
        """Go on with streams that were followed elsewhere, all of them or, where one is refused, none.

        Raises StreamingError for streams that are known already, parcels of another model, and those
        whose rows do not reach back as far as the lateness allowed here.
        """
        with self._ready() as following:
            return moving.take_in(following, parcels, self.clock())

    def __contains__(self, stream: object) -> bool:
        with self._reading() as following:
            return is_name(stream) and following.slot(stream) >= 0  # pyright: ignore[reportArgumentType]

    def __len__(self) -> int:
        """How many streams are known."""
        with self._reading() as following:
            return following.totals.streams

    def overview(self) -> Overview:
        """All streams that have a row, those not in memory too, and the answer after the newest of each."""
        with self._reading() as following:
            return reading.overview(following)

    def history(
        self,
        stream: str,
        since: float | None = None,
        until: float | None = None,
        *,
        most: int | None = None,
    ) -> list[HistoryRow]:
        """Rows as received with the answers given, in order of time; `most` keeps the newest."""
        with self._reading() as following:
            since, until = questions.span(since, until, float("-inf"), float("inf"))
            return reading.history(following, self._number(following, stream), since, until, most)

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
        return _last(self.curve_pieces(stream, since, until, points=points, most_rows=most_rows))

    def curve_pieces(
        self,
        stream: str,
        since: float | None = None,
        until: float | None = None,
        *,
        points: int = 200,
        most_rows: int | None = None,
    ) -> Iterator[Curve | None]:
        """`curve`, piece by piece: None until it is done, with the engine free in between."""
        if not 2 <= points <= 10_000:
            raise StreamingError(f"points is {points}: give 2 to 10,000.", "points_bad")
        if most_rows is not None and most_rows < 2:
            raise StreamingError(f"most_rows is {most_rows}: give at least 2.", "points_bad")

        def begin(following: Following) -> Generator[None, None, Curve]:
            slot = self._slot(following, stream)
            span = questions.curve_span(following, slot, since, until)
            return reading.curve(following, slot, *span, points, most_rows)

        return self._in_pieces(begin)

    def explain(self, stream: str, last: int = 20) -> list[RowExplanation]:
        """What moved the answer, row by row, for the newest `last` rows; the parts add up."""
        return _last(self.explain_pieces(stream, last))

    def explain_pieces(self, stream: str, last: int = 20) -> Iterator[list[RowExplanation] | None]:
        """`explain`, piece by piece: None until it is done, with the engine free in between."""
        if last < 1:
            raise StreamingError(f"last is {last}: give at least 1.", "last_bad")
        return self._in_pieces(
            lambda following: reading.explain(following, self._slot(following, stream), last)
        )

    def _in_pieces(
        self, begin: Callable[[Following], Generator[None, None, Found]]
    ) -> Iterator[Found | None]:
        """What a generator returns, with the lock held in each of its pieces and free between them."""
        work = None
        while True:
            with self._reading() as following:
                work = work or begin(following)
                try:
                    next(work)
                except StopIteration as done:
                    found = done.value
                    break
            yield None
        yield found

    def alarms(self, stream: str | None = None, *, unacknowledged: bool = False) -> list[Alarm]:
        """Alarms raised, newest first."""
        with self._reading() as following:
            number = None if stream is None else self._number(following, stream)
            found = self.store.alarms(number, unacknowledged=unacknowledged)
            return self._named(found)

    def acknowledge(self, number: int, by: str) -> Alarm:
        """Mark an alarm as seen; durable. A second time changes nothing."""
        with self._ready():
            if not is_text(by):
                raise StreamingError(f"by is {by!r}: say who has seen it.", "by_bad")
            alarm = self.store.acknowledge(number, self.clock(), by)
            if alarm is None:
                raise StreamingError(f"there is no alarm {number}.", "alarm_unknown")
            return self._named([alarm])[0]

    def _named(self, alarms: Sequence[AlarmRecord]) -> list[Alarm]:
        streams = self.store.streams(sorted({alarm.stream for alarm in alarms}))
        names = {stream.number: stream.name for stream in streams}
        return [Alarm(one.number, names[one.stream], *one[2:]) for one in alarms]

    @property
    def counters(self) -> Mapping[str, int]:
        """Durable totals: received and how that ended, rows, streams, alarms, commits."""
        with self._reading() as following:
            totals = following.totals
            ended = {one.name.lower(): totals.outcomes[one.name.lower()] for one in Outcome}
            return {
                "received": sum(ended.values()),
                **ended,
                "rows": totals.rows,
                "streams": totals.streams,
                "alarms": totals.alarms,
                "commits": following.sequence,
            }

    @property
    def refusals(self) -> Mapping[str, int]:
        """Durable totals of refused events by code."""
        with self._reading() as following:
            return dict(following.totals.refused)

    @property
    def resident(self) -> int:
        """How many streams are in memory."""
        return len(self._following.residents)

    def evict(self, streams: Sequence[str]) -> int:
        """Drop streams from memory (their states are in the store); how many were there."""
        with self._ready() as following:
            slot_of = following.residents.slot_of
            slots = [slot_of[name] for name in dict.fromkeys(streams) if name in slot_of]
            following.drop(slots)
            return len(slots)

    def evict_idle(self, seconds: float) -> int:
        """Drop from memory what no event has changed for so long by the wall clock."""
        with self._ready() as following:
            held, now = following.residents, self.clock()
            slots = [s for s in held.slot_of.values() if now - held.received[s] > seconds]
            following.drop(slots)
            return len(slots)

    def prune(self, keep: float) -> int:
        """Delete stored rows more than `keep` (model time) older than their stream's newest; how many.

        What late events may still need is kept in any case, and so are the rows since the newest
        checkpoint before that. A store whose rows were pruned cannot be rebuilt for another model.
        """
        if not keep >= 0:
            raise StreamingError(f"keep is {keep}: give a time of 0 or more.", "setting_bad")
        with self._ready() as following:
            return self.store.prune(max(keep, following.settings.lateness))

    def repair(self, stream: str) -> None:
        """Integrate a stream's stored rows again: for a state that is damaged (`CodecError`)."""
        with self._ready() as following:
            repair_stream(following, self.store.streams([self._number(following, stream)])[0])

    def check_writable(self) -> None:
        """Raise `StoreError` where the store would not take a commit now."""
        with self._ready():
            self.store.check_writable()

    def forget(self, stream: str) -> None:
        """Delete a stream and everything known of it, from memory and store, be its state readable or not."""
        with self._ready() as following:
            number = self._number(following, stream)
            totals = following.totals.count(np.empty(0, np.int64), {}, 0)
            totals.streams -= 1
            try:
                self.store.forget(number, totals.text())
            except BaseException:
                # It may be done all the same, and no commit's sequence would tell: read everything anew.
                following.doubtful, following.sequence = True, -1
                raise
            following.totals = totals
            following.drop(
                [slot for slot in [following.residents.slot_of.get(stream)] if slot is not None]
            )

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            self.store.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _ready(self) -> Iterator[Following]:
        """What is followed, for one caller at a time, and in agreement with the store."""
        with self._lock:
            self._following.settle()
            yield self._following

    @contextmanager
    def _reading(self) -> Iterator[Following]:
        """What is followed; where the store is away after a failed commit, as it was acknowledged last."""
        with self._lock:
            self._following.settle_to_read()
            yield self._following

    def _number(self, following: Following, stream: str) -> int:
        """The number of a stream in the store, for which its state need not be read."""
        slot = following.residents.slot_of.get(stream, -1) if isinstance(stream, str) else -1
        if slot >= 0:
            return int(following.residents.number[slot])
        found = self.store.find([stream])[0] if is_text(stream) else None
        if found is None:
            raise UnknownStream(f"there is no stream {stream!r}.")
        return found.number

    def _slot(self, following: Following, stream: str) -> int:
        slot = following.residents.slot_of.get(stream, -1) if isinstance(stream, str) else -1
        if slot < 0 and is_name(stream):
            slot = following.slot(stream)
        if slot < 0:
            raise UnknownStream(f"there is no stream {stream!r}.")
        return slot


def _last(pieces: Iterator[Found | None]) -> Found:
    """What the last of some pieces is."""
    *_, found = pieces
    assert found is not None
    return found


def _check_threshold(threshold: float | None, kind: str) -> None:
    """Refuse a threshold that what the model says can never reach, or never be below."""
    if threshold is None or (kind == "regression" and isfinite(threshold)):
        return
    if kind == "regression" or not 0 <= threshold <= 1:
        wanted = "a finite number" if kind == "regression" else "a probability from 0 to 1"
        raise StreamingError(f"threshold is {threshold}: give {wanted}, or none.", "setting_bad")
