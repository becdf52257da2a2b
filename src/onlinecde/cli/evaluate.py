"""`onlinecde evaluate`: how good a saved model is, with intervals, beside others, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from onlinecde.data import Task
    from onlinecde.training.evaluation import Evaluation


def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder of a run or of a saved model.")],
    task: Annotated[
        str | None, typer.Option(help="Prepared task; default: the one the model was fitted on.")
    ] = None,
    task_setting: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of the data set, with --task; repeatable.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of raw data.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    against: Annotated[
        list[Path] | None, typer.Option(help="Folder of another model; repeatable.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Only this metric; repeatable. Default: all that fit.")
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Resamples of subjects for the intervals; 0: none.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write one HTML page here.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all numbers here.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Measure a model on a split: every metric with an interval by subject, beside other models."""
    import numpy as np

    from onlinecde.artifacts import load, read_manifest
    from onlinecde.training import model_folder, read_log
    from onlinecde.training.evaluating import check_fit
    from onlinecde.training.evaluating import evaluate as measure
    from onlinecde.training.evaluation import compare
    from onlinecde.training.known_risk import known_risk

    folders = [model_folder(one) for one in (folder, *(against or []))]
    judged = _task(folders[0], task, task_setting, data_dir)
    models = {}
    for home, name in zip(folders, _names(folders), strict=True):
        model = load(home).to(device)
        check_fit(model, judged, read_manifest(home).channels)
        models[name] = model
    reference, events = known_risk(judged) or (None, None)
    found = [
        measure(
            model,
            judged,
            split,
            name=name,
            metrics=metric or None,
            bootstrap=bootstrap,
            seed=seed,
            reference=None if number else reference,
            event_at=None if events is None else np.asarray(events),
        )
        for number, (name, model) in enumerate(models.items())
    ]
    first, others = found[0], found[1:]
    _show(first, others)
    if json is not None:
        told = {
            "evaluation": first.to_json(),
            "against": [other.to_json() for other in others],
            "differences": [
                {name: vars(one) for name, one in compare(first, other).items()} for other in others
            ],
        }
        typer.echo(f"wrote {_write_json(json, told)}")
    if report is not None:
        from onlinecde.training.following import follow
        from onlinecde.training.report import report as page
        from onlinecde.training.report import write_report

        drawn = follow(models, judged, split, reference=reference, events=first.events)
        log = read_log(folder) or read_log(folders[0].parent)
        text = page(first, against=others, log=log, trajectories=drawn)
        typer.echo(f"wrote {write_report(report, text)}")


def _task(home: Path, name: str | None, settings: list[str] | None, data_dir: Path | None) -> Task:
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


def _names(folders: list[Path]) -> list[str]:
    """What to call the models: by class, and by folder where that is not enough."""
    from onlinecde.artifacts import read_manifest

    classes = [read_manifest(home).model for home in folders]
    if len(set(classes)) == len(classes):
        return classes
    places = [home.parent.name if home.name == "model" else home.name for home in folders]
    names = [f"{one} ({place})" for one, place in zip(classes, places, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{one} ({home})" for one, home in zip(classes, folders, strict=True)]
    if len(set(names)) < len(names):
        raise ValueError("a model is given twice: give each folder once.")
    return names


def _show(first: Evaluation, others: list[Evaluation]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from onlinecde.training.evaluation import compare, metric_title

    known = first.reference
    table = Table("metric", box=None, padding=(0, 2, 0, 0))
    for other in (first, *others, *((known,) if known else ())):
        table.add_column(
            "best possible" if other is known else escape(other.model), justify="right"
        )
        if other in others:
            table.add_column("difference", justify="right")
    differences = [compare(first, other) for other in others]
    for name, estimate in first.metrics.items():
        cells: list[Any] = [estimate]
        for other, difference in zip(others, differences, strict=True):
            cells += [other.metrics[name], difference[name]]
        cells += [known.metrics[name]] if known else []
        table.add_row(metric_title(name), *(_cell(cell) for cell in cells))
    console = Console()
    console.print(
        f"{first.task}, {first.split}: {first.streams} streams of {first.subjects} subjects, "
        f"{first.labels_given} labels",
        highlight=False,
    )
    console.print(table)
    for name, estimate in first.metrics.items():
        if estimate.reason and estimate.value is None:
            console.print(f"{metric_title(name)} has no value: {estimate.reason}", highlight=False)


def _cell(found: Any) -> str:
    """A value, and beneath it the interval."""
    if found.value is None:
        return "none"
    if found.low is None:
        return f"{found.value:.4f}"
    return f"{found.value:.4f}\n[dim]{found.low:.3f} to {found.high:.3f}[/dim]"


def _write_json(target: Path, told: dict[str, Any]) -> Path:
    import json

    from onlinecde.training.report import write_report

    return write_report(target, json.dumps(told, indent=2, allow_nan=False) + "\n")
