"""`onlinecde evaluate`: how good a saved model is, with intervals, beside others, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onlinecde.cli.crew import option_words
from onlinecde.cli.judged_task import (
    EventsFile,
    LabelsFile,
    RawData,
    Split,
    StaticFile,
    TaskName,
    TaskSettings,
    judged_task,
    other_tables,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

    from onlinecde.data import KnownRisk, Task
    from onlinecde.evaluation.estimates import Difference, Estimate
    from onlinecde.evaluation.results import Evaluation
    from onlinecde.evaluation.runs import JudgedRuns
    from onlinecde.models import OnlineModel
    from onlinecde.plots.trajectories import Trajectory

    Models = dict[str, list[OnlineModel]]
    Known = KnownRisk | None


def evaluate(
    folder: Annotated[
        Path, typer.Argument(help="Folder of a run, of a saved model, or of a model's runs.")
    ],
    task: TaskName = None,
    task_setting: TaskSettings = None,
    data_dir: RawData = None,
    events: EventsFile = None,
    labels: LabelsFile = None,
    static: StaticFile = None,
    split: Split = "test",
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
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "cpu",
) -> None:
    """Measure a model on a split: every metric with an interval by subject, beside other models."""
    from onlinecde.files import check_file
    from onlinecde.training import read_log
    from onlinecde.training.fitting import device_for
    from onlinecde.training.journal import model_folders

    for option, file in (("--report", report), ("--json", json)):
        check_file(file, option)
    device = str(device_for(device))
    places = [folder, *(against or [])]
    groups = [model_folders(place) for place in places]
    named = dict(zip(_names(places, groups), groups, strict=True))
    how = {"split": split, "metrics": metric or None, "bootstrap": bootstrap}
    drawn: dict[str, Any] = {}
    tables = other_tables(events, labels, static)
    chosen = task if tables is None else str(next(iter(tables.values())))
    if folds := _folds(named, chosen):
        found = _judge_folds(folds, data_dir, device, seed=seed, **how)
    else:
        judged = judged_task(groups[0][0], task, task_setting, data_dir, tables)
        models, known = _loaded(named, judged, device), judged.known_risk
        found = _judge(models, judged, known, seed=seed, **how)
        if report is not None:
            drawn = {
                "trajectories": _followed(models, judged, split, known, found[0].together.events),
                "log": read_log(folder) or read_log(groups[0][0].parent),
            }
    _show(found)
    if json is not None:
        told = {
            "--task": task,
            "--task-setting": task_setting,
            **{f"--{name}": str(file) for name, file in (tables or {}).items()},
            "--split": split if split != "test" else None,
            "--against": [str(place) for place in against or []],
            "--metric": metric,
            "--bootstrap": str(bootstrap) if bootstrap != 1000 else None,
            "--seed": str(seed) if seed else None,
        }
        words = [str(folder), *option_words(told), "--json", str(json)]
        typer.echo(f"wrote {_write_json(json, found, words, device)}")
    if report is not None:
        from onlinecde.evaluation.report import report as page
        from onlinecde.evaluation.report import write_report

        first, *others = (one.together for one in found)
        typer.echo(f"wrote {write_report(report, page(first, against=others, **drawn))}")


def _folds(named: dict[str, list[Path]], task: str | None) -> list[dict[str, list[Path]]]:
    """The runs of each fold, where the split of the models turns; a task that is named has its own split."""
    from onlinecde.evaluation.runs import FoldsError, runs_by_fold, tested_folds

    if task is None:
        return runs_by_fold(named)
    dealt = tested_folds(home for homes in named.values() for home in homes)
    for home, fold in dealt.items():
        if fold is not None:
            raise FoldsError(
                f"{home} was tested on fold {fold[0]} of {fold[1]}: the own split of '{task}' tests streams it was "
                "trained on. Leave out --task: each run is judged on its own fold."
            )
    return []


def _loaded(named: dict[str, list[Path]], judged: Task, device: str) -> Models:
    """The models of each name, all known to fit the task."""
    from onlinecde.artifacts import load
    from onlinecde.evaluation.evaluating import check_fit

    models = {}
    for name, homes in named.items():
        models[name] = [load(home).to(device) for home in homes]
        for model in models[name]:
            check_fit(model, judged)
    return models


def _judge(models: Models, judged: Task, known: Known, **how: Any) -> list[JudgedRuns]:
    """Each model's runs on one split; beside the first, the best possible where that is known."""
    import numpy as np

    from onlinecde.evaluation.runs import judge_runs

    reference = None if known is None else known.risk
    how["event_at"] = None if known is None else np.asarray(known.event_times)
    return [
        judge_runs(name, several, judged, reference=None if number else reference, **how)
        for number, (name, several) in enumerate(models.items())
    ]


def _judge_folds(
    folds: list[dict[str, list[Path]]], data_dir: Path | None, device: str, *, seed: int, **how: Any
) -> list[JudgedRuns]:
    """Each model's runs on their own folds, then over all folds."""
    from onlinecde.evaluation.runs import fold_seed, joined

    found = []
    for number, named in enumerate(folds, 1):
        judged = judged_task(next(iter(named.values()))[0], None, None, data_dir)
        drawn = fold_seed(seed, number, len(folds))
        found.append(_judge(_loaded(named, judged, device), judged, None, seed=drawn, **how))
    return [joined(several, seed=seed) for several in zip(*found, strict=True)]


def _followed(
    models: Models, judged: Task, split: str, known: Known, events: Any
) -> tuple[Trajectory, ...]:
    """Some streams as time goes, by one run of each model."""
    from onlinecde.evaluation.following import follow

    shown = {
        name if len(several) == 1 else f"{name}, one of {len(several)}": several[0]
        for name, several in models.items()
    }
    return follow(shown, judged, split, reference=known and known.risk, events=events)


def _names(places: list[Path], groups: list[list[Path]]) -> list[str]:
    """What to call the models: by column of a table, else by class, and by folder where need be."""
    from onlinecde.artifacts import read_manifest

    classes = [_column(homes[0]) or read_manifest(homes[0]).model for homes in groups]
    if len(set(classes)) == len(classes):
        return classes
    named = [
        place if len(homes) > 1 else homes[0].parent if homes[0].name == "model" else homes[0]
        for place, homes in zip(places, groups, strict=True)
    ]
    names = [f"{one} ({place.name})" for one, place in zip(classes, named, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{one} ({homes[0]})" for one, homes in zip(classes, groups, strict=True)]
    if len(set(names)) < len(names):
        raise ValueError("a model is given twice: give each folder once.")
    return names


def _column(home: Path) -> str | None:
    """The column of the table whose cell a model is, if it is one's: `reproduce` wrote it down."""
    from json import loads

    file = home.parent.parent / "result.json"
    return loads(file.read_text())["cell"]["column"] if file.is_file() else None


def _show(found: list[JudgedRuns]) -> None:
    from rich.console import Console

    from onlinecde.evaluation.results import compare

    console = Console()
    first, others = found[0].together, [one.together for one in found[1:]]
    console.print(
        f"{first.judged_on}: {first.streams} streams of {first.subjects} subjects, "
        f"{first.labels_given} labels",
        highlight=False,
    )
    if any(len(one.runs) > 1 for one in found):
        differences = [compare(found[0].runs, one.runs) for one in found[1:]]
        means = [one.mean for one in found]
        for table in _tables(console, found, means, differences, None):
            console.print(table)
        console.print("Above: the mean over the runs of each model. Below: their mean probability.")
    if first.folds:
        console.print("Each value is a mean over folds; subjects are drawn again within each fold.")
    known = first.reference.metrics if first.reference else None
    differences = [compare(first, other) for other in others]
    metrics = [one.together.metrics for one in found]
    for table in _tables(console, found, metrics, differences, known):
        console.print(table)
    for name, estimate in first.metrics.items():
        if estimate.reason and estimate.value is None:
            title = first.title_of(name)
            console.print(f"{title} has no value: {estimate.reason}", highlight=False)
    for each in found:
        _show_naive(console, each.together)


def _show_naive(console: Console, found: Evaluation) -> None:
    """Output by output where there are several numbers, and beside what needs no model."""
    from rich.markup import escape

    for one in found.per_output:
        console.print(f"{one.name}: {one.in_words}", highlight=False, markup=False)
    for one in found.naive:
        console.print(f"{found.model}: {one.in_words}", highlight=False, markup=False)
    for text in found.warnings:
        console.print(f"[bold red]warning:[/bold red] {escape(text)}", highlight=False)


def _tables(
    console: Console,
    found: list[JudgedRuns],
    metrics: list[dict[str, Estimate]],
    differences: list[dict[str, Difference]],
    known: dict[str, Estimate] | None,
) -> list[RichTable]:
    """One table, or several with the first model in each where one would be wider than the console."""
    others = list(range(1, len(found)))
    tables: list[RichTable] = []
    for many in range(max(1, len(others)), 0, -1):
        tables = []
        for start in range(0, max(1, len(others)), many):
            chosen = others[start : start + many]
            tables.append(
                _table(
                    [found[at] for at in (0, *chosen)],
                    [metrics[at] for at in (0, *chosen)],
                    [differences[at - 1] for at in chosen],
                    None if start else known,
                )
            )
        room = console.options.update(max_width=10_000)
        if all(console.measure(table, options=room).maximum <= console.width for table in tables):
            break
    return tables


def _table(
    found: list[JudgedRuns],
    metrics: list[dict[str, Estimate]],
    differences: list[dict[str, Difference]],
    known: dict[str, Estimate] | None,
) -> RichTable:
    """A line a metric: each model, and by how much the first exceeds it."""
    from textwrap import fill

    from rich.markup import escape
    from rich.table import Table as RichTable

    table = RichTable("metric", box=None, padding=(0, 2, 0, 0))
    for number, one in enumerate(found):
        many = f", {len(one.runs)} runs" if len(one.runs) > 1 else ""
        # A cell has two lines, and so may its head.
        table.add_column(
            escape(one.name + many).replace(" (", "\n("), justify="right", overflow="fold"
        )
        if number:
            table.add_column("difference", justify="right", overflow="fold")
    if known:
        table.add_column("best possible", justify="right")
    for name, estimate in metrics[0].items():
        cells: list[Any] = [estimate]
        for other, difference in zip(metrics[1:], differences, strict=True):
            cells += [other[name], difference[name]]
        cells += [known[name]] if known else []
        size = max(abs(one[name].value or 0.0) for one in metrics)
        table.add_row(
            fill(found[0].together.title_of(name), 16), *(_cell(cell, size) for cell in cells)
        )
    return table


def _cell(found: Any, size: float) -> str:
    """A value, and beneath it the interval; `size`: the largest value in its line."""
    from onlinecde.evaluation.estimates import shown

    if found.value is None:
        return "none"
    value = shown(found.value, size=size)
    if found.low is None:
        return value
    low, high = (shown(end, size=size, digits=3) for end in (found.low, found.high))
    return f"{value}\n[dim]{low} to {high}[/dim]"


def _write_json(target: Path, found: list[JudgedRuns], words: list[str], device: str) -> Path:
    """Write all that was found, by which command, and where."""
    import json
    import shlex

    from onlinecde.evaluation.report import write_report
    from onlinecde.evaluation.runs import comparison
    from onlinecde.experiments.machine import circumstances

    told = {
        "format": "onlinecde evaluation 1",
        "command": shlex.join(["onlinecde", "evaluate", *words]),
        **circumstances(device),
        **comparison(found[0], found[1:]),
    }
    return write_report(target, json.dumps(told, indent=1, allow_nan=False) + "\n")
