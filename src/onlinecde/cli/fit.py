"""`onlinecde fit`: from a prepared task or one's own tables to a trained, saved model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from onlinecde.cli.named_values import named_values
from onlinecde.cli.ray_option import address_of, ray_option

TASK, TABLE, MODEL, TRAINING = "A prepared task", "Your own tables", "Model", "Training"


def _option(text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def fit(
    out: Annotated[
        Path,
        typer.Option(
            help="Folder of the run. Started again, it goes on; the model is in OUT/model."
        ),
    ],
    task: Annotated[
        str | None, _option("Its name: simulated-ward, mimic-iv/sepsis, ... (`data list`).", TASK)
    ] = None,
    task_setting: Annotated[
        list[str] | None, _option("NAME=VALUE of the data set (`data info`).", TASK)
    ] = None,
    data_dir: Annotated[Path | None, _option("Folder of raw data.", TASK)] = None,
    events: Annotated[
        Path | None, _option("Series: CSV, TSV, Parquet or Arrow, long or wide.", TABLE)
    ] = None,
    stream: Annotated[str | None, _option("Column that names the stream.", TABLE)] = None,
    time: Annotated[str | None, _option("Column of times: numbers or timestamps.", TABLE)] = None,
    channel: Annotated[
        str | None, _option("Column that names the channel, in a long table.", TABLE)
    ] = None,
    value: Annotated[str | None, _option("Column of values, in a long table.", TABLE)] = None,
    channel_column: Annotated[
        list[str] | None,
        _option(
            "Column that is a channel, in a wide table; repeatable. Default: all without another "
            "role.",
            TABLE,
        ),
    ] = None,
    labels: Annotated[
        Path | None, _option("Table of labels; default: they stand in the events.", TABLE)
    ] = None,
    label: Annotated[
        list[str] | None,
        _option(
            "Column of the label; per stream, several for several outputs; for intervals start, "
            "then end.",
            TABLE,
        ),
    ] = None,
    label_per: Annotated[
        str, _option("What a label is for: stream, row or interval.", TABLE)
    ] = "stream",
    static: Annotated[
        Path | None, _option("Table of static features, one line a stream.", TABLE)
    ] = None,
    static_column: Annotated[
        list[str] | None,
        _option(
            "Column that is a static feature; repeatable. Default: all of --static without another "
            "role.",
            TABLE,
        ),
    ] = None,
    subject: Annotated[
        str | None, _option("Column whose streams stay in one split, as those of a patient.", TABLE)
    ] = None,
    time_unit: Annotated[
        str, _option("Unit timestamps are turned into; of times that are numbers, its name.", TABLE)
    ] = "hours",
    duplicates: Annotated[
        str, _option("Two values at one instant: refuse, first, last or mean.", TABLE)
    ] = "refuse",
    kind: Annotated[
        str | None,
        _option("binary, multiclass, multilabel or regression; default: by the labels.", TABLE),
    ] = None,
    metric: Annotated[str | None, _option("What the task is judged by.", TABLE)] = None,
    split_seed: Annotated[int, _option("Deals streams out to the splits.", TABLE, min=0)] = 0,
    model: Annotated[
        str, _option("neural-cde, gru, gru-dt, gru-dt-intensity, gru-d or ode-rnn.", MODEL)
    ] = "neural-cde",
    control: Annotated[
        str | None,
        _option(
            "rectilinear, linear, hermite or natural_cubic; default: what is recommended.", MODEL
        ),
    ] = None,
    counts: Annotated[
        bool | None,
        _option("Whether observation counts are channels.", MODEL, "--counts/--no-counts"),
    ] = None,
    hidden: Annotated[int | None, _option("Size of the state.", MODEL)] = None,
    width: Annotated[int | None, _option("Width of the vector field's layers.", MODEL)] = None,
    depth: Annotated[int | None, _option("Layers of the vector field.", MODEL)] = None,
    solver: Annotated[str | None, _option("rk4, heun, midpoint, euler, dopri5, ...", MODEL)] = None,
    precision: Annotated[
        str | None,
        _option(
            "highest (default) or high, of a Neural CDE on a GPU: high is faster and rounds the factors "
            "of products to half precision (sums stay float32), so that states are right to 3 or 4 "
            "digits. On a CPU both are float32.",
            MODEL,
        ),
    ] = None,
    model_setting: Annotated[
        list[str] | None, _option("NAME=VALUE, any other argument of the model.", MODEL)
    ] = None,
    recipe: Annotated[
        str, _option("Where training settings start from: default or paper.", TRAINING)
    ] = "default",
    epochs: Annotated[int | None, _option("At most this many.", TRAINING)] = None,
    batch_size: Annotated[int | None, _option("Streams in a batch.", TRAINING)] = None,
    lr: Annotated[float | None, _option("Learning rate.", TRAINING)] = None,
    seed: Annotated[int, _option("Weights and batches.", TRAINING)] = 0,
    class_weights: Annotated[str | None, _option("none or balanced.", TRAINING)] = None,
    setting: Annotated[
        list[str] | None, _option("NAME=VALUE, any other training setting.", TRAINING)
    ] = None,
    device: Annotated[str, _option("auto, cpu or cuda.", TRAINING)] = "auto",
    fresh: Annotated[bool, _option("Forget what the folder holds.", TRAINING, "--fresh")] = False,
    ray: Annotated[str | None, ray_option(rich_help_panel=TRAINING)] = None,
    workers: Annotated[
        int | None, _option("Of --ray: processes that share each batch.", TRAINING, min=1)
    ] = None,
) -> None:
    """Train a model, keep its best validation point, save it; killed at any time, it goes on."""
    from onlinecde.cli.fit_display import FitDisplay
    from onlinecde.evaluation.estimates import shown
    from onlinecde.files import check_folder
    from onlinecde.training import PAPER, FitError, FitSettings
    from onlinecde.training import fit as fit_here
    from onlinecde.training.task_source import load_task, registry_source, table_source

    check_folder(out, "--out")
    if (task is None) == (events is None):
        raise FitError(
            "give either --task NAME, or --events FILE with --stream, --time and --label."
        )
    if task is not None:
        source = registry_source(task, named_values(task_setting))
    else:
        assert events is not None
        for name, given in (("--stream", stream), ("--time", time), ("--label", label)):
            if not given:
                raise FitError(
                    f"{name} is missing: tables of your own need --stream, --time and --label."
                )
        if channel is not None and channel_column:
            raise FitError(
                "--channel-column is for wide tables, and --channel says that this one is long: drop "
                "one of them."
            )
        source = table_source(
            events,
            labels=labels,
            label=list(label or []),
            label_per=label_per,
            stream=stream,
            time=time,
            channel=channel,
            value=value,
            channels=channel_column or None,
            static=static,
            static_columns=static_column or None,
            subject=subject,
            time_unit=time_unit,
            duplicates=duplicates,
            kind=kind,
            metric=metric,
            seed=split_seed,
        )
    if recipe not in ("default", "paper"):
        raise FitError(f"--recipe is {recipe!r}: choose 'default' or 'paper'.")
    changes = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "class_weights": class_weights}
    changes = {k: v for k, v in changes.items() if v is not None} | named_values(setting)
    changes["seed"] = seed
    settings = PAPER if recipe == "paper" else None
    how = (settings or FitSettings()).changed(changes)  # refuses what is wrong before data are read
    sizes = {
        "control": control,
        "counts": counts,
        "hidden": hidden,
        "width": width,
        "depth": depth,
        "method": solver,
        "precision": precision,
    }
    chosen = {k: v for k, v in sizes.items() if v is not None} | named_values(model_setting)
    if workers is not None and ray is None:
        raise FitError("--workers is for a cluster: add --ray, or leave it out.")
    ready = load_task(source, data_dir)
    typer.echo(ready.describe())
    typer.echo()
    rows = int(ready.series.rows[ready.splits["train"]].sum())
    fit_model: Any = fit_here
    if ray is not None:
        from onlinecde.scale.ray import fit as fit_on_ray

        fit_model = partial(fit_on_ray, address=address_of(ray), workers=workers)
    with FitDisplay(ready.metric, rows, how.epochs) as watch:
        try:
            done = fit_model(
                ready,
                model,
                out,
                model_settings=chosen,
                settings=settings,
                **changes,
                source=source,
                device=device,
                fresh=fresh,
                watch=watch,
            )
        except KeyboardInterrupt:
            typer.echo(f"\nstopped. The same command goes on where it was ({out}).", err=True)
            raise typer.Exit(130) from None
    best = done.best
    value_now = best[f"validation_{ready.metric}"]
    said = f"{ready.metric} {shown(value_now)}" if value_now is not None else "metric not defined"
    typer.echo(f"\n{done.ended}; kept epoch {best['epoch']}: validation {said}.")
    typer.echo(f"model: {out / 'model'}\nnext:  onlinecde evaluate {out}")
