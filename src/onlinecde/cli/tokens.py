"""`onlinecde tokens`: who may come in to a server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

tokens_app = typer.Typer(no_args_is_help=True, help="Make, list and take back access tokens.")

_File = Annotated[Path, typer.Option("--file", help="The file of tokens; it holds only hashes.")]


@tokens_app.command("new")
def new_token(
    name: Annotated[str, typer.Argument(help="Whose it is; shown in lists and logs.")],
    scope: Annotated[
        str, typer.Option(help="Some of ingest, read, acknowledge, delete, admin, with commas.")
    ] = "read",
    streams: Annotated[
        list[str] | None,
        typer.Option(help="Only streams whose names begin with this; repeatable. Default: all."),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.0, help="It expires after so many days; default: never.")
    ] = None,
    file: _File = Path("tokens.json"),
) -> None:
    """Make a token and print it, once."""
    from onlinecde.serving.tokens import TokenBook

    book = TokenBook.read(file) if file.exists() else TokenBook()
    text = book.add(
        name,
        [one.strip() for one in scope.split(",") if one.strip()],
        streams=streams or (),
        expires=None if days is None else time.time() + 86_400 * days,
    )
    book.write(file)
    typer.echo(text)
    typer.echo(f"kept as a hash in {file}; it is not shown again", err=True)


@tokens_app.command("list")
def list_tokens(file: _File = Path("tokens.json")) -> None:
    """Names, scopes, streams, and until when."""
    from onlinecde.serving.tokens import TokenBook

    for one in TokenBook.read(file).tokens:
        until = "never expires"
        if one.expires is not None:
            until = time.strftime("expires %Y-%m-%d %H:%M UTC", time.gmtime(one.expires))
        streams = " ".join(map(repr, one.streams)) or "all streams"
        typer.echo(f"{one.name}\t{','.join(sorted(one.scopes))}\t{streams}\t{until}")


@tokens_app.command("remove")
def remove_token(name: str, file: _File = Path("tokens.json")) -> None:
    """Take a token back; a running server forgets it at SIGHUP or `POST /v1/admin/reload`."""
    from onlinecde.serving.tokens import TokenBook

    book = TokenBook.read(file)
    book.remove(name)
    book.write(file)
