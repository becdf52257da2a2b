"""Ids of streams in one table looked up in another: compared as text, so that 7 is '7'."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onlinecde.data.errors import DataError
from onlinecde.data.table_files import Table
from onlinecde.series import SeriesBatch

if TYPE_CHECKING:
    import polars as pl


def places(table: Table, stream: str, series: SeriesBatch) -> pl.Series:
    """(line,) int64: the position of each line's stream in `series`, null where it has none."""
    import polars as pl

    names = table.keys(stream, "stream").cast(pl.String)
    place = {str(name): number for number, name in enumerate(series.streams)}
    return names.replace_strict(place, default=None, return_dtype=pl.Int64)


def known_places(table: Table, stream: str, series: SeriesBatch, what: str) -> np.ndarray:
    """(line,) int64: the position of each line's stream; a line of no stream of the series is refused."""
    place = places(table, stream, series)
    if place.null_count():
        at = int(place.is_null().arg_true()[0])
        raise DataError(
            f"{table.where(at, stream)}: stream {table.keys(stream, 'stream')[at]!r} is not in the series, whose ids "
            f"look like {look_of(series.streams)}: drop the {what}."
        )
    return place.to_numpy()


def without_line(table: Table, stream: str, series: SeriesBatch) -> int:
    """How many streams have no line in `table`; where none has one, ids are written otherwise."""
    found = places(table, stream, series).drop_nulls().n_unique()
    if not found:
        raise DataError(
            f"{table.origin}, column '{stream}': no stream of the series has a line: ids look like "
            f"{look_of(table.keys(stream, 'stream').to_list())} there, like "
            f"{look_of(series.streams)} in the series. Write them alike."
        )
    return len(series) - found


def absent(table: Table, stream: str, name: Hashable) -> str:
    """What to add to an error about a stream where `table` has no line of it at all; else nothing."""
    import polars as pl

    keys = table.keys(stream, "stream")
    if (keys.cast(pl.String) == str(name)).any():
        return ""
    return f" (no line has this id; ids look like {look_of(keys.to_list())} there)"


def look_of(ids: Sequence[Hashable]) -> str:
    """The first few ids: '0.0', '1.0', '2.0'."""
    return ", ".join(repr(name)[:40] for name in list(dict.fromkeys(ids))[:3])


def present_cells(table: Table, column: str, role: str) -> pl.Series:
    """A column with null for all that is missing: NaN is how many tables write it."""
    cells = table.column(column, role)
    return cells.fill_nan(None) if cells.dtype.is_float() else cells


def per_stream(table: Table, stream: str, column: str, series: SeriesBatch, role: str) -> list[Any]:
    """The one value each stream has in `column`, None where it has none; two are refused."""
    import polars as pl

    cells, place = present_cells(table, column, role), places(table, stream, series)
    lines = pl.DataFrame({"place": place, "cell": cells}).with_row_index("at").drop_nulls()
    firsts = lines.unique("place", keep="first", maintain_order=True)
    other = lines.join(firsts.rename({"cell": "first"}).drop("at"), on="place").filter(
        pl.col("cell") != pl.col("first")
    )
    if other.height:
        at = int(other["at"].min())  # pyright: ignore[reportArgumentType]
        raise DataError(
            f"{table.where(at, column)}: stream {series.streams[place[at]]!r} has two values for the "
            f"{role}: it must be the same on all its lines."
        )
    lookup = dict(firsts.select("place", "cell").iter_rows())
    return [lookup.get(number) for number in range(len(series))]
