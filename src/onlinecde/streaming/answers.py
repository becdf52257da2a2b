"""What is known of streams now: one stream, all of them, the times they may be asked for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from onlinecde.streaming.errors import StreamingError
from onlinecde.streaming.events import Answers
from onlinecde.streaming.pipeline.integrate import predict
from onlinecde.streaming.state import EngineState


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """One stream, without asking the model anything."""

    stream: str
    rows: int
    first_time: float | None
    """of its first row; None before it"""
    last_time: float | None
    """of its newest row; what may be asked starts here"""
    outputs: tuple[float, ...] | None
    """What the model said after the newest row"""
    probabilities: tuple[float, ...] | None
    static: tuple[float, ...] | None
    origin: float | None
    """Wall clock (seconds) at the stream's time 0, where it was given"""
    received: float | None
    """Wall clock (seconds) of the last commit that changed it"""
    looked: float | None
    """Up to when it was looked at for alarms; None before its first row, and where there are none"""
    resident: bool
    """Whether its state is in memory now; where not, the first question or event brings it back"""
    notes: tuple[str, ...] = ()
    """What is worth saying of the static features it was opened with just now"""


@dataclass(frozen=True, eq=False)
class Overview:
    """All streams that have a row, as columns."""

    streams: tuple[str, ...]
    numbers: np.ndarray
    """(stream,) int64: in the order in which they were opened"""
    rows: np.ndarray
    """(stream,) int64"""
    last_times: np.ndarray
    """(stream,): time of the newest row"""
    outputs: np.ndarray
    """(stream, output) after the newest row"""
    probabilities: np.ndarray
    """(stream, output)"""
    previous: np.ndarray
    """(stream,): the watched probability after the row before the newest, NaN where there is none: the trend"""
    received: np.ndarray
    """(stream,): wall clock (seconds) of the last commit that changed it"""
    origins: np.ndarray
    """(stream,): wall clock at the stream's time 0, NaN where not given"""

    def __len__(self) -> int:
        return len(self.streams)

    def by_name(self) -> Overview:
        """The same in the order of names."""
        names = list(self.streams)
        order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
        columns = {f.name: getattr(self, f.name)[order] for f in fields(self)[1:]}
        return replace(self, streams=tuple(names[place] for place in order.tolist()), **columns)


def predict_streams(
    state: EngineState, streams: Sequence[str], slots: np.ndarray, at: Any, clamp: bool
) -> Answers:
    """Outputs of streams; at and clamp as in `Engine.predict_many`."""
    if not len(slots):
        return Answers.none(state.model.outputs)
    times = _times(state, streams, slots, at, clamp)
    outputs = predict(state.served.live, state.newest(slots), times)
    return Answers(tuple(streams), times, outputs, state.served.probabilities(outputs))


def _times(
    state: EngineState, streams: Sequence[str], slots: np.ndarray, at: Any, clamp: bool
) -> np.ndarray:
    """Times (stream,) to ask streams for, each from its newest row on; at as in `Engine.predict_many`."""
    last, latest = state.last[slots], state.limits.latest
    try:
        asked = last if at is None else np.broadcast_to(np.asarray(at, np.float64), last.shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise StreamingError("give a time, or one for each stream.", "time_type") from error
    for place in np.flatnonzero(np.isinf(last)):
        raise StreamingError(f"stream {streams[place]!r} has no row yet.", "no_rows")
    for place in np.flatnonzero(~(asked <= latest)):
        raise StreamingError(
            f"stream {streams[place]!r} is asked for at {float(asked[place])!r}: give a time up to "
            f"{latest!r}.",
            "time_absurd",
        )
    for place in [] if clamp else np.flatnonzero(asked < last):
        raise StreamingError(
            f"stream {streams[place]!r} is asked for at {float(asked[place])!r}, its newest row is at "
            f"{float(last[place])!r}: ask for that time or later.",
            "before_last_row",
        )
    return np.maximum(asked, last)


def stream_info(state: EngineState, slot: int, resident: bool = True) -> StreamInfo:
    """What is known of the stream in a slot."""
    started = bool(np.isfinite(state.last[slot]))
    outputs, origin = state.outputs[slot], float(state.origin[slot])
    looked = float(state.looked_until(state.followed(np.array([slot])))[0])
    return StreamInfo(
        stream=state.names[slot],
        rows=int(state.rows[slot]),
        first_time=float(state.first[slot]) if started else None,
        last_time=float(state.last[slot]) if started else None,
        outputs=tuple(outputs.tolist()) if started else None,
        probabilities=tuple(state.served.probabilities(outputs).tolist()) if started else None,
        static=state.static.get(slot),
        origin=None if np.isnan(origin) else origin,
        received=float(state.received[slot]) if started else None,
        looked=looked if started and state.policy is not None else None,
        resident=resident,
    )


def overview(state: EngineState) -> Generator[None, None, Overview]:
    """All streams with rows, in memory or not, by number; a generator that stops after each piece of work."""
    state.read_roster()
    while not state.roster.complete:
        yield
        state.read_roster()
    table, names = state.roster.table.copy(), tuple(state.roster.names.tolist())
    return Overview(
        names,
        table["number"],
        table["rows"],
        table["last"],
        table["outputs"],
        state.served.probabilities(table["outputs"]),
        table["previous"],
        table["received"],
        table["origin"],
    )


def predict_now(
    state: EngineState, streams: Sequence[str]
) -> tuple[Answers, dict[str, StreamingError]]:
    """What is said now of those of some streams that have a row, and why others cannot be asked; by name."""
    clock = state.stream_clock
    with state.visiting(streams) as unreadable:
        known = [name for name in streams if name in state.slot_of]
        slots = np.array([state.slot_of[name] for name in known], np.int64)
        started = np.isfinite(state.last[slots])
        slots, known = slots[started], [known[n] for n in np.flatnonzero(started).tolist()]
        last = state.last[slots]
        now = last if clock is None else clock.now(last, state.received[slots], state.origin[slots])
        return predict_streams(state, known, slots, now, True), unreadable
