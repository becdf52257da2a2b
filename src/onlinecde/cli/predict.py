"""`onlinecde predict`: what a fitted model says of new streams, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

COLUMNS = "Columns, where they are not called as the run was fitted with"
Name = str | None


def predict(
    folder: Annotated[Path, typer.Argument(help="Folder of a run or of a saved model.")],
    events: Annotated[
        Path, typer.Option(help="Streams: CSV, TSV, Parquet or Arrow, long or wide; no labels.")
    ],
    out: Annotated[
        str, typer.Option(help="File of scores, .parquet or .csv; - for the standard output.")
    ],
    at: Annotated[
        Name,
        typer.Option(
            help="rows, end, every=1h, or a table with the stream and time columns. Default: end for a model with "
            "one label a stream, else rows."
        ),
    ] = None,
    until: Annotated[
        Name,
        typer.Option(
            help="End of every=..., as a time (48h) or behind each stream's last row (+6h); default: that row."
        ),
    ] = None,
    static: Annotated[
        Path | None, typer.Option(help="Table of static features, one line a stream.")
    ] = None,
    horizon: Annotated[
        Name,
        typer.Option(
            help="Of a model of the time to an event: the risk within how long (12h); default: as it was fitted."
        ),
    ] = None,
    format: Annotated[Name, typer.Option(help="parquet or csv; default: by --out.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file that is there.")
    ] = False,
    stream: Annotated[Name, typer.Option(help="Names the stream.", rich_help_panel=COLUMNS)] = None,
    time: Annotated[Name, typer.Option(help="Times.", rich_help_panel=COLUMNS)] = None,
    channel: Annotated[
        Name, typer.Option(help="Names the channel, in a long table.", rich_help_panel=COLUMNS)
    ] = None,
    value: Annotated[
        Name, typer.Option(help="Values, in a long table.", rich_help_panel=COLUMNS)
    ] = None,
    origin: Annotated[
        Name, typer.Option(help="Each stream's time 0.", rich_help_panel=COLUMNS)
    ] = None,
    duplicates: Annotated[
        Name,
        typer.Option(
            help="Two values at one instant: refuse, first, last or mean.", rich_help_panel=COLUMNS
        ),
    ] = None,
    static_stream: Annotated[
        Name, typer.Option(help="Names the stream, in --static.", rich_help_panel=COLUMNS)
    ] = None,
    memory: Annotated[
        int, typer.Option(min=1, help="MiB that the data may take; what is more is on disk.")
    ] = 1024,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "cpu",
) -> None:
    """Score new streams at their rows, on a grid, or at times of a table; killed at any time, it goes on."""
    from onlinecde.cli.displays import ScoringDisplay
    from onlinecde.scoring.files import predict_file
    from onlinecde.scoring.output import OutputFile
    from onlinecde.scoring.request import Request
    from onlinecde.training.fitting import device_for

    target = OutputFile.named(out, format, overwrite)
    target.check()
    request = Request.build(
        folder,
        events,
        at=at,
        until=until,
        static=static,
        horizon=horizon,
        stream=stream,
        time=time,
        channel=channel,
        value=value,
        origin=origin,
        duplicates=duplicates,
        static_stream=static_stream,
        device=str(device_for(device)),
    )
    with ScoringDisplay() as display:
        try:
            done = predict_file(request, target, memory=memory << 20, display=display)
        except KeyboardInterrupt:
            goes_on = "" if target.path is None else " The same command goes on where it was."
            typer.echo(f"\nstopped.{goes_on}", err=True)
            raise typer.Exit(130) from None
    for note in done.notes:
        typer.echo(f"note: {note}", err=True)
    where = "" if target.path is None else f", in {target.path}"
    typer.echo(f"{done.lines:,} scores of {done.streams:,} streams{where}", err=target.path is None)
