"""Times of a table, numbers or timestamps -> float64 in one unit, from each stream's origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onlinecde.data.errors import DataError
from onlinecde.data.table_files import Table

if TYPE_CHECKING:
    import polars as pl

SECONDS: Mapping[str, float] = {
    "milliseconds": 1e-3,
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3600.0,
    "days": 86400.0,
}
"""Units of time that timestamps can be turned into."""


@dataclass(frozen=True)
class Clock:
    """How a table's times are read: numbers as they are, timestamps in a unit from an origin."""

    unit: str
    stamped: bool
    origins: dict[Any, float]
    """Stream -> its time 0, in seconds for timestamps, in the unit for numbers; 0 where absent."""

    def read(self, table: Table, column: str, streams: pl.Series, role: str) -> pl.Series:
        """A column of times in the unit; one of the other kind than the series' is refused."""
        import polars as pl

        raw, stamped = raw_times(table, column, role)
        if stamped != self.stamped:
            kinds = ("numbers", "timestamps")
            raise DataError(
                f"{table.origin}, column '{column}' ({role}) holds {kinds[stamped]}, the times of "
                f"the series are {kinds[self.stamped]}: make them the same."
            )
        if self.origins:
            start = streams.replace_strict(self.origins, default=None, return_dtype=pl.Float64)
            raw = raw - start
        return raw / SECONDS[self.unit] if stamped else raw


def read_clock(
    table: Table, column: str, streams: pl.Series, unit: str, origins: dict[Any, float] | None
) -> Clock:
    """Find out what the times are; timestamps count from `origins`, else from the first event."""
    raw, stamped = raw_times(table, column, "time")
    if stamped and unit not in SECONDS:
        raise DataError(
            f"time_unit is {unit!r}: choose one of {', '.join(SECONDS)} for timestamps."
        )
    if origins is None and stamped:
        import polars as pl

        frame = pl.DataFrame({"stream": streams, "time": raw})
        first = frame.group_by("stream").agg(pl.col("time").min())
        origins = dict(zip(first["stream"].to_list(), first["time"].to_list(), strict=True))
    return Clock(unit, stamped, origins or {})


def raw_times(table: Table, column: str, role: str) -> tuple[pl.Series, bool]:
    """Times as float64, in seconds since 1970 for timestamps; and whether they are timestamps."""
    import polars as pl

    cells = table.complete(column, role)
    if cells.dtype == pl.String:
        numbers = cells.str.strip_chars().cast(pl.Float64, strict=False)
        if numbers.null_count() and numbers.null_count() > len(cells) // 2:
            return _seconds(_parsed(table, column, cells, role)), True
        times = table.numbers(column, role)
    elif cells.dtype.is_temporal():
        if cells.dtype not in (pl.Date, pl.Datetime):
            raise DataError(
                f"{table.origin}, column '{column}' ({role}) has type {cells.dtype}: give "
                "timestamps with a date, or numbers."
            )
        return _seconds(cells), True
    else:
        times = table.numbers(column, role)
    if times.null_count():
        at = int(times.is_null().arg_true()[0])
        raise DataError(f"{table.where(at, column)}: the {role} is not a number: fill it in.")
    return times, False


def _parsed(table: Table, column: str, cells: pl.Series, role: str) -> pl.Series:
    """Text as timestamps: ISO 8601, with a space or a T, with or without seconds and zone."""
    import polars as pl

    text = cells.str.strip_chars().str.replace("T", " ", literal=True)
    stamps = pl.Series(column, [None] * len(text), dtype=pl.Datetime("us"))
    for form in ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        tried = text.str.to_datetime(form, time_unit="us", strict=False)
        stamps = pl.select(pl.coalesce(stamps, tried)).to_series()
    zoned = text.str.replace(r"Z$", "+00:00").str.to_datetime(
        "%Y-%m-%d %H:%M:%S%.f%#z", time_unit="us", strict=False
    )
    stamps = pl.select(pl.coalesce(stamps, zoned.dt.replace_time_zone(None))).to_series()
    bad = stamps.is_null().arg_true()
    if len(bad):
        at = int(bad[0])
        raise DataError(
            f"{table.where(at, column)} ({role}): {cells[at][:40]!r} is no timestamp: write "
            "2030-01-31 13:45:00, or numbers throughout."
        )
    return stamps


def _seconds(stamps: pl.Series) -> pl.Series:
    import polars as pl

    return stamps.cast(pl.Datetime("us")).dt.epoch("us").cast(pl.Float64) / 1e6
