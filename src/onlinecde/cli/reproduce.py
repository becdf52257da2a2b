"""`onlinecde reproduce NAME`: a table or figure of the paper, run and set beside the published one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onlinecde.cli.command_line import command_words, grouped
from onlinecde.cli.options import ClusterOptions

if TYPE_CHECKING:
    from rich.console import Console

    from onlinecde.experiments import Summary, Table


@grouped
def reproduce(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...",
            help="Tables by name or TOML file; `list` shows them; `open`: all on open data.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of results. Started again, it goes on.")] = Path(
        "out/reproduce"
    ),
    protocol: Annotated[
        str, typer.Option(help="paper (what its code did) or clean (done right).")
    ] = "clean",
    budget: Annotated[str, typer.Option(help="smoke, small or full.")] = "full",
    seeds: Annotated[
        str | None, typer.Option(help="With commas: 0,111,222. Default: the table's.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="ROW/COLUMN or ROW/COLUMN/fold-N, * for any; repeatable: 'CharacterTrajectories/*'."
        ),
    ] = None,
    found: Annotated[
        list[Path] | None,
        typer.Option(
            help="best.json of `tune`, or a folder of such; takes the place of the paper's; repeatable."
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Take the open demo in place of MIMIC-IV.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run cells that failed again.")] = False,
    publish: Annotated[
        Path | None,
        typer.Option(help="Run nothing: write what is done into this folder, a file a table."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Folder of raw data.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show the tables there are.")] = False,
    cluster: ClusterOptions,
) -> None:
    """Run what is missing of a table, skip what is done, and write it beside the published numbers."""
    given = dict(locals())
    from rich.console import Console

    console = Console()
    if listed or names == ["list"]:
        _list(console)
        return
    from onlinecde.cli.displays import GridDisplay
    from onlinecde.cli.terminal_tables import results_table
    from onlinecde.cli.workers import run_together
    from onlinecde.experiments import ExperimentError
    from onlinecde.experiments import reproduce as run_here
    from onlinecde.experiments.grid import tables_named

    if not names:
        raise ExperimentError("name a table: `onlinecde reproduce list` shows what there is.")
    try:
        chosen = [int(seed) for seed in (seeds or "").split(",") if seed.strip()]
    except ValueError as error:
        raise ExperimentError(f"--seeds {seeds}: write whole numbers, as 0,111,222.") from error
    asked: dict[str, Any] = {
        "protocol": protocol,
        "budget": budget,
        "seeds": chosen,
        "only": only or (),
        "found": _found(found or []),
        "demo": demo,
    }
    tables = [table for name in names for table in tables_named(name)]
    if publish is not None:
        _publish(tables, out, publish, asked, found or [])
        return
    run_table: Any = run_here
    if cluster.ray is not None:
        from onlinecde.scale.ray import reproduce as run_on_ray

        run_table = partial(run_on_ray, **cluster.on_ray)
    broken = False
    try:
        if cluster.here > 1:
            words = command_words(reproduce, given, without=("workers", "retry"))
            run_together(cluster.here, out, words, tables, asked, retry, GridDisplay(console))
            retry = False  # what failed now has just been run again
        for table in tables:
            if table.kind == "command":
                _command(table.command, out)
                continue
            with GridDisplay(console) as display:
                summary = run_table(
                    table,
                    out,
                    **asked,
                    retry=retry,
                    device=device,
                    data_dir=data_dir,
                    callback=display,
                )
            console.print()
            console.print(results_table(summary))
            _say_notes(console, summary)
            picture = table.name if table.kind == "figure" else f"{table.name}-cost"
            if (file := summary.folder / f"{picture}.png").exists():
                console.print(f"wrote {file} and .svg", highlight=False, soft_wrap=True)
            broken |= any(entry.failures for entry in summary.entries.values())
    except KeyboardInterrupt:
        typer.echo(f"\nstopped. The same command goes on where it was ({out}).", err=True)
        raise typer.Exit(130) from None
    if broken:
        typer.echo("some cells failed, see above; --retry runs them again.", err=True)
        raise typer.Exit(1)


def _found(places: list[Path]) -> list[dict[str, Any]]:
    """Settings of searches, from files or from all files of a folder."""
    from onlinecde.tuning.spaces import read_best

    files = [f for place in places for f in (sorted(place.glob("*.json")) or [place])]
    return [read_best(file) for file in files]


def _publish(
    tables: list[Table], out: Path, folder: Path, asked: dict[str, Any], found: list[Path]
) -> None:
    """Write a file of all that is done of each table, and of what it held before.

    `only` and `seeds` say what was run, and take nothing from what is published.
    """
    from onlinecde.experiments import ExperimentError, cells_of, summarise, table_names
    from onlinecde.experiments.grid import grid_of
    from onlinecde.experiments.publishing import command_for, publish, read_published

    told = {name: asked[name] for name in ("protocol", "budget", "demo")}
    wrote = 0
    for table in (grid_of(table) for table in tables):
        more_seeds = [seed for seed in asked["seeds"] if seed not in table.seeds]
        seeds = [*table.seeds, *more_seeds] if more_seeds else []
        every = {**asked, "only": (), "seeds": seeds}
        summary = summarise(table, cells_of(table, **every), out)
        if summary.results:
            own = table.name not in table_names()
            name = f"{table.name}.toml" if own else table.name
            command = command_for(name, found=found, seeds=seeds, **told)
            file = publish(summary, folder, command)
            kept = len(read_published(file).results) - len(summary.results)
            more = f", and {kept} published before" if kept else ""
            typer.echo(f"wrote {file}: {len(summary.results)} runs{more}")
            wrote += 1
        else:
            typer.echo(f"nothing of '{table.name}' is done in {summary.folder}", err=True)
    if not wrote:
        raise ExperimentError(
            "there is nothing to publish: run the table first, with the same options."
        )


def _say_notes(console: Console, summary: Summary) -> None:
    for note in summary.notes:
        bad = note.startswith("Failed")
        console.print(note, style="red" if bad else "dim", highlight=False, soft_wrap=True)
    console.print(f"wrote {summary.folder / summary.table.name}.md, .csv and .tex", highlight=False)


def _command(name: str, out: Path) -> None:
    from onlinecde.cli import properties as command

    assert name == "properties"
    file = out / "properties.json"
    command.properties(json_file=file)
    typer.echo(f"wrote {file}")


def _list(console: Console) -> None:
    from rich.table import Table as RichTable

    from onlinecde.experiments.protocols import BUDGETS, PROTOCOLS
    from onlinecde.experiments.table import load_table, table_names

    shown = RichTable("name", "what", "data sets", "cells", box=None, pad_edge=False)
    for name in table_names():
        table = load_table(name)
        runs = len(table.seeds) * (table.folds or 1)
        cells = len(table.rows) * len(table.columns) * runs
        sets = ", ".join(table.data_sets) or (f"those of {table.of}" if table.of else "none")
        shown.add_row(name, table.title, sets, str(cells) if cells else "-")
    console.print(shown)
    console.print()
    for kind, choices in (("protocol", PROTOCOLS), ("budget", BUDGETS)):
        for choice in choices.values():
            console.print(f"--{kind} {choice.name:<6} {choice.what}", highlight=False)
