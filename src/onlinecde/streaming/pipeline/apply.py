"""One micro-batch, from events to receipts: nothing in memory changes until the store has it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from onlinecde.streaming.events import EventBatch, Outcome, Receipts, Refusal
from onlinecde.streaming.pieces import Progress
from onlinecde.streaming.pipeline.commit import write_batch
from onlinecde.streaming.pipeline.integrate import Integrated, integrate
from onlinecde.streaming.pipeline.long_tails import LongWork, Prepared, prepare, rework
from onlinecde.streaming.pipeline.merge import merge_others, not_finite
from onlinecde.streaming.pipeline.order import Rows, order
from onlinecde.streaming.pipeline.validate import Checked, name_fault, validate
from onlinecde.streaming.stores.base import StreamRecord

if TYPE_CHECKING:
    from onlinecde.streaming.state import EngineState

MOST_MARKS = 5
"""Implausible values of a stream that are named one by one in the receipts of a micro-batch"""
MOST_TRIES = 8
"""How often the rows of a stream are tried again without the one that was refused, before all are refused"""


def apply_batch(state: EngineState, batch: EventBatch, received: float) -> Receipts:
    """Validate, order, merge, integrate, commit.

    Args:
        state: of the engine.
        batch: the events.
        received: the wall clock, seconds.

    Returns:
        The receipts of events that are now durable.

    Raises:
        LongWork: more than `EngineState.most_rows` of a stream's rows would be integrated; nothing was applied.
    """
    checked = validate(batch, state.served.codes, state.slot_of, state.limits)
    with state.transaction(received) as change:
        opened = _open(state, checked, batch.static)
        rows, done = _integrated(state, checked, checked.valid)
        if done is not None and done.bad:
            _refuse_until_finite(state, checked, rows, done)
            rows, done = _integrated(state, checked, checked.valid)
            assert done is None or not done.bad
        receipts = write_batch(state, change, batch, checked, rows, done, opened)
    if opened and state.model.static:
        given = batch.static or {}
        remarks = {
            one.name: state.served.static_notes(one.name, given.get(one.name))
            for one in opened.values()
        }
        receipts = replace(receipts, notes={name: some for name, some in remarks.items() if some})
    return _marked(receipts, checked, state)


def _marked(receipts: Receipts, checked: Checked, state: EngineState) -> Receipts:
    """Receipts that say which values are implausible, of those that became part of a row."""
    taken = (Outcome.APPLIED, Outcome.CORRECTED, Outcome.LATE_APPLIED)
    marked = checked.implausible[np.isin(receipts.outcomes[checked.implausible], taken)]
    if not len(marked):
        return receipts
    assert state.limits.plausible is not None
    notes = dict(receipts.notes)
    counts: dict[str, int] = {}
    for place in marked.tolist():
        entry, code = int(checked.of[place]), int(checked.channels[place])
        name = checked.names[entry]
        channel = state.served.channels[code]
        counts[channel] = counts.get(channel, 0) + 1
        if len(notes.get(name, ())) < MOST_MARKS:
            least, most = state.limits.plausible[:, code]
            value, time = checked.values[place], checked.times[place]
            remark = f"{channel} {value:g} at {time:g} is not between {least:g} and {most:g}"
            notes[name] = (*notes.get(name, ()), remark)
    return replace(receipts, notes=notes, implausible=counts)


def apply_in_pieces(
    state: EngineState, batch: EventBatch, clock: Callable[[], float]
) -> Generator[Progress | None, None, Receipts]:
    """`apply_batch`, in pieces where it is long: of many rows of a stream the first are durable before the last."""
    own: list[Prepared] = []
    try:
        while True:
            try:
                return apply_batch(state, batch, clock())
            except LongWork as work:
                if work.sliced:
                    break
                long = work.tails
            for number, changed in long.items():
                if not changed:
                    yield from rework(state, number, clock())
                    continue
                yield from prepare(state, number, changed, own)
    finally:
        state.prepared[:] = [one for one in state.prepared if one not in own]
    parts, receipts = batch.parts(state.most_rows // 2), []
    for done, part in enumerate(parts):
        yield Progress(done, len(parts))
        receipts.append((yield from apply_in_pieces(state, part, clock)))
    return Receipts.joined(receipts)


def _open(
    state: EngineState, checked: Checked, static: Mapping[str, Any] | None
) -> dict[int, StreamRecord]:
    """Find the streams that are not in memory, or open them; by slot, those that are new."""
    asked = np.unique(checked.of[checked.valid & (checked.slots < 0)])
    if not len(asked):
        return {}
    names = [checked.names[entry] for entry in asked.tolist()]
    refused = {
        name: Refusal(error.code, "stream", f"stream {name!r}: {error}")
        for name, error in state.bring(names).items()
    }
    slots = {name: state.slot_of.get(name, -1) for name in names}
    fresh: list[StreamRecord] = []
    most = state.settings.most_streams
    for name in [name for name, slot in slots.items() if slot < 0 and name not in refused]:
        features, wrong = state.served.check_static(
            name, None if static is None else static.get(name)
        )
        wrong = name_fault(name) or wrong
        if wrong is None and len(fresh) >= most - state.totals.streams:
            wrong = Refusal(
                "stream_limit",
                "stream",
                f"stream {name!r} would be one more than the {most} allowed: forget streams that have ended.",
            )
        if wrong is not None:
            refused[name] = wrong
            continue
        number = state.totals.next_stream + len(fresh)
        fresh.append(StreamRecord(number, name, features, None))
    opened = dict(zip(state.add(fresh), fresh, strict=True))
    slots.update({record.name: slot for slot, record in opened.items()})
    checked.slots_of_names[asked] = [slots[name] for name in names]
    if refused:
        lost = {e: refused[n] for e, n in zip(asked.tolist(), names, strict=True) if n in refused}
        for place in np.flatnonzero(checked.valid & np.isin(checked.of, list(lost))).tolist():
            checked.refuse([place], lost[int(checked.of[place])])
    return opened


def _integrated(
    state: EngineState, checked: Checked, which: np.ndarray
) -> tuple[Rows, Integrated | None]:
    """Rows of the events marked in `which` (event,), integrated from the states they follow."""
    rows, others = order(
        checked,
        np.flatnonzero(which),
        state.last,
        width=state.model.channels,
        ahead=state.ahead,
    )
    if (many := rows.lengths > state.most_rows).any():
        raise LongWork({state.names[slot] for slot in rows.slots[many].tolist()}, {}, sliced=True)
    places = state.newest_places(rows.slots)
    if len(others):
        rows = rows.with_merged(*merge_others(state, checked, others))
        inside = [tail.base for tail in rows.tails if isinstance(tail.base, int)]
        places = np.append(places, np.array(inside, np.int64))
    states = [state.states_at(places)] if len(places) else []
    states += [tail.base for tail in rows.tails if not isinstance(tail.base, int)]
    if not states:
        return rows, None
    start = states[0] if len(states) == 1 else type(state.blank).concatenate(states)
    return rows, integrate(state.served.live, start, rows.lengths, rows.times, rows.values)


def _refuse_until_finite(
    state: EngineState, checked: Checked, rows: Rows, done: Integrated | None
) -> None:
    """Refuse events of the streams whose states are not finite, until they are."""
    for attempt in range(MOST_TRIES):
        assert done is not None
        troubled = _refuse_rows(checked, rows, done, whole=attempt == MOST_TRIES - 1)
        which = checked.valid & np.isin(checked.slots, troubled)
        rows, done = _integrated(state, checked, which)
        if done is None or not done.bad:
            return
    raise AssertionError("events without which a state is not finite were all refused")


def _refuse_rows(checked: Checked, rows: Rows, done: Integrated, whole: bool) -> list[int]:
    """Refuse the events that make a state no model can go on from; with `whole`, all of its stream.

    The slots of those streams.
    """
    troubled = []
    for row, why in done.bad.items():
        stream = int(np.searchsorted(rows.ends, row, side="right"))
        slot, time = int(rows.slots[stream]), float(rows.times[row])
        troubled.append(slot)
        if whole:
            places = np.flatnonzero(checked.valid & (checked.slots == slot)).tolist()
        elif row < len(rows.packed):
            places = rows.events[rows.pointers[row] : rows.pointers[row + 1]].tolist()
        else:
            tail = rows.tails[stream - rows.in_order]
            outcomes = tail.merged.outcomes
            if tail.prepared is not None:  # all of its changes are refused
                tail.prepared.bad = time, why
                continue
            unchanging = (Outcome.REFUSED, Outcome.DUPLICATE)
            changing = [event for event, one in outcomes.items() if one not in unchanging]
            places = [event for event in changing if checked.times[event] == time]
            places = places or [event for event in changing if checked.times[event] <= time]
        checked.refuse(places, not_finite(time, why))
    return troubled
