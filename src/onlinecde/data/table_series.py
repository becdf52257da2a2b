"""A table of one's own -> series: what a task and a prediction have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from onlinecde.data.errors import DataError
from onlinecde.data.single_precision import check_resolved
from onlinecde.data.table_events import (
    check_numbers,
    long_events,
    series_of,
    wide_channels,
    wide_events,
)
from onlinecde.data.table_files import LINE, Table, mostly_words, read_table, words_in
from onlinecde.data.table_ids import per_stream, without_line
from onlinecde.data.table_times import Clock, read_clock
from onlinecde.series import Schema, SeriesBatch

if TYPE_CHECKING:
    import polars as pl

Duplicates = Literal["refuse", "first", "last", "mean"]


@dataclass(frozen=True, eq=False)
class TableSeries:
    """The series of a table, and what else it says of their streams."""

    series: SeriesBatch
    """without static features"""
    static: dict[str, list[Any]]
    """Static features as they came, by name, each (stream,)"""
    own: Table
    facts: Table
    """What holds the static features: a table of their own, or `own`"""
    clock: Clock
    notes: tuple[str, ...]


def series_from_table(
    table: Any,
    *,
    stream: str,
    time: str,
    channel: str | None = None,
    value: str | None = None,
    channels: Sequence[str] | None = None,
    static: Any = None,
    static_columns: Sequence[str] | None = None,
    others: Sequence[str] = (),
    origin: str | None = None,
    time_unit: str = "hours",
    duplicates: Duplicates = "refuse",
    schema: Schema | None = None,
    whole: bool = True,
) -> TableSeries:
    """Read the series of a table, long or wide; arguments as of `task_from_table`.

    others: columns with another role, which are neither channels nor static features.
    whole: whether this is all of a table. Of a part, which a model is to judge, nothing is said that
    depends on other parts: what it lacks, and how its numbers are spread.

    Raises `DataError` naming the file, the line and the column.
    """
    if (channel is None) != (value is None):
        raise DataError("a long table needs both `channel` and `value`; a wide one neither.")
    own = read_table(table)
    taken = {name for name in (stream, origin, *others) if name}
    facts, features = _static_table(own, static, static_columns, stream, taken, schema)
    known = None if schema is None else schema.channels
    streams = own.keys(stream, "stream")
    clock = read_clock(own, time, streams, time_unit)
    if origin is not None:
        holder = facts if origin in facts.frame.columns else own
        clock = clock.counted_from(holder, origin, holder.keys(stream, "stream"))
    times = clock.read(own, time, streams, "time")
    _check_origins(own, time, times)
    if channel is not None and value is not None:
        strange = () if known is None else _unknown(own, channel, known)
        events = long_events(own, channel, value, None if schema else channels, known)
        names = (
            list(channels)
            if channels is not None and schema is None
            else sorted(events["channel"].unique())
        )
    else:
        roles = {*taken, time, *(features if facts is own else ())}
        names = wide_channels(own, channels, roles, known)
        strange = [c for c in own.frame.columns if c not in {*roles, *names, LINE}] if known else ()
        events = wide_events(own, names)
    if whole:
        check_numbers(own, events)
    series = series_of(own, events, streams, times, names, duplicates, value)
    notes = _static_notes(facts, stream, series) if whole and static is not None else []
    if strange and whole:
        shown = f"{', '.join(strange[:10])}{', ...' if len(strange) > 10 else ''}"
        notes.append(f"the model does not know {shown}: not read")
    kinds = {} if schema is None else {c.name: c.categories is None for c in schema.static}
    cells = {f: _static_cells(facts, stream, f, series, kinds.get(f), whole) for f in features}
    return TableSeries(series, cells, own, facts, clock, tuple(notes))


def _unknown(own: Table, channel: str, known: Sequence[str]) -> list[str]:
    """Channels of a long table that a model does not know."""
    import polars as pl

    there = own.column(channel, "channel").cast(pl.String).unique().drop_nulls().sort()
    return [name for name in there.to_list() if name not in known]


def _static_table(
    own: Table,
    static: Any,
    columns: Sequence[str] | None,
    stream: str,
    taken: set[str],
    schema: Schema | None,
) -> tuple[Table, list[str]]:
    """The table that holds the static features, and their names; with a model's schema, those it knows."""
    if static is None:
        facts = own
    else:
        facts = read_table(static, what="table of static features")
        keys = facts.keys(stream, "stream")
        if keys.is_duplicated().any():
            at = int(keys.is_duplicated().arg_true()[-1])
            raise DataError(
                f"{facts.where(at, stream)}: stream {keys[at]!r} has two lines: keep one."
            )
        if columns is None:
            columns = [c for c in facts.frame.columns if c not in taken and c != LINE]
    if schema is not None:
        there = {*facts.frame.columns} - taken
        columns = [column.name for column in schema.static if column.name in there]
    for name in columns or ():
        facts.column(name, "static feature")
        if name in taken:
            raise DataError(
                f"column '{name}' is named as a static feature and in another role: give it one."
            )
    return facts, list(columns or ())


def _static_notes(facts: Table, stream: str, series: SeriesBatch) -> list[str]:
    """How many streams have no line of static features, in words; none where all have one."""
    many = without_line(facts, stream, series)
    return [f"{many} of {len(series)} streams have no line in {facts.origin}"] if many else []


def _static_cells(
    facts: Table, stream: str, feature: str, series: SeriesBatch, number: bool | None, whole: bool
) -> list[Any]:
    """Numbers where the whole column is numbers, else text; a text among numbers is refused.

    number: what it is to the model that will judge it; None where that is to be found out.
    """
    import polars as pl

    cells = per_stream(facts, stream, feature, series, "static feature")
    column = pl.Series(cells, strict=False)
    if column.dtype == pl.String:
        words = words_in(column)
        if number is False or (mostly_words(column) and not number):
            return column.to_list()
        if len(words):
            at = int((facts.column(feature, "static feature") == words[0]).arg_true()[0])
            raise DataError(
                f"{facts.where(at, feature)} (static feature): {words[0][:40]!r} is not a number, as "
                f"{'in training' if number else 'most of the column are'}: correct it, or leave it empty if it "
                "is missing. Where they are categories, write each with a letter, as 'unit 1'."
            )
        column = column.str.strip_chars().cast(pl.Float64)
    elif column.dtype != pl.Null and not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise DataError(
            f"{facts.origin}, column '{feature}' (static feature) has type {column.dtype}: it must "
            "be numbers or text. Leave it out by naming the others (`static_columns`, "
            "--static-column)."
        )
    if whole:
        where = f"{facts.origin}, column '{feature}' (static feature)"
        check_resolved(column.cast(pl.Float64).fill_null(float("nan")).to_numpy(), where)
    return column.to_list()


def _check_origins(own: Table, time: str, times: pl.Series) -> None:
    if times.null_count():
        at = int(times.is_null().arg_true()[0])
        raise DataError(f"{own.where(at, time)}: this stream has no origin of time: give it one.")
