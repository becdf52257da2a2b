"""A model as ONNX graphs with explicit state, in a folder with a description of their use."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onlinecde.artifacts.folders import ArtifactError, check_target, write
from onlinecde.controls import Measurability
from onlinecde.models import OnlineModel
from onlinecde.models.export import OnlinePrograms, export_online
from onlinecde.version import __version__

FORMAT = "onlinecde onnx 1"
ABOUT = "model.json"
OPSET = 18
OLDEST_RUNTIME = "1.19"
"""onnxruntime that the graphs were run on, at least"""
TOLERANCE = 1e-5
ROWS = 12
"""Rows that are followed to compare graphs with their model"""

Graphs = dict[str, bytes]


def save_onnx(
    model: OnlineModel,
    folder: str | os.PathLike[str],
    *,
    classes: tuple[str, ...] = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a model's online step as `init.onnx`, `observe.onnx`, `predict.onnx` and `model.json`, whole or not at all.

    Where onnxruntime is installed, the graphs are run along made series first, and must say what the model says.

    Args:
        model: a Neural CDE with a fixed number of steps, a GRU or a GRU-D.
        folder: where; one that is there is refused, unless `overwrite` is given and it holds such an export.
        classes: names of the outputs.
        overwrite: as above.

    Returns:
        What `model.json` says.

    Raises:
        ArtifactError: the model has no online step of a fixed shape, a package is missing or too old, or the graphs say
            something else than the model.

    >>> save_onnx(model, "out/onnx")["opset"]  # doctest: +SKIP
    18
    """
    target = Path(folder)
    check_target(target, overwrite, ABOUT)
    _check_writer()
    runtime = _runtime()
    try:
        programs = export_online(model, probabilities=True)
    except ValueError as error:
        raise ArtifactError(str(error)) from error
    graphs, described = _graphs(model, programs)
    about = {
        "format": FORMAT,
        "model": type(model).__name__,
        "opset": OPSET,
        "onnxruntime": {"at_least": OLDEST_RUNTIME, "checked": _checked(model, graphs, runtime)},
        "versions": {"onlinecde": __version__, "torch": torch.__version__},
        "graphs": described,
        **_meaning(model, classes),
    }  # fmt: skip
    files = {f"{name}.onnx": graph for name, graph in graphs.items()}
    text = json.dumps(about, indent=1, allow_nan=False) + "\n"
    write(files | {ABOUT: text.encode()}, target, overwrite)
    return about


def _meaning(model: OnlineModel, classes: tuple[str, ...]) -> dict[str, Any]:
    """What numbers that go in and come out are."""
    schema, bins = model.schema, model.readout.bins
    return {
        "channels": None if schema is None else list(schema.channels),
        "static": [] if schema is None else [column.as_json() for column in schema.static],
        "static_features": [] if schema is None else list(schema.features),
        "time_unit": None if schema is None else schema.time_unit,
        "kind": model.readout.kind,
        "outputs": list(classes),
        "bins": None if bins is None else bins.edges.tolist(),
        "online": "at any time" if model.measurability is Measurability.CONTINUOUS else "at rows",
        "rules": [
            "x is in the units of training, NaN where nothing was observed; t never goes back",
            "rows of one time are one row: observe takes them together or one by one, each channel once",
            "predict leaves the state as it is; t is not before a stream's last row",
            "nothing is checked inside the graphs",
        ],
    }


def _graphs(model: OnlineModel, programs: OnlinePrograms) -> tuple[Graphs, dict[str, Any]]:
    """The graphs as bytes, and the names, types and shapes of what goes in and out."""
    names = programs.state
    first = "static_features" if model.static else "streams"
    signatures = {
        "init": ([first], list(names)),
        "observe": ([*names, "t", "x"], [f"{name}_after" for name in names]),
        "predict": ([*names, "t"], ["outputs", "probabilities"]),
    }
    graphs, described = {}, {}
    for name, (inputs, outputs) in signatures.items():
        graph = _as_onnx(getattr(programs, name), inputs, outputs)
        graphs[name] = graph.SerializeToString()
        described[name] = {
            "file": f"{name}.onnx",
            "bytes": len(graphs[name]),
            "inputs": [_described(value) for value in graph.graph.input],
            "outputs": [_described(value) for value in graph.graph.output],
        }
    return graphs, described


def _as_onnx(program: Any, inputs: list[str], outputs: list[str]) -> Any:
    with _quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=inputs,
            output_names=outputs,
        )
    assert made is not None
    return made.model_proto


def _described(value: Any) -> dict[str, Any]:
    kinds = {1: "float32", 9: "bool", 10: "float16", 11: "float64", 7: "int64", 6: "int32"}
    kind = value.type.tensor_type
    shape = [dim.dim_value or "stream" for dim in kind.shape.dim]
    return {"name": value.name, "dtype": kinds.get(kind.elem_type, str(kind.elem_type)), "shape": shape}  # fmt: skip


def check_runtime(version: str) -> None:
    """Refuse an onnxruntime that is older than the graphs were ever run on.

    >>> check_runtime("1.31.1")
    """
    if _numbers(version) < _numbers(OLDEST_RUNTIME):
        raise ArtifactError(
            f"onnxruntime {version} is too old: the graphs need {OLDEST_RUNTIME} or newer "
            "(pip install --upgrade onnxruntime)."
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _check_writer() -> None:
    """Refuse to begin where a package that writes graphs is missing."""
    try:
        import onnxscript  # noqa: F401  # pyright: ignore[reportUnusedImport]

        import onnx  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise ArtifactError(
            f"ONNX graphs are written by onnx and onnxscript ({error}): pip install 'onlinecde[onnx]'."
        ) from error


def _runtime() -> Any:
    """onnxruntime, None where it is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    check_runtime(onnxruntime.__version__)
    return onnxruntime


def _checked(model: OnlineModel, graphs: Graphs, runtime: Any) -> dict[str, Any] | None:
    """By how much outputs differ at most along made series of 1 and of 5 streams; None where nothing could be run."""
    if runtime is None:
        return None
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    cpu = ["CPUExecutionProvider"]
    run = {n: runtime.InferenceSession(g, options, providers=cpu) for n, g in graphs.items()}
    worst = max(_difference(model, run, streams) for streams in (1, 5))
    if not worst <= TOLERANCE:
        raise ArtifactError(
            f"the graphs differ from the model by {worst:.2g} of its largest output, more than {TOLERANCE}: "
            "this model cannot be exported."
        )
    return {"version": runtime.__version__, "difference": worst}


def _difference(model: OnlineModel, run: Mapping[str, Any], streams: int) -> float:
    """The largest difference over a made series, as a share of the largest output (1 where that is smaller)."""
    random, encoding = np.random.default_rng(streams), model.encoding
    dtype = next(model.parameters()).detach().numpy().dtype
    static = random.normal(size=(streams, model.static)).astype(dtype)
    scale = float(encoding.time_scale)
    gaps = random.exponential(0.2, (ROWS, streams)) * scale
    gappy = getattr(model, "control", "rectilinear") == "rectilinear"
    if gappy:
        gaps[ROWS // 2] = 0.0  # a row that goes on at the same time
    clock = float(encoding.time_shift) + gaps.cumsum(0)
    mean, spread = (part[: model.channels].numpy() for part in (encoding.shift, encoding.scale))
    worst, largest = 0.0, 1.0
    with torch.no_grad():
        own = model.init_state(streams, static if model.static else None)
        state = _call(run["init"], [static if model.static else clock[0]])
        for row, t in enumerate(clock):
            x = random.normal(size=(streams, model.channels)) * spread + mean
            if gappy:
                missing = random.random(x.shape) < (1.0 if row == ROWS // 2 else 0.4)
                x[missing] = np.nan
            x = x.astype(dtype)
            own, state = model.observe(own, t, x), _call(run["observe"], [*state, t, x])
            later = t + 0.1 * scale
            wanted = model.predict(own, later)
            outputs, shares = _call(run["predict"], [*state, later])
            likely = model.readout.probabilities(wanted).numpy()
            largest = max(largest, float(wanted.abs().max()))
            worst = max(
                worst, np.abs(outputs - wanted.numpy()).max(), np.abs(shares - likely).max()
            )
    return float(worst / largest)


def _call(session: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What a graph makes of its inputs, in their order."""
    names = [one.name for one in session.get_inputs()]
    return session.run(None, dict(zip(names, arrays, strict=True)))


@contextmanager
def _quiet() -> Any:
    """Silence the exporter's messages about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
