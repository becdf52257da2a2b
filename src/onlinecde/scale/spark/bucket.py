"""The streams of one bucket for one micro-batch: the engine's own code on a store that lives that long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from onlinecde.scale.spark.columns import answer_frame
from onlinecde.scale.spark.plan import Plan
from onlinecde.streaming.events import EventBatch, Receipts
from onlinecde.streaming.pipeline.apply import apply_batch
from onlinecde.streaming.served import ServedModel
from onlinecde.streaming.settings import EngineSettings
from onlinecde.streaming.state import EngineState, Totals
from onlinecde.streaming.stores.base import CheckpointRecord, Commit, RevisedRecord, RowRecord
from onlinecde.streaming.stores.memory import MemoryStore
from onlinecde.streaming.transfer import (
    Outline,
    PackedRow,
    Parcel,
    check,
    check_reach,
    extended,
    outline,
    pack,
    put_outline,
    put_past,
    unpack,
)


class BucketStore(MemoryStore):
    """A store out of parcels, each opened when its rows are first asked for; remembers its newest commit."""

    noted: Commit

    def __init__(self, model: str, parcels: Iterable[bytes]) -> None:
        super().__init__()
        self.adopt(model)
        self.closed: dict[int, bytes] = dict(enumerate(parcels, 1))
        self.opened: dict[int, Parcel] = {}
        count = len(self.closed)
        self.commit(Commit(1, 0.0, Totals(streams=count, next_stream=count + 1).text()))

    def commit(self, commit: Commit) -> None:
        super().commit(commit)
        self.noted = commit

    def put(self, outlines: Mapping[int, Outline]) -> None:
        """Make the streams of the closed parcels known."""
        commit = self._aside()
        for number, one in outlines.items():
            put_outline(commit, number, one)
        self._apply(commit)

    def open(self, stream: int) -> None:
        """Open the parcel of a stream, if it has one that is still closed."""
        if stream in self.closed:
            commit = self._aside()
            self.opened[stream] = unpack(self.closed.pop(stream))
            put_past(commit, stream, self.opened[stream])
            self._apply(commit)

    def _aside(self) -> Commit:
        """A commit of what was there all along: it does not count."""
        return Commit(self._sequence, 0.0, self._totals or "")

    def rows(
        self,
        stream: int,
        since: float = float("-inf"),
        until: float = float("inf"),
        *,
        newest: int | None = None,
        oldest: int | None = None,
    ) -> list[RowRecord]:
        self.open(stream)
        return super().rows(stream, since, until, newest=newest, oldest=oldest)

    def checkpoint(self, stream: int, before: float) -> CheckpointRecord | None:
        self.open(stream)
        return super().checkpoint(stream, before)

    def revised(self, stream: int) -> list[RevisedRecord]:
        self.open(stream)
        return super().revised(stream)


class Bucket:
    """Streams out of their parcels, followed as an `Engine` would, and put back into parcels."""

    def __init__(self, served: ServedModel, plan: Plan, parcels: Iterable[bytes]) -> None:
        self.plan, self.store = plan, BucketStore(served.hash, parcels)
        self.outlines: dict[int, Outline] = {}
        for number, body in self.store.closed.items():
            check(body)
            self.outlines[number] = outline(body)
            check_reach(self.outlines[number], plan.lateness)
        self.store.put(self.outlines)
        endless = 2**62
        settings = EngineSettings(
            alarms=False,
            lateness=plan.lateness,
            horizon=plan.horizon,
            ahead=plan.ahead,
            recent=1,  # states are not kept beyond the micro-batch
            checkpoint_rows=plan.checkpoint_rows,
            resident=endless,
            piece_rows=endless,
            most_streams=endless,
        )
        self.state = EngineState(served, self.store, settings)
        self.state.settle()

    def apply(self, batch: EventBatch, received: float) -> Receipts:
        """Apply a micro-batch, by the engine's rules."""
        return apply_batch(self.state, batch, received)

    def answers(self) -> Any:
        """The answers after rows that are new, or that are others than before, as a frame."""
        commit, state = self.store.noted, self.state
        before = {(n, row[0]) for n, parcel in self.store.opened.items() for row in parcel.rows}
        changed = {(one[0], one[1]) for one in commit.revised}
        rows = [row for row in commit.rows if (row[0], row[1]) not in before or row[:2] in changed]
        if not rows:
            return None
        names = {stream.number: stream.name for stream in self.store.streams()}
        revisions: dict[tuple[int, float], int] = {}
        for number in {one[0] for one in commit.revised}:
            for one in self.store.revised(number):
                place = one.stream, one.time
                revisions[place] = revisions.get(place, 0) + 1
        outputs = np.frombuffer(b"".join(row[5] for row in rows), "<f8")
        outputs = outputs.reshape(len(rows), state.model.outputs)
        return answer_frame(
            [names[row[0]] for row in rows],
            [row[1] for row in rows],
            "row",
            outputs=outputs,
            probabilities=state.served.probabilities(outputs),
            revision=[revisions.get((row[0], row[1]), 0) for row in rows],
        )

    def packed(self, origins: Mapping[str, float], tick: float | None) -> dict[str, bytes]:
        """Parcels of the streams that the micro-batch changed, by name.

        origins: the wall clock at time 0 of streams that may be new. tick: the last one answered, by the
        wall clock; rows after it are kept, for answers between rows.
        """
        store, result = self.store, {}
        rows: dict[int, list[PackedRow]] = {}
        for number, when, _, events, more, outputs, _ in store.noted.rows:
            rows.setdefault(number, []).append((when, events, more, outputs))
        for number in {one[0] for one in store.noted.checkpoints}:
            store.open(number)  # a parcel is extended by rows only
        streams, states = store.streams(list(rows)), store.states(list(rows))
        for stream, newest in zip(streams, states, strict=True):
            if stream.origin is None:
                stream = stream._replace(origin=origins.get(stream.name))
            since = newest.time - self.plan.lateness
            if self.plan.every is not None and stream.origin is not None:
                answered = float("-inf")
                if tick is not None:
                    answered = (tick - stream.origin) * self.plan.rate
                since = min(since, answered)
            body = store.closed.get(stream.number)
            if body is not None and self.outlines[stream.number].next_floor >= since:
                result[stream.name] = extended(body, stream, newest, rows[stream.number])
                continue
            result[stream.name] = pack(store, stream, newest, since)
        return result
