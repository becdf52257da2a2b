"""The task a saved model is judged on: the one named, the one it was fitted on, or other tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from onlinecde.artifacts import Manifest
    from onlinecde.data import Task

TaskName = Annotated[
    str | None, typer.Option(help="Prepared task; default: the one the model was fitted on.")
]
TaskSettings = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE of the data set, with --task; repeatable.")
]
RawData = Annotated[Path | None, typer.Option(help="Folder of raw data.")]
EventsFile = Annotated[
    Path | None,
    typer.Option("--events", help="Own tables: series in place of those it was fitted on."),
]
LabelsFile = Annotated[Path | None, typer.Option("--labels", help="Own tables: their labels.")]
StaticFile = Annotated[
    Path | None, typer.Option("--static", help="Own tables: their static features.")
]
Split = Annotated[str, typer.Option(help="train, validation or test.")]


def judged_task(
    home: Path,
    name: str | None,
    settings: list[str] | None,
    data_dir: Path | None,
    tables: dict[str, Path] | None = None,
) -> Task:
    """The task named, or the one the model was fitted on; `tables` are files in place of its own."""
    from onlinecde.artifacts import read_manifest
    from onlinecde.cli.named_values import named_values
    from onlinecde.training.other_tables import check_tables, task_of_tables
    from onlinecde.training.task_source import check_content, load_task, registry_source

    if name is not None:
        if tables:
            raise ValueError("--task and tables of your own: give one of them.")
        named = load_task(registry_source(name, named_values(settings)), data_dir)
        return _under(named, read_manifest(home))
    if settings:
        raise ValueError("--task-setting belongs to --task: name the task too.")
    manifest = read_manifest(home)
    if tables:
        judged = task_of_tables(manifest, tables)
        if list(judged.splits) == ["test"]:
            typer.echo(
                f"{judged.name} is not what the model was fitted on: all its {len(judged.series)} streams "
                "are judged, and none of them should have been trained on."
            )
            for told in judged.notes:
                typer.echo(f"note: {told}", err=True)
        return judged
    told = manifest.extra.get("task")
    if not isinstance(told, dict):
        raise ValueError(f"{home} does not say what it was fitted on: name a task with --task.")
    check_tables(told)
    judged = load_task(told, data_dir)
    check_content(judged, told)
    return _under(judged, manifest)


def _under(task: Task, manifest: Manifest) -> Task:
    """The task with the model's channels and static features; what it lacks, or has besides, is said."""
    schema = manifest.named_schema()
    if schema is None:
        return task
    judged = task.under(schema)
    for told in judged.notes[len(task.notes) :]:
        typer.echo(f"note: {told}", err=True)
    return judged


def other_tables(
    events: Path | None, labels: Path | None, static: Path | None
) -> dict[str, Path] | None:
    """Files given in place of a model's own, by the names of their options; None where there is none."""
    given = {"events": events, "labels": labels, "static": static}
    return {name: file for name, file in given.items() if file is not None} or None
