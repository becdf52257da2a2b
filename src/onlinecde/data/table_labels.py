"""Labels of a table: per stream, per row, or as intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onlinecde.data.errors import DataError
from onlinecde.data.table_files import Table, read_table
from onlinecde.data.table_times import Clock
from onlinecde.data.task import Kind, Per
from onlinecde.series import SeriesBatch

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class StreamLabels:
    """One label a stream: `column` (or several, for several outputs) of `table`.

    `table` is a path or a frame with the stream column; None means the series' own table, where
    the label must be the same on all lines of a stream that have one.
    """

    column: str | Sequence[str]
    table: Any = None


@dataclass(frozen=True)
class RowLabels:
    """A label at rows: `column` of `table`, which has the stream and time columns too.

    None means the series' own table. Rows without a label, or with an empty one, have none.
    """

    column: str
    table: Any = None


@dataclass(frozen=True)
class IntervalLabels:
    """Rows from `start` to `end`, both included, of the intervals in `table` are 1, others 0."""

    table: Any
    start: str = "start"
    end: str = "end"


@dataclass(frozen=True)
class Target:
    """Labels in the form a `Task` takes them."""

    labels: np.ndarray
    kind: Kind
    per: Per
    classes: tuple[str, ...] = ()


def stream_target(
    spec: StreamLabels, own: Table, stream: str, series: SeriesBatch, kind: Kind | None
) -> Target:
    """Look up each stream's label; streams without one, or with two, are refused."""
    import polars as pl

    table = own if spec.table is None else read_table(spec.table, what="table of labels")
    columns = [spec.column] if isinstance(spec.column, str) else list(spec.column)
    found = []
    for column in columns:
        cells = per_stream(table, stream, column, series, "label")
        for name, cell in zip(series.streams, cells, strict=True):
            if cell is None:
                raise DataError(
                    f"{table.origin}, column '{column}': stream {name!r} has no label: give it one "
                    "or leave the stream out."
                )
        found.append(pl.Series(column, cells, strict=False))
    if len(found) == 1:
        labels, chosen, classes = _coded(found[0], kind, f"{table.origin}, column '{columns[0]}'")
        return Target(labels, chosen, "stream", classes)
    numbers = np.stack(
        [_floats(column, f"{table.origin}, column '{column.name}'") for column in found], 1
    )
    chosen = kind or ("multilabel" if set(np.unique(numbers)) <= {0.0, 1.0} else "regression")
    return Target(numbers, chosen, "stream", tuple(columns))


def row_target(
    spec: RowLabels,
    own: Table,
    stream: str,
    time: str,
    clock: Clock,
    series: SeriesBatch,
    kind: Kind | None,
) -> Target:
    """Place labels at the rows of their time; one at a time without a row is refused."""
    import polars as pl

    table = own if spec.table is None else read_table(spec.table, what="table of labels")
    table = table.rows(table.column(spec.column, "label").is_not_null())
    if not table.frame.height:
        raise DataError(f"{table.origin}, column '{spec.column}': there is no label in it.")
    streams = table.keys(stream, "stream")
    times = clock.read(table, time, streams, "time of the label")
    labels, chosen, classes = _coded(
        table.column(spec.column, "label"), kind, f"{table.origin}, column '{spec.column}'"
    )
    place = {name: number for number, name in enumerate(series.streams)}
    code = streams.replace_strict(place, default=-1, return_dtype=pl.Int64).to_numpy()
    real = series.real.numpy()
    own_code, own_row = np.nonzero(real)
    own_times = series.times.numpy()[real].tolist()
    keys = zip(own_code.tolist(), own_times, strict=True)
    rows = dict(zip(keys, own_row.tolist(), strict=True))
    result = np.full(real.shape, np.nan)
    for index, key in enumerate(zip(code.tolist(), times.to_list(), strict=True)):
        row = rows.get(key)
        if row is None:
            raise DataError(
                f"{table.where(index, spec.column)}: stream {streams[index]!r} has no row at time "
                f"{key[1]}: drop this label, or give the series a row there."
            )
        before = result[key[0], row]
        if not np.isnan(before) and before != labels[index]:
            raise DataError(
                f"{table.where(index, spec.column)}: stream {streams[index]!r} has two labels at "
                f"time {key[1]}: keep one."
            )
        result[key[0], row] = labels[index]
    return Target(result, chosen, "row", classes)


def interval_target(
    spec: IntervalLabels, stream: str, clock: Clock, series: SeriesBatch, kind: Kind | None
) -> Target:
    """Mark the rows inside intervals; an interval of an unknown stream is refused."""
    if kind not in (None, "binary"):
        raise DataError(f"kind is {kind!r}: intervals make binary labels, inside or outside.")
    table = read_table(spec.table, what="table of intervals")
    streams = table.keys(stream, "stream")
    place = {name: number for number, name in enumerate(series.streams)}
    for index, name in enumerate(streams.to_list()):
        if name not in place:
            raise DataError(
                f"{table.where(index, stream)}: stream {name!r} is not in the series: drop "
                "the interval."
            )
    start = clock.read(table, spec.start, streams, "start").to_numpy()
    end = clock.read(table, spec.end, streams, "end").to_numpy()
    times = series.times.numpy()
    result = np.zeros(times.shape)
    for index, name in enumerate(streams.to_list()):
        if end[index] < start[index]:
            raise DataError(f"{table.where(index, spec.end)}: the interval ends before it starts.")
        code = place[name]
        result[code, (times[code] >= start[index]) & (times[code] <= end[index])] = 1.0
    return Target(result, "binary", "row", ("outside", "inside"))


def per_stream(table: Table, stream: str, column: str, series: SeriesBatch, role: str) -> list[Any]:
    """The one value each stream has in `column`, None where it has none; two are refused."""
    import polars as pl

    cells = table.column(column, role)
    frame = pl.DataFrame({"stream": table.keys(stream, "stream"), "cell": cells}).with_row_index(
        "at"
    )
    known = frame.filter(pl.col("cell").is_not_null())
    firsts = known.unique("stream", keep="first", maintain_order=True)
    other = known.join(firsts.rename({"cell": "first"}).drop("at"), on="stream").filter(
        pl.col("cell") != pl.col("first")
    )
    if other.height:
        at = int(other["at"].min())  # pyright: ignore[reportArgumentType]
        raise DataError(
            f"{table.where(at, column)}: stream {frame['stream'][at]!r} has two values for the "
            f"{role}: it must be the same on all its lines."
        )
    lookup = dict(zip(firsts["stream"].to_list(), firsts["cell"].to_list(), strict=True))
    return [lookup.get(name) for name in series.streams]


def _coded(
    column: pl.Series, kind: Kind | None, where: str
) -> tuple[np.ndarray, Kind, tuple[str, ...]]:
    """Labels as numbers, what kind they are, and the names of their classes."""
    import polars as pl

    if column.dtype == pl.String:
        numbers = column.str.strip_chars().cast(pl.Float64, strict=False)
        if numbers.null_count() == 0 and kind != "multiclass":
            column = numbers
    if kind == "multiclass" or (column.dtype == pl.String and kind is None):
        text = column.cast(pl.String)
        classes = _in_order(text.unique().to_list())
        codes = {name: code for code, name in enumerate(classes)}
        labels = text.replace_strict(codes, return_dtype=pl.Int64).to_numpy()
        return labels, "multiclass", classes
    labels = _floats(column, where)
    if kind is None:
        kind = "binary" if set(np.unique(labels)) <= {0.0, 1.0} else "regression"
    return labels, kind, ("0", "1") if kind == "binary" else (column.name,)


def _in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Class names by number where all are numbers, else by letter."""
    key: Callable[[str], Any] = str
    try:
        [float(name) for name in names]
        key = float
    except ValueError:
        pass
    return tuple(sorted(names, key=key))


def _floats(column: pl.Series, where: str) -> np.ndarray:
    import polars as pl

    numbers = column.cast(pl.Float64, strict=False)
    bad = (numbers.is_null() & column.is_not_null()).arg_true()
    if len(bad):
        raise DataError(
            f"{where}: the label {column[int(bad[0])]!r} is not a number: say kind='multiclass' if "
            "labels are names."
        )
    return numbers.to_numpy().astype(float)
