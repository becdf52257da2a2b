"""`onlinecde evaluate`: how good a saved model is, with intervals, beside others, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onlinecde.cli.command_line import command_words, grouped
from onlinecde.cli.options import JudgedOptions

if TYPE_CHECKING:
    from onlinecde.data import KnownRisk, Task
    from onlinecde.evaluation.runs import JudgedRuns
    from onlinecde.evaluation.trees import Trees
    from onlinecde.models import OnlineModel
    from onlinecde.plots.trajectories import Trajectory

    Models = dict[str, list[OnlineModel | Trees]]
    Known = KnownRisk | None

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
    metric: Annotated[
        list[str] | None, typer.Option(help="Only this metric; repeatable. Default: all that fit.")
    ] = None,
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
    """Measure a model on a split: every metric with an interval by subject, beside other models."""
    given = dict(locals())
    from onlinecde.cli.terminal_tables import show_evaluations
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
    }
    drawn: dict[str, Any] = {}
    own = next(iter(judged.tables.values()), None)
    if folds := _folds(named, judged.task if own is None else str(own)):
        found = _judge_folds(folds, judged.data_dir, device, trees, seed=seed, **how)
    else:
        task = judged.load(groups[0][0])
        models, known = _loaded(named, task, device), task.known_risk
        if trees:
            # On its own streams: those of another table, or task, are judged alone.
            same = judged.task is None and own is None
            fitted_on = JudgedOptions(data_dir=judged.data_dir)
            models |= _trees(task if same else fitted_on.load(groups[0][0]))
        found = _judge(models, task, known, seed=seed, **how)
        if report is not None:
            drawn = {
                "trajectories": _followed(models, task, split, known, found[0].together.events),
                "log": read_log(folder) or read_log(groups[0][0].parent),
            }
    show_evaluations(found)
    if json is not None:
        words = command_words(evaluate, given, without=("data_dir", "report", "device"))
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

    models: Models = {}
    for name, homes in named.items():
        models[name] = [load(home).to(device) for home in homes]
        for model in models[name]:
            check_fit(model, judged)
    return models


def _trees(task: Task) -> Models:
    """Boosted trees fitted on a task, by their name among models."""
    from onlinecde.evaluation.trees import NAME, fit_trees

    fitted = fit_trees(task)
    typer.echo(
        f"{NAME}: {fitted.trees:,}, fitted on {fitted.labels:,} labels of the training split of {task.name}"
    )
    return {NAME: [fitted]}


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
    folds: list[dict[str, list[Path]]],
    data_dir: Path | None,
    device: str,
    trees: bool,
    *,
    seed: int,
    **how: Any,
) -> list[JudgedRuns]:
    """Each model's runs on their own folds, then over all folds."""
    from onlinecde.evaluation.runs import fold_seed, joined

    found = []
    for number, named in enumerate(folds, 1):
        task = JudgedOptions(data_dir=data_dir).load(next(iter(named.values()))[0])
        drawn = fold_seed(seed, number, len(folds))
        models = _loaded(named, task, device) | (_trees(task) if trees else {})
        found.append(_judge(models, task, None, seed=drawn, **how))
    return [joined(several, seed=seed) for several in zip(*found, strict=True)]


def _followed(
    models: Models, judged: Task, split: str, known: Known, events: Any
) -> tuple[Trajectory, ...]:
    """Some streams as time goes, by one run of each model."""
    from onlinecde.evaluation.following import follow
    from onlinecde.models import OnlineModel

    shown = {
        name if len(several) == 1 else f"{name}, one of {len(several)}": several[0]
        for name, several in models.items()
        if isinstance(several[0], OnlineModel)
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
