"""`onlinecde tokens`: who may come in to a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

tokens_app = typer.Typer(no_args_is_help=True, help="Make, list and take back access tokens.")

_File = Annotated[Path, typer.Option("--file", help="The file of tokens; it holds only hashes.")]


@tokens_app.command("new")
def new_token(
    name: Annotated[str, typer.Argument(help="Whose it is; shown in lists and logs.")],
    scope: Annotated[str, typer.Option(help="read, write or read,write")] = "read",
    file: _File = Path("tokens.json"),
) -> None:
    """Make a token and print it, once."""
    from onlinecde.serving.tokens import TokenBook

    book = TokenBook.read(file) if file.exists() else TokenBook()
    text = book.add(name, [one.strip() for one in scope.split(",") if one.strip()])
    book.write(file)
    typer.echo(text)
    typer.echo(f"kept as a hash in {file}; it is not shown again", err=True)


@tokens_app.command("list")
def list_tokens(file: _File = Path("tokens.json")) -> None:
    """Names and scopes."""
    from onlinecde.serving.tokens import TokenBook

    for one in TokenBook.read(file).tokens:
        typer.echo(f"{one.name}\t{','.join(sorted(one.scopes))}")


@tokens_app.command("remove")
def remove_token(name: str, file: _File = Path("tokens.json")) -> None:
    """Take a token back; a running server forgets it at SIGHUP, or when it is started again."""
    from onlinecde.serving.tokens import TokenBook

    book = TokenBook.read(file)
    book.remove(name)
    book.write(file)
