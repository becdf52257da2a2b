"""`onlinecde replay`: send held-out streams to a server as if they were live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def replay(
    task: Annotated[
        str, typer.Argument(help="Name of a task, or the folder of a model fitted on one.")
    ],
    to: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:8000",
    speed: Annotated[float, typer.Option(help="How many times faster than life.")] = 60.0,
    streams: Annotated[int | None, typer.Option(min=1, help="At most so many streams.")] = None,
    split: Annotated[str, typer.Option(help="Which split they come from.")] = "test",
    spread: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Streams begin within this part of their length."),
    ] = 0.0,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="End after so long.")] = None,
    prefix: Annotated[str, typer.Option(help="Goes before the streams' names.")] = "stream ",
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every answer with the offline model.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(help="Folder of the served model; default: TASK, if it is one.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="ONLINECDE_TOKEN", help="Token with both scopes.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Send held-out streams to a server as if they were live.

    With --verify, exits with 1 where an answer differs from the offline model by more than 1e-5 of the largest
    output, or is missing.
    """
    from onlinecde.artifacts import load, read_manifest
    from onlinecde.serving.problems import ServingError
    from onlinecde.serving.replay import Server
    from onlinecde.serving.replay import replay as send
    from onlinecde.serving.verify import Questions, same_model
    from onlinecde.serving.verify import verify as compare
    from onlinecde.training import model_folder
    from onlinecde.training.task_source import load_task, registry_source

    folder = Path(task) if Path(task).is_dir() else None
    source = (
        registry_source(task)
        if folder is None
        else read_manifest(model_folder(folder)).extra.get("task", {})
    )
    home = model or folder
    if verify and home is None:
        raise ServingError("--verify needs the model: give --model FOLDER.")
    # A row in which nothing was observed has no event: no server hears of it.
    series = load_task(source).split(split)[0].observed_rows()
    series = series[: streams or len(series)]
    server = Server(to, token)
    try:
        if verify and home is not None:
            same_model(str(model_folder(home)), server)
        questions = Questions(server, series, prefix, seed=seed) if verify else None
        pace = server.ask("GET", "/v1/model")["clock_speed"]
        if pace != speed:
            typer.echo(
                f"the server's clock runs at {pace:g}, this replay at {speed:g}: start the server with "
                f"--clock-speed {speed:g} to see risks move at this pace",
                err=True,
            )
        done = send(
            series, server, speed=speed, prefix=prefix, spread=spread, seconds=seconds, seed=seed,
            between=questions,
        )  # fmt: skip
        typer.echo(str(done))
        if verify and home is not None and questions is not None:
            result = compare(
                load(model_folder(home)), series, server, done, prefix=prefix, between=questions.answered
            )  # fmt: skip
            typer.echo(str(result))
            if not result.holds:
                raise typer.Exit(1)
    finally:
        server.close()
