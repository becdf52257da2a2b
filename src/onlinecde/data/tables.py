"""A table of one's own -> a `Task`: the way in for a practitioner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onlinecde.data.errors import DataError
from onlinecde.data.splits import FRACTIONS
from onlinecde.data.static_features import with_static
from onlinecde.data.table_files import Table
from onlinecde.data.table_ids import per_stream
from onlinecde.data.table_labels import (
    IntervalLabels,
    RowLabels,
    StreamLabels,
    Target,
    interval_target,
    row_target,
    stream_target,
)
from onlinecde.data.table_series import Duplicates, series_from_table
from onlinecde.data.table_times import Clock
from onlinecde.data.task import Kind, Task
from onlinecde.series import Schema, SeriesBatch

Labels = StreamLabels | RowLabels | IntervalLabels


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
    time_unit: str = "hours",
    duplicates: Duplicates = "refuse",
    kind: Kind | None = None,
    name: str = "table",
    seed: int = 0,
    splits: Mapping[str, Any] | None = None,
    fractions: Mapping[str, float] = FRACTIONS,
    metric: str | None = None,
    schema: Schema | None = None,
) -> Task:
    """Turn a table into a task: CSV, Parquet or Arrow file, or polars, pandas, Arrow table.

    Long: one event a line, named by `channel` and `value`. Wide: one column a channel.

    - `channels`: those to read, in this order (default: all; in a wide table, all columns without
      another role). An event of another channel is refused.
    - `time`: numbers, or timestamps, which become `time_unit` from each stream's first event or
      from the timestamp in the column `origin`.
    - `labels`: `StreamLabels`, `RowLabels` or `IntervalLabels`; `kind` where it cannot be guessed
      (0 and 1 are "binary", text "multiclass", other numbers "regression").
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

    Raises `DataError` naming the file, the line and the column.
    """
    if not isinstance(labels, StreamLabels | RowLabels | IntervalLabels):
        raise DataError(
            f"labels is a {type(labels).__name__}: give StreamLabels, RowLabels or IntervalLabels."
        )
    read = series_from_table(
        table,
        stream=stream,
        time=time,
        channel=channel,
        value=value,
        channels=channels,
        static=static,
        static_columns=static_columns,
        others=[name for name in (subject, *_label_columns(labels)) if name],
        origin=origin,
        time_unit=time_unit,
        duplicates=duplicates,
        schema=schema,
    )
    own, facts, series, clock = read.own, read.facts, read.series, read.clock
    target = _target(labels, own, stream, time, clock, series, kind)
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
        notes=read.notes,
    )
    task = with_static(task, read.static)
    return task if schema is None else task.under(schema)


def _label_columns(labels: Labels) -> list[str]:
    """Columns that hold labels, wherever they stand: none of them may become an input."""
    if isinstance(labels, IntervalLabels):
        return [labels.start, labels.end]
    return [labels.column] if isinstance(labels.column, str) else list(labels.column)


def _target(
    labels: Labels,
    own: Table,
    stream: str,
    time: str,
    clock: Clock,
    series: SeriesBatch,
    kind: Kind | None,
) -> Target:
    if isinstance(labels, StreamLabels):
        return stream_target(labels, own, stream, series, kind)
    if isinstance(labels, RowLabels):
        return row_target(labels, own, stream, time, clock, series, kind)
    return interval_target(labels, stream, clock, series, kind)
