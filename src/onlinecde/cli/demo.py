"""`onlinecde demo`: the main job on a simulated ward, from data to a report, on this machine."""

from pathlib import Path
from typing import Annotated

import typer

STREAMS = 4000
"""Patients of the ward: enough to learn from, few enough for a minute of training on a CPU."""


def demo(
    out: Annotated[Path, typer.Option(help="Where models and report go.")] = Path("out/demo"),
    streams: Annotated[int, typer.Option(min=50, help="Patients to simulate.")] = STREAMS,
    epochs: Annotated[int, typer.Option(min=1, help="At most, for each model.")] = 40,
    live: Annotated[bool, typer.Option(help="Follow patients live on a page at the end.")] = True,
) -> None:
    """Simulate a ward, fit an online Neural CDE and GRU-D, judge both by the clock and at rows, and go live."""
    import time

    from onlinecde.cli.evaluate import evaluate
    from onlinecde.cli.fit import fit

    started = time.monotonic()
    settings = [f"streams={streams}"]
    stop = ["stop=8", "plateau=4"]

    def train(name: str, model: str, *more: str) -> None:
        fit(
            out=out / name,
            task="simulated-ward",
            task_setting=settings,
            model=model,
            epochs=epochs,
            setting=[*stop, *more],
            fresh=True,
        )

    typer.secho("\n1. An online Neural CDE on a simulated ward", bold=True)
    train("neural-cde", "neural-cde", "trees=false")  # they would take another minute
    typer.secho(
        "\n2. GRU-D, a strong baseline, taught the same labels at the same times", bold=True
    )
    typer.echo(
        "The Neural CDE also learned what would be observed next, and GRU-D gains from that too:"
    )
    typer.echo(
        "--setting 'outlook=[2.3, 6.9, 14]'. GRU-D moves at rows alone: it holds its last answer."
    )
    train("gru-d", "gru-d")
    typer.echo("\nAnd here it is given an empty row whenever it is asked.")
    train("gru-d-empty-rows", "gru-d", "asking=empty-rows")
    typer.secho(
        "\n3. On patients none has seen, by the clock, then at rows, beside the risk that is known",
        bold=True,
    )
    evaluate(
        folder=out / "neural-cde",
        against=[out / "gru-d", out / "gru-d-empty-rows"],
        report=out / "report.html",
        json=out / "evaluation.json",
    )
    report = (out / "report.html").resolve()
    typer.echo(f"\n{time.monotonic() - started:.0f} s so far. Open the report: {report}")
    if live:
        typer.secho("\n4. Patients it has not seen, live", bold=True)
        _go_live(out, settings)


def _go_live(out: Path, settings: list[str]) -> None:
    import sys

    try:
        from onlinecde.serving.demo import live_demo
    except ImportError as error:
        typer.echo(
            f"skipped: {error.name} is not installed; pip install 'onlinecde[serve]' has it."
        )
        return
    from onlinecde.cli.command_line import named_values
    from onlinecde.training.task_source import load_task, registry_source

    live_demo(
        out / "neural-cde",
        task=load_task(registry_source("simulated-ward", named_values(settings))),
        out=out,
        interactive=sys.stdin.isatty() and sys.stdout.isatty(),
        say=typer.echo,
    )
