"""`onlinecde data list | info | fetch | prepare`: the data sets, from their address to a task."""

from pathlib import Path
from typing import Annotated, Any

import typer

from onlinecde.cli.command_line import named_values

app = typer.Typer(help="List, fetch and prepare data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the data set, as `data list` shows it.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of raw data. Default: $ONLINECDE_DATA, or ~/.onlinecde/data."),
]


@app.command("list")
def list_sets(data_dir: DataDir = None) -> None:
    """Show the data sets there are, and which of them are here."""
    from rich.console import Console
    from rich.table import Table

    from onlinecde.data.registry import DATA_SETS, default_data_dir

    folder = data_dir or default_data_dir()
    table = Table("name", "here", "tasks", "what", title=f"data folder: {folder}")
    for entry in DATA_SETS.values():
        table.add_row(
            entry.name,
            "yes" if _is_here(entry, folder) else "no",
            ", ".join(entry.tasks),
            entry.what,
        )
    Console().print(table)


@app.command()
def info(name: Name, data_dir: DataDir = None) -> None:
    """Say what a data set is, where it comes from, and what can be set."""
    from onlinecde.data.registry import data_set, default_data_dir

    entry = data_set(name)
    folder = data_dir or default_data_dir()
    typer.echo(f"{entry.name}: {entry.what}")
    typer.echo(f"  licence   {entry.licence}")
    typer.echo(f"  address   {entry.address}")
    typer.echo(f"  tasks     {', '.join(entry.tasks)}")
    for key, default in entry.settings().items():
        typer.echo(f"  setting   {key} (default {default!r})")
    for download in entry.downloads:
        typer.echo(f"  file      {download.file} from {download.url}")
    if entry.by_hand:
        typer.echo(f"  by hand   {entry.instructions(folder)}")
    here = _is_here(entry, folder)
    typer.echo(f"  here      {'yes' if here else 'no'}, looked in {folder}")


@app.command()
def fetch(
    name: Name,
    data_dir: DataDir = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Fetch only this file; may be given several times.")
    ] = None,
) -> None:
    """Download a data set from its official address; go on where an earlier try broke off."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from onlinecde.data.download import fetch as fetch_file
    from onlinecde.data.errors import DataError
    from onlinecde.data.registry import data_set, default_data_dir

    entry = data_set(name)
    home = data_dir or default_data_dir()
    if not entry.downloads:
        remedy = entry.instructions(home)
        raise DataError(remedy or f"'{name}' is generated: there is nothing to fetch.")
    wanted = [d for d in entry.downloads if not only or d.file in only]
    if not wanted:
        files = ", ".join(d.file for d in entry.downloads)
        raise DataError(f"'{name}' has no file {', '.join(only or ())}: it has {files}.")
    folder = home / entry.name
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns) as bars:
        for download in wanted:
            bar = bars.add_task(download.file, total=None)
            path = fetch_file(
                download.url,
                folder / download.file,
                sha256=download.sha256,
                progress=lambda size, total, bar=bar: bars.update(bar, completed=size, total=total),
            )
            size = path.stat().st_size
            bars.update(bar, completed=size, total=size)
    typer.echo(f"{entry.name} is in {folder}")


@app.command()
def prepare(
    name: Name,
    task: Annotated[
        str | None, typer.Option(help="Task of the data set; default: its first.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE, as `data info` lists them; repeatable."),
    ] = None,
    protocol: Annotated[str | None, typer.Option(help="Short for --set protocol=...")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    data_dir: DataDir = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Folder of prepared data. Default: $ONLINECDE_CACHE.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Print who was left out, and why.")
    ] = False,
) -> None:
    """Read a data set's files, cache the task, and describe it."""
    from onlinecde.data import loading

    chosen = named_values(setting)
    if protocol is not None:
        chosen["protocol"] = protocol
    if report:
        typer.echo(loading.report(name, data_dir=data_dir, **chosen))
        if task is None:
            return
    built = loading.load(name, task, data_dir=data_dir, cache_dir=cache_dir, seed=seed, **chosen)
    typer.echo(built.describe())


def _is_here(entry: Any, folder: Path) -> bool:
    from onlinecde.data.errors import DataError

    try:
        entry.locate(folder)
    except DataError:
        return False
    return True
