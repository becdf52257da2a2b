"""Late events that reach far back: a stream's rows are integrated again in pieces, with the engine free in between.

First `prepare`: from the nearest kept state before the change to a few rows before the newest, without changing
anything. Then the micro-batch that brought the events ends as any other, from the prepared state on: events, newest
state, alarms and counts in one commit. Last `rework`: the answers given after the rows between, which are now others,
and the states kept on the way; where it stands is committed with each piece (`Totals.reworks`), so that a killed
engine goes on there.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from onlinecde.models import StreamState
from onlinecde.streaming.codec import Row, decode_row
from onlinecde.streaming.errors import StreamingError
from onlinecde.streaming.pieces import Progress
from onlinecde.streaming.pipeline.integrate import Integrated, integrate
from onlinecde.streaming.stores.base import RowRecord, StreamRecord

if TYPE_CHECKING:
    from onlinecde.streaming.state import EngineState

PARTS = 10_000


class LongWork(Exception):  # noqa: N818
    """Some streams of a micro-batch need more work than it may do at once; nothing was applied."""

    def __init__(
        self, streams: set[str], tails: dict[int, dict[float, Row]], *, sliced: bool = False
    ) -> None:
        super().__init__(f"{len(streams)} streams need more work than one micro-batch does.")
        self.streams = streams
        """Their names"""
        self.tails = tails
        """The rows that will change, of streams by number; with none, its earlier answers must be reworked first"""
        self.sliced = sliced
        """Whether there are too many rows of one stream, so that the batch must be applied part by part"""


@dataclass(eq=False)
class Prepared:
    """A stream's rows integrated again up to one of them, without anything having changed yet."""

    stream: int
    changed: dict[float, Row]
    """The rows that will change"""
    state: StreamState
    until: float
    """Time of the row that `state` is the state after"""
    ready: bool = False
    """Whether only a few rows are left"""
    answers: dict[float, bytes] = field(default_factory=dict)
    """Outputs after the rows that change, up to `until`"""
    links: dict[float, float] = field(default_factory=dict)
    """Time of the row before, of rows up to `until` that have another than they had"""
    bad: tuple[float, str] | None = None
    """Time of a row without a finite state, and the model's complaint"""


def prepare(
    state: EngineState, number: int, changed: dict[float, Row], own: list[Prepared]
) -> Generator[Progress, None, None]:
    """Integrate a stream again with these rows, up to a few before its newest: in `EngineState.prepared`.

    own: what was prepared before, which is gone on from, and what is prepared here. Ends early where rows among those
    are changed by others, or the stream is forgotten.
    """
    start, stream = min(changed), _stream(state, number)
    if stream is None:
        return
    prepared = next((one for one in own if one in state.prepared and one.changed == changed), None)
    if prepared is None:
        prepared = Prepared(number, changed, *_before(state, stream, start))
        own.append(prepared)
        state.prepared.append(prepared)
    prepared.ready = False
    piece, left = sizes(state)
    while prepared in state.prepared and not prepared.ready and prepared.bad is None:
        records = _next_rows(state, number, prepared.until, piece + left + 1)
        few = len(records) <= piece + left
        records = records[: max(0, len(records) - left) if few else piece]
        prepared.ready = few
        if records:
            end, rows = records[-1].time, {record.time: decode_row(record) for record in records}
            new = {t: row for t, row in changed.items() if prepared.until < t <= end}
            rows |= new
            times = sorted(rows)[:piece]
            prepared.ready = few and times[-1] == end
            before = {record.time: record.before for record in records}
            for earlier, one in pairwise([prepared.until, *times]):
                if one in new or before[one] not in (None, earlier):
                    prepared.links[one] = earlier
            done = _integrated(state, prepared.state, [rows[one] for one in times])
            if done.bad:
                row = min(done.bad)
                prepared.bad = times[row], done.bad[row]
                break
            prepared.state = done.states_of(np.array([len(times) - 1]))
            prepared.until = times[-1]
            prepared.answers |= {
                one: done.outputs[place].astype("<f8").tobytes()
                for place, one in enumerate(times)
                if one in new
            }
        yield _progress(start, prepared.until, _last(state, number))


def rework(state: EngineState, number: int, received: float) -> Generator[Progress, None, None]:
    """Give the rows that late events changed their new answers, in commits of bounded size, until all have them."""
    base, time, begun = None, 0.0, float("nan")
    piece, _ = sizes(state)
    while (span := state.totals.reworks.get(number)) is not None:
        since, until = span
        stream = _stream(state, number)
        if stream is None:
            raise AssertionError("a stream that is forgotten has nothing to be reworked")
        if base is None or begun != since:
            base, time = _before(state, stream, since)
        records = [one for one in _next_rows(state, number, time, piece) if one.time <= until]
        with state.transaction(received) as change:
            commit = change.commit
            if records:
                done = _integrated(state, base, [decode_row(record) for record in records])
                if done.bad:
                    raise StreamingError(
                        f"stream {stream.name!r}: its stored row at {records[min(done.bad)].time!r} has no finite "
                        "state any more: rebuild the store.",
                        "state_unreadable",
                    )
                base, time = done.states_of(np.array([len(records) - 1])), records[-1].time
                for place, record in enumerate(records):
                    answer = done.outputs[place].astype("<f8").tobytes()
                    if record.time >= since and record.outputs != answer:
                        new = record._replace(sequence=commit.sequence, outputs=answer)
                        commit.rows.append(tuple(new))
                        commit.revised.append(
                            (number, record.time, record.sequence, record.outputs)
                        )
                kept = np.arange(0, len(records), state.settings.checkpoint_rows)
                kept = kept[[records[place].time >= since for place in kept.tolist()]]
                bodies = state.codec.encode(done.states_of(kept)) if len(kept) else []
                commit.checkpoints += [
                    (number, records[place].time, body)
                    for place, body in zip(kept.tolist(), bodies, strict=True)
                ]
            if len(records) < piece:
                del change.totals.reworks[number]
            else:
                begun = float(np.nextafter(time, np.inf))
                change.totals.reworks[number] = (begun, until)
        yield _progress(since, time, until)


def sizes(state: EngineState) -> tuple[int, int]:
    """Rows integrated in one piece, and those left to the micro-batch, among them all whose states memory keeps."""
    return max(1, state.most_rows // 4), max(state.most_rows // 8, state.settings.recent)


def _stream(state: EngineState, number: int) -> StreamRecord | None:
    return next(iter(state.store.streams([number])), None)


def _last(state: EngineState, number: int) -> float:
    return max((one.time for one in state.store.rows(number, newest=1)), default=0.0)


def _progress(start: float, at: float, end: float) -> Progress:
    """How far from `start` to `end`."""
    share = (at - start) / (end - start) if end > start else 1.0
    return Progress(int(PARTS * min(1.0, max(0.0, share))), PARTS)


def _next_rows(state: EngineState, number: int, after: float, most: int) -> list[RowRecord]:
    return state.store.rows(number, float(np.nextafter(after, np.inf)), oldest=most)


def _before(state: EngineState, stream: StreamRecord, start: float) -> tuple[StreamState, float]:
    """The newest kept state from before a time, or the oldest that is left, and its time."""
    store, number = state.store, stream.number
    kept = store.checkpoint(number, start)
    if kept is None and store.pruned() and (first := store.rows(number, oldest=1)):
        kept = store.checkpoint(number, first[0].time)
    if kept is not None:
        return state.codec.decode([kept.body]), kept.time
    static = None if stream.static is None else np.frombuffer(stream.static, "<f8").tolist()
    return state.served.begin(static), float("-inf")


def _integrated(state: EngineState, base: StreamState, rows: list[Row]) -> Integrated:
    width = state.model.channels
    return integrate(
        state.served.live,
        base,
        np.array([len(rows)]),
        np.array([row.time for row in rows]),
        np.stack([row.dense(width) for row in rows]),
    )
