"""How many streams a core follows and how long answers take, projected from measured costs.

    python -m benchmarks.sizing
    python -m benchmarks.sizing --out benchmarks/results/sizing.json

Rows arrive at random times, one a minute from each stream. Whoever takes them in takes all that has arrived,
and then again: a micro-batch of n rows takes a + b * n seconds, with a and b from `results/streaming.json`
(the engine with a synced store) and `results/spark.json` (CPU time of two sizes of micro-batch). For Spark, b is taken
to be shared by all cores and a by the two it was measured on; there are so many cores that at the rows a second a
core measured with 10,000 rows a micro-batch, none is more than 70 % busy.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.tables import read
from benchmarks.timing import describe, machine, shown, versions, write_results

MOST_BUSY = 0.7


def measured(name: str) -> dict[str, float]:
    return {one["what"]: one["number"] for one in read(name)["results"]}


def engine_cost() -> tuple[float, float]:
    """Seconds of a commit and of each row in it."""
    found = measured("streaming")
    together = 1_000 / found["micro-batches of 1,000 rows, SQLite, synced"]
    alone = found["one row alone, SQLite, synced"] / 1e6
    each = (together - alone) / 999
    return alone - each, each


def spark_cost(cores: int) -> tuple[float, float]:
    """Seconds of a micro-batch and of each row in it on so many cores."""
    found = measured("spark")
    large = found["CPU of a micro-batch of the job"]
    small = found["CPU of a micro-batch of 1,000 rows"]
    each = (large - small) / 9_000
    return (small - 1_000 * each) / 2e3, each / cores / 1e3


def simulated(a: float, b: float, rate: float, seconds: float = 600.0) -> dict[str, float]:
    """Micro-batches one after the other under arrivals at `rate` a second: busy share and delays."""
    random = np.random.default_rng(0)
    now, window, working, delays = 0.0, a, 0.0, []
    while now < seconds:
        rows = int(random.poisson(rate * window))
        if rows == 0:
            wait = float(random.exponential(1 / rate))
            now, rows, window = now + wait, 1, 0.0
        taken = a + b * rows
        some = random.uniform(0.0, window, min(rows, 500)) if window else np.zeros(1)
        delays.append(some + taken)
        now, window, working = now + taken, taken, working + taken
    every = np.concatenate(delays)
    p50, p99 = np.quantile(every, [0.5, 0.99]).tolist()
    return {"rows_a_second": rate, "row_share": b * rate, "p50": p50, "p99": p99, "longest": window}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    size, found = measured("spark")["state of a stream in Spark's state store"], []
    for streams in (10_000, 100_000, 1_000_000, 10_000_000):
        rate = streams / 60
        a, b = engine_cost()
        told: dict[str, Any] = {"streams": streams, "how": "engine, SQLite", "cores": 1}
        if b * rate < MOST_BUSY:
            found.append({**told, "state_gb": 1078 * streams / 1e9, **simulated(a, b, rate)})
        else:
            parts = int(np.ceil(b * rate / MOST_BUSY))
            told |= {"how": f"{parts} engines, streams split", "cores": parts}
            split = simulated(a, b, rate / parts)
            found.append({**told, "state_gb": 1078 * streams / 1e9, **split})
        cores = 2
        while (
            rate / measured("spark")["Spark, by the CPU time it takes, a core"] > MOST_BUSY * cores
        ):
            cores *= 2
        told = {"streams": streams, "how": "Spark", "cores": cores}
        found.append(
            {**told, "state_gb": size * streams / 1e9, **simulated(*spark_cost(cores), rate)}
        )
    table = Table(title="One row a minute from each stream", box=box.SIMPLE_HEAD)
    for name in ("streams", "how", "cores", "row share", "delay p50", "p99", "states"):
        table.add_column(name, justify="left" if name == "how" else "right")
    for one in found:
        table.add_row(
            f"{one['streams']:,}", one["how"], str(one["cores"]), f"{one['row_share']:.0%}",
            f"{shown(1e3 * one['p50'])} ms", f"{shown(1e3 * one['p99'])} ms", f"{shown(one['state_gb'])} GB",
        )  # fmt: skip
    console = Console(width=120)
    console.print(table)
    hardware, installed = machine(), versions("onlinecde", "numpy")
    for line in describe(hardware, installed):
        console.print(line, highlight=False)
    if asked.out:
        write_results(
            asked.out,
            command=["python", "-m", "benchmarks.sizing", *sys.argv[1:]],
            settings={"rows_a_minute": 1, "most_busy": MOST_BUSY, "seconds": 600},
            hardware=hardware,
            installed=installed,
            results=found,
        )


if __name__ == "__main__":
    main()
