"""`onlinecde store`: look through a store, mend it, make it smaller, write its events to a table."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from onlinecde.streaming.stores.relational import RelationalStore

store_app = typer.Typer(
    no_args_is_help=True,
    help="Look through a store that no server has open, mend it, write it out.",
)
_Store = Annotated[
    str,
    typer.Argument(
        metavar="STORE", help="A SQLite file, or postgresql://user@host/database?schema=name."
    ),
]


def _opened(where: str) -> RelationalStore:
    from onlinecde.serving.opening import POSTGRES, open_store
    from onlinecde.streaming import StoreError

    if not where.startswith(POSTGRES) and not Path(where).is_file():
        raise StoreError(f"{where} is not there: give the file of a store.")
    return open_store(where)  # pyright: ignore[reportReturnType]


@store_app.command()
def check(store: _Store) -> None:
    """Read everything and name all that is damaged; exits with 1 where something is."""
    from onlinecde.streaming.maintenance import check_store

    with closing(_opened(store)) as opened:
        report = check_store(opened)
    for fault in report.faults:
        typer.echo(str(fault))
    counts = ", ".join(f"{count:,} {table}" for table, count in report.records.items() if count)
    typer.echo(f"{counts or 'nothing'} read, {len(report.faults)} damaged", err=True)
    if report.without_checksum:
        typer.echo(
            f"{report.without_checksum:,} records of an earlier version have no checksum: `store repair` adds it",
            err=True,
        )
    if report.faults:
        raise typer.Exit(1)


@store_app.command()
def repair(
    store: _Store,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of the model it belongs to: integrates damaged states again."),
    ] = None,
    quarantine: Annotated[
        Path | None,
        typer.Option(
            help="What cannot be mended is set aside here; default: STORE.quarantine.jsonl."
        ),
    ] = None,
) -> None:
    """Mend what can be mended; what cannot is set aside in a file, and named."""
    from onlinecde.serving.opening import POSTGRES, open_engine
    from onlinecde.serving.settings import ServeSettings
    from onlinecde.streaming.maintenance import check_store, repair_store
    from onlinecde.streaming.stores.salvage import salvage

    aside = quarantine
    if aside is None:
        aside = (
            Path("store.quarantine.jsonl")
            if store.startswith(POSTGRES)
            else Path(f"{store}.quarantine.jsonl")
        )
    if not store.startswith(POSTGRES):
        _opened_file = Path(store)
        for line in salvage(_opened_file) if _opened_file.is_file() else []:
            typer.echo(line)
    with closing(_opened(store)) as opened:
        result = repair_store(opened, aside)
    for line in result.done:
        typer.echo(line)
    if result.again and model is not None:
        engine, _ = open_engine(model, store, ServeSettings(), alarms=False)
        with engine:
            for name in result.again:
                engine.repair(name)
    elif result.again:
        typer.echo(
            f"{len(result.again)} states are to be integrated again: run it once more with --model FOLDER",
            err=True,
        )
    if aside.exists() and not aside.stat().st_size:
        aside.unlink()
    elif aside.exists():
        typer.echo(f"set aside in {aside}", err=True)
    with closing(_opened(store)) as opened:
        left = check_store(opened).faults
    for fault in left:
        typer.echo(str(fault))
    if left:
        raise typer.Exit(1)
    typer.echo("the store is whole", err=True)


@store_app.command()
def compact(store: _Store) -> None:
    """Give back to the disk all room that is free."""
    with closing(_opened(store)) as opened:
        opened.compact()
    typer.echo("compacted", err=True)


@store_app.command()
def export(
    store: _Store,
    file: Annotated[Path, typer.Argument(help="Where to; .csv or .parquet.")],
) -> None:
    """Write all events as a table of stream, time, channel, value that `fit` and `replay` read."""
    from onlinecde.files import check_file
    from onlinecde.streaming.maintenance import export_events

    check_file(file, "FILE")
    with closing(_opened(store)) as opened:
        streams, events, static = export_events(opened, file)
    typer.echo(f"{events:,} events of {streams:,} streams in {file}", err=True)
    if static is not None:
        typer.echo(f"static features in {static}", err=True)
