"""What the events of one stream come to: the rule by which each is applied, known, corrected or refused.

This is the meaning of the engine, event by event in the order of arrival; the fast way of `ordering`
may only be taken where it comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from onlinecde.streaming.events import Outcome, Refusal
from onlinecde.streaming.rowcodec import MOST_CORRECTIONS, Row


class Arrival(NamedTuple):
    """A valid event of one stream: its position in the batch, time, channel, value and id."""

    position: int
    time: float
    channel: int
    value: float
    id: str | None


@dataclass
class Merged:
    """The rows of a stream that events changed, and what became of each event."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    refusals: dict[int, Refusal] = field(default_factory=dict)
    changed: dict[float, Row] = field(default_factory=dict)
    """Rows that are new or have other events than before"""
    noted: dict[float, Row] = field(default_factory=dict)
    """Rows that only learned of another event's id"""


def merge(
    arrivals: Iterable[Arrival],
    last: float,
    stored: dict[float, Row],
    older: Callable[[float], Row | None],
    *,
    lateness: float,
    ahead: float,
) -> Merged:
    """Take events one by one, as if each had come alone.

    last: time of the stream's newest row, -inf before the first. stored: its rows within the allowed
    lateness. older: a row from before that, by its time.
    """
    found = Merged()
    rows = dict(stored)
    ids = {one: time for time, row in sorted(stored.items()) for one in row.ids}
    for event in arrivals:
        place, time = event.position, event.time
        row = rows.get(time)
        if event.id is not None and ids.get(event.id, float("-inf")) >= last - lateness > float(
            "-inf"
        ):
            found.outcomes[place] = Outcome.DUPLICATE
            continue
        if time < last - lateness:
            if _known(event, older(time) if row is None else row):
                found.outcomes[place] = Outcome.DUPLICATE
            else:
                found.outcomes[place] = Outcome.REFUSED
                found.refusals[place] = Refusal(
                    "too_late",
                    "time",
                    f"time {time!r} lies {last - time:g} behind the stream's newest row at {last!r}; "
                    f"events may come {lateness:g} late.",
                )
            continue
        if last > float("-inf") and time > last + ahead:
            found.outcomes[place] = Outcome.REFUSED
            found.refusals[place] = Refusal(
                "time_ahead",
                "time",
                f"time {time!r} lies {time - last:g} ahead of the stream's newest row at {last!r}; at "
                f"most {ahead:g} is allowed.",
            )
            continue
        repeated = row is not None and _known(event, row)
        if repeated and event.id is None:
            found.outcomes[place] = Outcome.DUPLICATE
            continue
        old = None if row is None else row.values.get(event.channel)
        if row is not None and old is not None and row.full:
            found.outcomes[place] = Outcome.REFUSED
            found.refusals[place] = Refusal(
                "row_full",
                "time",
                f"the row at {time!r} was corrected, or sent again with other ids, {MOST_CORRECTIONS} times, "
                "which is all it keeps: send what is observed later at a time of its own.",
            )
            continue
        fresh = Row(time) if row is None else _own(row, found)
        rows[time] = fresh
        if event.id is not None:
            ids[event.id] = max(time, ids.get(event.id, time))
            fresh.note(event.id)
        if old == event.value:
            found.outcomes[place] = Outcome.DUPLICATE
            if time not in found.changed:
                found.noted[time] = fresh
            continue
        found.noted.pop(time, None)
        found.changed[time] = fresh
        if old is not None:
            fresh.correct(event.channel, event.value)
            found.outcomes[place] = Outcome.CORRECTED
        else:
            fresh.values[event.channel] = event.value
            found.outcomes[place] = Outcome.LATE_APPLIED if time < last else Outcome.APPLIED
        last = max(last, time)
    return found


def _own(row: Row, found: Merged) -> Row:
    """The row itself where this merge made it, else a copy: what is stored stays as it is."""
    if found.changed.get(row.time) is row or found.noted.get(row.time) is row:
        return row
    return row.copy()


def _known(event: Arrival, row: Row | None) -> bool:
    """Whether a row has the event: its id, or, for one without an id, its value now or before a correction."""
    if row is None:
        return False
    if event.id is not None:
        return event.id in row.seen or row.values.get(event.channel) == event.value
    return row.values.get(event.channel) == event.value or (event.channel, event.value) in row.seen
