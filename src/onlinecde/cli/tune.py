"""`onlinecde tune`: search a model's settings; killed at any time, it goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onlinecde.cli.ray_option import address_of, ray_option

if TYPE_CHECKING:
    from onlinecde.tuning.spaces import SearchSpace


def tune(
    task: Annotated[
        str,
        typer.Option(help="A prepared task: simulated-ward, mimic-iv/sepsis, ... (`data list`)."),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder of the search. Started again, or twice, it goes on there.")
    ],
    model: Annotated[
        str, typer.Option(help="neural-cde, gru, gru-dt, gru-dt-intensity, gru-d or ode-rnn.")
    ] = "neural-cde",
    trials: Annotated[int, typer.Option(help="How many in all.")] = 20,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Trials at the same time; 1, or as many as a cluster has room for."
        ),
    ] = None,
    ray: Annotated[str | None, ray_option()] = None,
    span: Annotated[
        list[str] | None,
        typer.Option(help="NAME=LOW:HIGH[:log] in place of the paper's; repeatable."),
    ] = None,
    task_setting: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of the data set; repeatable.")
    ] = None,
    model_setting: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of the model in every trial; repeatable.")
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="Where training settings start from: default, clean or paper.")
    ] = "default",
    setting: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE of training in every trial, as epochs=30; repeatable."),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune/--no-prune", help="End trials worse than most were by then.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of the search, the weights and the batches.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Folder of raw data.")] = None,
) -> None:
    """Search settings on the validation split with a Gaussian process; keep the best model."""
    from rich.console import Console

    from onlinecde.cli.crew import option_words
    from onlinecde.cli.named_values import named_values
    from onlinecde.cli.tune_display import TuneDisplay, as_rich, failures, search_together
    from onlinecde.experiments.protocols import PROTOCOLS
    from onlinecde.files import check_folder
    from onlinecde.training import FitSettings
    from onlinecde.training.task_source import load_task, registry_source
    from onlinecde.tuning.search import tune as search_here
    from onlinecde.tuning.spaces import TuneError, check_space, paper_space

    check_folder(out, "--out")
    console = Console()
    recipes = {"default": FitSettings(), **{p.name: p.fit for p in PROTOCOLS.values()}}
    if recipe not in recipes:
        raise TuneError(f"--recipe is {recipe!r}: choose one of {', '.join(recipes)}.")
    space = _space(paper_space(model, task), span or [])
    check_space(model, space, named_values(model_setting))
    try:
        if ray is None and (workers or 1) > 1:
            told = {
                "--task": task,
                "--out": str(out),
                "--model": model,
                "--trials": str(trials),
                "--span": span,
                "--task-setting": task_setting,
                "--model-setting": model_setting,
                "--recipe": recipe,
                "--setting": setting,
                "--seed": str(seed),
                "--device": device,
                "--data-dir": None if data_dir is None else str(data_dir),
            }
            found = search_together(
                workers or 1, out, [_prune(prune), *option_words(told)], TuneDisplay(console)
            )
        else:
            search: Any = search_here
            if ray is not None:
                from onlinecde.scale.ray import tune as search_on_ray

                search = partial(search_on_ray, address=address_of(ray), workers=workers)
            source = registry_source(task, named_values(task_setting))
            found = search(
                load_task(source, data_dir),
                model,
                out,
                trials=trials,
                space=space,
                model_settings=named_values(model_setting),
                settings=recipes[recipe].changed(named_values(setting)),
                source=source,
                prune=prune,
                seed=seed,
                device=device,
                watch=TuneDisplay(console),
            )
    except KeyboardInterrupt:
        typer.echo(f"\nstopped. The same command goes on where it was ({out}).", err=True)
        raise typer.Exit(130) from None
    console.print()
    console.print(as_rich(found))
    for line in failures(found):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if found.best is None:
        typer.echo("no trial is complete: see why above.", err=True)
        raise typer.Exit(1)
    typer.echo(f"settings: {out / 'best.json'}\nmodel:    {out / found.best['model_folder']}")


def _space(space: SearchSpace, spans: list[str]) -> SearchSpace:
    """The space with some spans changed or added."""
    from onlinecde.tuning.spaces import SearchSpace, Span, TuneError

    given = {}
    for text in spans:
        name, sign, limits = text.partition("=")
        if not sign or not name:
            raise TuneError(f"--span {text}: write NAME=LOW:HIGH or NAME=LOW:HIGH:log.")
        given[name] = Span.parse(limits)
    fixed = {name: value for name, value in space.fixed.items() if name not in given}
    return SearchSpace({**space.spans, **given}, fixed, space.final_lr)


def _prune(prune: bool) -> str:
    return "--prune" if prune else "--no-prune"
