"""The past of a stream, from its stored rows: what was answered, the curve between rows, what moved it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import torch

from onlinecde.models import NeuralCDE, StreamState
from onlinecde.solvers import SolverError
from onlinecde.streaming.errors import StreamingError
from onlinecde.streaming.following import Following
from onlinecde.streaming.rounds import at_model
from onlinecde.streaming.rowcodec import decode_row, dense_rows
from onlinecde.streaming.stretch import states_in_pieces, stretch
from onlinecde.streaming.views import Curve, HistoryRow, Overview, RevisedAnswer, RowExplanation


def overview(following: Following) -> Overview:
    """All streams with rows, in memory or not, by name."""
    held = following.residents
    slots = np.fromiter(held.slot_of.values(), np.int64, len(held))
    slots = slots[np.isfinite(held.last[slots])]
    names = [held.names[slot] for slot in slots.tolist()]
    columns = [
        held.rows[slots],
        held.last[slots],
        held.outputs[slots],
        held.previous[slots],
        held.received[slots],
        held.origin[slots],
    ]
    if len(held) < following.totals.streams:
        here = set(held.number[slots].tolist())
        opened = {stream.number: stream for stream in following.store.streams()}
        away = following.store.states([number for number in opened if number not in here])
        names += [opened[state.stream].name for state in away]
        outputs = [np.frombuffer(state.outputs, "<f8") for state in away]
        origins = [opened[state.stream].origin for state in away]
        more = [
            np.array([state.rows for state in away], np.int64),
            np.array([state.time for state in away]),
            np.array(outputs).reshape(len(away), following.model.outputs),
            np.array([state.previous for state in away], np.float64),
            np.array([state.received for state in away]),
            np.array(origins, np.float64),
        ]
        columns = [np.concatenate(pair) for pair in zip(columns, more, strict=True)]
    order = (
        np.argsort(np.array(names, dtype=object), kind="stable") if names else np.empty(0, np.int64)
    )
    rows, last, outputs, previous, received, origins = (column[order] for column in columns)
    return Overview(
        tuple(names[n] for n in order.tolist()),
        rows,
        last,
        outputs,
        following.probabilities(outputs),
        previous,
        received,
        origins,
    )


def history(
    following: Following, number: int, since: float, until: float, most: int | None
) -> list[HistoryRow]:
    """Rows of the stream of this number as received, and the answers given after them."""
    store = following.store
    records = store.rows(number, since, until, newest=most)
    received = store.received(sorted({record.sequence for record in records}))
    revised: dict[float, list[RevisedAnswer]] = {}
    for one in store.revised(number):
        revised.setdefault(one.time, []).append(RevisedAnswer(_numbers(one.outputs), one.sequence))
    channels, found = following.served.channels, []
    for record in records:
        row, outputs = decode_row(record), np.frombuffer(record.outputs, "<f8")
        found.append(
            HistoryRow(
                time=row.time,
                events={channels[c]: value for c, value in row.values.items()},
                superseded=tuple((channels[c], value) for c, value in row.superseded),
                outputs=tuple(outputs.tolist()),
                probabilities=tuple(following.probabilities(outputs).tolist()),
                sequence=record.sequence,
                received=received.get(record.sequence, float("nan")),
                revised=tuple(revised.get(row.time, ())),
            )
        )
    return found


def _numbers(outputs: bytes) -> tuple[float, ...]:
    return tuple(np.frombuffer(outputs, "<f8").tolist())


def curve(
    following: Following, slot: int, since: float, until: float, points: int, most_rows: int | None
) -> Generator[None, None, Curve]:
    """The answer on a grid of times, and on both sides of rows: of all, or of `most_rows` spread evenly.

    A generator: it stops after each piece of work, and returns the curve.
    """
    found = stretch(following, slot, since, until)
    times = found.times
    started = times[np.isfinite(times)]
    grid = np.linspace(max(since, float(started[0])), until, points)
    rows = np.flatnonzero(times >= grid[0])
    rows = rows[rows > 0]
    if most_rows is not None and len(rows) > most_rows:
        rows = rows[np.linspace(0, len(rows) - 1, most_rows).round().astype(np.int64)]
    earlier = rows[np.isfinite(times[rows - 1])]
    which = np.concatenate([np.searchsorted(times, grid, side="right") - 1, rows, earlier - 1])
    at = np.concatenate([grid, times[rows], times[earlier]])
    said = np.empty((len(at), following.model.outputs))
    for numbers, states in states_in_pieces(following, found, np.unique(which)):
        if states is not None:
            own = np.flatnonzero(np.isin(which, numbers))
            place = torch.from_numpy(np.searchsorted(numbers, which[own]))
            said[own] = ask(following, states[place], at[own])
        yield
    outputs, after, just_before = np.split(said, [points, points + len(rows)])
    before = np.full_like(after, np.nan)
    before[len(rows) - len(earlier) :] = just_before
    return Curve(
        grid,
        outputs,
        following.probabilities(outputs),
        times[rows],
        following.probabilities(after),
        following.probabilities(before),
    )


def ask(following: Following, states: StreamState, at: np.ndarray) -> np.ndarray:
    """Outputs (state, output) at times (state,); NaN where the model has no finite answer."""
    if not len(at):
        return np.empty((0, following.model.outputs))
    with torch.no_grad():
        try:
            said = following.live.predict(at_model(following.live, states), torch.from_numpy(at))
            return said.double().cpu().numpy()
        except SolverError:
            if len(at) == 1:
                return np.full((1, following.model.outputs), np.nan)
            return np.concatenate(
                [ask(following, states[n], at[n : n + 1]) for n in range(len(at))]
            )


def explain(
    following: Following, slot: int, last: int
) -> Generator[None, None, list[RowExplanation]]:
    """Contributions of the newest rows; a generator like `curve`."""
    model = following.model
    if not isinstance(model, NeuralCDE) or model.control != "rectilinear" or model.solver.tolerance:
        raise StreamingError(
            "what moved the answer can be told exactly for a NeuralCDE with the rectilinear control and "
            f"fixed steps, not for this {type(model).__name__}.",
            "not_explainable",
        )
    newest = following.store.rows(int(following.residents.number[slot]), newest=last)
    if not newest:
        return []
    before = float(np.nextafter(newest[0].time, -np.inf))
    found = stretch(following, slot, before, newest[-1].time)
    skipped = max(0, len(found.records) - len(newest))
    records = found.records[skipped:]
    places = np.arange(skipped, skipped + len(records))
    parts = []
    for _, some in states_in_pieces(following, found, places):
        parts += [] if some is None else [some]
        yield
    states = type(found.base).concatenate(parts)
    rows = dense_rows(records, model.channels)
    with torch.no_grad():
        live: Any = following.live
        step = live.explain_observation(at_model(model, states), found.times[places + 1], rows)
    start, time, events = (
        part.double().cpu().numpy() for part in (step.start, step.time, step.events)
    )
    return [
        RowExplanation(
            record.time,
            start[n],
            time[n],
            {name: events[n, c] for c, name in _named(following.served.channels, rows[n])},
            {name: float(rows[n, c]) for c, name in _named(following.served.channels, rows[n])},
        )
        for n, record in enumerate(records)
    ]


def _named(channels: Sequence[str], row: np.ndarray) -> list[tuple[int, str]]:
    """The channels observed at a row (channel,)."""
    return [(c, name) for c, name in enumerate(channels) if row[c] == row[c]]  # not NaN
