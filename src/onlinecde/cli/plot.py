"""`onlinecde plot controls | streams`: pictures of control paths, and of streams with their risk."""

from pathlib import Path
from typing import Annotated

import typer

from onlinecde.cli.command_line import command_words, grouped
from onlinecde.cli.options import JudgedOptions

app = typer.Typer(help="Draw controls, or streams as a model sees them.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Draw controls, or streams as a model sees them."""


@app.command()
def controls(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("out"),
) -> None:
    """Draw the four controls on one series, and what each does when the future changes."""
    from onlinecde.files import check_folder
    from onlinecde.plots import controls_figure, measurability_figure, save_figure

    check_folder(out, "--out")
    for name, figure in (
        ("controls", controls_figure()),
        ("measurability", measurability_figure()),
    ):
        for file in save_figure(figure, out, name):
            typer.echo(f"wrote {file}")


@app.command()
@grouped
def streams(
    *,
    folder: Annotated[Path, typer.Argument(help="Folder of a run or of a saved Neural CDE.")],
    judged: JudgedOptions,
    stream: Annotated[
        list[str] | None, typer.Option(help="Name of a stream; repeatable. Default: by lot.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many are drawn by lot.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of the lot.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Write what is drawn here, too.")] = None,
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("out"),
) -> None:
    """Draw the risk of some streams as time goes, and what each event added to it."""
    given = dict(locals())
    from onlinecde.artifacts import load
    from onlinecde.evaluation.evaluating import check_fit
    from onlinecde.evaluation.event_time import event_times
    from onlinecde.evaluation.explaining import explain_streams
    from onlinecde.files import check_file, check_folder
    from onlinecde.plots import save_figure
    from onlinecde.plots.contributions import contributions_figure
    from onlinecde.training import model_folder

    check_folder(out, "--out")
    check_file(json, "--json")
    home = model_folder(folder)
    task = judged.load(home)
    task.split(judged.split)  # refuses an unknown or empty split before anything is computed
    model = load(home)
    check_fit(model, task)
    drawn = explain_streams(
        model,
        task,
        judged.split,
        streams=stream or count,
        seed=seed,
        events=event_times(task)[task.splits[judged.split].numpy()]
        if task.per != "stream"
        else None,
    )
    for file in save_figure(contributions_figure(drawn), out, "streams"):
        typer.echo(f"wrote {file}")
    if json is not None:
        import shlex
        from json import dumps

        from onlinecde.evaluation.report import write_report
        from onlinecde.experiments.machine import circumstances

        words = command_words(streams, given, without=("data_dir", "out"))
        content = {
            "format": "onlinecde streams 1",
            "command": shlex.join(["onlinecde", "plot", "streams", *words]),
            **circumstances("cpu"),
            "task": task.name,
            "split": judged.split,
            "streams": [one.as_json() for one in drawn],
        }
        text = dumps(content, ensure_ascii=False, allow_nan=False)
        typer.echo(f"wrote {write_report(json, text + chr(10))}")
