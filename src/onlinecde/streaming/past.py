"""A part of a stream's past: its stored rows, and their states, integrated again piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from onlinecde.models import StreamState
from onlinecde.streaming.codec import dense_rows
from onlinecde.streaming.errors import StreamingError
from onlinecde.streaming.pipeline.integrate import integrate
from onlinecde.streaming.state import EngineState
from onlinecde.streaming.stores.base import RowRecord

PIECE_ROWS, PIECE_LEGS = 128, 64
"""Rows one leg is taken further, and legs integrated side by side, in one piece of work"""


@dataclass(frozen=True, eq=False)
class Past:
    """Part of a stream's past; state 0 is `base`, state n that after row n - 1 of `records`."""

    number: int
    name: str
    base: StreamState
    records: list[RowRecord]
    """The rows after the base"""
    times: np.ndarray
    """(1 + row,): the time of each state; that of the base is -inf before the first row"""


@dataclass(frozen=True, eq=False)
class _Leg:
    """Rows to be integrated one after the other: those that lead from state `begin` to state `end`."""

    state: StreamState
    begin: int
    end: int


def past_of(engine: EngineState, slot: int, since: float, until: float) -> Past:
    """The rows of a stream from the state that holds at `since` up to `until`.

    Where rows were pruned, it begins with the oldest state that is left.
    """
    store, number = engine.store, int(engine.number[slot])
    kept = store.checkpoint(number, float(np.nextafter(since, np.inf)))
    if kept is None:
        records = store.rows(number, until=until)
        kept = store.checkpoint(number, records[0].time) if records else None
    else:
        records = store.rows(number, float(np.nextafter(kept.time, np.inf)), until)
    if kept is None:
        base, base_time = engine.begin(slot), float("-inf")
    else:
        base, base_time = engine.codec.decode([kept.body]), kept.time
    times = np.array([base_time, *(record.time for record in records)])
    return Past(number, engine.names[slot], base, records, times)


def states_in_pieces(
    engine: EngineState, past: Past, needed: np.ndarray
) -> Iterator[tuple[np.ndarray, StreamState | None]]:
    """The states of a past with these numbers (increasing), in pieces of bounded work: some numbers, their states.

    Checkpoints on the way are begun from, and what follows them is integrated side by side. A piece may only lead
    up to a state that is needed; it then has none (None).
    """
    state, at, asked = past.base, 0, needed
    while len(asked):
        legs = _legs(engine, past, asked, state, at)
        states, where = _integrated(engine, past, legs)
        at = legs[-1].end
        done = asked[: np.searchsorted(asked, at, side="right")]
        places = torch.tensor([where[one] for one in done.tolist()], dtype=torch.int64)
        yield done, states[places] if len(done) else None
        state, asked = states[torch.tensor([where[at]])], asked[len(done) :]


def _legs(
    engine: EngineState, past: Past, asked: np.ndarray, state: StreamState, at: int
) -> list[_Leg]:
    """Legs from state `at` on, to as many of the states asked for as make one piece."""
    legs, begin, looked = [], at, at
    for one in asked.tolist():
        if one - looked > engine.settings.checkpoint_rows:
            looked = one
            later = _checkpoint(engine, past, one, begin)
            if later is not None:
                legs.append(_Leg(state, begin, at))
                if len(legs) == PIECE_LEGS:
                    return legs
                state, begin = later
        at = min(one, begin + PIECE_ROWS)
        if at < one:
            break
    return [*legs, _Leg(state, begin, at)]


def _checkpoint(
    engine: EngineState, past: Past, to: int, begin: int
) -> tuple[StreamState, int] | None:
    """The newest state that is kept for good after state `begin`, up to state `to`, and its number."""
    until = float(np.nextafter(past.times[to], np.inf))
    kept = engine.store.checkpoint(past.number, until)
    if kept is None:
        return None
    number = int(np.searchsorted(past.times, kept.time))
    if number <= begin or past.times[number] != kept.time:
        return None
    return engine.codec.decode([kept.body]), number


def _integrated(
    engine: EngineState, past: Past, legs: list[_Leg]
) -> tuple[StreamState, dict[int, int]]:
    """The states of some legs, and where among them each number is."""
    kind = type(past.base)
    where = {leg.begin: place for place, leg in enumerate(legs)}
    bases = kind.concatenate([leg.state for leg in legs])
    moving = [leg for leg in legs if leg.end > leg.begin]
    if not moving:
        return bases, where
    rows = np.concatenate([np.arange(leg.begin, leg.end) for leg in moving])
    records = [past.records[row] for row in rows.tolist()]
    done = integrate(
        engine.served.live,
        kind.concatenate([leg.state for leg in moving]),
        np.array([leg.end - leg.begin for leg in moving]),
        past.times[rows + 1],
        dense_rows(records, engine.model.channels),
    )
    if done.bad:
        raise StreamingError(
            f"stream {past.name!r}: its stored row at {records[min(done.bad)].time!r} has no finite state any "
            "more: rebuild the store.",
            "state_unreadable",
        )
    states = done.states_of(np.arange(len(rows)))
    where |= {int(row) + 1: len(legs) + place for place, row in enumerate(rows)}
    return kind.concatenate([bases, states]), where


def states_of(engine: EngineState, past: Past, which: np.ndarray) -> StreamState:
    """The states of a past with these numbers, all at once."""
    needed, place = np.unique(which, return_inverse=True)
    pieces = [states for _, states in states_in_pieces(engine, past, needed)]
    states = type(past.base).concatenate([one for one in pieces if one is not None])
    return states[torch.from_numpy(place)]
