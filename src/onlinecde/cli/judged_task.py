"""The task a saved model is judged on: the one named, or the one it was fitted on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from onlinecde.data import Task

TaskName = Annotated[
    str | None, typer.Option(help="Prepared task; default: the one the model was fitted on.")
]
TaskSettings = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE of the data set, with --task; repeatable.")
]
RawData = Annotated[Path | None, typer.Option(help="Folder of raw data.")]
Split = Annotated[str, typer.Option(help="train, validation or test.")]


def judged_task(
    home: Path, name: str | None, settings: list[str] | None, data_dir: Path | None
) -> Task:
    """The task named, or the one the model was fitted on."""
    from onlinecde.artifacts import read_manifest
    from onlinecde.cli.named_values import named_values
    from onlinecde.training.task_source import check_content, load_task, registry_source

    if name is not None:
        return load_task(registry_source(name, named_values(settings)), data_dir)
    if settings:
        raise ValueError("--task-setting belongs to --task: name the task too.")
    told = read_manifest(home).extra.get("task")
    if not isinstance(told, dict):
        raise ValueError(f"{home} does not say what it was fitted on: name a task with --task.")
    judged = load_task(told, data_dir)
    check_content(judged, told)
    return judged
