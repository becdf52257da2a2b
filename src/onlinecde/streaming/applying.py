"""One micro-batch, from events to a commit: nothing in memory changes until the store has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onlinecde.models import StreamState
from onlinecde.streaming.events import EventBatch, Outcome, Receipts, Refusal
from onlinecde.streaming.following import Following
from onlinecde.streaming.intake import Columns, columns_of
from onlinecde.streaming.merging import Arrival, Merged, merge
from onlinecde.streaming.ordering import order_events
from onlinecde.streaming.rounds import integrate
from onlinecde.streaming.rowcodec import Row, decode_row, encode_row
from onlinecde.streaming.store import RowRecord, StreamRecord
from onlinecde.streaming.work import Tail, Work
from onlinecde.streaming.writing import write_batch

MOST_TRIES = 8
"""How often the rows of a stream are tried again without the one that was refused, before all are refused"""


def apply_batch(following: Following, batch: EventBatch, received: float) -> Receipts:
    """Validate, order, merge, integrate, commit; the receipts of events that are now durable."""
    columns = columns_of(batch, following.codes, following.residents.slot_of, following.limits)
    try:
        opened = _resolve(following, columns, batch.static)
        slots = columns.slots[columns.of]
        work = _work(following, columns, slots, columns.valid)
        if work.done is not None and work.done.bad:
            _refuse_until_finite(following, columns, slots, work)
            work = _work(following, columns, slots, columns.valid)
            assert work.done is None or not work.done.bad
        receipts = write_batch(following, batch, columns, work, opened, received)
    except BaseException:
        following.doubtful = True
        raise
    given = batch.static or {}
    said = {
        one.name: following.static_notes(one.name, given.get(one.name)) for one in opened.values()
    }
    notes = {name: told for name, told in said.items() if told}
    return replace(receipts, notes=notes) if notes else receipts


def _resolve(
    following: Following, columns: Columns, static: Mapping[str, Any] | None
) -> dict[int, StreamRecord]:
    """Find the streams that are not in memory, or open them; by slot, those that are new."""
    asked = np.unique(columns.of[columns.valid & (columns.slots[columns.of] < 0)])
    if not len(asked):
        return {}
    names = [columns.names[entry] for entry in asked.tolist()]
    refused = {
        name: Refusal(error.code, "stream", f"stream {name!r}: {error}")
        for name, error in following.bring(names).items()
    }
    found = {name: following.residents.slot_of.get(name, -1) for name in names}
    fresh: list[StreamRecord] = []
    room = following.settings.most_streams - following.totals.streams
    for name in [name for name, slot in found.items() if slot < 0 and name not in refused]:
        features, wrong = following.check_static(name, None if static is None else static.get(name))
        if wrong is None and len(fresh) >= room:
            wrong = Refusal(
                "stream_limit",
                "stream",
                f"stream {name!r} would be one more than the {following.settings.most_streams} "
                "allowed: forget streams that have ended.",
            )
        if wrong is not None:
            refused[name] = wrong
            continue
        number = following.totals.next_stream + len(fresh)
        fresh.append(StreamRecord(number, name, features, None))
    opened = dict(zip(following.add(fresh), fresh, strict=True))
    found.update({record.name: slot for slot, record in opened.items()})
    columns.slots[asked] = [found[name] for name in names]
    if refused:
        lost = {
            entry: refused[name]
            for entry, name in zip(asked.tolist(), names, strict=True)
            if name in refused
        }
        for place in np.flatnonzero(columns.valid & np.isin(columns.of, list(lost))).tolist():
            columns.valid[place] = False
            columns.refusals[place] = lost[columns.of[place]]
    return opened


def _refuse_until_finite(
    following: Following, columns: Columns, slots: np.ndarray, work: Work
) -> None:
    """Refuse events of the streams whose states are not finite, until they are."""
    for attempt in range(MOST_TRIES):
        troubled = _refuse_rows(columns, work, slots, whole=attempt == MOST_TRIES - 1)
        work = _work(following, columns, slots, columns.valid & np.isin(slots, troubled))
        if work.done is None or not work.done.bad:
            return
    raise AssertionError("events without which a state is not finite were all refused")


def _work(following: Following, columns: Columns, slots: np.ndarray, which: np.ndarray) -> Work:
    """Rows of the events marked in `which` (event,), integrated from the states they follow."""
    residents, settings = following.residents, following.settings
    careful = None
    if columns.ids is not None:
        careful = np.array([one is not None for one in columns.ids])
    ordered = order_events(
        np.flatnonzero(which),
        slots,
        columns.times,
        columns.channels,
        columns.values,
        residents.last,
        wide=following.model.channels,
        ahead=settings.ahead,
        careful=careful,
    )
    tails, merged, noted = _care(following, columns, slots, ordered.others)
    begins = np.flatnonzero(np.diff(ordered.slots, prepend=-1))
    chosen = ordered.slots[begins]
    lengths = np.diff(np.append(begins, len(ordered.slots)))
    times, rows = ordered.times, ordered.values
    places = chosen * residents.recent + residents.at[chosen]
    start = None
    if tails:
        # Those with a base in memory first, so that they are looked up together with the others.
        tails.sort(key=lambda tail: not isinstance(tail.base, int))
        places = np.append(places, [tail.base for tail in tails if isinstance(tail.base, int)])
        places = places.astype(np.int64)
    if len(places):
        start = residents.state_at(places)
    if tails:
        bases = [tail.base for tail in tails if not isinstance(tail.base, int)]
        if bases:
            start = type(following.blank).concatenate(bases if start is None else [start, *bases])
        chosen = np.append(chosen, [tail.slot for tail in tails])
        lengths = np.append(lengths, [len(tail.rows) for tail in tails])
        again = [row for tail in tails for row in tail.rows]
        times = np.append(times, [row.time for row in again])
        rows = np.concatenate([rows, [row.dense(following.model.channels) for row in again]])
    done = None if start is None else integrate(following.live, start, lengths, times, rows)
    return Work(ordered, tails, merged, noted, chosen, lengths, times, done)


def _care(
    following: Following, columns: Columns, slots: np.ndarray, others: np.ndarray
) -> tuple[list[Tail], list[Merged], list[RowRecord]]:
    """Take the events of streams that need care one by one."""
    arrivals: dict[int, list[Arrival]] = {}
    for place in others.tolist():
        event = Arrival(
            place,
            float(columns.times[place]),
            int(columns.channels[place]),
            float(columns.values[place]),
            None if columns.ids is None else columns.ids[place],
        )
        arrivals.setdefault(int(slots[place]), []).append(event)
    tails, results, noted = [], [], []
    for slot, own in arrivals.items():
        number, last = int(following.residents.number[slot]), float(following.residents.last[slot])
        settings = following.settings
        oldest = last - settings.lateness
        if all(event.id is None for event in own):
            oldest = max(oldest, min(event.time for event in own))
        known = (
            {row.time: row for row in following.store.rows(number, oldest)}
            if last > float("-inf")
            else {}
        )
        stored = {time: decode_row(record) for time, record in known.items()}

        def older(time: float, number: int = number) -> Row | None:
            found = following.store.rows(number, time, time)
            return decode_row(found[0]) if found else None

        merged = merge(own, last, stored, older, lateness=settings.lateness, ahead=settings.ahead)
        results.append(merged)
        start = min(merged.changed, default=float("inf"))
        noted += [
            known[time]._replace(more=encode_row(row)[1])
            for time, row in merged.noted.items()
            if time < start
        ]
        if merged.changed:
            again = {time: row for time, row in stored.items() if time >= start}
            again |= {time: row for time, row in merged.noted.items() if time >= start}
            again |= merged.changed
            base, lead = _base(following, slot, start)
            rows = lead + [again[time] for time in sorted(again)]
            known = {time: record for time, record in known.items() if time >= start}
            tails.append(Tail(slot, own, merged, base, len(lead), rows, known))
    return tails, results, noted


def _base(following: Following, slot: int, start: float) -> tuple[int | StreamState, list[Row]]:
    """A state from before `start`, by its place in memory or from the store, and the rows between."""
    place = following.residents.place_before(slot, start)
    if place is not None:
        return place, []
    number = int(following.residents.number[slot])
    kept = following.store.checkpoint(number, start)
    before = float(np.nextafter(start, -np.inf))
    if kept is None:
        lead = following.store.rows(number, until=before)
        return following.begin(slot), [decode_row(record) for record in lead]
    base = following.codec.decode([kept.body])
    lead = following.store.rows(number, float(np.nextafter(kept.time, np.inf)), before)
    return base, [decode_row(record) for record in lead]


def _refuse_rows(columns: Columns, work: Work, slots: np.ndarray, whole: bool) -> list[int]:
    """Refuse the events that make a state no model can go on from; with `whole`, all of its stream.

    The slots of those streams.
    """
    assert work.done is not None
    troubled = []
    easy = len(work.ordered.slots)
    ends = np.cumsum(work.lengths)
    for row, why in work.done.bad.items():
        stream = int(np.searchsorted(ends, row, side="right"))
        troubled.append(int(work.slots[stream]))
        time = float(work.times[row])
        if row < easy:
            pointers = work.ordered.pointers
            places = work.ordered.events[pointers[row] : pointers[row + 1]].tolist()
        else:
            tail = work.tails[stream - (len(work.lengths) - len(work.tails))]
            changing = [
                event
                for event in tail.arrivals
                if tail.merged.outcomes[event.position] not in (Outcome.REFUSED, Outcome.DUPLICATE)
            ]
            places = [event.position for event in changing if event.time == time]
            places = places or [event.position for event in changing if event.time <= time]
        if whole:
            places = np.flatnonzero(columns.valid & (slots == work.slots[stream])).tolist()
        if why:
            refusal = Refusal("row_refused", "value", f"the row at {time!r}: {why}")
        else:
            refusal = Refusal(
                "not_finite",
                "value",
                f"with the row at {time!r} the model's state would not be finite: check its values.",
            )
        for place in places:
            columns.valid[place] = False
            columns.refusals[place] = refusal
    return troubled
