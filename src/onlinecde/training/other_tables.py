"""A model of one's own tables on other files: those it was fitted on, moved, or another ward's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onlinecde.artifacts.saved_model import Manifest
from onlinecde.data import DataError, Task
from onlinecde.training.settings import FitError
from onlinecde.training.task_source import content_of, load_task

TABLES = ("events", "labels", "static")
"""The files an own task is read from, by the names of their options."""


def check_tables(description: Mapping[str, Any]) -> None:
    """Refuse a task whose files are no longer where they were, naming the option that helps."""
    told = description.get("arguments", {})
    for name in TABLES if description.get("source") == "table" else ():
        if name in told and not Path(told[name]).exists():
            raise FitError(
                f"{told[name]} is gone, which the model was fitted on: say with --{name} FILE where it is now."
            )


def task_of_tables(manifest: Manifest, files: Mapping[str, str | os.PathLike[str]]) -> Task:
    """The task a model was fitted on, read from other files; `files` by the names in `TABLES`.

    With the same content it is the same task. Any other has one split, "test", of all its streams: who was
    trained on cannot be told by a table. Channels, static features and classes must be the model's.
    """
    known = manifest.extra.get("task")
    if not isinstance(known, dict) or known.get("source") != "table":
        raise FitError(
            f"{_options(files)} is for models of own tables, and this one was not fitted on any: leave it out."
        )
    source = _source(known, files, manifest)
    check_tables(source)
    try:
        dealt = load_task(source)
        if content_of(dealt) == known.get("content"):
            return dealt
    except DataError:  # too few streams for three splits; what else is wrong is found again
        pass
    task = load_task({**source, "arguments": {**source["arguments"], "fractions": {"test": 1.0}}})
    told = manifest.extra
    _check_names("static features", told.get("static"), task.series.features, task)
    if task.kind == "multiclass":
        _check_names("classes", told.get("classes"), task.classes, task)
    return task


def _source(
    known: Mapping[str, Any], files: Mapping[str, str | os.PathLike[str]], manifest: Manifest
) -> dict[str, Any]:
    arguments = dict(known["arguments"])
    arguments |= {name: str(Path(file).resolve()) for name, file in files.items()}
    if manifest.channels is not None:
        # In the model's order, whatever the other table's is.
        arguments["channels"] = list(manifest.channels)
    if "kind" in manifest.extra:
        arguments["kind"] = manifest.extra["kind"]
    return {**known, "name": Path(arguments["events"]).name, "arguments": arguments}


def _check_names(what: str, model: Any, table: tuple[str, ...], task: Task) -> None:
    if model is not None and tuple(model) != table:
        raise FitError(
            f"the {what} of {task.source} are {', '.join(table) or 'none'}; the model knows "
            f"{', '.join(model) or 'none'}: give a table with the same."
        )


def _options(files: Mapping[str, Any]) -> str:
    return ", ".join(f"--{name}" for name in files)
