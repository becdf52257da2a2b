"""Times of a table, numbers or timestamps -> float64 in one unit, from each stream's origin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from onlinecde.data.errors import DataError
from onlinecde.data.table_files import Table
from onlinecde.series import TIME_UNITS

if TYPE_CHECKING:
    import polars as pl

Form = Literal[
    "numbers", "durations", "timestamps without a time zone", "timestamps with a time zone"
]
"""What times can be; those of one task are all of the same form."""

_LOCAL = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d")
_ZONED = ("%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%d %H:%M%#z")


@dataclass(frozen=True)
class Clock:
    """How a table's times are read: numbers as they are, durations in a unit, timestamps in one from an origin."""

    unit: str
    form: Form
    origins: dict[str, float]
    """Stream as text -> its time 0, in seconds for timestamps and durations, in the unit for numbers.

    Empty: all count from 0.
    """

    def read(self, table: Table, column: str, streams: pl.Series, role: str) -> pl.Series:
        """A column of times in the unit; one of another form than the series' is refused."""
        import polars as pl

        raw, form = raw_times(table, column, role)
        check_form(table.origin, column, role, form, self.form)
        if self.origins:
            names = streams.cast(pl.String)
            raw = raw - names.replace_strict(self.origins, default=None, return_dtype=pl.Float64)
        return raw if form == "numbers" else raw / TIME_UNITS[self.unit]

    def counted_from(self, table: Table, column: str, streams: pl.Series) -> Clock:
        """The same clock with each stream's time 0 from `column`, in which each has one."""
        import polars as pl

        role = "origin of time"
        raw, form = raw_times(table, column, role)
        check_form(table.origin, column, role, form, self.form)
        found: dict[str, float] = {}
        names = streams.cast(pl.String).to_list()
        for index, (name, start) in enumerate(zip(names, raw.to_list(), strict=True)):
            if found.setdefault(name, start) != start:
                raise DataError(
                    f"{table.where(index, column)}: stream {streams[index]!r} has two origins of time."
                )
        return replace(self, origins=found)


@dataclass(frozen=True)
class TableClock:
    """How the times of a task's own table were read, so that others can be read beside them."""

    clock: Clock
    stream: str
    """The column of streams"""
    time: str
    """The column of times"""


def check_form(origin: str, column: str, role: str, form: Form, wanted: Form) -> None:
    """Refuse times of another form than those of the series: hours may lie between them."""
    if form == wanted:
        return
    remedy = "make them the same"
    if not {"numbers", "durations"} & {form, wanted}:
        remedy = "give both a time zone (2030-01-31 13:45:00+01:00), or neither"
    raise DataError(
        f"{origin}, column '{column}' ({role}) holds {form}, the times of the series are "
        f"{wanted}: {remedy}."
    )


def read_clock(table: Table, column: str, streams: pl.Series, unit: str) -> Clock:
    """Find out what the times are; timestamps count from each stream's first event."""
    import polars as pl

    raw, form = raw_times(table, column, "time")
    if form == "numbers":
        return Clock(unit, form, {})
    if unit not in TIME_UNITS:
        raise DataError(
            f"time_unit is {unit!r}: choose one of {', '.join(TIME_UNITS)} for timestamps and durations."
        )
    if form == "durations":
        return Clock(unit, form, {})
    frame = pl.DataFrame({"stream": streams.cast(pl.String), "time": raw})
    first = frame.group_by("stream").agg(pl.col("time").min())
    return Clock(unit, form, dict(first.iter_rows()))


def raw_times(table: Table, column: str, role: str) -> tuple[pl.Series, Form]:
    """Times as float64, in seconds (since 1970) for durations and timestamps; and what they are."""
    import polars as pl

    cells = table.complete(column, role)
    if cells.dtype == pl.String:
        numbers = cells.str.strip_chars().cast(pl.Float64, strict=False)
        if numbers.null_count() and numbers.null_count() > len(cells) // 2:
            stamps, form = _parsed(table, column, cells, role)
            return _seconds(stamps), form
        times = table.numbers(column, role)
    elif cells.dtype == pl.Duration:
        return cells.dt.total_microseconds().cast(pl.Float64) / 1e6, "durations"
    elif cells.dtype.is_temporal():
        if cells.dtype not in (pl.Date, pl.Datetime):
            raise DataError(
                f"{table.origin}, column '{column}' ({role}) has type {cells.dtype}: give "
                "timestamps with a date, durations, or numbers."
            )
        zone = cells.dtype.time_zone if isinstance(cells.dtype, pl.Datetime) else None
        return _seconds(cells), _form(zone is not None)
    else:
        times = table.numbers(column, role)
    if times.null_count():
        at = int(times.is_null().arg_true()[0])
        raise DataError(f"{table.where(at, column)}: the {role} is not a number: fill it in.")
    return times, "numbers"


def _form(zoned: bool) -> Form:
    return "timestamps with a time zone" if zoned else "timestamps without a time zone"


def _parsed(table: Table, column: str, cells: pl.Series, role: str) -> tuple[pl.Series, Form]:
    """Text as timestamps: ISO 8601, with a space or a T; seconds and zone may be left out.

    All cells have a zone, or none: local times among others would be hours off.
    """
    import polars as pl

    text = cells.str.strip_chars().str.replace("T", " ", literal=True)
    local = _first_read(text, _LOCAL)
    zoned = _first_read(text.str.replace(r"Z$", "+00:00"), _ZONED)
    stamps = pl.select(pl.coalesce(local, zoned)).to_series()
    bad = stamps.is_null().arg_true()
    if len(bad):
        at = int(bad[0])
        raise DataError(
            f"{table.where(at, column)} ({role}): {cells[at][:40]!r} is no timestamp: write "
            "2030-01-31 13:45:00, or numbers throughout."
        )
    first = _form(local[0] is None)
    others = (local.is_null() != (local[0] is None)).arg_true()
    if len(others):
        at = int(others[0])
        raise DataError(
            f"{table.where(at, column)} ({role}): {cells[at][:40]!r} is among {first} "
            f"({cells[0][:40]!r}): give all a time zone, or none."
        )
    return stamps, first


def _first_read(text: pl.Series, forms: Sequence[str]) -> pl.Series:
    """Timestamps, UTC where they have a zone, by the first form that reads them; else null."""
    import polars as pl

    tried = [
        text.str.to_datetime(form, time_unit="us", strict=False).dt.replace_time_zone(None)
        for form in forms
    ]
    return pl.select(pl.coalesce(*tried)).to_series()


def _seconds(stamps: pl.Series) -> pl.Series:
    import polars as pl

    return stamps.dt.epoch("us").cast(pl.Float64) / 1e6
