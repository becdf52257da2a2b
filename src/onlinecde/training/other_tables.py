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
    trained on cannot be told by a table. Its channels and static features go by the model's names, and are
    encoded as in training; what differs is in the task's notes. Classes must be the model's.
    """
    known = manifest.extra.get("task")
    if not isinstance(known, dict) or known.get("source") != "table":
        raise FitError(
            f"{_options(files)} is for models of own tables, and this one was not fitted on any: leave it out."
        )
    source = _source(known, files)
    check_tables(source)
    try:
        dealt = load_task(source)
        if content_of(dealt) == known.get("content"):
            return dealt
    except DataError:  # too few streams for three splits; what else is wrong is found again
        pass
    arguments = {**source["arguments"], "fractions": {"test": 1.0}}
    told = manifest.extra
    if "kind" in told:
        arguments["kind"] = told["kind"]
    task = load_task({**source, "arguments": arguments}, schema=manifest.named_schema())
    if task.kind == "multiclass":
        _check_classes(told.get("classes"), task)
    return task


def _source(
    known: Mapping[str, Any], files: Mapping[str, str | os.PathLike[str]]
) -> dict[str, Any]:
    arguments = dict(known["arguments"])
    arguments |= {name: str(Path(file).resolve()) for name, file in files.items()}
    return {**known, "name": Path(arguments["events"]).name, "arguments": arguments}


def _check_classes(known: Any, task: Task) -> None:
    if known is not None and tuple(known) != task.classes:
        raise FitError(
            f"the classes of {task.source} are {', '.join(task.classes) or 'none'}; the model knows "
            f"{', '.join(known) or 'none'}: give a table with the same."
        )


def _options(files: Mapping[str, Any]) -> str:
    return ", ".join(f"--{name}" for name in files)
