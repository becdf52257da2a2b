"""What users of scikit-learn have (data frames, arrays, ragged lists) -> series, and a label for each stream."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from onlinecde.data.table_series import series_from_table
from onlinecde.series import RawStatic, Schema, SeriesBatch, SeriesError
from onlinecde.series.static_columns import as_column


@dataclass(frozen=True)
class Columns:
    """What the columns of a data frame are."""

    stream: str | None = None
    time: str | None = None
    channel: str | None = None
    value: str | None = None
    channels: Sequence[str] | None = None
    static: Sequence[str] | None = None
    time_unit: str = "hours"


@dataclass(frozen=True, eq=False)
class Panel:
    """Series read from X."""

    series: SeriesBatch
    lines: int | None = None
    """How many lines the data frame had, where X is one"""
    counted: bool = False
    """Whether times are those of the estimator: positions in an array, or its `times`"""
    origins: Mapping[str, float] = field(default_factory=dict)
    """Of timestamps: stream as text -> its time 0, in seconds since 1970"""


def read_panel(X: Any, columns: Columns, times: Any = None, schema: Schema | None = None) -> Panel:
    """Read X as series.

    Args:
        X: a data frame (polars, pandas, Arrow), long or wide, as `columns` say; an array (case, channel,
            timepoint), or (case, timepoint) of one channel, NaN where missing; a list of tuples (times (row,),
            values (row, channel)), or of arrays (channel, timepoint); a `SeriesBatch`, or a list of such.
        columns: what the columns of a data frame are.
        times: (timepoint,) of arrays; default: 0, 1, 2, ...
        schema: of the model that is to be asked, by which a data frame is then read.

    Raises:
        SeriesError, DataError: X cannot be read; ValueError and TypeError of scikit-learn's own for arrays.
    """
    if isinstance(X, SeriesBatch):
        return Panel(X)
    # Of the type: a lazy frame would have to find its columns out.
    if any(hasattr(type(X), name) for name in ("columns", "__arrow_c_stream__")):
        return _from_frame(X, columns, schema)
    if isinstance(X, list | tuple) and len(X):
        if all(isinstance(each, SeriesBatch) for each in X):
            return Panel(SeriesBatch.concatenate(X))
        if any(isinstance(each, tuple) for each in X):
            return Panel(_from_pairs(X))
        if all(isinstance(each, np.ndarray) and each.ndim == 2 for each in X):
            return Panel(_from_cases(X, times), counted=True)
    return Panel(_from_array(X, times), counted=True)


def _from_frame(frame: Any, columns: Columns, schema: Schema | None) -> Panel:
    if columns.stream is None or columns.time is None:
        raise SeriesError(
            "X is a data frame: say which columns name the stream and the time, and, where each line is one event, "
            "the channel and the value: OnlineCDEClassifier(stream='id', time='hours', channel='name', value='value')."
        )
    read = series_from_table(
        frame,
        stream=columns.stream,
        time=columns.time,
        channel=columns.channel,
        value=columns.value,
        channels=columns.channels,
        static_columns=columns.static,
        time_unit=columns.time_unit,
        schema=schema,
    )
    series = read.series
    if read.static:
        raw = {name: as_column(entries) for name, entries in read.static.items()}
        series = series.with_raw_static(RawStatic(raw))
    return Panel(series, lines=read.own.frame.height, origins=read.clock.origins)


def _from_pairs(pairs: Sequence[Any]) -> SeriesBatch:
    clocks, tables = [], []
    for stream, pair in enumerate(pairs):
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise SeriesError(
                f"stream {stream} of X is a {type(pair).__name__}: give every stream as a tuple (times, values)."
            )
        clock, values = pair
        table = np.asarray(values)
        clocks.append(clock)
        tables.append(table[:, None] if table.ndim == 1 else values)
    return SeriesBatch.from_arrays(clocks, tables)


def _from_cases(cases: Sequence[np.ndarray], times: Any) -> SeriesBatch:
    longest = max(case.shape[1] for case in cases)
    clock = _clock(times, longest)
    channels = cases[0].shape[0]
    whole = np.full((len(cases), channels, longest), np.nan)
    for number, case in enumerate(cases):
        if case.shape[0] != channels:
            raise SeriesError(
                f"stream {number} of X has {case.shape[0]} channels, the first has {channels}: give every array as "
                "(channel, timepoint), of the same channels."
            )
        whole[number, :, : case.shape[1]] = case
    return _from_grid(whole, clock)


def _from_array(X: Any, times: Any) -> SeriesBatch:
    checked: Any = check_array  # whose parameters have no types
    array = checked(
        X,
        dtype=[np.float64, np.float32],
        allow_nd=True,
        ensure_all_finite="allow-nan",
        input_name="X",
    )
    if array.ndim == 2:
        array = array[:, None, :]
    if array.ndim != 3:
        raise SeriesError(
            f"X has shape {array.shape}: give (case, channel, timepoint), or (case, timepoint) of one channel."
        )
    if 0 in array.shape:
        raise SeriesError(
            f"0 feature(s) (shape={array.shape}) while a minimum of 1 is required: X needs a channel and a timepoint."
        )
    return _from_grid(array, _clock(times, array.shape[2]))


def _clock(times: Any, count: int) -> np.ndarray:
    if times is None:
        return np.arange(count, dtype=np.float64)
    clock = np.asarray(times, np.float64)
    if clock.ndim != 1 or len(clock) < count:
        raise SeriesError(
            f"times has shape {clock.shape}, X has {count} timepoints: give one time for each. Cases with times of "
            "their own are given as a list of tuples (times, values)."
        )
    return clock[:count]


def _from_grid(array: np.ndarray, clock: np.ndarray) -> SeriesBatch:
    """Cases (case, channel, timepoint) without the timepoints at which nothing was observed, as tables have none.

    A case of which nothing was observed keeps its first one.
    """
    values = array.transpose(0, 2, 1)
    seen = np.logical_not(np.isnan(values).all(2))
    seen[~seen.any(1), 0] = True
    rows = seen.sum(1)
    order = np.argsort(~seen, axis=1, kind="stable")[:, : rows.max()]
    taken = np.take_along_axis(values, order[:, :, None], 1)
    return SeriesBatch.from_padded(clock[order], taken, rows)


def labels_of(panel: Panel, y: Any) -> Any:
    """One label a stream, in the order of the series, where y names the streams; y itself where it does not.

    A mapping, or a pandas Series with the streams as its index, goes by name.

    Raises:
        SeriesError: y lacks a stream, or has a label for each line of a data frame.
    """
    streams = panel.series.streams
    if isinstance(y, Mapping):
        return _by_name(y, streams)
    indexed = hasattr(y, "iloc") and y.ndim == 1 and panel.lines is not None
    if indexed and set(y.index) == set(streams):
        return _by_name(dict(zip(y.index, y.to_numpy(), strict=True)), streams)
    count = y.shape[0] if getattr(y, "shape", None) else len(y) if hasattr(y, "__len__") else None
    if panel.lines is not None and count == panel.lines != len(streams):
        raise SeriesError(
            f"y has {count} labels, one for each line of X, and X has {len(streams)} streams: the estimator learns one "
            "label a stream; give {stream: label}. Labels at rows and times are learned by onlinecde.fit, from "
            "onlinecde.data.task_from_table(..., labels=RowLabels(...))."
        )
    return y


def _by_name(labels: Mapping[Hashable, Any], streams: Sequence[Hashable]) -> list[Any]:
    if missing := [stream for stream in streams if stream not in labels]:
        raise SeriesError(
            f"y has no label for stream {missing[0]!r} ({len(missing)} of {len(streams)} streams have none): give one "
            "for each."
        )
    return [labels[stream] for stream in streams]
