"""`onlinecde export`: a fitted model for places where neither torch nor this package is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    folder: Annotated[Path, typer.Argument(help="Folder of a run or of a saved model.")],
    onnx: Annotated[
        Path, typer.Option(help="Folder to write: init, observe and predict as ONNX, model.json.")
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an export that is there.")
    ] = False,
) -> None:
    """Write a model's online step as ONNX graphs with explicit state, compared with the model where onnxruntime is."""
    from onlinecde.artifacts import load, read_manifest
    from onlinecde.artifacts.onnx_folder import save_onnx
    from onlinecde.training.journal import model_folder

    home = model_folder(folder)
    classes = tuple(map(str, read_manifest(home).extra.get("classes") or ()))
    about = save_onnx(load(home), onnx, classes=classes, overwrite=overwrite)
    size = sum(graph["bytes"] for graph in about["graphs"].values())
    checked = about["onnxruntime"]["checked"]
    if checked is None:
        typer.echo("note: not compared with the model: onnxruntime is not installed", err=True)
        said = ""
    else:
        said = f"; onnxruntime {checked['version']} says what the model says, to {checked['difference']:.1g}"
    typer.echo(f"wrote {onnx}, {size / 1024:,.0f} KiB{said}")
