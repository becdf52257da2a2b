"""`onlinecde fit`: from a prepared task or one's own tables to a trained, saved model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onlinecde.cli.command_line import grouped
from onlinecde.cli.options import (
    TRAINING,
    ClusterOptions,
    ModelOptions,
    TaskOptions,
    TrainingOptions,
    UpdateOptions,
    option,
)

if TYPE_CHECKING:
    from onlinecde.training.defaults import Resolved


@grouped
def fit(
    *,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder of the run. Started again, it goes on; the model is in OUT/model."
        ),
    ],
    task: TaskOptions,
    going_on: UpdateOptions,
    model: ModelOptions,
    training: TrainingOptions,
    settings: Annotated[
        Path | None,
        option("The best.json of a search: its model and settings; options change them.", TRAINING),
    ] = None,
    explain_settings: Annotated[
        bool,
        option(
            "Print each setting, its value, who set it and why; train nothing.",
            TRAINING,
            "--explain-settings",
        ),
    ] = False,
    max_time: Annotated[
        str | None,
        option(
            "Train no longer than this, as 10min, all sessions of the run together; the best model so far is kept.",
            TRAINING,
        ),
    ] = None,
    fresh: Annotated[bool, option("Forget what the folder holds.", TRAINING, "--fresh")] = False,
    cluster: ClusterOptions,
) -> None:
    """Train a model, keep its best validation point, save it; killed at any time, it goes on."""
    from onlinecde.data.queries import duration
    from onlinecde.files import check_folder
    from onlinecde.training import FitError, FitSettings
    from onlinecde.training.defaults import resolve
    from onlinecde.training.task_source import load_task, task_of_run

    check_folder(out, "--out")
    if going_on.parent is not None:
        if model != ModelOptions() or settings is not None or cluster != ClusterOptions():
            raise FitError(
                "--from goes on with the run's model and settings: leave --model, its settings, --settings and "
                "--ray out."
            )
        _go_on(going_on, task, training, out, fresh)
        return
    if going_on != UpdateOptions():
        raise FitError("--rehearsal and --old-... are for --from RUN: give it, or leave them out.")
    source, start, changes = task.source(), training.start(), training.changes()
    (start or FitSettings()).changed(changes)  # refuses what is wrong before data are read
    best = _found(settings, model.model, start is not None)
    name = best["model"] if best else model.name
    if cluster.workers is not None and cluster.ray is None:
        raise FitError("--workers is for a cluster: add --ray, or leave it out.")
    limit = {} if max_time is None else {"max_seconds": duration(max_time, "seconds")}
    if limit and cluster.ray is not None:
        raise FitError("--max-time is for a fit on one machine: leave out --ray, or the time.")
    run = None if fresh else out
    ready = task_of_run(load_task(source, task.data_dir), run)
    resolved = resolve(ready, name, model.settings(), start, changes, run=run, file=best)
    if explain_settings:
        _explain(resolved)
        return
    typer.echo(ready.describe())
    typer.echo()
    train: Any = _fit_on(cluster)
    from onlinecde.cli.displays import FitDisplay

    rows = int(ready.series.rows[ready.splits["train"]].sum())
    with FitDisplay(ready.metric, rows, resolved.training.epochs) as display:
        try:
            done = train(
                ready,
                name,
                out,
                settings=resolved,
                source=source,
                device=training.device,
                fresh=fresh,
                callback=display,
                **limit,
            )
        except KeyboardInterrupt:
            typer.echo(f"\nstopped. The same command goes on where it was ({out}).", err=True)
            raise typer.Exit(130) from None
    _say_end(done, ready.metric, out)


def _go_on(
    going_on: UpdateOptions, task: TaskOptions, training: TrainingOptions, out: Path, fresh: bool
) -> None:
    """Update a model on new data."""
    from onlinecde.cli.displays import FitDisplay
    from onlinecde.training import FitError, update

    if training.recipe != "default":
        raise FitError("--recipe is for a new fit: --from goes on with the run's settings.")
    assert going_on.parent is not None
    new, changes = task.new_data(), training.changes()
    with FitDisplay("loss", 0, 0) as display:
        try:
            done = update(
                going_on.parent,
                new,
                out,
                data_dir=task.data_dir,
                device=training.device,
                fresh=fresh,
                callback=display,
                **going_on.given,
                **changes,
            )
        except KeyboardInterrupt:
            typer.echo(f"\nstopped. The same command goes on where it was ({out}).", err=True)
            raise typer.Exit(130) from None
    typer.echo(f"\n{done.ended}; kept epoch {done.best['epoch']}.")
    typer.echo(f"model: {out / 'model'}\nnext:  onlinecde serve {out} --rebuild")


def _found(file: Path | None, model: str | None, recipe: bool) -> dict[str, Any] | None:
    """What a search found, as its file has it; refused with options that say otherwise as a whole."""
    if file is None:
        return None
    from onlinecde.training import FitError
    from onlinecde.training.defaults import model_class
    from onlinecde.tuning import read_best

    best = read_best(file)
    if recipe:
        raise FitError("--settings and --recipe both give all training settings: drop one of them.")
    if model is not None and model_class(model) is not model_class(best["model"]):
        raise FitError(
            f"{file} is for {best['model']}, not for {model}: drop --model or --settings."
        )
    return best


def _fit_on(cluster: ClusterOptions) -> Any:
    """What trains: this process, or the workers of a cluster."""
    if cluster.ray is None:
        from onlinecde.training import fit as fit_here

        return fit_here
    from onlinecde.scale.ray import fit as fit_on_ray

    return partial(fit_on_ray, **cluster.on_ray)


def _explain(resolved: Resolved) -> None:
    """A line a setting: its value, who set it, and why."""
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "value", "set by", "why", box=None, padding=(0, 2, 0, 0))
    for part, settings in resolved.as_json().items():
        table.add_section()
        for name, one in settings.items():
            style = "dim" if one["by"] == "default" else ""
            table.add_row(f"{part}.{name}", str(one["value"]), one["by"], one["why"], style=style)
    Console().print(table)


def _say_end(done: Any, metric: str, out: Path) -> None:
    from onlinecde.evaluation.bootstrap import shown

    value = done.best[f"validation_{metric}"]
    said = f"{metric} {shown(value)}" if value is not None else "metric not defined"
    if done.still_improving:
        more = (
            "a longer --max-time, or none"
            if done.ended.startswith("its time")
            else f"--epochs {2 * len(done.history)}"
        )
        typer.echo(
            f"\nstill improving when it ended: the same command with {more}, goes on from here."
        )
    typer.echo(f"\n{done.ended}; kept epoch {done.best['epoch']}: validation {said}.")
    typer.echo(f"model: {out / 'model'}\nnext:  onlinecde evaluate {out}")
