"""`onlinecde predict` on a file larger than the memory it is given: peak memory, and time.

    python -m benchmarks.scoring
    python -m benchmarks.scoring --out benchmarks/results/scoring.json

Events of the simulated ward, long, 400 stays and 400 copies of them with ids of their own, in no order at all; a Neural
CDE of hidden 16 and width 16 with random weights. Each run is a process of its own, one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import torch
from rich import box
from rich.console import Console
from rich.table import Table

import onlinecde as oc
from benchmarks.timing import describe, machine, versions, write_results
from onlinecde.data import simulate_ward

STAYS, COPIES = 400, 400
MEMORY = 64
PROGRAM = """
import json, re, sys, time
from pathlib import Path
from onlinecde.scoring.files import predict_file
from onlinecde.scoring.output import OutputFile
from onlinecde.scoring.request import Request
home, events, at, memory = sys.argv[1:]
request = Request.build(Path(home, "model"), Path(home, events), at=at, stream="stay", time="hours", channel="name", value="value")
begun = time.perf_counter()
done = predict_file(request, OutputFile.named(Path(home, "scores.parquet"), overwrite=True), memory=int(memory) << 20)
print(json.dumps({"seconds": time.perf_counter() - begun, "scores": done.lines, "streams": done.streams,
    "peak_mib": int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024}))
"""  # noqa: E501


def make(home: Path) -> float:
    """Write the model and both tables; the larger one's size in memory, MiB."""
    task = simulate_ward(STAYS, seed=7).task
    series = task.series
    torch.manual_seed(0)
    model = oc.NeuralCDE(len(series.channels), 16, field={"width": 16}, readout={"kind": "binary"})
    bare = oc.SeriesBatch.from_padded(
        series.times, series.values, series.rows, channels=series.channels
    )
    oc.save(model.fit_scales(bare).eval(), home / "model")
    stay, row = series.real.nonzero(as_tuple=True)
    wide = pl.DataFrame({"stay": stay.numpy(), "hours": series.times[series.real].numpy()})
    wide = wide.with_columns(
        pl.Series(name, series.values[stay, row, place].numpy(), nan_to_null=True)
        for place, name in enumerate(series.channels)
    )
    small = wide.unpivot(index=["stay", "hours"], variable_name="name").drop_nulls()
    small.write_parquet(home / "small.parquet")
    parts = [small.with_columns(pl.col("stay") + STAYS * copy) for copy in range(COPIES)]
    large = pl.concat(parts).sample(fraction=1.0, shuffle=True, seed=0)
    large.write_parquet(home / "large.parquet", row_group_size=250_000)
    # Ids become texts, times and values float64, and each line has its number.
    return float(large.with_columns(pl.col("stay").cast(pl.String), line=0.0).estimated_size("mb"))


def run(home: Path, events: str, at: str, memory: int) -> dict[str, Any]:
    words = [sys.executable, "-c", PROGRAM, str(home), events, at, str(memory)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS"), "1")
    env = {**os.environ, **threads}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=env)
    told = json.loads(done.stdout.splitlines()[-1])
    return {"events": events, "at": at, "memory_mib": memory, **told}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        size = make(home)
        found = [
            run(home, events, at, memory)
            for at in ("end", "rows")
            for events, memory in (("small.parquet", MEMORY), ("large.parquet", MEMORY), ("large.parquet", 1024))
        ]  # fmt: skip
    table = Table(title=f"A table of {size:,.0f} MiB", box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("table", "asked at", "--memory", "peak memory", "seconds", "scores"):
        table.add_column(column, justify="right")
    for one in found:
        table.add_row(
            one["events"], one["at"], f"{one['memory_mib']:,}", f"{one['peak_mib']:,.0f} MiB",
            f"{one['seconds']:.0f}", f"{one['scores']:,}",
        )  # fmt: skip
    console = Console(width=120)
    console.print(table)
    hardware = machine()
    installed = versions("onlinecde", "torch", "numba", "polars", "duckdb")
    for line in describe(hardware, installed):
        console.print(line, highlight=False)
    if asked.out:
        write_results(asked.out, command=["python", "-m", "benchmarks.scoring", *sys.argv[1:]],
                      settings={"stays": STAYS, "copies": COPIES, "mib": size},
                      hardware=hardware, installed=installed, results=found)  # fmt: skip


if __name__ == "__main__":
    main()
