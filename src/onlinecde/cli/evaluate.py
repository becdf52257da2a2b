"""`onlinecde evaluate`: how good a saved model is, with intervals, beside others, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onlinecde.cli.command_line import command_words, grouped
from onlinecde.cli.options import JudgedOptions

if TYPE_CHECKING:
    from onlinecde.data import Task
    from onlinecde.evaluation.runs import JudgedRuns
    from onlinecde.plots.trajectories import Trajectory

    Models = dict[str, list[Any]]
    """By name, the runs of each: `OnlineModel`, or `Trees`."""

TREES = Path("trees")
"""Given to --against: no folder, but boosted trees fitted on what the model was fitted on"""


@grouped
def evaluate(
    *,
    folder: Annotated[
        Path, typer.Argument(help="Folder of a run, of a saved model, or of a model's runs.")
    ],
    judged: JudgedOptions,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of another model, or trees: boosted trees fitted on the same training split; repeatable."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            help="When streams are asked: every=1h, rows, end, random=16, or a table of streams and times. Default: "
            "by the clock where labels are known between rows, then where the task has its labels."
        ),
    ] = None,
    asking: Annotated[
        str | None,
        typer.Option(
            help="Models that are online at rows alone, between rows: hold (their last answer), empty-rows, or both. "
            "Default: as each was taught."
        ),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Only this metric; repeatable. Default: all that fit.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Judge groups of streams apart: a static feature, or a column of the tables; repeatable."
        ),
    ] = None,
    importance: Annotated[
        bool,
        typer.Option(
            "--importance",
            help="How much each channel moves a Neural CDE's outputs; in a --report always.",
        ),
    ] = False,
    horizon: Annotated[
        list[float] | None,
        typer.Option(
            help="Of time to an event: judge the risk within this time; repeatable. Default: half, one, two and four "
            "times the task's."
        ),
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Resamples of subjects for the intervals; 0: none.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write one HTML page here.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all numbers here.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "cpu",
) -> None:
    """Measure a model on a split, by the clock and at rows: every metric with an interval by subject, beside others."""
    given = dict(locals())
    from onlinecde.cli.terminal_tables import show_evaluations
    from onlinecde.data.stream_columns import group_columns
    from onlinecde.files import check_file
    from onlinecde.training.fitting import device_for
    from onlinecde.training.journal import model_folders, read_log

    for option, file in (("--report", report), ("--json", json)):
        check_file(file, option)
    device, split = str(device_for(device)), judged.split
    trees = TREES in (against or []) and not TREES.exists()
    places = [folder, *(place for place in against or [] if not trees or place != TREES)]
    groups = [model_folders(place) for place in places]
    named = dict(zip(_names(places, groups), groups, strict=True))
    how = {
        "split": split,
        "metrics": metric or None,
        "horizons": horizon or None,
        "bootstrap": bootstrap,
        "explained": importance or report is not None,
    }
    drawn: dict[str, Any] = {}
    own = next(iter(judged.tables.values()), None)
    if by and len(groups[0]) > 1:
        raise ValueError("--by is for one run: give its folder.")
    apart = {} if judged.elsewhere else other_features(named)
    named = {name: homes for name, homes in named.items() if name not in apart}
    if folds := _folds(named, judged.task if own is None else str(own)):
        every = _judge_folds(folds, judged.data_dir, device, at, asking, trees, seed=seed, **how)
    else:
        task = judged.load(groups[0][0])
        models = _loaded(named, task, device)
        if by:
            how["groups"] = group_columns(task, by, judged.files(groups[0][0]))
        # Trees are fitted on the model's own streams: those of another table, or task, are judged alone.
        elsewhere = judged.task is not None or own is not None
        trained = (
            JudgedOptions(data_dir=judged.data_dir).load(groups[0][0])
            if trees and elsewhere
            else task
        )
        others = {name: _same_streams(task, homes[0], judged) for name, homes in apart.items()}
        several = {
            name: _loaded({name: apart[name]}, other, device) for name, other in others.items()
        }
        every = []
        for place, one in enumerate(tasks_at(task, at)):
            own_tasks = {name: tasks_at(other, at)[place] for name, other in others.items()}
            found = _judge(models | _trees(trained, one, at, trees), one, asking, seed=seed, **how)
            for name, own_task in own_tasks.items():
                plain = {**how, "explained": False, "seed": seed}
                found += _judge(several[name], own_task, asking, **plain)
            every.append(found)
        if report is not None:
            drawn = {
                "trajectories": _followed(models, task, split, every[-1][0].together.events),
                "log": read_log(folder) or read_log(groups[0][0].parent),
            }
    for found in every:
        show_evaluations(found)
    if json is not None:
        words = command_words(evaluate, given, without=("data_dir", "report", "device"))
        typer.echo(f"wrote {_write_json(json, every, words, device)}")
    if report is not None:
        from onlinecde.evaluation.report import report as page
        from onlinecde.evaluation.report import write_report

        (first, *others), *rest = ([one.together for one in found] for found in every)
        at_rows = rest[0] if rest else ()
        text = page(first, against=others, at_rows=at_rows, **drawn)
        typer.echo(f"wrote {write_report(report, text)}")


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

    models: Models = {}
    for name, homes in named.items():
        models[name] = [load(home).to(device) for home in homes]
        for model in models[name]:
            check_fit(model, judged)
    return models


def _trees(trained: Task, judged: Task, at: str | None, wanted: bool) -> Models:
    """Boosted trees by their name among models, if wanted: fitted on a task, asked as they will be judged."""
    from onlinecde.evaluation.trees import NAME, fit_trees

    if not wanted:
        return {}
    if judged.per != trained.per and not (at is not None and Path(at).is_file()):
        trained = next((one for one in tasks_at(trained, at) if one.per == judged.per), trained)
    fitted = fit_trees(trained)
    typer.echo(
        f"{NAME}: {fitted.trees:,}, fitted on {fitted.labels:,} labels of the training split of {trained.name}"
    )
    return {NAME: [fitted]}


def tasks_at(task: Task, at: str | None) -> list[Task]:
    """The task where it is to be judged: asked at the times given, else by the clock and where it has its labels."""
    from onlinecde.data import DataError, asked_at_table
    from onlinecde.evaluation.evaluating import task_at

    if at is not None and at != "end" and task.per == "stream":
        typer.echo(
            "note: the task has one label a stream, its end's: it is judged in mid-stream as well",
            err=True,
        )
    if at is not None and Path(at).is_file():
        asked = asked_at_table(task, at)
        for note in asked.notes[len(task.notes) :]:
            typer.echo(f"note: {note}", err=True)
        return [asked]
    if at is not None:
        try:
            return [task_at(task, at)]
        except DataError as error:
            raise DataError(
                f"--at {at}: {error} Or give a table of streams and times: there is no such file."
            ) from error
    return [task] if task.clock is None else [task.asked(task.clock), task]


def _judge(models: Models, judged: Task, asking: str | None, **how: Any) -> list[JudgedRuns]:
    """Each model's runs on one split; beside the first, the best possible where that is known."""
    import numpy as np

    from onlinecde.controls import Measurability
    from onlinecde.evaluation.runs import judge_runs
    from onlinecde.models.asking import IN_WORDS, called

    known = judged.known_risk
    reference: Any = None if known is None else known.risk
    how["event_at"] = None if known is None else np.asarray(known.event_times)
    found: list[JudgedRuns] = []
    for name, several in models.items():
        at_rows = judged.per != "time" or several[0].measurability is Measurability.CONTINUOUS
        ways: Any = [None] if at_rows else list(IN_WORDS) if asking == "both" else [asking]
        for way in ways:
            own = name if at_rows else called(name, several[0], way)
            found.append(judge_runs(own, several, judged, reference=reference, asking=way, **how))
            how["explained"] = False
            # What is known is judged once, and stands beside the first alone.
            reference = found[0].together.reference
    return found


def _judge_folds(
    folds: list[dict[str, list[Path]]],
    data_dir: Path | None,
    device: str,
    at: str | None,
    asking: str | None,
    trees: bool,
    *,
    seed: int,
    **how: Any,
) -> list[list[JudgedRuns]]:
    """Each model's runs on their own folds, then over all folds, wherever the task is judged."""
    from onlinecde.evaluation.runs import fold_seed, joined

    every = []
    for number, named in enumerate(folds, 1):
        task = JudgedOptions(data_dir=data_dir).load(next(iter(named.values()))[0])
        models, drawn = _loaded(named, task, device), fold_seed(seed, number, len(folds))
        asked = tasks_at(task, at)
        every.append(
            [
                _judge(models | _trees(task, one, at, trees), one, asking, seed=drawn, **how)
                for one in asked
            ]
        )
    return [
        [joined(several, seed=seed) for several in zip(*of_folds, strict=True)]
        for of_folds in zip(*every, strict=True)
    ]


def _followed(models: Models, judged: Task, split: str, events: Any) -> tuple[Trajectory, ...]:
    """Some streams as time goes, by one run of each model."""
    from onlinecde.evaluation.following import follow
    from onlinecde.models import OnlineModel

    shown = {
        name if len(several) == 1 else f"{name}, one of {len(several)}": several[0]
        for name, several in models.items()
        if isinstance(several[0], OnlineModel)
    }
    return follow(shown, judged, split, events=events)


def other_features(named: dict[str, list[Path]]) -> dict[str, list[Path]]:
    """Models, by name, fitted on the same tables as the first one, which see other channels or static features."""
    from onlinecde.artifacts import read_manifest

    features = (
        "events",
        "channel",
        "value",
        "channels",
        "categories",
        "static",
        "static_columns",
        "static_stream",
    )

    def told(homes: list[Path]) -> tuple[Any, Any]:
        source = read_manifest(homes[0]).extra.get("task")
        if not isinstance(source, dict) or source.get("source") != "table":
            return None, None
        rest = {n: v for n, v in source["arguments"].items() if n not in features}
        return rest, source.get("content")

    (_, first), *others = named.items()
    rest, content = told(first)
    if rest is None:
        return {}
    return {
        name: homes
        for name, homes in others
        if (found := told(homes))[0] == rest and found[1] != content
    }


def _same_streams(task: Task, home: Path, judged: JudgedOptions) -> Task:
    """The task of a model with other features, refused where its streams, labels or splits are others."""
    from dataclasses import replace

    other = JudgedOptions(data_dir=judged.data_dir).load(home)
    for split in task.splits:
        names = [
            [str(one.series.streams[at]) for at in one.splits.get(split, ())]
            for one in (task, other)
        ]
        alike = names[0] == names[1]
        if alike:
            mine, theirs = (one.split(split)[1].cpu().nan_to_num(-1) for one in (task, other))
            alike = mine.equal(theirs)
        if not alike:
            raise ValueError(
                f"{home} was fitted on other streams, labels or rows of the {split} split than the first model: only "
                "models of the same ones can be compared. Give both the same --splits, and tables of the same rows."
            )
    return replace(other, name=task.name)


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


def _write_json(target: Path, every: list[list[JudgedRuns]], words: list[str], device: str) -> Path:
    """Write all that was found, by which command, and where: at the task's own times and, in it, by the clock."""
    import json
    import shlex

    from onlinecde.evaluation.report import write_report
    from onlinecde.evaluation.runs import comparison
    from onlinecde.experiments.machine import circumstances

    told = {
        "format": "onlinecde evaluation 1",
        "command": shlex.join(["onlinecde", "evaluate", *words]),
        **circumstances(device),
        **comparison(every[-1][0], every[-1][1:]),
    }
    if len(every) > 1:
        told["clock"] = comparison(every[0][0], every[0][1:])
    return write_report(target, json.dumps(told, indent=1, allow_nan=False) + "\n")
