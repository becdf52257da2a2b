"""Labels of a table: per stream, per row, or as intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onlinecde.data.errors import DataError
from onlinecde.data.single_precision import check_resolved
from onlinecde.data.table_files import Table, read_table
from onlinecde.data.table_ids import absent, look_of, per_stream, places, present_cells
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
    flow: tuple[tuple[str, int], ...] = ()
    """How many labelled streams there were and how many have events, where some have none."""


def stream_target(
    spec: StreamLabels, own: Table, stream: str, series: SeriesBatch, kind: Kind | None
) -> Target:
    """Look up each stream's label; streams without one, or with two, are refused.

    Of several outputs some may be missing, but not all.
    """
    import polars as pl

    table = own if spec.table is None else read_table(spec.table, what="table of labels")
    columns = [spec.column] if isinstance(spec.column, str) else list(spec.column)
    if len(columns) > 1 and kind in ("binary", "multiclass"):
        raise DataError(
            f"kind is {kind!r} with {len(columns)} labels ({', '.join(columns)}): say 'multilabel' "
            "where each is 0 or 1, 'regression' where they are numbers, or name one."
        )
    found = [
        pl.Series(c, per_stream(table, stream, c, series, "label"), strict=False) for c in columns
    ]
    for name, cells in zip(series.streams, zip(*found, strict=True), strict=True):
        if all(cell is None for cell in cells):
            raise DataError(
                f"{table.origin}, column '{columns[0]}': stream {name!r} has no label: give it one "
                f"or leave the stream out{absent(table, stream, name)}."
            )
    flow = _labelled_flow(table, stream, columns, series)
    if len(found) == 1:
        labels, chosen, classes = _coded(found[0], kind, f"{table.origin}, column '{columns[0]}'")
        return Target(labels, chosen, "stream", classes, flow)
    numbers = np.stack(
        [_floats(column, f"{table.origin}, column '{column.name}'") for column in found], 1
    )
    chosen = kind or _common_kind(numbers, columns)
    return Target(numbers, chosen, "stream", tuple(columns), flow)


def _common_kind(numbers: np.ndarray, columns: Sequence[str]) -> Kind:
    """The kind of several labels (stream, label); labels of two kinds are refused, for they share no loss."""
    binary = [set(np.unique(one[~np.isnan(one)])) <= {0.0, 1.0} for one in numbers.T]
    if len(set(binary)) > 1:
        each = ", ".join(
            f"'{name}' {'is 0 or 1' if two else 'has other numbers'}"
            for name, two in zip(columns, binary, strict=True)
        )
        raise DataError(
            f"the labels are of two kinds ({each}), and a model has one: fit a model for each kind, or say "
            "kind='regression' if all of them are numbers to be predicted."
        )
    return "multilabel" if binary[0] else "regression"


def _labelled_flow(
    table: Table, stream: str, columns: Sequence[str], series: SeriesBatch
) -> tuple[tuple[str, int], ...]:
    """How many streams are labelled, and how many of them have events; empty where all have."""
    import polars as pl

    labelled = pl.Series([False] * table.frame.height)
    for column in columns:
        labelled = labelled | present_cells(table, column, "label").is_not_null()
    streams = table.keys(stream, "stream").filter(labelled).n_unique()
    if streams == len(series):
        return ()
    return (("labelled streams", streams), ("with events", len(series)))


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
    table = own if spec.table is None else read_table(spec.table, what="table of labels")
    table = table.rows(present_cells(table, spec.column, "label").is_not_null())
    if not table.frame.height:
        raise DataError(f"{table.origin}, column '{spec.column}': there is no label in it.")
    streams = table.keys(stream, "stream")
    times = clock.read(table, time, streams, "time of the label")
    labels, chosen, classes = _coded(
        table.column(spec.column, "label"), kind, f"{table.origin}, column '{spec.column}'"
    )
    code = places(table, stream, series).fill_null(-1).to_numpy()
    real = series.real.numpy()
    own_code, own_row = np.nonzero(real)
    own_times = series.times.numpy()[real].tolist()
    keys = zip(own_code.tolist(), own_times, strict=True)
    rows = dict(zip(keys, own_row.tolist(), strict=True))
    result = np.full(real.shape, np.nan)
    for index, key in enumerate(zip(code.tolist(), times.to_list(), strict=True)):
        row = rows.get(key)
        if key[0] < 0:
            raise DataError(
                f"{table.where(index, stream)}: stream {streams[index]!r} is not in the series, whose "
                f"ids look like {look_of(series.streams)}: drop the label."
            )
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
    place = places(table, stream, series)
    for index in place.is_null().arg_true():
        raise DataError(
            f"{table.where(index, stream)}: stream {streams[index]!r} is not in the series, whose ids "
            f"look like {look_of(series.streams)}: drop the interval."
        )
    start = clock.read(table, spec.start, streams, "start").to_numpy()
    end = clock.read(table, spec.end, streams, "end").to_numpy()
    times = series.times.numpy()
    result = np.zeros(times.shape)
    for index, code in enumerate(place.to_list()):
        if end[index] < start[index]:
            raise DataError(f"{table.where(index, spec.end)}: the interval ends before it starts.")
        result[code, (times[code] >= start[index]) & (times[code] <= end[index])] = 1.0
    return Target(result, "binary", "row", ("outside", "inside"))


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
    labels = numbers.to_numpy().astype(float)
    check_resolved(labels, f"{where} (label)")
    return labels
