"""The past of a stream, from its stored rows: what was answered, the curve between rows, what moved it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from onlinecde.models import NeuralCDE
from onlinecde.streaming.codec import decode_row, dense_rows
from onlinecde.streaming.errors import StreamingError
from onlinecde.streaming.past import past_of, states_in_pieces
from onlinecde.streaming.pipeline.integrate import at_model, predict
from onlinecde.streaming.state import EngineState


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A row as received and what was answered after it."""

    time: float
    events: dict[str, float]
    """Channel -> value, as received; the last correction counts"""
    superseded: tuple[tuple[str, float], ...]
    """(channel, value) that corrections replaced, oldest first"""
    outputs: tuple[float, ...]
    probabilities: tuple[float, ...]
    sequence: int
    """Number of the commit that gave this answer"""
    received: float
    """Wall clock (seconds) of that commit"""
    revised: tuple[RevisedAnswer, ...] = ()
    """Earlier answers after this row, from before a late or corrected event changed them; oldest first"""


@dataclass(frozen=True, slots=True)
class RevisedAnswer:
    """An answer that was given and later changed."""

    outputs: tuple[float, ...]
    sequence: int


@dataclass(frozen=True, eq=False)
class Curve:
    """The model's answer in continuous time."""

    times: np.ndarray
    """(point,) increasing"""
    outputs: np.ndarray
    """(point, output)"""
    probabilities: np.ndarray
    """(point, output)"""
    row_times: np.ndarray
    """(row,): the rows that lie in the span asked for"""
    row_probabilities: np.ndarray
    """(row, output): the answer after each of them"""
    row_before: np.ndarray
    """(row, output): the probability just before each of them: the curve jumps at a row"""


@dataclass(frozen=True, eq=False)
class RowExplanation:
    """What a row added to the outputs: `start + time + sum of events` is the output after it."""

    row_time: float
    start: np.ndarray
    """(output,): the output after the row before; for a stream's first row, the output after it"""
    time: np.ndarray
    """(output,): what the passing of time added"""
    events: dict[str, np.ndarray]
    """channel -> (output,): what each channel observed at the row added"""
    values: dict[str, float]
    """channel -> the value observed"""


def span(
    since: float | None, until: float | None, first: float, last: float
) -> tuple[float, float]:
    """Ends of a span, with defaults; NaN is refused."""
    since, until = first if since is None else since, last if until is None else until
    if since != since or until != until:
        raise StreamingError("a span of time has no NaN for an end.", "span_bad")
    return since, until


def curve_span(
    state: EngineState, slot: int, since: float | None, until: float | None
) -> tuple[float, float]:
    """Ends of a curve: from the first row on, to any time the model can be asked about."""
    latest = state.limits.latest
    first, last = float(state.first[slot]), float(state.last[slot])
    if np.isinf(last):
        raise StreamingError(f"stream {state.names[slot]!r} has no row yet.", "no_rows")
    since, until = span(since, until, first, last)
    since = max(since, first)
    if not since <= until <= latest:
        raise StreamingError(
            f"the curve is asked for from {since!r} to {until!r}: give a span from the first row at "
            f"{first!r} on, up to {latest!r}.",
            "span_bad",
        )
    return since, until


def history(
    state: EngineState, number: int, since: float, until: float, most: int | None
) -> list[HistoryRow]:
    """Rows of the stream of this number as received, and the answers given after them."""
    store = state.store
    records = store.rows(number, since, until, newest=most)
    if not records:
        _check_kept(state, number, until)
    received = store.received(sorted({record.sequence for record in records}))
    revised: dict[float, list[RevisedAnswer]] = {}
    for one in store.revised(number):
        revised.setdefault(one.time, []).append(RevisedAnswer(_numbers(one.outputs), one.sequence))
    channels, rows = state.served.channels, []
    for record in records:
        row, outputs = decode_row(record), np.frombuffer(record.outputs, "<f8")
        rows.append(
            HistoryRow(
                time=row.time,
                events={channels[c]: value for c, value in row.values.items()},
                superseded=tuple((channels[c], value) for c, value in row.superseded),
                outputs=tuple(outputs.tolist()),
                probabilities=tuple(state.served.probabilities(outputs).tolist()),
                sequence=record.sequence,
                received=received.get(record.sequence, float("nan")),
                revised=tuple(revised.get(row.time, ())),
            )
        )
    return rows


def _check_kept(state: EngineState, number: int, until: float) -> None:
    """Refuse a span that retention has left nothing of."""
    first = state.store.first_row(number)
    cut = None if first is None else first.before
    if cut is not None and -np.inf < cut and until <= cut:
        raise StreamingError(
            f"the rows up to {cut!r} were deleted by retention: ask for what comes after.",
            "before_cut",
        )


def _numbers(outputs: bytes) -> tuple[float, ...]:
    return tuple(np.frombuffer(outputs, "<f8").tolist())


def curve(
    state: EngineState, slot: int, since: float, until: float, points: int, most_rows: int | None
) -> Generator[None, None, Curve]:
    """The answer on a grid of times, and on both sides of rows: of all, or of `most_rows` spread evenly.

    A generator: it stops after each piece of work, and returns the curve.
    """
    past = past_of(state, slot, since, until)
    times = past.times
    started = times[np.isfinite(times)]
    if not len(started) or until < started[0]:
        _check_kept(state, int(state.number[slot]), until)
    grid = np.linspace(max(since, float(started[0])), until, points)
    rows = np.flatnonzero(times >= grid[0])
    rows = rows[rows > 0]
    if most_rows is not None and len(rows) > most_rows:
        rows = rows[np.linspace(0, len(rows) - 1, most_rows).round().astype(np.int64)]
    earlier = rows[np.isfinite(times[rows - 1])]
    which = np.concatenate([np.searchsorted(times, grid, side="right") - 1, rows, earlier - 1])
    at = np.concatenate([grid, times[rows], times[earlier]])
    answers = np.empty((len(at), state.model.outputs))
    for numbers, states in states_in_pieces(state, past, np.unique(which)):
        if states is not None:
            own = np.flatnonzero(np.isin(which, numbers))
            place = torch.from_numpy(np.searchsorted(numbers, which[own]))
            answers[own] = predict(state.served.live, states[place], at[own])
        yield
    outputs, after, just_before = np.split(answers, [points, points + len(rows)])
    before = np.full_like(after, np.nan)
    before[len(rows) - len(earlier) :] = just_before
    return Curve(
        grid,
        outputs,
        state.served.probabilities(outputs),
        times[rows],
        state.served.probabilities(after),
        state.served.probabilities(before),
    )


def explain(
    state: EngineState, slot: int, last: int, horizon: float | None = None
) -> Generator[None, None, list[RowExplanation]]:
    """Contributions of the newest rows, to log-odds within a horizon where there is one; a generator like `curve`."""
    model = state.model
    if not isinstance(model, NeuralCDE) or model.control != "rectilinear" or model.solver.tolerance:
        raise StreamingError(
            "what moved the answer can be told exactly for a NeuralCDE with the rectilinear control and "
            f"fixed steps, not for this {type(model).__name__}.",
            "not_explainable",
        )
    if state.served.forecasts is not None:
        raise StreamingError("forecasts are not explained.", "not_explainable")
    newest = state.store.rows(int(state.number[slot]), newest=last)
    if not newest:
        return []
    before = float(np.nextafter(newest[0].time, -np.inf))
    past = past_of(state, slot, before, newest[-1].time)
    skipped = max(0, len(past.records) - len(newest))
    records = past.records[skipped:]
    places = np.arange(skipped, skipped + len(records))
    parts = []
    for _, some in states_in_pieces(state, past, places):
        parts += [] if some is None else [some]
        yield
    states = type(past.base).concatenate(parts)
    rows = dense_rows(records, model.channels)
    with torch.no_grad():
        live: Any = state.served.live
        if state.served.bins is not None:
            live = model.within(state.served.horizon(horizon))
        step = live.explain_observation(at_model(model, states), past.times[places + 1], rows)
    start, time, events = (
        part.double().cpu().numpy() for part in (step.start, step.time, step.events)
    )
    return [
        RowExplanation(
            record.time,
            start[n],
            time[n],
            {name: events[n, c] for c, name in _named(state.served.channels, rows[n])},
            {name: float(rows[n, c]) for c, name in _named(state.served.channels, rows[n])},
        )
        for n, record in enumerate(records)
    ]


def _named(channels: Sequence[str], row: np.ndarray) -> list[tuple[int, str]]:
    """The channels observed at a row (channel,)."""
    return [(c, name) for c, name in enumerate(channels) if row[c] == row[c]]  # not NaN
