"""A task by name: from the cache where it is prepared already, else from the data set's files."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onlinecde.data.cache import cached_task
from onlinecde.data.errors import DataError
from onlinecde.data.registry import DataSet, data_set, default_data_dir, imported
from onlinecde.data.task import Task

_NUMBERS: Mapping[type, tuple[type, str]] = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
}
"""Type of a setting's default -> what may be given instead, and its name."""


def load(
    name: str,
    task: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cached: bool = True,
    seed: int = 0,
    **settings: Any,
) -> Task:
    """Load a task of a data set: from the cache where it is prepared already, else from its files.

    `settings` are those of the data set (`onlinecde data info NAME` lists them); `seed` deals out
    the splits. Raw files are looked for in `data_dir` (default: `$ONLINECDE_DATA`).

    >>> load("simulated-ward", streams=20, cached=False).series  # doctest: +ELLIPSIS
    SeriesBatch(20 streams, ...)
    """
    entry = data_set(name)
    task = task or entry.tasks[0]
    if task not in entry.tasks:
        raise DataError(f"'{name}' has no task '{task}': choose one of {', '.join(entry.tasks)}.")
    chosen = _checked_settings(entry, settings)
    paths = entry.locate(Path(data_dir) if data_dir is not None else default_data_dir())

    def prepare() -> Task:
        return entry.function()(paths, task=task, seed=seed, **chosen)

    if not cached:
        return prepare()
    # A setting may name a file of its own, such as labels: its content counts as well.
    files = [Path(v) for v in chosen.values() if isinstance(v, str) and v and Path(v).exists()]
    return cached_task(
        name, [*paths, *files], {"task": task, "seed": seed, **chosen}, prepare, cache_dir
    )


def report(name: str, *, data_dir: str | os.PathLike[str] | None = None, **settings: Any) -> str:
    """What was left out of a data set and why, as text to print."""
    entry = data_set(name)
    if not entry.report:
        raise DataError(f"'{name}' leaves nothing out: there is no report of exclusions for it.")
    chosen = _checked_settings(entry, settings)
    paths = entry.locate(Path(data_dir) if data_dir is not None else default_data_dir())
    return imported(entry.report)(paths, **chosen).text()


def _checked_settings(entry: DataSet, settings: Mapping[str, Any]) -> dict[str, Any]:
    known = entry.settings()
    for key in settings:
        if key not in known:
            raise DataError(
                f"'{entry.name}' has no setting '{key}': it has {', '.join(known) or 'none'}."
            )
        if (kind := _NUMBERS.get(type(known[key]))) is None:
            continue
        if not isinstance(settings[key], kind[0]) or isinstance(settings[key], bool):
            raise DataError(
                f"setting '{key}' of '{entry.name}' is {settings[key]!r}: give {kind[1]}, such as "
                f"{known[key]}."
            )
    return {**known, **settings}
