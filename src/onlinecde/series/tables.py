"""Long and wide tables -> the padded arrays of a `SeriesBatch`. polars is imported when needed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from onlinecde.series.checks import SeriesError
from onlinecde.series.static_columns import RawStatic, as_column

if TYPE_CHECKING:
    import polars as pl


def to_polars(frame: Any) -> pl.DataFrame:
    """Return a polars, pandas or Arrow table as a polars frame."""
    import polars as pl

    if isinstance(frame, pl.DataFrame):
        return frame
    if isinstance(frame, pl.LazyFrame):
        return frame.collect()
    module = type(frame).__module__.split(".")[0]
    if module == "pandas":
        try:
            return pl.from_pandas(frame)
        except Exception as error:  # pyarrow's errors share no base but this one
            raise SeriesError(
                f"the pandas table cannot be read ({error}): give every column one type."
            ) from error
    if hasattr(frame, "__arrow_c_stream__"):
        return pl.DataFrame(frame)
    raise SeriesError(
        f"a table of type {type(frame).__name__} is not understood: give a polars, pandas or "
        "Arrow table."
    )


def pivot_long(
    frame: pl.DataFrame,
    stream: str,
    time: str,
    channel: str,
    value: str,
    channels: Sequence[str] | None,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Return the arguments of `SeriesBatch.from_padded` for a table of events."""
    import polars as pl

    _check_columns(frame, {"stream": stream, "time": time, "channel": channel, "value": value})
    _check_numeric(frame, time, "time")
    _check_numeric(frame, value, "value")
    _check_complete(frame, stream, "stream")
    _check_complete(frame, channel, "channel")
    events = frame.select(
        pl.col(stream).alias("stream"),
        pl.col(time).cast(pl.Float64).alias("time"),
        pl.col(channel).cast(pl.String).alias("channel"),
        pl.col(value).cast(pl.Float64).fill_nan(None).alias("value"),
    )
    _check_times(events)
    if channels is None:
        channels = events["channel"].unique().sort().to_list()
    channels = [str(name) for name in channels]
    unknown = events.filter(~pl.col("channel").is_in(channels))
    if unknown.height:
        raise SeriesError(
            f"stream {unknown['stream'][0]!r}, time {unknown['time'][0]}: channel "
            f"'{unknown['channel'][0]}' is not one of {channels}: drop these lines or name "
            "the channel in `channels`."
        )
    cells = events.group_by("stream", "time", "channel", maintain_order=True).agg(
        pl.col("value").min().alias("low"), pl.col("value").max().alias("high")
    )
    conflict = cells.filter(pl.col("low") < pl.col("high"))
    if conflict.height:
        first = conflict.row(0, named=True)
        raise SeriesError(
            f"stream {first['stream']!r}, time {first['time']}, channel '{first['channel']}' has "
            f"two values, {first['low']} and {first['high']}: keep one of them."
        )
    rank = pl.DataFrame({"channel": channels, "column": np.arange(len(channels))})
    cells = cells.join(rank, on="channel", maintain_order="left")
    places, parts = _place_rows(cells)
    values = np.full((*parts["times"].shape, len(channels)), np.nan)
    values[places["code"], places["row"], places["column"]] = (
        places["low"].fill_null(np.nan).to_numpy()
    )
    return {**parts, "values": torch.from_numpy(values).to(dtype), "channels": channels}


def pivot_wide(
    frame: pl.DataFrame,
    stream: str,
    time: str,
    channels: Sequence[str] | None,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Return the arguments of `SeriesBatch.from_padded` for a table with a column a channel."""
    import polars as pl

    _check_columns(frame, {"stream": stream, "time": time})
    if channels is None:
        channels = [name for name in frame.columns if name not in (stream, time)]
    if not channels:
        raise SeriesError("the table has no channel columns beside the stream and the time.")
    _check_columns(frame, {f"channel {i}": name for i, name in enumerate(channels)})
    _check_numeric(frame, time, "time")
    for name in channels:
        _check_numeric(frame, name, "channel")
    _check_complete(frame, stream, "stream")
    # Columns are renamed by position: a channel may well be called "time" or "code".
    columns = [f"value{i}" for i in range(len(channels))]
    lines = frame.select(
        pl.col(stream).alias("stream"),
        pl.col(time).cast(pl.Float64).alias("time"),
        *(
            pl.col(name).cast(pl.Float64).fill_nan(None).alias(column)
            for name, column in zip(channels, columns, strict=True)
        ),
    )
    _check_times(lines)
    if lines.select("stream", "time").is_duplicated().any():
        grouped = lines.group_by("stream", "time", maintain_order=True)
        low, high = grouped.agg(pl.col(columns).min()), grouped.agg(pl.col(columns).max())
        for name, column in zip(channels, columns, strict=True):
            conflict = (low[column] < high[column]).fill_null(False).arg_true()
            if len(conflict):
                at = int(conflict[0])
                raise SeriesError(
                    f"stream {low['stream'][at]!r}, time {low['time'][at]}, channel '{name}' has "
                    f"two values, {low[column][at]} and {high[column][at]}: keep one of them."
                )
        lines = low
    places, parts = _place_rows(lines)
    values = np.full((*parts["times"].shape, len(channels)), np.nan)
    table = places.select(pl.col(columns).fill_null(np.nan)).to_numpy()
    values[places["code"], places["row"]] = table
    return {**parts, "values": torch.from_numpy(values).to(dtype), "channels": list(channels)}


def static_part(static: Any, stream: str, streams: Sequence[Hashable]) -> RawStatic | None:
    """Return the static features of streams, as they came, of a table with one line a stream."""
    if static is None:
        return None
    import polars as pl

    frame = to_polars(static)
    _check_columns(frame, {"stream": stream})
    features = [name for name in frame.columns if name != stream]
    for name in features:
        column = frame[name]
        if column.dtype in (pl.Categorical, pl.Enum):
            frame = frame.with_columns(column.cast(pl.String))
        elif column.dtype != pl.String and column.dtype != pl.Boolean:
            _check_numeric(frame, name, "static feature")
        elif column.dtype == pl.String and column.cast(pl.Float64, strict=False).null_count() == 0:
            raise SeriesError(
                f"column '{name}' (static feature) has numbers written as text: convert it first."
            )
    if frame[stream].is_duplicated().any():
        twice = frame.filter(frame[stream].is_duplicated())[stream][0]
        raise SeriesError(f"stream {twice!r} has two lines of static features: keep one.")
    if not features:
        raise SeriesError(f"the static table has no column beside '{stream}': give features.")
    try:
        wanted = pl.DataFrame({stream: pl.Series(list(streams), dtype=frame.schema[stream])})
    except TypeError as error:
        raise SeriesError(
            f"column '{stream}' of the static table has type {frame.schema[stream]}, but streams "
            f"are named like {streams[0]!r}: give both tables the same type."
        ) from error
    absent = wanted.join(frame, on=stream, how="anti")
    if absent.height:
        raise SeriesError(
            f"stream {absent[stream][0]!r} has no line of static features: give one for each "
            "stream."
        )
    table = wanted.join(frame, on=stream, how="left", maintain_order="left")
    return RawStatic({name: as_column(table[name].to_list()) for name in features})


def _place_rows(lines: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Give every line its stream number and row number; return times, rows and streams too.

    Streams are numbered in order of first appearance, rows by time.
    """
    import polars as pl

    streams = lines["stream"].unique(maintain_order=True)
    codes = pl.DataFrame({"stream": streams, "code": np.arange(len(streams))})
    places = lines.join(codes, on="stream").with_columns(
        (pl.col("time").rank("dense").over("code") - 1).cast(pl.Int64).alias("row")
    )
    rows = np.zeros(len(streams), np.int64)
    np.maximum.at(rows, places["code"].to_numpy(), places["row"].to_numpy() + 1)
    times = np.zeros((len(streams), int(rows.max())))
    times[places["code"], places["row"]] = places["time"].to_numpy()
    return places, {
        "times": torch.from_numpy(times),
        "rows": torch.from_numpy(rows),
        "streams": streams.to_list(),
    }


def _check_columns(frame: pl.DataFrame, wanted: dict[str, str]) -> None:
    if frame.height == 0:
        raise SeriesError("the table has no lines: give at least one event.")
    for role, name in wanted.items():
        if name not in frame.columns:
            raise SeriesError(
                f"the table has no column '{name}' for the {role}: it has {frame.columns}."
            )
    names = list(wanted.values())
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SeriesError(f"column '{twice}' is named twice: give each role a column of its own.")


def _check_numeric(frame: pl.DataFrame, name: str, role: str) -> None:
    import polars as pl

    dtype = frame.schema[name]
    if not (dtype.is_numeric() or dtype == pl.Null):
        raise SeriesError(
            f"column '{name}' ({role}) has type {dtype}: it must hold numbers. Convert it first."
        )


def _check_complete(frame: pl.DataFrame, name: str, role: str) -> None:
    if frame[name].null_count():
        line = int(frame[name].is_null().arg_true()[0])
        raise SeriesError(f"line {line}: the {role} (column '{name}') is missing: fill it in.")


def _check_times(lines: pl.DataFrame) -> None:
    bad = (lines["time"].is_null() | ~lines["time"].is_finite().fill_null(False)).arg_true()
    if len(bad):
        line = int(bad[0])
        raise SeriesError(
            f"line {line}, stream {lines['stream'][line]!r}: the time is {lines['time'][line]}: "
            "every event needs a finite time."
        )
