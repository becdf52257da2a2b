"""Columns of facts about streams -> static features, complete and numeric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from onlinecde.data.errors import DataError
from onlinecde.data.task import Task


def with_static(
    task: Task, columns: Mapping[str, Any], categorical: Mapping[str, Sequence[Any]] | None = None
) -> Task:
    """Give the task's series static features from `columns`, each (stream,).

    A number that is missing (NaN or None) becomes the mean of the training split and is marked by
    a feature `NAME_missing`. Text, and what `categorical` names with its categories, becomes one
    feature `NAME=CATEGORY` a category, all 0 where missing.
    """
    train = task.splits.get("train", torch.arange(len(task.series))).numpy()
    features: list[tuple[str, np.ndarray]] = []
    for name, column in columns.items():
        entries = list(column)
        if len(entries) != len(task.series):
            raise DataError(
                f"static feature '{name}' has {len(entries)} entries for "
                f"{len(task.series)} streams."
            )
        fixed = (categorical or {}).get(name)
        if fixed is not None or any(isinstance(entry, str) for entry in entries):
            known = [entry for entry in entries if not _is_missing(entry)]
            for category in fixed if fixed is not None else sorted({str(k) for k in known}):
                match = [
                    not _is_missing(entry) and str(entry) == str(category) for entry in entries
                ]
                features.append((f"{name}={category}", np.array(match, float)))
            continue
        numbers = np.array([np.nan if entry is None else float(entry) for entry in entries])
        if np.isinf(numbers).any():
            stream = task.series.streams[int(np.flatnonzero(np.isinf(numbers))[0])]
            raise DataError(
                f"stream {stream!r}, static feature '{name}' is infinite: leave it empty."
            )
        missing = np.isnan(numbers)
        seen = numbers[train][~missing[train]]
        filled = np.where(missing, seen.mean() if len(seen) else 0.0, numbers)
        features.append((name, filled))
        if missing.any():
            features.append((f"{name}_missing", missing.astype(float)))
    if not features:
        return task
    names = [name for name, _ in features]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(
            f"two static features are called '{twice}', one of them made from another column (a "
            "mark of what is missing, or a category): rename the column."
        )
    table = torch.from_numpy(np.stack([column for _, column in features], 1))
    return replace(
        task,
        series=replace(task.series, static=table.to(task.series.values), features=tuple(names)),
    )


def _is_missing(entry: Any) -> bool:
    return entry is None or (isinstance(entry, float) and np.isnan(entry))
