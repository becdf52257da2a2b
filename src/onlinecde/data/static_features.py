"""Columns of facts about streams -> static features, encoded by what the training split has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from onlinecde.data.errors import DataError
from onlinecde.data.task import Task, encoded
from onlinecde.series import RawStatic, SeriesError
from onlinecde.series.static_columns import as_category, as_column, is_missing


def with_static(
    task: Task, columns: Mapping[str, Any], categorical: Mapping[str, Sequence[Any]] | None = None
) -> Task:
    """Give the task's series static features from `columns`, each (stream,).

    A number that is missing (NaN or None) becomes the mean of the training split and, where that has
    gaps too, is marked by a feature `NAME_missing`. Text, and what `categorical` names with its
    categories, becomes one feature `NAME=CATEGORY` a category of the training split, all 0 where missing.
    """
    fixed = {name: tuple(map(str, known)) for name, known in (categorical or {}).items()}
    raw = {}
    for name, column in columns.items():
        entries = list(column)
        if len(entries) != len(task.series):
            raise DataError(
                f"static feature '{name}' has {len(entries)} entries for "
                f"{len(task.series)} streams."
            )
        if name in fixed:
            entries = [None if is_missing(entry) else as_category(entry) for entry in entries]
        raw[name] = as_column(entries)
    if not raw:
        return task
    try:
        series = encoded(replace(task.series, raw_static=RawStatic(raw, fixed)), task.splits)
    except SeriesError as error:
        raise DataError(str(error)) from error
    return replace(task, series=series)
