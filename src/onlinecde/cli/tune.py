"""`onlinecde tune`: search a model's settings; killed at any time, it goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onlinecde.cli.command_line import command_words, grouped
from onlinecde.cli.options import ClusterOptions, ModelOptions, TaskOptions, TrainingOptions

if TYPE_CHECKING:
    from onlinecde.training import FitSettings
    from onlinecde.tuning import SearchSpace


@grouped
def tune(
    *,
    out: Annotated[
        Path, typer.Option(help="Folder of the search. Started again, or twice, it goes on there.")
    ],
    task: TaskOptions,
    model: ModelOptions,
    training: TrainingOptions,
    trials: Annotated[int, typer.Option(help="How many in all.")] = 20,
    span: Annotated[
        list[str] | None,
        typer.Option(help="NAME=LOW:HIGH[:log] in place of the paper's; repeatable."),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune/--no-prune", help="End trials worse than most were by then.")
    ] = True,
    cluster: ClusterOptions,
) -> None:
    """Search settings on the validation split with a Gaussian process; keep the best model."""
    given = dict(locals())
    from rich.console import Console

    from onlinecde.cli.displays import TuneDisplay
    from onlinecde.cli.terminal_tables import failures, trials_table
    from onlinecde.cli.workers import search_together
    from onlinecde.files import check_folder
    from onlinecde.training.task_source import load_task
    from onlinecde.tuning.spaces import check_space, paper_space

    check_folder(out, "--out")
    console = Console()
    source, settings = task.source(), _start(training).changed(training.changes())
    space = _space(paper_space(model.name, task.task or ""), span or [], model.settings())
    check_space(model.name, space, model.settings())
    try:
        if cluster.here > 1:
            words = command_words(tune, given, without=("workers",))
            found = search_together(cluster.here, out, words, TuneDisplay(console))
        else:
            found = _search_on(cluster)(
                load_task(source, task.data_dir),
                model.name,
                out,
                trials=trials,
                space=space,
                model_settings=model.settings(),
                settings=settings,
                source=source,
                prune=prune,
                seed=training.seed or 0,
                device=training.device,
                callback=TuneDisplay(console),
            )
    except KeyboardInterrupt:
        typer.echo(f"\nstopped. The same command goes on where it was ({out}).", err=True)
        raise typer.Exit(130) from None
    console.print()
    console.print(trials_table(found))
    for line in failures(found):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if found.best is None:
        typer.echo("no trial is complete: see why above.", err=True)
        raise typer.Exit(1)
    typer.echo(f"settings: {out / 'best.json'}\nmodel:    {out / found.best['model_folder']}")
    typer.echo(f"next:     onlinecde fit --settings {out / 'best.json'} ...")


def _start(training: TrainingOptions) -> FitSettings:
    """The settings every trial starts from; those of a table's protocol, too, whose cells are searched."""
    from onlinecde.experiments.protocols import PROTOCOLS
    from onlinecde.training import FitSettings
    from onlinecde.tuning import TuneError

    recipes = {"default": FitSettings(), **{p.name: p.fit for p in PROTOCOLS.values()}}
    if training.recipe not in recipes:
        raise TuneError(f"--recipe is {training.recipe!r}: choose one of {', '.join(recipes)}.")
    return recipes[training.recipe]


def _search_on(cluster: ClusterOptions) -> Any:
    """What runs the trials: this process, or the workers of a cluster."""
    if cluster.ray is None:
        from onlinecde.tuning.search import tune as search_here

        return search_here
    from onlinecde.scale.ray import tune as search_on_ray

    return partial(search_on_ray, **cluster.on_ray)


def _space(space: SearchSpace, spans: list[str], given: dict[str, Any]) -> SearchSpace:
    """The space with some spans changed or added, and without settings that are given."""
    from onlinecde.tuning.spaces import SearchSpace, Span, TuneError

    own = {}
    for text in spans:
        name, sign, limits = text.partition("=")
        if not sign or not name:
            raise TuneError(f"--span {text}: write NAME=LOW:HIGH or NAME=LOW:HIGH:log.")
        own[name] = Span.parse(limits)
    fixed = {name: value for name, value in space.fixed.items() if name not in own}
    papers = {name: one for name, one in space.spans.items() if name not in given}
    return SearchSpace({**papers, **own}, fixed, space.final_lr)
