"""A micro-batch's commit: what goes to the store, and, once it is there, to memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onlinecde.streaming.events import Answers, EventBatch, Outcome, Receipts
from onlinecde.streaming.following import Following
from onlinecde.streaming.intake import Columns, shown
from onlinecde.streaming.residents import BEFORE
from onlinecde.streaming.rounds import Integrated
from onlinecde.streaming.rowcodec import encode_row
from onlinecde.streaming.store import Commit, StreamRecord
from onlinecde.streaming.views import Alarm
from onlinecde.streaming.work import Work


@dataclass(frozen=True, eq=False)
class Changed:
    """The streams that got new rows, each (stream,), as they will be held."""

    slots: np.ndarray
    rows: np.ndarray
    since: np.ndarray
    first: np.ndarray
    last: np.ndarray
    previous: np.ndarray
    watched: np.ndarray
    outputs: np.ndarray
    checkpointed: np.ndarray


def write_batch(
    following: Following,
    batch: EventBatch,
    columns: Columns,
    work: Work,
    opened: dict[int, StreamRecord],
    received: float,
) -> Receipts:
    """Commit a micro-batch, then take it over into memory; the receipts."""
    outcomes = np.full(len(batch), Outcome.REFUSED, np.uint8)
    outcomes[work.ordered.events] = Outcome.APPLIED
    for merged in work.merged:
        for place, outcome in merged.outcomes.items():
            outcomes[place] = outcome
        columns.refusals.update(merged.refusals)
    totals = following.totals.count(outcomes, columns.refusals, 0)
    commit = Commit(following.sequence + 1, received, "")
    commit.refused = _refused(batch, columns)
    commit.rows = list(work.noted)
    changed, alarms, held = None, (), set()
    if work.done is not None:
        changed = _changed(following, work, work.done)
        _rows(following, work, work.done, commit)
        _states(following, work, work.done, changed, commit, received)
        alarms = _alarms(following, work, work.done, commit, received)
        totals.rows += int((changed.rows - following.residents.rows[changed.slots]).sum())
        totals.alarms += len(alarms)
        held = set(changed.slots.tolist())
    commit.opened = [stream for slot, stream in opened.items() if slot in held]
    totals.streams += len(commit.opened)
    totals.next_stream += len(opened)
    commit.totals = totals.text()
    following.store.commit(commit)
    following.torn = True
    if changed is not None:
        _take_over(following, work, changed, commit)
    # Last: where memory was not brought up to date, the numbers differ, and it is read anew.
    following.sequence, following.totals = commit.sequence, totals
    following.torn = False
    following.drop([slot for slot in opened if slot not in held])
    answers = _answers(following, changed)
    following.make_room()
    return Receipts(outcomes, columns.refusals, commit.sequence, answers, alarms)


def _changed(following: Following, work: Work, done: Integrated) -> Changed:
    """What the streams come to after their rows."""
    held, slots, easy = following.residents, work.slots, len(work.slots) - len(work.tails)
    newest = np.cumsum(work.lengths) - 1
    watched = following.watched(done.outputs)
    first = held.first[slots]
    start = work.times[newest - work.lengths + 1]
    first = np.where(np.isnan(first), start, first)
    before = np.where(work.lengths > 1, watched[np.maximum(newest - 1, 0)], held.watched[slots])
    rows = held.rows[slots] + work.lengths
    since = held.since[slots] + work.lengths
    checkpointed = held.checkpointed[slots]
    for place, tail in enumerate(work.tails, easy):
        slot = tail.slot
        new = sum(time not in tail.known for time in tail.merged.changed)
        rows[place] = held.rows[slot] + new
        since[place] = held.since[slot] + new
        if held.checkpointed[slot] >= tail.start:
            since[place] = following.settings.checkpoint_rows
            checkpointed[place] = BEFORE
        if tail.start < first[place]:
            first[place] = tail.start
        if len(tail.rows) == 1 and tail.start == held.last[slot]:
            before[place] = held.previous[slot]
    return Changed(
        slots,
        rows,
        since,
        first,
        work.times[newest],
        before,
        watched[newest],
        done.outputs[newest],
        checkpointed,
    )


def _rows(following: Following, work: Work, done: Integrated, commit: Commit) -> None:
    """The rows as they are stored, and the answers they revise."""
    easy = len(work.ordered.slots)
    said = done.outputs.astype("<f8").tobytes()
    wide = 8 * done.outputs.shape[1]
    outputs = [said[a : a + wide] for a in range(0, len(said), wide)]
    numbers, many = following.residents.number, commit.sequence
    commit.rows += zip(
        numbers[work.ordered.slots].tolist(),
        work.ordered.times.tolist(),
        [many] * easy,
        work.ordered.packed,
        [None] * easy,
        outputs[:easy],
        strict=True,
    )
    place = easy
    for tail in work.tails:
        number = int(numbers[tail.slot])
        for row, answer in zip(
            tail.rows[tail.lead :], outputs[place + tail.lead : place + len(tail.rows)], strict=True
        ):
            old = tail.known.get(row.time)
            commit.rows.append((number, row.time, many, *encode_row(row), answer))
            if old is not None and old.outputs != answer:
                commit.revised.append((number, row.time, old.sequence, old.outputs))
        place += len(tail.rows)


def _states(
    following: Following,
    work: Work,
    done: Integrated,
    changed: Changed,
    commit: Commit,
    received: float,
) -> None:
    """The newest state of each stream, and checkpoints where they are due."""
    held = following.residents
    newest = np.cumsum(work.lengths) - 1
    bodies = following.codec.encode(done.states_of(newest))
    numbers = held.number[changed.slots].tolist()
    said, wide = changed.outputs.astype("<f8").tobytes(), 8 * changed.outputs.shape[1]
    for place in np.flatnonzero(changed.since >= following.settings.checkpoint_rows).tolist():
        _checkpoint(following, work, done, changed, place, bodies, commit)
    commit.cuts += [
        (int(held.number[tail.slot]), tail.start)
        for tail in work.tails
        if held.checkpointed[tail.slot] >= tail.start
    ]
    previous = [None if p != p else p for p in changed.previous.tolist()]
    commit.states += zip(
        numbers,
        changed.last.tolist(),
        changed.rows.tolist(),
        changed.since.tolist(),
        changed.first.tolist(),
        previous,
        [received] * len(numbers),
        [said[a : a + wide] for a in range(0, len(said), wide)],
        bodies,
        strict=True,
    )


def _checkpoint(
    following: Following,
    work: Work,
    done: Integrated,
    changed: Changed,
    place: int,
    bodies: list[bytes],
    commit: Commit,
) -> None:
    """Keep a state of a stream for good: one that no late event can change, if there is one at hand.

    Else the newest: a late event that changes it will drop it. Of many rows at once, every so many-th is kept.
    """
    held, slot = following.residents, int(changed.slots[place])
    step, number = following.settings.checkpoint_rows, int(held.number[slot])
    final = float(changed.last[place]) - following.settings.lateness
    length, end = int(work.lengths[place]), int(work.lengths[: place + 1].sum())
    times = work.times[end - length : end]
    if length > step:
        first = max(0, step - 1 - max(0, int(changed.since[place]) - length))
        due = np.arange(first, length, step)
        kept = following.codec.encode(done.states_of(end - length + due))
        commit.checkpoints += zip([number] * len(due), times[due].tolist(), kept, strict=True)
        changed.since[place], changed.checkpointed[place] = length - 1 - due[-1], times[due[-1]]
        return
    ready = int(np.searchsorted(times, final))
    at, since, body = float(times[-1]), 0, bodies[place]
    if ready:
        state = done.states_of(np.array([end - length + ready - 1]))
        at, since = float(times[ready - 1]), length - ready
        body = following.codec.encode(state)[0]
    else:
        tail = place - (len(work.slots) - len(work.tails))
        start = float(times[0]) if tail < 0 else work.tails[tail].start
        kept = held.place_before(slot, min(final, start))
        back = length if kept is None else length + (int(held.at[slot]) - kept) % held.recent
        if kept is not None and back < step:
            earlier = float(held.times.reshape(-1)[kept])
            if earlier > BEFORE:
                at, since = earlier, back
                body = following.codec.encode(held.state_at(np.array([kept])))[0]
    commit.checkpoints.append((number, at, body))
    changed.since[place], changed.checkpointed[place] = since, at


def _alarms(
    following: Following,
    work: Work,
    done: Integrated,
    commit: Commit,
    received: float,
) -> tuple[Alarm, ...]:
    """A stream's rises to the threshold at new rows, each beside the row before it.

    Of rows that were known and integrated again only the newest counts, beside what was said of it last.
    """
    threshold = following.settings.threshold
    if threshold is None:
        return ()
    held = following.residents
    watched = following.watched(done.outputs)
    owner = np.repeat(work.slots, work.lengths)
    before = np.empty_like(watched)
    before[1:] = watched[:-1]
    before[np.cumsum(work.lengths) - work.lengths] = held.watched[work.slots]
    if work.tails:
        newest = held.last[owner]
        before = np.where(work.times == newest, held.watched[owner], before)
        watched = np.where(work.times < newest, np.nan, watched)
    risen = (watched >= threshold) & ~(before >= threshold)
    found = []
    for number, row in enumerate(np.flatnonzero(risen).tolist(), following.totals.alarms + 1):
        slot = int(owner[row])
        told = float(work.times[row]), float(watched[row]), threshold, received
        found.append(Alarm(number, held.names[slot], *told))
        commit.alarms.append((number, int(held.number[slot]), *told, None, None))
    return tuple(found)


def _take_over(following: Following, work: Work, changed: Changed, commit: Commit) -> None:
    """Memory as the store now is."""
    held, done = following.residents, work.done
    assert done is not None
    for tail in work.tails:
        if isinstance(tail.base, int):
            held.cut(tail.slot, tail.start)
        else:
            held.kept[tail.slot] = 0
    ends = np.cumsum(work.lengths)
    for back in range(min(held.recent, int(work.lengths.max())) - 1, -1, -1):
        some = work.lengths > back
        rows = ends[some] - 1 - back
        held.push(work.slots[some], work.times[rows], done.states_of(rows))
    slots = changed.slots
    for name, column in vars(changed).items():
        if name != "slots":
            getattr(held, name)[slots] = column
    held.received[slots] = commit.received
    held.touched[slots] = commit.sequence


def _answers(following: Following, changed: Changed | None) -> Answers:
    if changed is None:
        nothing = np.empty((0, following.model.outputs))
        return Answers((), np.empty(0), nothing, nothing)
    names = following.residents.names
    return Answers(
        tuple(names[slot] for slot in changed.slots.tolist()),
        changed.last,
        changed.outputs,
        following.probabilities(changed.outputs),
    )


def _refused(batch: EventBatch, columns: Columns) -> list[tuple]:
    """Refused events as they are recorded: texts, cut short, for they may be anything."""
    return [
        (
            shown(columns.names[columns.of[place]], 200),
            shown(batch.times[place], 200),
            shown(batch.channels[place], 200),
            shown(batch.values[place], 200),
            refusal.code,
        )
        for place, refusal in sorted(columns.refusals.items())
    ]
