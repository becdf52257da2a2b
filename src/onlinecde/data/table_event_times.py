"""Times of events of a table, and until when streams are followed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from onlinecde.data.errors import DataError
from onlinecde.data.label_specs import EventLabels
from onlinecde.data.table_files import Table
from onlinecde.data.table_ids import places, present_cells
from onlinecde.data.table_labels import OwnSeries, Target
from onlinecde.data.truth import EventTruth


def event_target(spec: EventLabels, facts: Table, source: OwnSeries) -> Target:
    """The event's time of each stream, or until when none would be missed; a stream without a line is refused.

    facts: where static features stand, the table of the events' times where `spec` names none and it has them.
    """
    table = source.table(spec.table, "table of events' times")
    if spec.table is None and spec.event in facts.frame.columns:
        table = facts
    horizon = None if spec.horizon is None else source.length(spec.horizon)
    if horizon is not None and not (np.isfinite(horizon) and horizon > 0):
        raise DataError(f"horizon is {spec.horizon!r}: give a length of time above 0, as '12h'.")
    kind = source.kind or ("time-to-event" if horizon is None else "binary")
    if kind not in ("binary", "time-to-event") or (kind == "binary" and horizon is None):
        raise DataError(
            f"kind is {kind!r}: times of events make 'binary' labels, with a horizon (--horizon), or 'time-to-event'."
        )
    event = stream_times(table, spec.event, source, "event")
    lost = stream_times(table, spec.censored, source, "censoring") if spec.censored else None
    _check_lines(table, source)
    _check_events(event, lost, source)
    came = event.times.isfinite()
    censored = (
        source.until if lost is None else lost.times.where(lost.times.isfinite(), source.until)
    )
    known = event.times.where(came, censored)
    until = known if source.followed is None else source.followed.minimum(known)
    truth = EventTruth(
        until,
        event.times.where(came, torch.inf),
        None if kind == "time-to-event" else horizon,
        known,
    )
    return Target(
        truth.at(source.row_times),
        kind,
        "row",
        ("no event", "event") if kind == "binary" else (),
        notes=_after_the_rows(until, source),
        truth=truth,
        horizon=horizon,
    )


@dataclass(frozen=True, eq=False)
class StreamTimes:
    """A time of each stream, from a column."""

    times: torch.Tensor
    """(stream,) float64, NaN where there is none"""
    table: Table
    column: str
    line: np.ndarray
    """(stream,) int64: where in the table it stands; -1 where there is none"""

    def refuse(self, where: torch.Tensor, source: OwnSeries, what: str) -> None:
        """Refuse the first stream of which something (stream,) bool is so; `what` says it of its time {}."""
        if where.any():
            at = int(where.nonzero()[0])
            cell = self.table.where(int(self.line[at]), self.column)
            raise DataError(
                f"{cell}: stream {source.series.streams[at]!r} {what.format(f'{float(self.times[at]):g}')}"
            )


def stream_times(table: Table, column: str, source: OwnSeries, role: str) -> StreamTimes:
    """The one time that each stream has in a column, where it has one; two are refused."""
    table = table.rows(present_cells(table, column, f"time of the {role}").is_not_null())
    place = places(table, source.stream, source.series)
    table, place = table.rows(place.is_not_null()), place.drop_nulls().to_numpy()
    times = torch.full((len(source.series),), torch.nan, dtype=torch.float64)
    line = np.full(len(source.series), -1)
    found = StreamTimes(times, table, column, line)
    if not len(place):
        return found
    keys = table.keys(source.stream, "stream")
    read = source.clock.read(table, column, keys, f"time of the {role}").to_numpy()
    streams, firsts = np.unique(place, return_index=True)
    line[streams] = firsts
    times[streams] = torch.from_numpy(read[line[streams]])
    other = np.flatnonzero(read != times.numpy()[place])
    if len(other):
        at = int(other[0])
        raise DataError(
            f"{table.where(at, column)}: stream {keys[at]!r} has two times of the {role}, "
            f"{float(times[place[at]]):g} and {read[at]:g}: it must be the same on all its lines."
        )
    return found


def followed_until(
    tables: list[Table], column: str, source: OwnSeries
) -> tuple[torch.Tensor, list[str]]:
    """Until when each stream is followed, (stream,), from the first table that has the column; notes.

    A stream that has no time there is followed until its last row.
    """
    table = next((one for one in tables if column in one.frame.columns), tables[0])
    end = stream_times(table, column, source, "end of following")
    end.refuse(
        end.times < source.first,
        source,
        "is followed until {}, before its first row: correct it, or leave it empty.",
    )
    known = end.times.isfinite()
    notes = []
    if not known.all():
        notes.append(
            f"{int((~known).sum())} of {len(known)} streams have no '{column}': followed until their last row"
        )
    late = source.row_times > end.times[:, None]
    if late.any():
        notes.append(
            f"{int(late.sum())} rows of {int(late.any(1).sum())} streams come after '{column}': without a label"
        )
    return end.times.where(known, source.last), notes


def _check_lines(table: Table, source: OwnSeries) -> None:
    """Every stream has a line: that no event came is said, not left out."""
    there = places(table, source.stream, source.series).drop_nulls().unique().to_list()
    absent = sorted(set(range(len(source.series))) - set(there))
    if absent:
        raise DataError(
            f"{table.origin}, column '{source.stream}': stream {source.series.streams[absent[0]]!r} has no line, as "
            f"{len(absent)} of {len(source.series)} streams: give each one, with the event's time empty where none "
            "came, or leave the stream out."
        )


def _check_events(event: StreamTimes, lost: StreamTimes | None, source: OwnSeries) -> None:
    """Refuse events and censoring before there is anything to predict from, and the two at odds."""
    first, remedy = source.first, "its first row: leave the stream out, or give it earlier rows."
    event.refuse(event.times <= first, source, "has its event at {}, no later than " + remedy)
    if lost is None:
        return
    lost.refuse(lost.times < first, source, "is censored at {}, before " + remedy)
    lost.refuse(
        lost.times > event.times,
        source,
        "is censored at {}, after its event: leave the censoring empty where there was an event, or name the column "
        "as the end of following (followed_until, --followed-until).",
    )
    lost.refuse(
        lost.times < event.times,
        source,
        "is censored at {}, before its event, of which nobody could then know: correct one of them.",
    )


def _after_the_rows(until: torch.Tensor, source: OwnSeries) -> tuple[str, ...]:
    """A note where streams are asked about for longer after their last row than they were observed."""
    after, span = (until - source.last).median(), (source.last - source.first).median()
    if source.followed is not None or not after > span:
        return ()
    return (
        f"streams are asked about for {float(after):.3g} {source.clock.unit} beyond their last row (median): where "
        "that is longer than they are watched, name the column that says until when (followed_until, --followed-until)",
    )
