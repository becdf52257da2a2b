"""Looks at streams for alarms: at the rows of a micro-batch, between them, and where the clock goes on without rows.

Between rows a stream is looked at on the grid of the policy, always with what was known of it when the clock came to
that time: what is due when a row comes is looked at before the row is taken in, whether the server got round to it or
not. So it does not matter to an alarm how often, or how punctually, anyone looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from onlinecde.models import AlarmPolicy, StreamState
from onlinecde.streaming.alarms import Alarm, Looks, Raised, raise_alarms, record
from onlinecde.streaming.errors import StreamingError
from onlinecde.streaming.pipeline.integrate import Integrated, predict
from onlinecde.streaming.pipeline.order import Rows

if TYPE_CHECKING:
    from onlinecde.streaming.state import Changed, EngineState, Transaction

MADE_UP = 1_000
"""Looks at a stream that are made at once at most, the newest: older ones, of a time without a server, are left out"""
PIECE = 4_096
"""Looks made in one piece of work, for which writers wait"""


def due(policy: AlarmPolicy, after: np.ndarray, until: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`AlarmPolicy.grid` with at most `MADE_UP` looks at a stream; none where a time is not finite."""
    known = np.isfinite(after) & np.isfinite(until)
    first, count = policy.grid(np.where(known, after, 0.0), np.where(known, until, 0.0))
    left_out = np.maximum(count - MADE_UP, 0)
    return first + left_out, np.where(known, count - left_out, 0)


def _times(policy: AlarmPolicy, first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """(look,): the times of looks, stream by stream."""
    begin = np.cumsum(count) - count
    number = np.arange(int(count.sum())) - np.repeat(begin, count)
    return (np.repeat(first, count) + number) * (policy.every or 0.0)


def _watched(
    state: EngineState, states: StreamState, source: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """(look,): the number watched, of the state `source` (look,) at its time; a piece after the other."""
    outputs = np.empty((len(times), state.model.outputs))
    for start in range(0, len(times), PIECE):
        part = slice(start, start + PIECE)
        some = states[torch.from_numpy(source[part])]
        outputs[part] = predict(state.served.live, some, times[part])
    return state.watch(state.served.probabilities(outputs))


# With a micro-batch


def look_at_rows(
    state: EngineState,
    rows: Rows,
    done: Integrated,
    watched: np.ndarray,
    changed: Changed,
    change: Transaction,
) -> tuple[Alarm[str], ...]:
    """The alarms that a micro-batch raises, in its transaction: at its rows, and at what was due before each of them.

    Of rows that were known and integrated again only the newest counts. watched: (row,) the number watched.
    """
    policy = state.policy
    if policy is None:
        return ()
    slots, commit = rows.slots, change.commit
    looks = _batch_looks(state, policy, rows, done, watched, commit.received)
    armed, last_alarm = state.armed[slots], state.last_alarm[slots]
    raised = raise_alarms(policy, looks, armed, last_alarm)
    changed.armed[:], changed.last_alarm[:] = raised.armed, raised.last_alarm
    if policy.every is not None:
        newest = np.maximum.reduceat(looks.times, np.cumsum(looks.lengths) - looks.lengths)
        behind = np.maximum(newest, state.looked[slots]) > changed.last
        for place in np.flatnonzero(behind & armed & np.isfinite(last_alarm)).tolist():
            commit.rearmed.append((int(state.number[slots[place]]), float(changed.last[place])))
    names = {int(state.number[slots[n]]): state.names[slots[n]] for n in _alarmed(raised)}
    return _record(policy, looks, raised, state.number[slots], changed.last, names, change)


def _alarmed(raised: Raised) -> list[int]:
    """Positions of the streams that are alarmed."""
    return np.unique(raised.owner[raised.alarms]).tolist() if len(raised.alarms) else []


def _record(
    policy: AlarmPolicy,
    looks: Looks,
    raised: Raised,
    numbers: np.ndarray,
    last: np.ndarray,
    names: dict[int, str],
    change: Transaction,
) -> tuple[Alarm[str], ...]:
    """Put alarms into a transaction; names: of the streams alarmed, by number. Else as `record`."""
    commit, totals = change.commit, change.totals
    content = record(
        policy, looks, raised, numbers, last, number=totals.alarms + 1, wall=commit.received
    )
    commit.alarms += content.alarms
    commit.rearmed += content.rearmed
    totals.alarms += len(content.alarms)
    return tuple(Alarm(one[0], names[one[1]], *one[2:]) for one in content.alarms)


def _batch_looks(
    state: EngineState,
    policy: AlarmPolicy,
    rows: Rows,
    done: Integrated,
    watched: np.ndarray,
    wall: float,
) -> Looks:
    """The looks of a micro-batch that comes at this wall clock, at each of its streams in order."""
    if policy.every is None and not rows.tails:
        return Looks(rows.lengths, rows.times, watched, np.zeros(len(watched), bool))
    at = _rows_looked_at(state, rows)
    owner = np.repeat(np.arange(len(rows.slots)), rows.lengths)[at]
    times, watched = rows.times[at], watched[at]
    lengths = np.bincount(owner, minlength=len(rows.slots))
    if policy.every is None:
        return Looks(lengths, times, watched, np.zeros(len(at), bool))
    begins = np.diff(owner, prepend=-1) > 0
    first, before = _due_before(state, policy, rows.slots[owner], times, begins, wall)
    if not before.any():
        return Looks(lengths, times, watched, np.zeros(len(at), bool))
    some = np.flatnonzero(before)
    old, later = some[begins[some]], some[~begins[some]]
    known = [state.newest(rows.slots[owner[old]])] if len(old) else []
    known += [done.states_of(at[later - 1])] if len(later) else []
    states = known[0] if len(known) == 1 else type(known[0]).concatenate(known)
    place = np.empty(len(some), np.int64)
    place[begins[some]], place[~begins[some]] = (
        np.arange(len(old)),
        len(old) + np.arange(len(later)),
    )
    grid = _times(policy, first[some], before[some])
    grid_watched = _watched(state, states, np.repeat(place, before[some]), grid)
    end = np.cumsum(before + 1)
    between = np.ones(int(end[-1]), bool)
    between[end - 1] = False
    every_time, every_watched = np.empty(len(between)), np.empty(len(between))
    every_time[between], every_time[~between] = grid, times
    every_watched[between], every_watched[~between] = grid_watched, watched
    lengths = np.bincount(owner, weights=before + 1, minlength=len(rows.slots)).astype(np.int64)
    return Looks(lengths, every_time, every_watched, between)


def _rows_looked_at(state: EngineState, rows: Rows) -> np.ndarray:
    """The rows at which a stream is looked at: those that are new, and the newest if it was integrated again."""
    if not rows.tails:
        return np.arange(len(rows.times))
    looked = rows.times >= np.repeat(state.last[rows.slots], rows.lengths)
    for place, tail in enumerate(rows.tails, rows.in_order):
        begin = int(rows.ends[place] - rows.lengths[place])
        looked[begin : begin + tail.lead] = False
    return np.flatnonzero(looked)


def _due_before(
    state: EngineState,
    policy: AlarmPolicy,
    slots: np.ndarray,
    times: np.ndarray,
    begins: np.ndarray,
    wall: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The grid before each look at a row, as `due` gives it.

    Args:
        state: of the engine.
        policy: the rule.
        slots: (row,)
        times: (row,)
        begins: (row,) whether it is its stream's first in the micro-batch.
        wall: the wall clock, seconds.
    """
    clock, last = state.stream_clock, state.last[slots]
    last = np.where(np.isfinite(last), last, times)  # nothing is due before a first row
    before = np.roll(times, 1)
    known = np.where(begins, last, before)
    silent = np.inf if clock is None else clock.silent_after
    until = np.minimum(np.nextafter(times, -np.inf), known + silent)
    if clock is not None:
        now = clock.now(last, state.received[slots], state.origin[slots], wall)
        until = np.where(begins, np.maximum(now, np.where(times > last, until, now)), until)
    return due(policy, np.where(begins, state.looked_until(state.followed(slots)), before), until)


# With the clock


class Piece(NamedTuple):
    """Streams that are looked at together."""

    numbers: np.ndarray
    slots: np.ndarray | None
    """None for streams that are not in memory"""


@dataclass(frozen=True, eq=False)
class Looked:
    """What one piece of looks at many streams came to."""

    looks: int
    alarms: tuple[Alarm[str], ...]


def pieces(state: EngineState, policy: AlarmPolicy, wall: float) -> list[Piece]:
    """All streams at which looks are due at a wall clock."""
    clock = state.stream_clock
    assert clock is not None
    state.find_away()
    slots = state.slots()
    streams = state.followed(slots)
    now = clock.now(streams["last"], streams["received"], streams["origin"], wall)
    counts = due(policy, state.looked_until(streams), now)[1]
    slots, counts = slots[counts > 0], counts[counts > 0]
    result = [Piece(state.number[some], some) for some in _split(slots, counts)]
    away = state.away.table
    now = clock.now(away["last"], away["received"], away["origin"], wall)
    counts = due(policy, state.looked_until(away), now)[1]
    silent = now >= np.minimum(away["last"] + clock.silent_after, clock.latest)
    result += [Piece(some, None) for some in _split(away["number"][counts > 0], counts[counts > 0])]
    state.away.take(away["number"][silent & (counts == 0)])
    return result


def _split(streams: np.ndarray, counts: np.ndarray) -> Iterator[np.ndarray]:
    """Streams in parts with about `PIECE` looks each."""
    if len(streams):
        part = (np.cumsum(counts) - counts) // PIECE
        yield from np.split(streams, np.flatnonzero(np.diff(part)) + 1)


def look(state: EngineState, policy: AlarmPolicy, piece: Piece, wall: float) -> Looked:
    """Make the looks that are due at some streams; alarms are durable when this returns."""
    clock = state.stream_clock
    assert clock is not None
    # Others had their turn since the piece was put together: some streams may be elsewhere, or have new rows.
    if piece.slots is None:
        slots, streams = None, state.away.of(piece.numbers)
    else:
        slots = piece.slots[state.number[piece.slots] == piece.numbers]
        streams = state.followed(slots)
    now = clock.now(streams["last"], streams["received"], streams["origin"], wall)
    first, count = due(policy, state.looked_until(streams), now)
    if slots is None:
        here, states = _away_states(state, streams["number"][count > 0])
        some = np.flatnonzero(np.isin(streams["number"], here))
    else:
        some = np.flatnonzero(count)
        states = state.newest(slots[some])
    if not len(some):
        return Looked(0, ())
    streams, first, count = streams[some], first[some], count[some]
    times = _times(policy, first, count)
    watched = _watched(state, states, np.repeat(np.arange(len(some)), count), times)
    looks = Looks(count, times, watched, np.ones(len(times), bool))
    raised = raise_alarms(policy, looks, streams["armed"], streams["last_alarm"])
    streams["looked"] = times[np.cumsum(count) - 1]
    streams["armed"], streams["last_alarm"] = raised.armed, raised.last_alarm

    def seen() -> None:
        if slots is None:
            state.see_away(streams)
        else:
            state.see(slots[some], streams)

    if not len(raised.alarms) and not len(raised.rearmed):
        seen()
        return Looked(len(times), ())
    numbers = streams["number"]
    asked = state.store.streams(np.sort(numbers[_alarmed(raised)]).tolist())
    names = {stream.number: stream.name for stream in asked}
    with state.transaction(wall) as change:
        alarms = _record(policy, looks, raised, numbers, streams["looked"], names, change)
        change.then.append(seen)
    return Looked(len(times), alarms)


def _away_states(state: EngineState, numbers: np.ndarray) -> tuple[np.ndarray, StreamState]:
    """States of streams that are not in memory, and their numbers; the clock stops for those that are damaged."""
    records = state.store.states(numbers.tolist())
    try:
        bodies = [one.body for one in records]
        return np.array([one.stream for one in records], np.int64), state.codec.decode(bodies)
    except StreamingError:
        if len(numbers) == 1:
            state.away.take(numbers)
            return numbers[:0], state.blank[:0]
    half = len(numbers) // 2
    parts = [_away_states(state, some) for some in (numbers[:half], numbers[half:])]
    some = [states for _, states in parts]
    return np.concatenate([here for here, _ in parts]), type(state.blank).concatenate(some)
