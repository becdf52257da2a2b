"""A table of one's own -> a `Task`: the way in for a practitioner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from onlinecde.data.errors import DataError
from onlinecde.data.label_specs import (
    EventLabels,
    IntervalLabels,
    Labels,
    RowLabels,
    StreamLabels,
    TimeLabels,
)
from onlinecde.data.single_precision import check_resolved
from onlinecde.data.splits import FRACTIONS
from onlinecde.data.static_features import with_static
from onlinecde.data.table_event_times import event_target, followed_until
from onlinecde.data.table_events import long_events, series_of, wide_channels, wide_events
from onlinecde.data.table_files import LINE, Table, mostly_words, read_table, words_in
from onlinecde.data.table_ids import per_stream, without_line
from onlinecde.data.table_labels import (
    OwnSeries,
    Target,
    names_of,
    row_target,
    stream_target,
)
from onlinecde.data.table_times import TableClock, read_clock
from onlinecde.data.table_truth import interval_target, time_target
from onlinecde.data.task import Kind, Task
from onlinecde.series import Schema, SeriesBatch

if TYPE_CHECKING:
    import polars as pl


def task_from_table(
    table: Any,
    *,
    stream: str,
    time: str,
    labels: Labels,
    channel: str | None = None,
    value: str | None = None,
    channels: Sequence[str] | None = None,
    static: Any = None,
    static_columns: Sequence[str] | None = None,
    subject: str | None = None,
    origin: str | None = None,
    followed_until: str | None = None,
    time_unit: str = "hours",
    duplicates: Literal["refuse", "first", "last", "mean"] = "refuse",
    kind: Kind | None = None,
    name: str = "table",
    seed: int = 0,
    splits: Mapping[str, Any] | None = None,
    fractions: Mapping[str, float] = FRACTIONS,
    metric: str | None = None,
    schema: Schema | None = None,
    edges: Sequence[float] | None = None,
) -> Task:
    """Turn a table into a task: CSV, Parquet or Arrow file, or polars, pandas, Arrow table.

    Long: one event a line, named by `channel` and `value`. Wide: one column a channel.

    - `channels`: those to read, in this order (default: all; in a wide table, all columns without
      another role). An event of another channel is refused.
    - `time`: numbers, or timestamps, which become `time_unit` from each stream's first event or
      from the timestamp in the column `origin`.
    - `labels`: `StreamLabels`, `RowLabels`, `TimeLabels`, `IntervalLabels` or `EventLabels`; `kind` where it cannot be
      guessed (0 and 1 are "binary", text "multiclass", other numbers "regression").
    - `followed_until`: the column, in this table, that of `static` or that of the labels, of the time until which
      each stream is followed: later nothing is known, and nothing asked. Default: its last row, its last label or,
      with `EventLabels`, its event or censoring.
    - `static`: a table (path or frame) with the stream column and one line a stream, of which
      `static_columns` are the features (default: all without another role). Without it, columns of
      this table that are the same throughout a stream. Text becomes categories.
    - `subject`: the column, in this table or in that of `static`, that keeps streams together
      when they are dealt out to train, validation and test.
    - `duplicates`: what to do with two values of one channel at one instant.
    - `schema`: of a model that is to judge the task (`model.schema`), in place of `channels` and
      `static_columns`. Its channels and static features are looked up by name, and encoded as they
      were in training; what the table lacks is missing, what it has besides is not read, and both
      are said in `task.notes`.
    - `edges`: where the bins of time ahead end, of a task of time to an event (default: finer where events are).

    Raises `DataError` naming the file, the line and the column.
    """
    if (channel is None) != (value is None):
        raise DataError("a long table needs both `channel` and `value`; a wide one neither.")
    own = read_table(table)
    if not isinstance(labels, Labels):
        raise DataError(
            f"labels is a {type(labels).__name__}: give StreamLabels, RowLabels or IntervalLabels, or TimeLabels "
            "or EventLabels."
        )
    roles = (stream, subject, origin, followed_until, *_label_columns(labels))
    taken = {name for name in roles if name}
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
        others = () if known is None else _unknown(own, channel, known)
        events = long_events(own, channel, value, None if schema else channels, known)
        names = (
            list(channels)
            if channels is not None and schema is None
            else sorted(events["channel"].unique())
        )
    else:
        used = {*taken, time, *(features if facts is own else ())}
        names = wide_channels(own, channels, used, known)
        others = [c for c in own.frame.columns if c not in {*used, *names, LINE}] if known else ()
        events = wide_events(own, names)
    series = series_of(own, events, streams, times, names, duplicates, value)
    target = _target(
        labels, OwnSeries(own, stream, time, clock, series, kind), facts, followed_until
    )
    subjects = None
    if subject is not None:
        holder = facts if subject in facts.frame.columns else own
        subjects = per_stream(holder, stream, subject, series, "subject")
        if None in subjects:
            at = series.streams[subjects.index(None)]
            raise DataError(f"{holder.origin}, column '{subject}': stream {at!r} has no subject.")
    task = Task.build(
        name,
        series,
        target.labels,
        kind=target.kind,
        per=target.per,
        subjects=subjects,
        splits=splits,
        seed=seed,
        fractions=fractions,
        time_unit=time_unit,
        metric=metric,
        classes=target.classes,
        source=own.origin,
        settings={"time_unit": time_unit, "origin": origin, "duplicates": duplicates, "seed": seed},
        flow=target.flow,
        notes=(
            *(_static_notes(facts, stream, series) if static is not None else ()),
            *target.notes,
        ),
        label_lead=target.horizon if target.horizon and target.kind == "binary" else 0.0,
        truth=target.truth,
        queries=target.queries,
        horizon=target.horizon if target.kind == "time-to-event" else None,
        edges=edges,
        table_clock=TableClock(clock, stream, time),
    )
    kinds = {} if schema is None else {c.name: c.categories is None for c in schema.static}
    columns = {f: _static_cells(facts, stream, f, series, kinds.get(f)) for f in features}
    task = with_static(task, columns)
    if schema is None:
        return task
    if others:
        shown = f"{', '.join(others[:10])}{', ...' if len(others) > 10 else ''}"
        task = replace(task, notes=(*task.notes, f"the model does not know {shown}: not read"))
    return task.under(schema)


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
    facts: Table, stream: str, feature: str, series: SeriesBatch, number: bool | None
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
    where = f"{facts.origin}, column '{feature}' (static feature)"
    check_resolved(column.cast(pl.Float64).fill_null(float("nan")).to_numpy(), where)
    return column.to_list()


def _check_origins(own: Table, time: str, times: pl.Series) -> None:
    if times.null_count():
        at = int(times.is_null().arg_true()[0])
        raise DataError(f"{own.where(at, time)}: this stream has no origin of time: give it one.")


def _label_columns(labels: Labels) -> list[str]:
    """Columns that hold labels, wherever they stand: none of them may become an input."""
    if isinstance(labels, IntervalLabels):
        return [labels.start, labels.end, *([labels.label] if labels.label else [])]
    if isinstance(labels, EventLabels):
        return [labels.event, *([labels.censored] if labels.censored else [])]
    return [*names_of(labels.column), *([labels.time] if isinstance(labels, TimeLabels) else [])]


def _target(labels: Labels, source: OwnSeries, facts: Table, until: str | None) -> Target:
    """Labels as a task takes them, for as long as each stream is followed."""
    notes = []
    if until is not None:
        tables = [source.own, facts]
        if labels.table is not None:
            tables.append(read_table(labels.table, what="table of labels"))
        followed, notes = followed_until(tables, until, source)
        source = replace(source, followed=followed)
    if isinstance(labels, StreamLabels):
        target = stream_target(labels, source)
    elif isinstance(labels, RowLabels):
        target = row_target(labels, source)
    elif isinstance(labels, TimeLabels):
        target = time_target(labels, source)
    elif isinstance(labels, IntervalLabels):
        target = interval_target(labels, source)
    else:
        target = event_target(labels, facts, source)
    return replace(target, notes=(*notes, *target.notes))
