"""Columns of a task's tables by stream: what streams may be told apart by, whether a model sees it or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onlinecde.data.errors import DataError
from onlinecde.data.table_files import read_table
from onlinecde.data.table_ids import per_stream
from onlinecde.data.task import Task


def group_columns(
    task: Task, names: Sequence[str], files: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """Values (stream of the task,) by column: static features as they came, else a column of the task's tables.

    files: the arguments of a table's source: `static`, `labels`, `events`, and what their stream column is called.
    """
    series = task.series
    static: Any = {} if series.raw_static is None else series.raw_static.columns
    if series.raw_static is None and series.static is not None:
        static = dict(zip(series.features, series.static.T, strict=True))
    return {
        name: static[name].tolist() if name in static else _column(task, name, files)
        for name in names
    }


def _column(task: Task, name: str, files: Mapping[str, Any]) -> list[Any]:
    for role in ("static", "labels", "events"):
        if role not in files:
            continue
        table = read_table(files[role]).called(files.get(f"{role}_stream"), files["stream"])
        if name in table.frame.columns:
            return per_stream(table, files["stream"], name, task.series, "group")
    features = task.series.features
    there = f"static features {', '.join(features)}" if features else "no static features"
    raise DataError(
        f"there is no column '{name}' to group streams by: the task has {there}, and none of its tables has it."
    )
