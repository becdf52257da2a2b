"""Questions to an engine, checked before they are answered; every refusal has a stable code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onlinecde.streaming.errors import StreamingError
from onlinecde.streaming.following import Following
from onlinecde.streaming.views import StreamInfo


def times(
    following: Following, streams: Sequence[str], slots: np.ndarray, at: Any, clamp: bool
) -> np.ndarray:
    """Times (stream,) to ask streams for, each from its newest row on; at as in `Engine.predict_many`."""
    last, latest = following.residents.last[slots], following.limits.latest
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


def span(
    since: float | None, until: float | None, first: float, last: float
) -> tuple[float, float]:
    """Ends of a span, with defaults; NaN is refused."""
    since, until = first if since is None else since, last if until is None else until
    if since != since or until != until:
        raise StreamingError("a span of time has no NaN for an end.", "span_bad")
    return since, until


def curve_span(
    following: Following, slot: int, since: float | None, until: float | None
) -> tuple[float, float]:
    """Ends of a curve: from the first row on, to any time the model can be asked about."""
    held, latest = following.residents, following.limits.latest
    first, last = float(held.first[slot]), float(held.last[slot])
    if np.isinf(last):
        raise StreamingError(f"stream {held.names[slot]!r} has no row yet.", "no_rows")
    since, until = span(since, until, first, last)
    since = max(since, first)
    if not since <= until <= latest:
        raise StreamingError(
            f"the curve is asked for from {since!r} to {until!r}: give a span from the first row at "
            f"{first!r} on, up to {latest!r}.",
            "span_bad",
        )
    return since, until


def stream_info(following: Following, slot: int, resident: bool = True) -> StreamInfo:
    """What is known of the stream in a slot."""
    held = following.residents
    started = bool(np.isfinite(held.last[slot]))
    outputs, origin = held.outputs[slot], float(held.origin[slot])
    return StreamInfo(
        stream=held.names[slot],
        rows=int(held.rows[slot]),
        first_time=float(held.first[slot]) if started else None,
        last_time=float(held.last[slot]) if started else None,
        outputs=tuple(outputs.tolist()) if started else None,
        probabilities=tuple(following.probabilities(outputs).tolist()) if started else None,
        static=following.static.get(slot),
        origin=None if np.isnan(origin) else origin,
        received=float(held.received[slot]) if started else None,
        resident=resident,
    )
