"""Long and wide tables -> events -> series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onlinecde.data.errors import DataError
from onlinecde.data.single_precision import check_resolved
from onlinecde.data.table_files import LINE, Table, mostly_words, words_in
from onlinecde.series import SeriesBatch, SeriesError

if TYPE_CHECKING:
    import polars as pl


def long_events(
    own: Table,
    channel: str,
    value: str,
    channels: Sequence[str] | None,
    known: Sequence[str] | None = None,
) -> pl.DataFrame:
    """Events: position of their line, channel, value.

    known: channels of a model. Of others nothing is read, but that there was a row.
    """
    import polars as pl

    names = own.complete(channel, "channel").cast(pl.String)
    if known is not None:
        taken = names.is_in(list(known))
        if not taken.any():
            raise no_known_channel(own.origin, channel, known, names.unique().sort().to_list())
        first = next(name for name in known if (names == name).any())
        own = own.blank(value, ~taken)
        names = pl.select(pl.when(taken).then(names).otherwise(pl.lit(first))).to_series()
    if channels is not None:
        unknown = (~names.is_in(list(channels))).arg_true()
        if len(unknown):
            at = int(unknown[0])
            raise DataError(
                f"{own.where(at, channel)}: channel '{names[at]}' is not one of "
                f"{', '.join(channels)}: drop the line, or name the channel in `channels`."
            )
    numbers = own.numbers(value, "value")
    return pl.DataFrame({"at": range(len(names)), "channel": names, "value": numbers})


def no_known_channel(
    origin: str, channel: str, known: Sequence[str], there: Sequence[str]
) -> DataError:
    """Why a long table is refused that has other channels `there` than a model."""
    return DataError(
        f"{origin}, column '{channel}' has none of the model's channels, {', '.join(known[:10])}: "
        f"it has {', '.join(there[:10])}. Name them as the model's are named."
    )


def wide_channels(
    own: Table,
    channels: Sequence[str] | None,
    taken: set[str],
    known: Sequence[str] | None = None,
) -> list[str]:
    """The columns that are channels: those named, else all without another role; with `known`, a model's."""
    if known is not None:
        names = [name for name in known if name in own.frame.columns and name not in taken]
        if not names:
            others = [c for c in own.frame.columns if c not in taken and c != LINE]
            raise DataError(
                f"{own.origin} has none of the model's channels, {', '.join(known[:10])}: it has the columns "
                f"{', '.join(others[:10])}. Name them as the model's are named."
            )
        return names
    if channels is not None:
        for name in channels:
            own.column(name, "channel")
            if name in taken:
                raise DataError(
                    f"column '{name}' is named as a channel and in another role: give it one."
                )
        return list(channels)
    names = [c for c in own.frame.columns if c not in taken and c != LINE]
    if not names:
        raise DataError(
            f"{own.origin}: no column is left for the channels: name them in `channels` "
            "(--channel-column)."
        )
    for name in names:
        _check_numbers(own, name)
    return names


def _check_numbers(own: Table, name: str) -> None:
    """Refuse a column that nobody named as a channel and that is no numbers for the most part."""
    import polars as pl

    column = own.column(name, "channel")
    if column.dtype == pl.String:
        if not mostly_words(column):
            return
        told = f"holds text, as {words_in(column)[0][:40]!r}"
    elif column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null):
        return
    else:
        told = f"has type {column.dtype}"
    raise DataError(
        f"{own.origin}, column '{name}' {told}, and a channel is numbers: name the columns that are "
        "channels (`channels`, --channel-column), or make it a static feature (`static_columns`, "
        "--static-column)."
    )


def wide_events(own: Table, names: Sequence[str]) -> pl.DataFrame:
    """Events, as `long_events` gives them, of the channels that have a column each."""
    import polars as pl

    columns = {f"c{i}": own.numbers(name, "channel") for i, name in enumerate(names)}
    wide = pl.DataFrame({"at": range(own.frame.height), **columns})
    label = {f"c{i}": name for i, name in enumerate(names)}
    # Lines without any value stay: to have been looked at is a row too.
    long = wide.unpivot(index="at", variable_name="channel", value_name="value")
    return long.with_columns(pl.col("channel").replace_strict(label, return_dtype=pl.String))


def check_numbers(own: Table, events: pl.DataFrame) -> None:
    """Refuse a channel whose numbers float32 cannot tell apart."""
    for (name,), group in events.group_by("channel", maintain_order=True):
        numbers = group["value"].fill_null(float("nan")).to_numpy()
        check_resolved(numbers, f"{own.origin}, channel '{name}'")


def series_of(
    own: Table,
    events: pl.DataFrame,
    streams: pl.Series,
    times: pl.Series,
    names: Sequence[str],
    duplicates: str,
    value: str | None,
) -> SeriesBatch:
    """The series of events."""
    import polars as pl

    lines = pl.DataFrame({"stream": streams, "time": times}).with_row_index("at")
    lines = lines.with_columns(pl.col("at").cast(pl.Int64))
    events = events.with_columns(pl.col("at").cast(pl.Int64)).join(
        lines, on="at", maintain_order="left"
    )
    key = ["stream", "time", "channel"]
    if duplicates == "refuse":
        known = events.filter(pl.col("value").is_not_null()).sort("at", maintain_order=True)
        clash = known.with_columns(pl.col("value").first().over(key).alias("first")).filter(
            pl.col("value") != pl.col("first")
        )
        if clash.height:
            first = clash.row(0, named=True)
            raise DataError(
                f"{own.where(first['at'], value or first['channel'])}: stream "
                f"{first['stream']!r} has two values of channel '{first['channel']}' at time "
                f"{first['time']:g}, {first['first']} and {first['value']}: keep one, "
                "or choose `duplicates`."
            )
    elif duplicates in ("first", "last", "mean"):
        choice = getattr(pl.col("value").drop_nulls(), duplicates)()
        events = (
            events.sort("at", maintain_order=True).group_by(key, maintain_order=True).agg(choice)
        )
    else:
        raise DataError(f"duplicates is {duplicates!r}: choose refuse, first, last or mean.")
    try:
        return SeriesBatch.from_long(
            events.select("stream", "time", "channel", "value"),
            stream="stream",
            time="time",
            channel="channel",
            value="value",
            channels=names,
        )
    except SeriesError as error:
        raise DataError(f"{own.origin}: {error}") from error
