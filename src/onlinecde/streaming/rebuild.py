"""Another model for a store: every stream's rows, integrated again from the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from onlinecde.streaming.codec import Row, decode_row, dense_rows, encode_row
from onlinecde.streaming.errors import StreamingError
from onlinecde.streaming.pipeline.integrate import integrate
from onlinecde.streaming.state import EngineState, Totals, Transaction
from onlinecde.streaming.stores.base import Commit, RowRecord, StreamRecord

TOGETHER = 256
"""Streams integrated together"""


def rebuild(state: EngineState, progress: Callable[[int, int], None]) -> None:
    """Give all streams of the store the states and answers of this model, in one transaction.

    What the other model answered stays in the history, as revised answers. `progress` hears how many streams
    of how many are done; where it raises, nothing was changed.
    """
    store = state.store
    if store.pruned():
        raise StreamingError(
            "rows of this store were pruned, so its states cannot be integrated again from the first "
            "row: serve the model it belongs to, or begin a new store.",
            "rows_pruned",
        )
    head = store.head()
    stored, own = Totals.read(head.totals).features, state.served.schema.features
    if stored and own and stored != own:
        raise StreamingError(
            f"the store's streams were opened with static features {', '.join(stored)}, this model takes "
            f"{', '.join(own)}: begin a new store.",
            "static_changed",
        )
    for stream in store.streams():
        wrong = state.served.check_static(
            stream.name, None if stream.static is None else np.frombuffer(stream.static, "<f8")
        )[1]
        if wrong is not None:
            raise StreamingError(f"the store cannot be rebuilt: {wrong.message}", wrong.code)
    # Read before the transaction that drops the states.
    known = {one.stream: (one.received, one.rows) for one in store.states()}
    positions = _positions(state)

    def write(_: Transaction) -> None:
        store.rebuild(state.served.hash, _commits(state, positions, known, progress))

    with state.transaction(0.0, write):
        pass
    state.reread()


def repair(state: EngineState, stream: StreamRecord) -> None:
    """Give one stream the state its stored rows come to, whatever became of the one in the store."""
    if state.store.pruned():
        raise StreamingError(
            "rows of this store were pruned, so a state cannot be integrated again from the first row: "
            "take the store from a backup, or forget the stream.",
            "rows_pruned",
        )
    states = state.store.states([stream.number])
    if not states:
        return
    known = {stream.number: (states[0].received, states[0].rows)}
    same = {number: number for number in range(state.model.channels)}
    with state.transaction(states[0].received) as change:
        commit = _commit(state, [stream], known, change.commit.sequence, "", same)
        commit.cuts = [(stream.number, float("-inf"))]
        change.totals.reworks.pop(stream.number, None)
        change.commit = commit
    state.reread()


def _positions(state: EngineState) -> dict[int, int]:
    """Where the channels of stored rows are in this model."""
    channels = Totals.read(state.store.head().totals).channels
    lost = [name for name in channels if name not in state.served.codes]
    if lost:
        raise StreamingError(
            f"the store has events of channel {lost[0]!r}, which this model does not have: it cannot be "
            "rebuilt.",
            "channels_changed",
        )
    return {old: state.served.codes[name] for old, name in enumerate(channels)}


def _commits(
    state: EngineState,
    positions: dict[int, int],
    known: dict[int, tuple[float, int]],
    progress: Callable[[int, int], None],
) -> Iterator[Commit]:
    store, head = state.store, state.store.head()
    totals = Totals.read(head.totals)
    totals.channels = state.served.channels
    totals.features = state.served.schema.features
    totals.reworks.clear()
    streams, sequence = store.streams(), head.sequence
    for start in range(0, len(streams), TOGETHER):
        progress(start, len(streams))
        some = [s for s in streams[start : start + TOGETHER] if store.rows(s.number, newest=1)]
        if some:
            sequence += 1
            yield _commit(state, some, known, sequence, totals.text(), positions)


def _moved(record: RowRecord, positions: dict[int, int]) -> RowRecord:
    """A stored row with its channels where this model has them."""
    if all(old == new for old, new in positions.items()):
        return record
    row = decode_row(record)
    values = {positions[channel]: value for channel, value in row.values.items()}
    superseded = [(positions[channel], value) for channel, value in row.superseded]
    events, more = encode_row(Row(row.time, values, superseded, row.ids))
    return record._replace(events=events, more=more)


def _commit(
    state: EngineState,
    streams: list[StreamRecord],
    known: dict[int, tuple[float, int]],
    sequence: int,
    totals: str,
    positions: dict[int, int],
) -> Commit:
    """The rows of some streams under the model; known: when each was changed last, how many rows it has."""
    model, records = state.model, [state.store.rows(s.number) for s in streams]
    for stream, own in zip(streams, records, strict=True):
        if stream.number in known and len(own) < known[stream.number][1]:
            raise StreamingError(
                f"stream {stream.name!r} came from elsewhere without its first rows, so it cannot be "
                "integrated again: forget it.",
                "rows_pruned",
            )
    flat = [_moved(record, positions) for own in records for record in own]
    if model.static:
        features = [np.frombuffer(one.static or b"", "<f8").tolist() for one in streams]
        begin = type(state.blank).concatenate([state.served.begin(one) for one in features])
    else:
        begin = state.blank[torch.zeros(len(streams), dtype=torch.int64)]
    lengths = np.array([len(own) for own in records])
    done = integrate(
        state.served.live,
        begin,
        lengths,
        np.array([r.time for r in flat]),
        dense_rows(flat, model.channels),
    )
    if done.bad:
        row = flat[min(done.bad)]
        name = next(s.name for s in streams if s.number == row.stream)
        raise StreamingError(
            f"stream {name!r}: its row at {row.time!r} has no finite state under this model.",
            "not_finite",
        )
    when = max((known[s.number][0] for s in streams if s.number in known), default=0.0)
    commit = Commit(sequence, when, totals)
    outputs = [one.astype("<f8").tobytes() for one in done.outputs]
    commit.rows = [
        (r.stream, r.time, sequence, r.events, r.more, answer, r.before)
        for r, answer in zip(flat, outputs, strict=True)
    ]
    commit.revised = [
        (r.stream, r.time, r.sequence, r.outputs)
        for r, answer in zip(flat, outputs, strict=True)
        if r.outputs != answer
    ]
    ends = np.cumsum(lengths)
    bodies = state.codec.encode(done.states_of(ends - 1))
    watched = state.watch(state.served.probabilities(done.outputs))
    step = state.settings.checkpoint_rows
    for place, (stream, end) in enumerate(zip(streams, ends.tolist(), strict=True)):
        length = int(lengths[place])
        due = np.arange(end - length + step - 1, end - 1, step)
        kept = state.codec.encode(done.states_of(due)) if len(due) else []
        commit.checkpoints += [
            (stream.number, flat[row].time, body)
            for row, body in zip(due.tolist(), kept, strict=True)
        ]
        commit.states.append(
            (
                stream.number,
                flat[end - 1].time,
                length,
                0,
                flat[end - length].time,
                float(watched[end - 2]) if length > 1 else None,
                known.get(stream.number, (when, 0))[0],
                outputs[end - 1],
                bodies[place],
            )
        )
        commit.checkpoints.append((stream.number, flat[end - 1].time, bodies[place]))
    return commit
