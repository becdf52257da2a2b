"""A fitted model's online step in onnxruntime, beside this package: how large, how long a row takes.

    python -m benchmarks.onnx
    python -m benchmarks.onnx --out benchmarks/results/onnx.json

A model of 30 channels with counts (61 path channels), hidden 64, width 64, depth 2, float32, whose readout sees X and
16 ramps of each number; 3 of 30 channels are observed at each row. One thread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from rich import box
from rich.console import Console
from rich.table import Table

import onlinecde as oc
from benchmarks.live import CHANNELS, per_call, rows
from benchmarks.timing import describe, machine, versions, write_results
from onlinecde.artifacts.onnx_folder import save_onnx

SEEN = {"sees_path": True, "ramps": 16, "width": 64}


def session(folder: Path, name: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
    )


def call(session: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    names = [one.name for one in session.get_inputs()]
    return session.run(None, dict(zip(names, arrays, strict=True)))


def timed(folder: Path, model: oc.NeuralCDE) -> dict[str, float]:
    """Seconds of an observe and a predict of one stream, and of a row among 1,024 streams, here and there."""
    observe, predict = session(folder, "observe"), session(folder, "predict")
    live, found = model.frozen(), {}
    for streams in (1, 1024):
        x, calls = rows(50, streams), 200 if streams == 1 else 10
        own = live.observe(live.init_state(streams), 0.0, x[0])
        held = call(session(folder, "init"), [np.zeros(streams)])
        held = call(observe, [*held, np.zeros(streams), x[0].numpy()])
        t, rest = np.ones(streams), x.numpy()
        for name, here, there in (
            ("observe", lambda n, o=own, x=x: live.observe(o, 1.0, x[n % 50]),
             lambda n, h=held, t=t, r=rest: call(observe, [*h, t, r[n % 50]])),
            ("predict", lambda n, o=own: live.predict(o, 1.0), lambda n, h=held, t=t: call(predict, [*h, t])),
        ):  # fmt: skip
            for where, function in (("onlinecde", here), ("onnxruntime", there)):
                seconds = per_call(function, calls, 20 if streams == 1 else 10)
                found[f"{name}, {streams}, {where}"] = seconds / streams
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = oc.NeuralCDE(CHANNELS, 64, field={"width": 64, "depth": 2}, readout=SEEN).eval()
    with tempfile.TemporaryDirectory() as home:
        about = save_onnx(model, Path(home) / "onnx")
        found = timed(Path(home) / "onnx", model)
    size = sum(graph["bytes"] for graph in about["graphs"].values())
    table = Table(title="A row in onnxruntime", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("what", "onlinecde", "onnxruntime", "ratio"):
        table.add_column(column, justify="right")
    for what in dict.fromkeys(name.rpartition(", ")[0] for name in found):
        here, there = found[f"{what}, onlinecde"], found[f"{what}, onnxruntime"]
        times = [f"{seconds * 1e6:,.1f} us" for seconds in (here, there)]
        table.add_row(f"{what} streams, a row", *times, f"{there / here:.1f}")
    console = Console(width=120)
    console.print(table)
    difference = about["onnxruntime"]["checked"]["difference"]
    console.print(f"three graphs, {size / 1024:,.0f} KiB; outputs differ by {difference:.1g}")
    hardware = machine()
    installed = versions("onlinecde", "torch", "numba", "onnx", "onnxscript", "onnxruntime")
    for line in describe(hardware, installed):
        console.print(line, highlight=False)
    if asked.out:
        write_results(asked.out, command=["python", "-m", "benchmarks.onnx", *sys.argv[1:]],
                      settings={"channels": CHANNELS, "observed": 3, "hidden": 64, "width": 64, "depth": 2,
                                "readout": SEEN, "bytes": size, "difference": difference},
                      hardware=hardware, installed=installed,
                      results=[{"what": what, "seconds": seconds} for what, seconds in found.items()])  # fmt: skip


if __name__ == "__main__":
    main()
