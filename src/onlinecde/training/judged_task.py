"""The task a saved model is judged on: one by name, the one it was fitted on, or other tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onlinecde.artifacts import read_manifest
from onlinecde.artifacts.saved_model import Manifest
from onlinecde.data import DataError, Task, forecast_task
from onlinecde.training.settings import FitError
from onlinecde.training.task_source import (
    check_content,
    content_of,
    load_task,
    registry_source,
    table_of,
)

TABLES = ("events", "labels", "static", "splits")
"""The files an own task is read from, by the names of their options."""

Files = Mapping[str, str | os.PathLike[str]]


def judged_task(
    home: Path,
    name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    data_dir: Path | None = None,
    tables: Files | None = None,
) -> tuple[Task, tuple[str, ...]]:
    """The task named, or the one the model of a folder was fitted on, and what is worth knowing of it.

    `settings` are those of the data set that is named; `tables` files in place of the model's own, by the
    names in `TABLES`.
    """
    if name is not None:
        if tables:
            raise ValueError("--task and tables of your own: give one of them.")
        named, manifest = load_task(registry_source(name, settings), data_dir), read_manifest(home)
        if (forecast := manifest.extra.get("forecast")) is not None:
            named = forecast_task(named, **forecast)
        return _under(named, manifest)
    if settings:
        raise ValueError("--task-setting belongs to --task: name the task too.")
    manifest = read_manifest(home)
    if tables:
        judged = _task_of_tables(manifest, tables)
        return judged, judged.notes if list(judged.splits) == ["test"] else ()
    source = manifest.extra.get("task")
    if not isinstance(source, dict):
        raise ValueError(f"{home} does not say what it was fitted on: name a task with --task.")
    _check_tables(source)
    judged = load_task(source, data_dir)
    check_content(judged, source)
    return _under(judged, manifest)


def _under(task: Task, manifest: Manifest) -> tuple[Task, tuple[str, ...]]:
    """The task with the model's channels, static features and bins; what it lacks, or has besides, is a note."""
    task, schema = _with_bins(task, manifest), manifest.named_schema()
    if schema is None:
        return task, ()
    judged = task.under(schema)
    return judged, judged.notes[len(task.notes) :]


def _with_bins(task: Task, manifest: Manifest) -> Task:
    """A task of time to an event with the model's bins of time ahead."""
    if not task.edges or "edges" not in manifest.extra:
        return task
    bins = tuple(manifest.extra["edges"]), manifest.extra["horizon"]
    return replace(task, edges=bins[0], horizon=bins[1])


def _check_tables(source: Mapping[str, Any]) -> None:
    """Refuse a task whose files are no longer where they were, naming the option that helps."""
    if source.get("source") == "update":
        for name in ("new", "old"):
            _check_tables(source["arguments"][name])
    files = source.get("arguments", {}) if source.get("source") == "table" else {}
    for name in TABLES:
        if name in files and not Path(files[name]).exists():
            raise FitError(
                f"training file {files[name]} not found; give its new path with --{name} FILE."
            )


def _task_of_tables(manifest: Manifest, files: Files) -> Task:
    """The task a model was fitted on, read from other files.

    With the same content it is the same task. Any other has one split, "test", of all its streams: who was
    trained on cannot be told by a table. Its channels and static features go by the model's names, and are
    encoded as in training; what differs is in the task's notes. Classes must be the model's.
    """
    known = manifest.extra.get("task")
    known = table_of(known) if isinstance(known, dict) else {}
    if known.get("source") != "table":
        options = ", ".join(f"--{name}" for name in files)
        raise FitError(
            f"{options} is for models of own tables, and this one was not fitted on any: leave it out."
        )
    arguments = dict(known["arguments"])
    arguments |= {name: str(Path(file).resolve()) for name, file in files.items()}
    source = {**known, "name": Path(arguments["events"]).name, "arguments": arguments}
    _check_tables(source)
    try:
        whole = load_task(source)
        if content_of(whole) == known.get("content"):
            return whole
    except DataError:  # too few streams for three splits; what else is wrong is found again
        pass
    arguments = {**arguments, "fractions": {"test": 1.0}}
    for name in ("splits", "split_by"):
        arguments.pop(name, None)
    if "kind" in manifest.extra:
        arguments["kind"] = manifest.extra["kind"]
    if "edges" in manifest.extra:  # these streams may have no event to lay bins by
        arguments["edges"] = manifest.extra["edges"]
    task = load_task({**source, "arguments": arguments}, schema=manifest.named_schema())
    task = _with_bins(task, manifest)
    if task.kind == "multiclass":
        _check_classes(manifest.extra.get("classes"), task)
    return task


def _check_classes(known: Any, task: Task) -> None:
    if known is not None and tuple(known) != task.classes:
        raise FitError(
            f"the classes of {task.source} are {', '.join(task.classes) or 'none'}; the model knows "
            f"{', '.join(known) or 'none'}: give a table with the same."
        )
