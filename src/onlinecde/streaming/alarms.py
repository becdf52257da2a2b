"""Alarms: what one is, which looks at streams raise one, and what a restart makes of those in a store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from onlinecde.models import AlarmPolicy

Stream = TypeVar("Stream", str, int)


AT_A_ROW, BETWEEN_ROWS = "at a row", "between rows"


@dataclass(frozen=True, slots=True)
class Alarm(Generic[Stream]):
    """A stream's probability rose to the threshold, at one of its rows or between them."""

    number: int
    stream: Stream
    """Its name; in a store, its number"""
    time: float
    """of the look, in the model's unit of time: that of the row, or a multiple of the policy's `every`"""
    probability: float
    threshold: float
    raised: float
    """Wall clock, seconds, when it was raised"""
    acknowledged: float | None = None
    """Wall clock, seconds; None while it is open"""
    by: str | None = None
    rose: str | None = None
    """`AT_A_ROW` or `BETWEEN_ROWS`; None for alarms of 0.1, all of which rose at rows"""
    policy: str | None = None
    """The policy that raised it, as `policy_text` writes it; None for alarms of 0.1"""
    rearmed: float | None = None
    """Time of the look from which on the stream could be alarmed again; None until then"""


@lru_cache(maxsize=64)
def policy_text(
    threshold: float,
    rearm: float,
    quiet: float,
    every: float | None,
    output: int,
    horizon: float | None = None,
) -> str:
    """A policy's rule as an alarm keeps it."""
    rule = {
        "threshold": threshold, "rearm": rearm, "quiet": quiet, "every": every, "output": output,
    }  # fmt: skip
    return json.dumps(rule if horizon is None else {**rule, "horizon": horizon})


@dataclass(frozen=True, eq=False)
class Looks:
    """Looks at streams, stream by stream, those of each in the order in which they are made."""

    lengths: np.ndarray
    """(stream,): how many at each"""
    times: np.ndarray
    """(look,)"""
    watched: np.ndarray
    """(look,): the number watched; NaN where the model has no finite answer"""
    between: np.ndarray
    """(look,) bool: whether it lies between rows"""


@dataclass(frozen=True, eq=False)
class Raised:
    """What looks come to."""

    alarms: np.ndarray
    """(alarm,): the looks that raise one"""
    rearmed: np.ndarray
    """(rearming,): the looks from which on a stream that had been alarmed can be again"""
    owner: np.ndarray
    """(look,): position of each look's stream"""
    armed: np.ndarray
    """(stream,): after its looks"""
    last_alarm: np.ndarray
    """(stream,): likewise"""


def raise_alarms(
    policy: AlarmPolicy, looks: Looks, armed: np.ndarray, last_alarm: np.ndarray
) -> Raised:
    """Apply a policy to looks, one look after the other at all streams side by side.

    Args:
        policy: the rule.
        looks: at some streams.
        armed: (stream,) before the first of their looks.
        last_alarm: (stream,) likewise.
    """
    lengths = looks.lengths
    owner = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.cumsum(lengths) - lengths
    raised, rearmed = np.zeros(len(owner), bool), np.zeros(len(owner), bool)
    armed, last_alarm = armed.copy(), last_alarm.copy()
    for look in range(int(lengths.max(initial=0))):
        some = np.flatnonzero(lengths > look)
        at = starts[some] + look
        before = armed[some]
        mask, after, newest = policy.raised(
            looks.watched[at], before, last_alarm[some], looks.times[at]
        )
        raised[at], rearmed[at] = mask, after & ~before
        armed[some], last_alarm[some] = after, newest
    return Raised(np.flatnonzero(raised), np.flatnonzero(rearmed), owner, armed, last_alarm)


@dataclass(frozen=True, eq=False)
class Record:
    """What a commit says of alarms."""

    alarms: list[tuple]
    """of `Alarm`"""
    rearmed: list[tuple[int, float]]
    """(stream, time) of streams that can be alarmed again after an alarm of an earlier commit"""


def record(
    policy: AlarmPolicy,
    looks: Looks,
    raised: Raised,
    streams: np.ndarray,
    last: np.ndarray,
    *,
    number: int,
    wall: float,
) -> Record:
    """Alarms raised and streams rearmed, as a store keeps them.

    Args:
        policy: the rule.
        looks: at some streams.
        raised: what they come to.
        streams: (stream,) their numbers.
        last: (stream,) how far they are looked at; what lies beyond was looked at before a row came, and will be again.
        number: of the first alarm.
        wall: the wall clock, seconds.
    """
    owner, times = raised.owner, looks.times
    again: list[tuple[int, float]] = []
    ends: dict[int, float] = {}
    for look in raised.rearmed.tolist():
        place = int(np.searchsorted(raised.alarms, look)) - 1
        earlier = int(raised.alarms[place]) if place >= 0 else -1
        over = min(float(times[look]), float(last[owner[look]]))
        if earlier >= 0 and owner[earlier] == owner[look]:
            ends[earlier] = max(over, float(times[earlier]))
        else:
            again.append((int(streams[owner[look]]), over))
    rule = policy_text(
        policy.threshold, policy.rearm, policy.quiet, policy.every, policy.output, policy.horizon
    )
    alarms = [
        (
            number + place,
            int(streams[owner[look]]),
            float(times[look]),
            float(looks.watched[look]),
            policy.threshold,
            wall,
            None,
            None,
            BETWEEN_ROWS if looks.between[look] else AT_A_ROW,
            rule,
            ends.get(look),
        )
        for place, look in enumerate(raised.alarms.tolist())
    ]
    return Record(alarms, again)


def stored_alarm_state(
    policy: AlarmPolicy,
    streams: np.ndarray,
    last: np.ndarray,
    received: np.ndarray,
    watched: np.ndarray,
    newest: Sequence[Alarm[int]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where streams of a store stand with their alarms: nothing but the alarms themselves is stored of it.

    Looks that were made since the time this gives, and are made again, come to what they came to then: whatever would
    have changed is an alarm, or its end, and lies before.

    Args:
        policy: the rule.
        streams: (stream,) their numbers.
        last: (stream,) time of the newest row.
        received: (stream,) wall clock of the commit that it came with, or was changed by last.
        watched: (stream,) the number watched after it.
        newest: the newest alarm of each stream that has one.

    Returns:
        `armed`, `last_alarm` and the time of the last look that need not be made again, each (stream,).
    """
    armed, looked = np.ones(len(streams), bool), last.copy()
    last_alarm = np.full(len(streams), -np.inf)
    place = {int(number): at for at, number in enumerate(streams.tolist())} if newest else {}
    for alarm in newest:
        at = place[alarm.stream]
        # A look at the row was made if alarms were raised then; 0.1 did not write down when one was over.
        fell = watched[at] < policy.rearm and (last[at] > alarm.time or alarm.policy is None)
        armed[at], last_alarm[at] = alarm.rearmed is not None or fell, alarm.time
        over = -np.inf if alarm.rearmed is None else alarm.rearmed
        # Raised before the row was known, it leaves the look at its own time to be made again.
        after = alarm.time if alarm.raised > received[at] else np.nextafter(alarm.time, -np.inf)
        looked[at] = max(last[at], after, over)
    return armed, last_alarm, looked
