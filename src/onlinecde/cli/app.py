"""Collects the commands and turns errors a user can mend into one clear message."""

import sys
from typing import Annotated

import typer

from onlinecde.cli import data, plot
from onlinecde.cli.alarms import alarms
from onlinecde.cli.audit import audit
from onlinecde.cli.command_line import RayCommand
from onlinecde.cli.demo import demo
from onlinecde.cli.evaluate import evaluate
from onlinecde.cli.export import export
from onlinecde.cli.fit import fit
from onlinecde.cli.model import model_app
from onlinecde.cli.predict import predict
from onlinecde.cli.properties import properties
from onlinecde.cli.replay import replay
from onlinecde.cli.reproduce import reproduce
from onlinecde.cli.serve import serve
from onlinecde.cli.store import store_app
from onlinecde.cli.tokens import tokens_app
from onlinecde.cli.tune import tune
from onlinecde.cli.warmup import warmup

app = typer.Typer(
    name="onlinecde",
    help="Online prediction from irregular time series with Neural CDEs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from onlinecde.version import __version__

        typer.echo(f"onlinecde {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Online prediction from irregular time series with Neural CDEs."""


app.command()(demo)
app.command(cls=RayCommand)(fit)
app.command()(evaluate)
app.command()(predict)
app.command()(export)
app.command()(alarms)
app.command(cls=RayCommand)(tune)
app.command(cls=RayCommand)(reproduce)
app.command()(audit)
app.command()(properties)
app.command()(serve)
app.command()(replay)
app.command()(warmup)
app.add_typer(model_app, name="model")
app.add_typer(store_app, name="store")
app.add_typer(tokens_app, name="tokens")
app.add_typer(data.app, name="data")
app.add_typer(plot.app, name="plot")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit with 2 and one message where the user can mend what is wrong."""
    try:
        app(args=arguments)
    except (ValueError, OSError) as error:
        # Every refusal of bad input in this package is a ValueError that says what to do.
        from rich.console import Console
        from rich.text import Text

        Console(stderr=True).print(
            Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True
        )
        sys.exit(2)
