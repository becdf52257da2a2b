"""Streams from one engine to another: `pack` makes a parcel of bytes, `take_in` goes on with it.

    magic "OCDP" | version u16 | name | head | static | outputs | checkpoints' times | states | revised | rows | crc32

In a parcel are the newest state, as `codec` writes it, the rows that late events may still change with the
answers given after them, and the states from which those rows are integrated again. Rows come last, so that
new ones are added without opening what is there. All little-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from onlinecde.streaming.errors import CodecError, StreamingError
from onlinecde.streaming.pipeline.validate import is_name
from onlinecde.streaming.state import EngineState
from onlinecde.streaming.stores.base import Commit, StateRecord, Store, StreamRecord

MAGIC = b"OCDP"
VERSION = 1
_HEAD = struct.Struct("<dddddQIHHIHII")
_ROW = struct.Struct("<dII")
_NONE = float("nan")

PackedRow = tuple[float, bytes, str | None, bytes]
"""(time, events, more, outputs)"""


class Outline(NamedTuple):
    """The content of a parcel without its rows; its records have no stream number yet (0)."""

    stream: StreamRecord
    state: StateRecord
    rows: int
    """How many are in the parcel"""
    floor: float
    """Rows after this time are here, and the state at it; -inf where all rows are."""
    next_floor: float
    """The first time after `floor` that a state is here for, inf where there is none"""
    kept: int
    """How many states beside the newest"""
    changed: int
    """How many revised answers"""


class Parcel(NamedTuple):
    """A stream out of a store."""

    outline: Outline
    checkpoints: list[tuple[float, bytes]]
    """(time, state), oldest first"""
    rows: list[PackedRow]
    """In order of time"""
    revised: list[tuple[float, bytes]]
    """(time, outputs) that late events changed"""


def pack(store: Store, stream: StreamRecord, state: StateRecord, since: float) -> bytes:
    """A stream of a store as bytes, with what events from `since` on may change."""
    floor = store.checkpoint(stream.number, since)
    rows = store.rows(stream.number, -np.inf if floor is None else np.nextafter(floor.time, np.inf))
    checkpoints, kept = [], store.checkpoint(stream.number, float("inf"))
    # Where rows were pruned there may be no state from before `since`: then the oldest that is left.
    lowest = float("-inf") if floor is None else floor.time
    while kept is not None and kept.time >= lowest:
        checkpoints.append(kept)
        kept = store.checkpoint(stream.number, kept.time)
    checkpoints.reverse()
    revised = [one for one in store.revised(stream.number) if one.time > lowest]
    return _closed(
        _front(stream, state, len(checkpoints), len(rows), len(revised)),
        struct.pack(f"<{len(checkpoints)}d", *(one.time for one in checkpoints)),
        state.body,
        *(one.body for one in checkpoints),
        struct.pack(f"<{len(revised)}d", *(one.time for one in revised)),
        *(one.outputs for one in revised),
        *(part for row in rows for part in _row((row.time, *row[3:6]))),
    )


def extended(
    body: bytes, stream: StreamRecord, state: StateRecord, rows: Sequence[PackedRow]
) -> bytes:
    """A parcel with a newer state and more rows after those that are there."""
    old = outline(body)
    start = _start(body) + _HEAD.size + len(old.stream.static or b"") + len(old.state.outputs)
    begin = start + 8 * old.kept
    return _closed(
        _front(stream, state, old.kept, old.rows + len(rows), old.changed),
        body[start:begin],
        state.body,
        body[begin + len(old.state.body) : -4],
        *(part for row in rows for part in _row(row)),
    )


def _front(stream: StreamRecord, state: StateRecord, kept: int, rows: int, changed: int) -> bytes:
    name, static = stream.name.encode(), stream.static or b""
    head = _HEAD.pack(
        state.time,
        state.first,
        _NONE if state.previous is None else state.previous,
        state.received,
        _NONE if stream.origin is None else stream.origin,
        state.rows,
        state.since,
        len(static),
        len(state.outputs),
        len(state.body),
        kept,
        rows,
        changed,
    )
    form = struct.pack("<HH", VERSION, len(name))
    return b"".join((MAGIC, form, name, head, static, state.outputs))


def _row(row: PackedRow) -> tuple[bytes, ...]:
    time, events, more, outputs = row
    note = b"" if more is None else more.encode()
    return _ROW.pack(time, len(events), len(note)), outputs, events, note


def _closed(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return body + zlib.crc32(body).to_bytes(4, "little")


def _start(body: bytes) -> int:
    """Where the head begins, after the name."""
    return 8 + int.from_bytes(body[6:8], "little")


def stream_name(body: bytes) -> str:
    """Whose parcel it is; nothing is checked."""
    return body[8 : _start(body)].decode()


def outline(body: bytes) -> Outline:
    """The content of a parcel without its rows; nothing is checked."""
    at = _start(body)
    head = _HEAD.unpack_from(body, at)
    last, first, previous, received, origin, total, since = head[:7]
    features, width, size, kept, rows, changed = head[7:]
    at += _HEAD.size
    static, at = body[at : at + features] or None, at + features
    outputs, at = body[at : at + width], at + width
    times = struct.unpack_from(f"<{kept}d", body, at)
    below = 1 if rows < total else 0
    floor = times[0] if below else float("-inf")
    next_floor = times[below] if kept > below else float("inf")
    at += 8 * kept
    stream = StreamRecord(0, stream_name(body), static, None if origin != origin else origin)
    state = StateRecord(
        0,
        last,
        total,
        since,
        first,
        None if previous != previous else previous,
        received,
        outputs,
        body[at : at + size],
    )
    return Outline(stream, state, rows, floor, next_floor, kept, changed)


def check(body: bytes) -> None:
    """Raise CodecError for bytes that are not a whole parcel."""
    if body[:4] != MAGIC or len(body) < 12:
        raise CodecError(
            "these bytes are not a parcel: they do not begin as one, or are cut short."
        )
    version = int.from_bytes(body[4:6], "little")
    if version != VERSION:
        raise CodecError(
            f"the parcel has version {version}, this onlinecde reads {VERSION}: use the onlinecde "
            "that packed it."
        )
    if zlib.crc32(body[:-4]) != int.from_bytes(body[-4:], "little"):
        raise CodecError(
            "the parcel's checksum is wrong: it is damaged or cut short; pack it again."
        )


def unpack(body: bytes) -> Parcel:
    """What `pack` packed; raises CodecError for bytes that are damaged or something else."""
    check(body)
    content = outline(body)
    width, size = len(content.state.outputs), len(content.state.body)
    at = _start(body) + _HEAD.size + len(content.stream.static or b"") + width
    times = struct.unpack_from(f"<{content.kept}d", body, at)
    at += 8 * content.kept + size
    checkpoints = [
        (time, body[at + n * size : at + (n + 1) * size]) for n, time in enumerate(times)
    ]
    at += size * content.kept
    times = struct.unpack_from(f"<{content.changed}d", body, at)
    at += 8 * content.changed
    revised = [(time, body[at + n * width : at + (n + 1) * width]) for n, time in enumerate(times)]
    at += width * content.changed
    rows: list[PackedRow] = []
    for _ in range(content.rows):
        time, events, note = _ROW.unpack_from(body, at)
        answered = at + _ROW.size
        observed = answered + width
        noted = observed + events
        at = noted + note
        more = body[noted:at].decode() if note else None
        rows.append((time, body[observed:noted], more, body[answered:observed]))
    return Parcel(content, checkpoints, rows, revised)


def check_reach(content: Outline, lateness: float) -> None:
    """Refuse a parcel whose rows do not reach back as far as late events may."""
    if content.floor >= content.state.time - lateness:
        raise StreamingError(
            f"stream {content.stream.name!r} was kept for less lateness than {lateness:g}: its rows up to "
            f"{content.floor!r} are gone, its newest is at {content.state.time!r}. Allow less lateness.",
            "lateness_short",
        )


def put(commit: Commit, number: int, parcel: Parcel) -> None:
    """Add a parcel to a commit, as the stream of this number."""
    put_outline(commit, number, parcel.outline)
    put_past(commit, number, parcel)


def put_outline(commit: Commit, number: int, content: Outline) -> None:
    """Add a stream and its newest state to a commit."""
    commit.opened.append((number, *content.stream[1:]))
    commit.states.append((number, *content.state[1:]))


def put_past(commit: Commit, number: int, parcel: Parcel) -> None:
    """Add the rows of a parcel and the states before them to a commit."""
    sequence = commit.sequence
    commit.checkpoints += [(number, *one) for one in parcel.checkpoints]
    before = [parcel.outline.floor, *(row[0] for row in parcel.rows)]
    commit.rows += [
        (number, time, sequence, *row, earlier)
        for (time, *row), earlier in zip(parcel.rows, before, strict=False)
    ]
    commit.revised += [(number, time, sequence, outputs) for time, outputs in parcel.revised]


def take_in(state: EngineState, bodies: Iterable[bytes], received: float) -> list[str]:
    """Make streams out of parcels known, all or none; their names."""
    parcels = [unpack(body) for body in bodies]
    names = [parcel.outline.stream.name for parcel in parcels]
    _check(state, parcels, names)
    with state.transaction(received) as change:
        totals = change.totals
        for parcel in parcels:
            put(change.commit, totals.next_stream, parcel)
            totals.next_stream += 1
            totals.streams += 1
            totals.rows += parcel.outline.state.rows
    return names


def _check(state: EngineState, parcels: Sequence[Parcel], names: Sequence[str]) -> None:
    known = [stream.name for stream in state.store.find(names) if stream is not None]
    if known or len(set(names)) < len(names):
        raise StreamingError(
            f"stream {(known or sorted(names))[0]!r} is known already: forget it first, or leave it out.",
            "stream_known",
        )
    if state.totals.streams + len(parcels) > state.settings.most_streams:
        raise StreamingError("there would be more streams than are allowed.", "stream_limit")
    for name, parcel in zip(names, parcels, strict=True):
        if not is_name(name):
            raise StreamingError(f"stream is {name!r}: not a printable name.", "stream_bad")
        # Raises ModelMismatch, CodecError.
        bodies = [parcel.outline.state.body, *(body for _, body in parcel.checkpoints)]
        state.codec.decode(bodies)
        static = parcel.outline.stream.static
        features = None if static is None else np.frombuffer(static, "<f8")
        wrong = state.served.check_static(name, features)[1]
        if wrong is not None:
            raise StreamingError(wrong.message, wrong.code)
        check_reach(parcel.outline, state.settings.lateness)
