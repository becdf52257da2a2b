"""Third step, for streams whose events are not in order: each event is applied, known, corrected or refused.

`merge` is the meaning of the engine, event by event in the order of arrival; the fast way of `order` may only be
taken where it comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from onlinecde.models import StreamState
from onlinecde.streaming.codec import MOST_CORRECTIONS, Row, decode_row, encode_row
from onlinecde.streaming.errors import CodecError
from onlinecde.streaming.events import Outcome, Refusal
from onlinecde.streaming.pipeline.long_tails import LongWork, Prepared, sizes
from onlinecde.streaming.pipeline.validate import Checked
from onlinecde.streaming.stores.base import RowRecord

if TYPE_CHECKING:
    from onlinecde.streaming.state import EngineState


FEW_TIMES = 64
"""Times of events at which rows are looked up one by one"""


def not_finite(time: float, why: str) -> Refusal:
    """What is said of events with which a row has no finite state; why: the model's complaint, or nothing."""
    if why:
        return Refusal("row_refused", "value", f"the row at {time!r}: {why}")
    return Refusal(
        "not_finite",
        "value",
        f"with the row at {time!r} the model's state would not be finite: check its values.",
    )


@dataclass
class Merged:
    """The rows of a stream that events changed, and what became of each event."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """By the event's position, in order of arrival"""
    refusals: dict[int, Refusal] = field(default_factory=dict)
    changed: dict[float, Row] = field(default_factory=dict)
    """Rows that are new or have other events than before"""
    noted: dict[float, Row] = field(default_factory=dict)
    """Rows that only learned of another event's id"""

    def refuse_changes(self, time: float, why: str) -> None:
        """Refuse all events that change something: with them the row at a time has no finite state."""
        self.changed.clear()
        self.noted.clear()
        for event, outcome in self.outcomes.items():
            if outcome not in (Outcome.REFUSED, Outcome.DUPLICATE):
                self.outcomes[event] = Outcome.REFUSED
                self.refusals[event] = not_finite(time, why)

    def refuse(self, event: int, code: str, message: str) -> None:
        """Refuse an event for its time."""
        self.outcomes[event] = Outcome.REFUSED
        self.refusals[event] = Refusal(code, "time", message)


@dataclass(frozen=True, eq=False)
class Tail:
    """A stream whose rows from some time on are integrated again."""

    slot: int
    merged: Merged
    base: int | StreamState
    """The state before the first of `rows`: its place in memory, or, where none there is old enough, itself"""
    lead: int
    """How many of `rows` lead up to the change and are not changed themselves"""
    start: float
    """Time of the first row that changes"""
    rows: list[Row]
    known: dict[float, RowRecord]
    """Stored rows from the change on, by time; where it was prepared, of those before `rows` the changed ones alone"""
    prepared: Prepared | None = None
    """What leads up to the base, where that is beyond a change far back"""

    relinked: Sequence[RowRecord] = ()
    """Stored rows before `rows` that come after another row than they did"""

    @property
    def early(self) -> list[tuple[Row, bytes, float]]:
        """Changed rows before `rows`, the answers after them, and the times of the rows before."""
        if (done := self.prepared) is None:
            return []
        return [(done.changed[t], answer, done.links[t]) for t, answer in done.answers.items()]


def merge(
    events: Iterable[tuple[int, float, int, float, str | None]],
    last: float,
    stored: dict[float, Row],
    older: Callable[[float], Row | None],
    *,
    lateness: float,
    ahead: float,
    floor: float = float("-inf"),
) -> Merged:
    """Take the events of one stream one by one, as if each had come alone.

    Args:
        events: (position, time, channel, value, id) of each, in order of arrival.
        last: time of the stream's newest row, -inf before the first.
        stored: its rows within the allowed lateness, by time.
        older: gives a row from before that, by its time.
        lateness: how far behind the newest row an event may lie.
        ahead: how far ahead of it.
        floor: rows up to this time were deleted by retention.
    """
    merged = Merged()
    rows = dict(stored)
    ids = {one: time for time, row in sorted(stored.items()) for one in row.ids}
    for place, time, channel, value, name in events:
        row = rows.get(time)
        oldest = last - lateness
        if name is not None and ids.get(name, float("-inf")) >= oldest > float("-inf"):
            merged.outcomes[place] = Outcome.DUPLICATE
            continue
        if time < oldest:
            if _knows(older(time) if row is None else row, channel, value, name):
                merged.outcomes[place] = Outcome.DUPLICATE
            else:
                merged.refuse(
                    place,
                    "too_late",
                    f"time {time!r} lies {last - time:g} behind the stream's newest row at {last!r}; "
                    f"events may come {lateness:g} late.",
                )
            continue
        if time <= floor:
            merged.refuse(
                place,
                "before_cut",
                f"time {time!r} lies before what is kept of the stream: its rows up to {floor!r} were deleted by "
                "retention.",
            )
            continue
        if last > float("-inf") and time > last + ahead:
            merged.refuse(
                place,
                "time_ahead",
                f"time {time!r} lies {time - last:g} ahead of the stream's newest row at {last!r}; at "
                f"most {ahead:g} is allowed.",
            )
            continue
        if name is None and row is not None and _knows(row, channel, value, name):
            merged.outcomes[place] = Outcome.DUPLICATE
            continue
        old = None if row is None else row.values.get(channel)
        if row is not None and old is not None and row.full:
            merged.refuse(
                place,
                "row_full",
                f"the row at {time!r} was corrected, or sent again with other ids, {MOST_CORRECTIONS} times, "
                "which is all it keeps: send what is observed later at a time of its own.",
            )
            continue
        fresh = rows[time] = Row(time) if row is None else _own(row, merged)
        if name is not None:
            ids[name] = max(time, ids.get(name, time))
            fresh.note(name)
        if old == value:
            merged.outcomes[place] = Outcome.DUPLICATE
            if time not in merged.changed:
                merged.noted[time] = fresh
            continue
        merged.noted.pop(time, None)
        merged.changed[time] = fresh
        if old is not None:
            fresh.correct(channel, value)
            merged.outcomes[place] = Outcome.CORRECTED
        else:
            fresh.values[channel] = value
            merged.outcomes[place] = Outcome.LATE_APPLIED if time < last else Outcome.APPLIED
        last = max(last, time)
    return merged


def _own(row: Row, merged: Merged) -> Row:
    """The row itself where this merge made it, else a copy: what is stored stays as it is."""
    if merged.changed.get(row.time) is row or merged.noted.get(row.time) is row:
        return row
    return row.copy()


def _knows(row: Row | None, channel: int, value: float, name: str | None) -> bool:
    """Whether a row has an event: its id, or, without an id, its value now or before a correction."""
    if row is None:
        return False
    known = (channel, value) if name is None else name
    return row.values.get(channel) == value or known in row.seen


def merge_others(
    state: EngineState, checked: Checked, others: np.ndarray
) -> tuple[list[Tail], list[Merged], list[RowRecord]]:
    """Merge the events of all streams that are not in order.

    Args:
        state: of the engine.
        checked: the micro-batch.
        others: (event,) their positions.

    Returns:
        The streams to be integrated again; what became of the events of each stream; stored rows that only
        learned of another event's id.
    """
    events: dict[int, list[tuple[int, float, int, float, str | None]]] = {}
    slots, ids = checked.slots, checked.ids
    for place in others.tolist():
        time, channel = float(checked.times[place]), int(checked.channels[place])
        name = None if ids is None else ids[place]
        event = (place, time, channel, float(checked.values[place]), name)
        events.setdefault(int(slots[place]), []).append(event)
    tails, results, noted, long = [], [], [], {}
    for slot, own in events.items():
        number, last = int(state.number[slot]), float(state.last[slot])
        try:
            known = _known_rows(state, number, last, own)
            floor = _floor(state, number, known, own, last)
        except CodecError as error:
            results.append(_unreadable(own, error))
            continue
        stored = {time: decode_row(record) for time, record in known.items()}

        def older(time: float, number: int = number) -> Row | None:
            records = state.store.rows(number, time, time)
            return decode_row(records[0]) if records else None

        merged = merge(
            own, last, stored, older,
            lateness=state.settings.lateness, ahead=state.ahead, floor=floor,
        )  # fmt: skip
        try:
            tail = _tail(state, slot, merged, known) if merged.changed else None
        except CodecError as error:
            results.append(_unreadable(own, error))
            continue
        results.append(merged)
        if merged.changed:
            if tail is None:
                reworked = min(merged.changed) <= state.totals.reworks.get(number, (0, -np.inf))[1]
                long[slot] = {} if reworked else merged.changed
            elif tail.rows:
                tails.append(tail)
        start = min(merged.changed, default=float("inf"))
        noted += [
            known[time]._replace(more=encode_row(row)[1])
            for time, row in merged.noted.items()
            if time < start
        ]
    if long:
        names = {state.names[slot] for slot in long}
        raise LongWork(names, {int(state.number[slot]): rows for slot, rows in long.items()})
    # Those with a base in memory first, so that they are looked up together with the streams in order.
    tails.sort(key=lambda tail: not isinstance(tail.base, int))
    return tails, results, noted


def _unreadable(events: list[tuple], error: CodecError) -> Merged:
    """Events of a stream whose stored rows are damaged: it keeps no other stream from going on."""
    refusal = Refusal(error.code, "stream", str(error))
    places = [event[0] for event in events]
    return Merged(dict.fromkeys(places, Outcome.REFUSED), dict.fromkeys(places, refusal))


def _known_rows(
    state: EngineState, number: int, last: float, events: list[tuple]
) -> dict[float, RowRecord]:
    """The stored rows that events of a stream may belong to, by time: with ids, all within the allowed lateness."""
    if last == float("-inf"):
        return {}
    oldest = last - state.settings.lateness
    if any(name is not None for *_, name in events):
        records = state.store.rows(number, oldest)
    else:
        times = sorted({event[1] for event in events if oldest <= event[1] <= last})
        if len(times) > FEW_TIMES:
            records = state.store.rows(number, times[0], times[-1])
        else:
            records = [row for time in times for row in state.store.rows(number, time, time)]
    return {row.time: row for row in records}


def _tail(
    state: EngineState, slot: int, merged: Merged, known: dict[float, RowRecord]
) -> Tail | None:
    """The rows of a stream that are integrated again; None where these are too many to be so at once.

    Where the rows before were prepared and have no finite state, the events that change them are refused.
    """
    number, start, most = int(state.number[slot]), min(merged.changed), state.most_rows
    rework = state.totals.reworks.get(number)
    if rework is not None and start <= rework[1]:
        return None
    mine = [one for one in state.prepared if (one.stream, one.changed) == (number, merged.changed)]
    prepared = mine[0] if mine else None
    if prepared is not None:
        if prepared.bad is not None:
            merged.refuse_changes(*prepared.bad)
            return Tail(slot, merged, 0, 0, start, [], {})
        begin = float(np.nextafter(prepared.until, np.inf))
        known = {time: known[time] for time in prepared.answers if time in known}
    else:
        begin, known = start, {}
    records = state.store.rows(number, begin, newest=most + 1)
    new = sum(time >= begin for time in merged.changed)
    if len(records) + new > most:
        if len(records) <= sizes(state)[1]:
            raise LongWork({state.names[slot]}, {}, sliced=True)
        return None
    again = {record.time: decode_row(record) for record in records}
    again |= {time: row for time, row in merged.noted.items() if time >= begin}
    again |= {time: row for time, row in merged.changed.items() if time >= begin}
    base, lead = (prepared.state, []) if prepared is not None else _base(state, slot, start)
    rows = lead + [again[time] for time in sorted(again)]
    known |= {record.time: record for record in records}
    if prepared is None:
        return Tail(slot, merged, base, len(lead), start, rows, known)
    relinked = [
        record._replace(before=before)
        for time, before in prepared.links.items()
        if time not in merged.changed
        for record in state.store.rows(number, time, time)
    ]
    return Tail(slot, merged, base, 0, start, rows, known, prepared, relinked)


def _floor(
    state: EngineState, number: int, known: dict[float, RowRecord], events: list[tuple], last: float
) -> float:
    """Up to where a stream's rows were deleted, if some events may lie there; -inf for nowhere."""
    if known and next(iter(known)) <= min(event[1] for event in events):
        return float("-inf")
    first = state.store.first_row(number)
    if first is None:
        return last  # nothing is left but the state
    return float("-inf") if first.before is None else first.before


def _base(state: EngineState, slot: int, start: float) -> tuple[int | StreamState, list[Row]]:
    """A state from before `start`, by its place in memory or from the store, and the rows between."""
    recent = state.recent_before(slot, start)
    if recent is not None:
        return recent.place, []
    number, store = int(state.number[slot]), state.store
    kept = store.checkpoint(number, start)
    before = float(np.nextafter(start, -np.inf))
    if kept is None:
        lead = store.rows(number, until=before)
        return state.begin(slot), [decode_row(record) for record in lead]
    base = state.codec.decode([kept.body])
    lead = store.rows(number, float(np.nextafter(kept.time, np.inf)), before)
    return base, [decode_row(record) for record in lead]
