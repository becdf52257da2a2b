"""`onlinecde plot ...`: the pictures of the paper, drawn anew."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Draw the pictures of the paper.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Draw the pictures of the paper."""


@app.command()
def controls(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("out"),
) -> None:
    """Draw the four controls on one series, and what each does when the future changes."""
    from onlinecde.plots import controls_figure, measurability_figure, save_figure

    for name, figure in (
        ("controls", controls_figure()),
        ("measurability", measurability_figure()),
    ):
        for file in save_figure(figure, out, name):
            typer.echo(f"wrote {file}")
