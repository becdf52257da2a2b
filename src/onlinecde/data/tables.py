"""A table of one's own -> a `Task`: the way in for a practitioner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onlinecde.data.errors import DataError
from onlinecde.data.label_specs import (
    EventLabels,
    ForecastLabels,
    IntervalLabels,
    Labels,
    RowLabels,
    StreamLabels,
    TimeLabels,
)
from onlinecde.data.splits import FRACTIONS
from onlinecde.data.static_features import with_static
from onlinecde.data.table_categories import with_categories
from onlinecde.data.table_event_times import event_target, followed_until
from onlinecde.data.table_files import Table, read_table
from onlinecde.data.table_ids import per_stream
from onlinecde.data.table_labels import (
    OwnSeries,
    Target,
    forecast_target,
    names_of,
    row_target,
    stream_target,
)
from onlinecde.data.table_series import Duplicates, series_from_table
from onlinecde.data.table_splits import TIME, table_splits
from onlinecde.data.table_times import TableClock
from onlinecde.data.table_truth import interval_target, time_target
from onlinecde.data.table_windows import START, in_windows
from onlinecde.data.task import Kind, Task
from onlinecde.series import Schema


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
    duplicates: Duplicates = "refuse",
    kind: Kind | None = None,
    name: str = "table",
    seed: int = 0,
    splits: Any = None,
    split_by: str | None = None,
    windows: str | None = None,
    categories: Sequence[str] = (),
    static_stream: str | None = None,
    labels_stream: str | None = None,
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
    - `labels`: `StreamLabels`, `RowLabels`, `TimeLabels`, `IntervalLabels`, `EventLabels`, or `ForecastLabels`, for
      which they are in the series themselves; `kind` where it cannot be
      guessed (0 and 1 are "binary", text "multiclass", other numbers "regression").
    - `followed_until`: the column, in this table, that of `static` or that of the labels, of the time until which
      each stream is followed: later nothing is known, and nothing asked. Default: its last row, its last label or,
      with `EventLabels`, its event or censoring.
    - `static`: a table (path or frame) with the stream column and one line a stream, of which
      `static_columns` are the features (default: all without another role). Without it, columns of
      this table that are the same throughout a stream. Text becomes categories.
    - `subject`: the column, in this table or in that of `static`, that keeps streams together
      when they are dealt out to train, validation and test.
    - `splits`: positions by split, or a table with the stream column and that of `split_by` (default "split").
    - `split_by`: "time", for the oldest streams in training and the newest in the test, by their first event; or a
      column, in `splits`, in `static` or in this table, of names of splits (train, validation, test) or of times to
      go by in place of the first event. Default: by chance, from `seed`.
    - `windows`: the length, as "7d", of the pieces that long streams are cut into from their first event on, each a
      stream of its own. They are split by time unless `split_by`, `splits` or `subject` says otherwise.
    - `categories`: channels of text, each of which becomes one channel of 0 and 1 a category, `channel=category`.
    - `static_stream`, `labels_stream`: what the stream column is called there, where it is not called `stream`.
    - `duplicates`: what to do with two values of one channel at one instant.
    - `schema`: of a model that is to judge the task (`model.schema`), in place of `channels` and
      `static_columns`. Its channels and static features are looked up by name, and encoded as they
      were in training; what the table lacks is missing, what it has besides is not read, and both
      are said in `task.notes`.
    - `edges`: where the bins of time ahead end, of a task of time to an event (default: finer where events are).

    Raises `DataError` naming the file, the line and the column.
    """
    if not isinstance(labels, Labels):
        raise DataError(
            f"labels is a {type(labels).__name__}: give StreamLabels, RowLabels, TimeLabels, IntervalLabels, "
            "EventLabels or ForecastLabels."
        )
    own = read_table(table)
    facts = None
    if static is not None:
        facts = read_table(static, what="table of static features").called(static_stream, stream)
    if labels.table is not None:
        what = "table of intervals" if isinstance(labels, IntervalLabels) else "table of labels"
        given = read_table(labels.table, what=what).called(labels_stream, stream)
        labels = replace(labels, table=given)
    if windows is not None:
        own, facts, labels = in_windows(own, facts, labels, stream, time, windows, time_unit)
        if split_by == TIME or (split_by is None and splits is None and subject is None):
            split_by = START
    known = None if schema is None else schema.channels
    own, made = with_categories(own, channel, value, categories, known)
    if channels is not None:
        channels = [name for name in channels if name not in categories] + made
    positions = splits if isinstance(splits, Mapping) else None
    listed = None
    if splits is not None and positions is None:
        listed = read_table(splits, what="table of splits")
        split_by = split_by or "split"
    roles = (subject, followed_until, split_by, *_label_columns(labels))
    roles += (START,) if windows is not None else ()
    read = series_from_table(
        own,
        stream=stream,
        time=time,
        channel=channel,
        value=value,
        channels=channels,
        static=facts,
        static_columns=static_columns,
        others=[name for name in roles if name and name != time],
        origin=origin,
        time_unit=time_unit,
        duplicates=duplicates,
        schema=schema,
    )
    own, facts, series, clock = read.own, read.facts, read.series, read.clock
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
    notes = [*read.notes, *target.notes]
    if split_by is not None and "train" in fractions:
        of = tuple(subjects) if subjects is not None else series.streams
        positions, said = table_splits(read, listed, split_by, stream, of, fractions)
        notes += said
    task = Task.build(
        name,
        series,
        target.labels,
        kind=target.kind,
        per=target.per,
        subjects=subjects,
        splits=positions,
        seed=seed,
        fractions=fractions,
        time_unit=time_unit,
        metric=metric,
        classes=target.classes,
        source=own.origin,
        settings={
            "time_unit": time_unit,
            "origin": origin,
            "duplicates": duplicates,
            "seed": seed,
            **({} if split_by is None else {"split_by": TIME if split_by == START else split_by}),
            **({} if windows is None else {"windows": windows}),
        },
        flow=target.flow,
        notes=notes,
        label_lead=target.horizon if target.horizon and target.kind == "binary" else 0.0,
        truth=target.truth,
        queries=target.queries,
        horizon=target.horizon if target.kind == "time-to-event" else None,
        edges=edges,
        forecast=target.forecast,
        table_clock=TableClock(clock, stream, time),
    )
    task = with_static(task, read.static)
    return task if schema is None else task.under(schema)


def _label_columns(labels: Labels) -> list[str]:
    """Columns that hold labels, wherever they stand: none of them may become an input."""
    if isinstance(labels, ForecastLabels):
        return []
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
    elif isinstance(labels, ForecastLabels):
        target = forecast_target(labels, source)
    elif isinstance(labels, RowLabels):
        target = row_target(labels, source)
    elif isinstance(labels, TimeLabels):
        target = time_target(labels, source)
    elif isinstance(labels, IntervalLabels):
        target = interval_target(labels, source)
    else:
        target = event_target(labels, facts, source)
    return replace(target, notes=(*notes, *target.notes))
