"""Last step: what a micro-batch changes, in the store and, once it is there, in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onlinecde.models import StreamState
from onlinecde.streaming.codec import encode_row
from onlinecde.streaming.events import Answers, EventBatch, Outcome, Receipts
from onlinecde.streaming.looks import look_at_rows
from onlinecde.streaming.pipeline.integrate import Integrated
from onlinecde.streaming.pipeline.order import Rows
from onlinecde.streaming.pipeline.validate import Checked, shown
from onlinecde.streaming.state import BEFORE, Changed, EngineState, Totals, Transaction
from onlinecde.streaming.stores.base import Commit, StreamRecord


def write_batch(
    state: EngineState,
    change: Transaction,
    batch: EventBatch,
    checked: Checked,
    rows: Rows,
    done: Integrated | None,
    opened: dict[int, StreamRecord],
) -> Receipts:
    """Fill in a transaction with a micro-batch.

    Args:
        state: of the engine.
        change: the transaction.
        batch: the events as they came.
        checked: the same as arrays, with the refusals.
        rows: what they come to.
        done: the states and answers after the rows; None where there are none.
        opened: the streams that are new, by slot; those without a row are not opened after all.

    Returns:
        The receipts, to be given out once the transaction has ended.
    """
    outcomes = np.full(len(batch), Outcome.REFUSED, np.uint8)
    outcomes[rows.events] = Outcome.APPLIED
    for merged in rows.merged:
        outcomes[list(merged.outcomes)] = list(merged.outcomes.values())
        checked.refusals.update(merged.refusals)
    commit, totals = change.commit, change.totals
    totals.count(outcomes, checked.refusals)
    commit.refused = _refused(batch, checked)
    commit.rows = list(rows.noted)
    answers, alarms, begun = Answers.none(state.model.outputs), (), set()
    if done is not None:
        probabilities = state.served.probabilities(done.outputs)
        watched = state.watch(probabilities)
        changed = _changed(state, rows, done, watched)
        _rows(state, rows, done, commit)
        _states(state, rows, done, changed, commit)
        alarms = look_at_rows(state, rows, done, watched, changed, change)
        totals.rows += int((changed.rows - state.rows[changed.slots]).sum())
        begun = set(changed.slots.tolist())
        answers = _answers(state, changed, probabilities[rows.ends - 1])
        cuts = [(t.slot, t.start if isinstance(t.base, int) else BEFORE) for t in rows.tails]
        newer = _newer(rows, done, state.settings.recent)
        _note_reworks(state, rows, totals)
        change.then.append(lambda: state.advance(commit, changed, cuts, newer))
    commit.opened = [stream for slot, stream in opened.items() if slot in begun]
    totals.streams += len(commit.opened)
    totals.next_stream += len(opened)
    change.then.append(lambda: state.drop([slot for slot in opened if slot not in begun]))
    change.then.append(state.make_room)
    return Receipts(outcomes, checked.refusals, commit.sequence, answers, alarms)


def _note_reworks(state: EngineState, rows: Rows, totals: Totals) -> None:
    """Note the rows whose answers are still to be changed; what others prepared of rows that change is of no use."""
    for tail in rows.tails:
        number = int(state.number[tail.slot])
        if tail.prepared is not None:
            since, _ = totals.reworks.get(number, (tail.start, 0.0))
            totals.reworks[number] = (min(since, tail.start), tail.prepared.until)
        for other in [one for one in state.prepared if one.stream == number]:
            if other is not tail.prepared and tail.start <= other.until:
                state.prepared.remove(other)


def _changed(state: EngineState, rows: Rows, done: Integrated, watched: np.ndarray) -> Changed:
    """The streams as they are after their rows."""
    slots, lengths = rows.slots, rows.lengths
    newest = rows.ends - 1
    first = state.first[slots]
    first = np.where(np.isnan(first), rows.times[newest - lengths + 1], first)
    before = np.where(lengths > 1, watched[np.maximum(newest - 1, 0)], state.watched[slots])
    count, since = state.rows[slots] + lengths, state.since[slots] + lengths
    checkpointed = state.checkpointed[slots]
    for place, tail in enumerate(rows.tails, rows.in_order):
        slot = tail.slot
        new = sum(time not in tail.known for time in tail.merged.changed)
        count[place] = state.rows[slot] + new
        since[place] = state.since[slot] + new
        if checkpointed[place] >= tail.start:
            since[place] = state.settings.checkpoint_rows
            checkpointed[place] = BEFORE
        if tail.start < first[place]:
            first[place] = tail.start
        if len(tail.rows) == 1 and tail.start == state.last[slot]:
            before[place] = state.previous[slot]
    return Changed(
        slots,
        count,
        since,
        first,
        rows.times[newest],
        before,
        watched[newest],
        done.outputs[newest],
        checkpointed,
        rows.times[newest],
        state.armed[slots],
        state.last_alarm[slots],
    )


def _rows(state: EngineState, rows: Rows, done: Integrated, commit: Commit) -> None:
    """The rows as they are stored, and the answers they revise."""
    easy, sequence = len(rows.packed), commit.sequence
    outputs = _split(done.outputs)
    owners = np.repeat(state.number[rows.slots[: rows.in_order]], rows.lengths[: rows.in_order])
    before = np.empty(easy)
    before[1:] = rows.times[: max(0, easy - 1)]
    begins = rows.ends[: rows.in_order] - rows.lengths[: rows.in_order]
    before[begins] = state.last[rows.slots[: rows.in_order]]
    commit.rows += zip(
        owners.tolist(),
        rows.times[:easy].tolist(),
        [sequence] * easy,
        rows.packed,
        [None] * easy,
        outputs[:easy],
        before.tolist(),
        strict=True,
    )
    place = easy
    for tail in rows.tails:
        number, end = int(state.number[tail.slot]), place + len(tail.rows)
        again = [
            (row, answer, float(before.time))
            for before, row, answer in zip(
                tail.rows[tail.lead :],
                tail.rows[tail.lead + 1 :],
                outputs[place + tail.lead + 1 : end],
                strict=False,
            )
        ]
        if tail.prepared is not None:
            earlier = tail.prepared.until
        else:
            known = next(iter(tail.known.values()), None)
            earlier = float(state.last[tail.slot]) if known is None else known.before
        again = [(tail.rows[tail.lead], outputs[place + tail.lead], earlier), *again]
        commit.rows += tail.relinked
        for row, answer, before_it in [*tail.early, *again]:
            old = tail.known.get(row.time)
            commit.rows.append((number, row.time, sequence, *encode_row(row), answer, before_it))
            if old is not None and old.outputs != answer:
                commit.revised.append((number, row.time, old.sequence, old.outputs))
        place = end


def _split(outputs: np.ndarray) -> list[bytes]:
    """Outputs (row, output) as they are stored."""
    data, width = outputs.astype("<f8").tobytes(), 8 * outputs.shape[1]
    return [data[a : a + width] for a in range(0, len(data), width)]


def _states(
    state: EngineState, rows: Rows, done: Integrated, changed: Changed, commit: Commit
) -> None:
    """The newest state of each stream, and checkpoints where they are due."""
    bodies = state.codec.encode(done.states_of(rows.ends - 1))
    numbers = state.number[changed.slots].tolist()
    for place in np.flatnonzero(changed.since >= state.settings.checkpoint_rows).tolist():
        _checkpoint(state, rows, done, changed, place, bodies, commit)
    commit.cuts += [
        (int(state.number[tail.slot]), tail.start)
        for tail in rows.tails
        if state.checkpointed[tail.slot] >= tail.start
    ]
    previous = [None if p != p else p for p in changed.previous.tolist()]
    commit.states += zip(
        numbers,
        changed.last.tolist(),
        changed.rows.tolist(),
        changed.since.tolist(),
        changed.first.tolist(),
        previous,
        [commit.received] * len(numbers),
        _split(changed.outputs),
        bodies,
        strict=True,
    )


def _checkpoint(
    state: EngineState,
    rows: Rows,
    done: Integrated,
    changed: Changed,
    place: int,
    bodies: list[bytes],
    commit: Commit,
) -> None:
    """Keep a state of a stream for good: one that no late event can change, if there is one at hand.

    Else the newest: a late event that changes it will drop it. Of many rows at once, every so many-th is kept.
    """
    slot, step = int(changed.slots[place]), state.settings.checkpoint_rows
    number, encode = int(state.number[slot]), state.codec.encode
    final = float(changed.last[place]) - state.settings.lateness
    length, end = int(rows.lengths[place]), int(rows.lengths[: place + 1].sum())
    times = rows.times[end - length : end]
    if length > step:
        first = max(0, step - 1 - max(0, int(changed.since[place]) - length))
        due = np.arange(first, length, step)
        kept = encode(done.states_of(end - length + due))
        commit.checkpoints += zip([number] * len(due), times[due].tolist(), kept, strict=True)
        changed.since[place], changed.checkpointed[place] = length - 1 - due[-1], times[due[-1]]
        return
    ready = int(np.searchsorted(times, final))
    at, since, body = float(times[-1]), 0, bodies[place]
    if ready:
        at, since = float(times[ready - 1]), length - ready
        body = encode(done.states_of(np.array([end - length + ready - 1])))[0]
    else:
        tail = place - rows.in_order
        start = float(times[0]) if tail < 0 else rows.tails[tail].start
        recent = state.recent_before(slot, min(final, start))
        if recent is not None and length + recent.age < step and recent.time > BEFORE:
            at, since = recent.time, length + recent.age
            body = encode(state.states_at(np.array([recent.place])))[0]
    commit.checkpoints.append((number, at, body))
    changed.since[place], changed.checkpointed[place] = since, at


def _newer(
    rows: Rows, done: Integrated, recent: int
) -> Iterator[tuple[np.ndarray, np.ndarray, StreamState]]:
    """The states that memory keeps of each stream, as `EngineState.advance` wants them."""
    for back in range(min(recent, int(rows.lengths.max())) - 1, -1, -1):
        some = rows.lengths > back
        newest = rows.ends[some] - 1 - back
        yield rows.slots[some], rows.times[newest], done.states_of(newest)


def _answers(state: EngineState, changed: Changed, probabilities: np.ndarray) -> Answers:
    return Answers(
        tuple(state.names[slot] for slot in changed.slots.tolist()),
        changed.last,
        changed.outputs,
        probabilities,
    )


def _refused(batch: EventBatch, checked: Checked) -> list[tuple]:
    """Refused events as they are recorded: texts, cut short, for they may be anything."""
    return [
        (
            shown(checked.names[checked.of[place]], 200),
            shown(batch.times[place], 200),
            shown(batch.channels[place], 200),
            shown(batch.values[place], 200),
            refusal.code,
        )
        for place, refusal in sorted(checked.refusals.items())
    ]
