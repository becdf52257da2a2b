"""The Spark job on this machine beside the single-process engine, in the same run and on the same events.

    python -m benchmarks.spark
    python -m benchmarks.spark --out benchmarks/results/spark.json

The model and the streams of `benchmarks.streaming`: 10,000 streams, each with one row of 3 events in every
micro-batch. Spark in local mode on 2 cores with 2 shuffle partitions, RocksDB with changelog checkpoints, the
answers thrown away. CPU time, which others on the machine disturb least, is that of Java and the Python workers.
What it goes to is told by leaving parts out: reading and shuffling
without Python, Python without states, and the bucket's own work without Spark.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

import onlinecde as oc
from benchmarks.streaming import STREAMS, Sender, made_model
from benchmarks.timing import describe, machine, shown, versions, write_results
from onlinecde.scale.spark import predict_stream
from onlinecde.scale.spark.bucket import Bucket
from onlinecde.scale.spark.columns import ANSWERS, placed, prepared
from onlinecde.scale.spark.live import PROVIDER, ROCKSDB
from onlinecde.scale.spark.plan import Plan
from onlinecde.scale.spark.processor import as_batch, collector_paused, in_order
from onlinecde.streaming import Engine, EventBatch, MemoryStore, SQLiteStore
from onlinecde.streaming.served import named_model

CORES, BUCKETS, PAGES, WARM, SMALL = 2, 4, 64, 4, 1_000
COLUMNS = "stream string, time double, channel string, value double"


def new_session(folder: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    building = SparkSession.builder.master(f"local[{CORES}]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": CORES,
        "spark.local.dir": folder / "local",
        "spark.sql.warehouse.dir": folder / "warehouse",
        PROVIDER: ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }.items():
        building = building.config(name, str(value))
    return building.getOrCreate()


def written(folder: Path, many: int, rows: int) -> list[Any]:
    """Micro-batches of so many rows as files, and as frames."""
    import pandas as pd

    folder.mkdir()
    sender, frames = Sender(), []
    for number in range(many):
        batch = sender.rows(rows)
        told = (batch.streams, batch.times, batch.channels, batch.values)
        names = [one.split()[0] for one in COLUMNS.split(", ")]
        frames.append(pd.DataFrame(dict(zip(names, told, strict=True))))
        file = folder / f"{number:05d}.parquet"
        frames[-1].to_parquet(file, index=False)
        os.utime(file, (1e9 + number, 1e9 + number))
    return frames


def source(spark: Any, folder: Path) -> Any:
    return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder))


def progress(frame: Any, checkpoint: Path) -> tuple[list[Any], float]:
    """Run a job over all files; what Spark says of micro-batches after the first few, and CPU ms of each."""
    writing = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writing.trigger(availableNow=True).start()
    while query.isActive and len(query.recentProgress) < WARM:
        time.sleep(0.02)
    warm, spent = len(query.recentProgress), cpu_seconds()
    query.awaitTermination()
    reports = list(query.recentProgress)
    return reports[WARM:], 1e3 * (cpu_seconds() - spent) / (len(reports) - warm)


def cpu_seconds() -> float:
    """What the driver's Java and the Python workers have used so far."""
    import psutil

    told = [one.cpu_times() for one in psutil.Process().children(recursive=True)]
    return sum(one.user + one.system for one in told)


def batch_ms(reports: list[Any]) -> float:
    return statistics.median(report.durationMs["triggerExecution"] for report in reports)


def without_states(spark: Any, folder: Path) -> Any:
    """Through Python and back, an answer for every third event, nothing computed."""

    def passed(key: Any, frame: Any) -> Any:
        from onlinecde.scale.spark.columns import answer_frame

        some = frame["stream"].to_numpy(object)[::3]
        nothing = np.zeros((len(some), 1))
        return answer_frame(some, nothing[:, 0], "row", outputs=nothing, probabilities=nothing)

    names = {one: one for one in ("stream", "time", "channel", "value")}
    events = placed(prepared(source(spark, folder), **names), BUCKETS, PAGES)
    return events.groupBy("bucket").applyInPandas(passed, ANSWERS)


def without_python(spark: Any, folder: Path) -> Any:
    names = {one: one for one in ("stream", "time", "channel", "value")}
    events = placed(prepared(source(spark, folder), **names), BUCKETS, PAGES)
    return events.repartition(CORES, "bucket")


def bucket_seconds(model: Path, frames: list[Any]) -> tuple[float, float]:
    """CPU seconds a row of the buckets' own work on one core, and bytes of state a stream."""
    served = named_model(model)
    plan = Plan(str(model), served.hash, lateness=1.0, buckets=BUCKETS, pages=PAGES)
    held: list[dict[str, bytes]] = [{} for _ in range(BUCKETS)]
    taken = []
    for frame in frames:
        parts = [
            frame[frame["stream"].map(hash).to_numpy() % BUCKETS == one] for one in range(BUCKETS)
        ]
        start = time.process_time()
        for number, part in enumerate(parts):
            with collector_paused():
                bucket = Bucket(served, plan, held[number].values())
                bucket.apply(as_batch(in_order(part)), 0.0)
                bucket.answers()
                held[number] |= bucket.packed({}, None)
        taken.append((time.process_time() - start) / STREAMS)
    size = statistics.mean(len(body) for part in held for body in part.values())
    return statistics.median(taken[WARM:]), size


def engine_rows(model: Path, store: Any, frames: list[Any], clock: Callable[[], float]) -> float:
    """Rows a second of one engine on one core, 1,000 rows a commit; the best micro-batch."""
    engine, best = Engine(model, store, lateness=1.0), 0.0
    for number, frame in enumerate(frames):
        columns = [frame[name].tolist() for name in ("stream", "time", "channel", "value")]
        start = clock()
        for first in range(0, len(frame), 3000):
            engine.apply(EventBatch(*(column[first : first + 3000] for column in columns)))
        if number >= WARM:
            best = max(best, STREAMS / (clock() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", type=int, default=16)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []

    def note(what: str, number: float, unit: str) -> None:
        found.append({"what": what, "number": number, "unit": unit})

    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        oc.save(made_model(), home / "model")
        frames = written(home / "in", asked.batches, STREAMS)
        written(home / "small", asked.batches, SMALL)
        in_memory = engine_rows(home / "model", MemoryStore(), frames, time.process_time)
        store = SQLiteStore(home / "live.db")
        synced = engine_rows(home / "model", store, frames, time.perf_counter)
        store.close()
        alone, size = bucket_seconds(home / "model", frames)
        spark = new_session(home)
        _, shuffle = progress(without_python(spark, home / "in"), home / "bare")
        _, python = progress(without_states(spark, home / "in"), home / "passed")
        told = {"lateness": 1.0, "buckets": BUCKETS, "pages": PAGES}
        job = predict_stream(source(spark, home / "in"), home / "model", **told)
        reports, whole = progress(job, home / "checkpoint")
        less = predict_stream(source(spark, home / "small"), home / "model", **told)
        few, small = progress(less, home / "small checkpoint")
        spark.stop()
    wall, computing = batch_ms(reports), 1e3 * alone * STREAMS
    commit = statistics.median(max(one.stateOperators[0].commitTimeMs, 0) for one in reports)
    note(f"Spark, {CORES} cores, micro-batches of {STREAMS:,} rows", 1e3 * STREAMS / wall, "rows/s")
    note("engine, 1 core, store in memory, by CPU time", in_memory, "rows/s")
    note("engine, 1 core, SQLite, synced", synced, "rows/s")
    note("Spark, by the CPU time it takes, a core", 1e3 * STREAMS / whole, "rows/s")
    note("engine in memory against Spark, a core", in_memory * whole / (1e3 * STREAMS), "times")
    note("a micro-batch of the job, from start to end", wall, "ms")
    note(f"a micro-batch of {SMALL:,} rows, from start to end", batch_ms(few), "ms")
    note("CPU of a micro-batch of the job", whole, "ms")
    note(f"CPU of a micro-batch of {SMALL:,} rows", small, "ms")
    note("of the CPU: reading, shuffle, Spark's own logs (the job without Python)", shuffle, "ms")
    note("of the CPU: Arrow and Python workers (nothing computed)", python - shuffle, "ms")
    note("of the CPU: the buckets' work (measured without Spark)", computing, "ms")
    rest = whole - python - computing
    note("of the CPU: states between Python and RocksDB, and what is missed above", rest, "ms")
    note("RocksDB commits of both tasks, as Spark reports, from start to end", commit, "ms")
    note("state of a stream in Spark's state store", size, "bytes")
    table = Table(title="Spark on one machine", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right")
    for one in found:
        table.add_row(one["what"], f"{shown(one['number'])} {one['unit']}")
    console = Console(width=120)
    console.print(table)
    hardware, installed = machine(), versions("onlinecde", "torch", "pyspark", "pandas", "pyarrow")
    for line in describe(hardware, installed):
        console.print(line, highlight=False)
    if asked.out:
        settings = {
            "streams": STREAMS, "events_a_row": 3, "batches": asked.batches, "cores": CORES,
            "buckets": BUCKETS, "pages": PAGES, "lateness": 1.0,
        }  # fmt: skip
        write_results(
            asked.out,
            command=["python", "-m", "benchmarks.spark", *sys.argv[1:]],
            settings=settings,
            hardware=hardware,
            installed=installed,
            results=found,
        )


if __name__ == "__main__":
    main()
