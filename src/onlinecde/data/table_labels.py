"""Labels of a table, per stream or per row; those that stand in time are in `table_truth` and `table_event_times`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from onlinecde.data.errors import DataError
from onlinecde.data.forecasting import Forecast, forecast_of, forecast_truth
from onlinecde.data.label_specs import ForecastLabels, RowLabels, StreamLabels
from onlinecde.data.queries import duration
from onlinecde.data.ragged import pad
from onlinecde.data.single_precision import check_resolved
from onlinecde.data.table_files import Table, read_table
from onlinecde.data.table_ids import absent, known_places, per_stream, present_cells
from onlinecde.data.table_times import Clock
from onlinecde.data.task import Kind, Per
from onlinecde.data.truth import EndLabels, ListedLabels, Truth
from onlinecde.series import SeriesBatch

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Target:
    """Labels in the form a `Task` takes them."""

    labels: Any
    kind: Kind
    per: Per
    classes: tuple[str, ...] = ()
    flow: tuple[tuple[str, int], ...] = ()
    """How many labelled streams there were and how many have events, where some have none."""
    notes: tuple[str, ...] = ()
    truth: Truth | None = None
    queries: torch.Tensor | None = None
    horizon: float | None = None
    forecast: Forecast | None = None


@dataclass(frozen=True, eq=False)
class OwnSeries:
    """The series of a table, and what reads other tables beside it."""

    own: Table
    stream: str
    time: str
    clock: Clock
    series: SeriesBatch
    kind: Kind | None
    """As it was asked for"""
    followed: torch.Tensor | None = None
    """(stream,) float64: until when each is followed, where somebody says so"""

    @cached_property
    def first(self) -> torch.Tensor:
        """(stream,) time of the first row."""
        return self.series.times[:, 0]

    @cached_property
    def last(self) -> torch.Tensor:
        """(stream,) time of the last row."""
        return self.series.times.gather(1, self.series.rows[:, None] - 1)[:, 0]

    @property
    def until(self) -> torch.Tensor:
        """(stream,) until when each is followed."""
        return self.last if self.followed is None else self.followed

    @property
    def row_times(self) -> torch.Tensor:
        """(stream, row), NaN in padding."""
        return self.series.times.masked_fill(~self.series.real, torch.nan)

    def length(self, given: float | str) -> float:
        """A length of time in the task's unit, as text ("90min") or a number."""
        return duration(given, self.clock.unit) if isinstance(given, str) else float(given)

    def table(self, given: Any, what: str) -> Table:
        """A table that was given, or the series' own."""
        return self.own if given is None else read_table(given, what=what)


def stream_target(spec: StreamLabels, source: OwnSeries) -> Target:
    """Look up each stream's label; streams without one, or with two, are refused.

    Of several outputs some may be missing, but not all.
    """
    import polars as pl

    table, stream, series = (
        source.table(spec.table, "table of labels"),
        source.stream,
        source.series,
    )
    columns = names_of(spec.column)
    cells = [
        pl.Series(c, per_stream(table, stream, c, series, "label"), strict=False) for c in columns
    ]
    for name, own in zip(series.streams, zip(*cells, strict=True), strict=True):
        if all(cell is None for cell in own):
            raise DataError(
                f"{table.origin}, column '{columns[0]}': stream {name!r} has no label: give it one "
                f"or leave the stream out{absent(table, stream, name)}."
            )
    flow = _labelled_flow(table, stream, columns, series)
    labels, kind, classes = coded(cells, source.kind, table)
    truth = None
    if source.followed is not None and kind != "time-to-event":
        truth = EndLabels(source.followed, as_labels(labels, kind))
    return Target(labels, kind, "stream", classes, flow, truth=truth)


def forecast_target(spec: ForecastLabels, source: OwnSeries) -> Target:
    """What channels of the series read later, at each row."""
    if source.kind not in (None, "forecast"):
        raise DataError(f"kind is {source.kind!r}, and channels are forecast: leave it out.")
    series = source.series
    forecast = forecast_of(series, spec.channels, spec.horizons, spec.within, source.clock.unit)
    truth = forecast_truth(series, forecast, source.until)
    labels = truth.at(series.times)
    return Target(labels, "forecast", "row", truth=truth, forecast=forecast)


def as_labels(labels: np.ndarray, kind: Kind) -> torch.Tensor:
    """Labels as a task keeps them: int64 classes, else float32."""
    return torch.from_numpy(labels).to(torch.int64 if kind == "multiclass" else torch.float32)


def names_of(column: str | Sequence[str]) -> list[str]:
    """Names of one column or several, as a list."""
    return [column] if isinstance(column, str) else list(column)


def coded(
    columns: Sequence[pl.Series], kind: Kind | None, table: Table
) -> tuple[np.ndarray, Kind, tuple[str, ...]]:
    """Labels (line,), or (line, output) of several columns, their kind, and the names of classes or outputs."""
    names = [column.name for column in columns]
    if len(columns) == 1:
        return _coded(columns[0], kind, f"{table.origin}, column '{names[0]}'")
    if kind in ("binary", "multiclass"):
        raise DataError(
            f"kind is {kind!r} with {len(names)} labels ({', '.join(names)}): say 'multilabel' "
            "where each is 0 or 1, 'regression' where they are numbers, or name one."
        )
    each = [_floats(column, f"{table.origin}, column '{column.name}'") for column in columns]
    numbers = np.stack(each, 1)
    return numbers, kind or _common_kind(numbers, names), tuple(names)


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


def row_target(spec: RowLabels, source: OwnSeries) -> Target:
    """Place labels at the rows of their time; one at a time without a row is refused."""
    table, series = source.table(spec.table, "table of labels"), source.series
    table = labelled_lines(table, [spec.column])
    streams = table.keys(source.stream, "stream")
    code = known_places(table, source.stream, series, "label")
    times = source.clock.read(table, source.time, streams, "time of the label")
    labels, kind, classes = coded([table.column(spec.column, "label")], source.kind, table)
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
                f"{key[1]}: drop this label, give the series a row there, or give labels that need none "
                "(TimeLabels, --label-times)."
            )
        before = result[key[0], row]
        if not np.isnan(before) and before != labels[index]:
            raise DataError(
                f"{table.where(index, spec.column)}: stream {streams[index]!r} has two labels at "
                f"time {key[1]}: keep one."
            )
        result[key[0], row] = labels[index]
    at = np.nonzero(~np.isnan(result))
    truth = listed(source, at[0], series.times.numpy()[at], result[at], kind, spec.stands)
    if source.followed is None and not truth.stands:
        return Target(result, kind, "row", classes)
    return Target(truth.at(source.row_times), kind, "row", classes, truth=truth)


def listed(
    source: OwnSeries,
    code: np.ndarray,
    times: np.ndarray,
    labels: np.ndarray,
    kind: Kind,
    stands: float | str,
) -> ListedLabels:
    """Labels (line, ...) at times (line,) of streams `code` (line,), by stream and rising, as long as each stands."""
    stood = source.length(stands)
    if not stood >= 0:  # NaN too
        raise DataError(f"stands is {stands!r}: give how long a label stands, 0 or more.")
    counts = np.bincount(code, minlength=len(source.series))
    entries = torch.from_numpy(pad(counts, times, np.inf))
    last = (entries.masked_fill(entries == torch.inf, -torch.inf).amax(1) + stood).maximum(
        source.last
    )
    until = last if source.followed is None else source.followed
    fill = -1 if kind == "multiclass" else np.nan
    given = as_labels(pad(counts, labels.astype(np.float64), fill), kind)
    return ListedLabels(until, entries, given, stood)


def labelled_lines(table: Table, columns: Sequence[str]) -> Table:
    """Only the lines that have a label in one of the columns; a table without any is refused."""
    labelled = present_cells(table, columns[0], "label").is_not_null()
    for column in columns[1:]:
        labelled = labelled | present_cells(table, column, "label").is_not_null()
    if not labelled.any():
        raise DataError(f"{table.origin}, column '{columns[0]}': there is no label in it.")
    return table.rows(labelled)


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
