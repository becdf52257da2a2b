"""Spark on this machine for tests: a session, a ward as events, and jobs run to their end."""

import datetime
import os
import shutil
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.data.ward import simulate_ward
from onlinecde.streaming import Engine, Event

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SCHEMA = (
    "stream string, time double, channel string, value double, id string, order long, at timestamp, "
    "static array<double>"
)
WARD_START = 1_763_200_000.0


def need_spark():
    """Skip where Spark cannot run, saying why."""
    pytest.importorskip(
        "pyspark", reason="pyspark is not installed: pip install 'onlinecde[spark]'"
    )
    java = os.environ.get("JAVA_HOME")
    if not (java and shutil.which(f"{java}/bin/java")) and not shutil.which("java"):
        pytest.skip("there is no Java: Spark needs version 17 or newer")


def new_session(folder, cores=2):
    """A small session that listens on loopback only and leaves nothing behind outside the folder."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "700m",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder} -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": cores,
        "spark.default.parallelism": cores,
        "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    building = SparkSession.builder.master(f"local[{cores}]").appName("onlinecde tests")
    for name, value in settings.items():
        building = building.config(name, str(value))
    return building.getOrCreate()


def ward_model(folder, streams=12, seed=3, hours=8.0):
    """A small model for a ward and the ward's series, the model saved in the folder."""
    series = simulate_ward(streams, seed=seed, hours=hours).task.series
    torch.manual_seed(seed)
    model = oc.NeuralCDE(
        len(series.channels),
        8,
        static=series.static.shape[1],
        field={"width": 8, "depth": 1},
        readout={"kind": "binary"},
    ).eval()
    model.fit_scales(series)
    oc.save(model, folder, channels=series.channels)
    return model, series


def without_static(series):
    return replace(series, static=None, features=())


def events_of(series):
    """(stream, time, channel, value) of a series, stream by stream, in order of time."""
    found = []
    for stream in range(len(series)):
        real = series.real[stream]
        for time, row in zip(series.times[stream][real], series.values[stream][real], strict=True):
            for channel in (~row.isnan()).nonzero()[:, 0].tolist():
                found.append(
                    (f"bed {stream}", float(time), series.channels[channel], float(row[channel]))
                )
    return found


def delivered(random, events, late=1.0, repeats=0.1):
    """Events as a bad network brings them: by time but each up to `late` late, some of them twice."""
    many = [
        *events,
        *(events[i] for i in random.integers(len(events), size=int(repeats * len(events)))),
    ]
    arrival = np.array([one[1] for one in many]) + random.uniform(0, late, len(many))
    return [many[i] for i in np.argsort(arrival, kind="stable")]


def in_parts(events, many):
    """Events in so many batches."""
    cuts = [round(len(events) * part / many) for part in range(many + 1)]
    return [events[a:b] for a, b in pairwise(cuts)]


def write_batches(folder, batches, static=None, *, start=0, shift=None):
    """Each batch as one file of events, to be read as one micro-batch; `order` is the order of arrival.

    shift: hours from the ward's start to a stream's time 0.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    number = start
    for batch in batches:
        rows = []
        for stream, time, channel, value, *more in batch:
            hours = min(time, 1e5) + (shift or {}).get(stream, 0.0)
            at = datetime.datetime.fromtimestamp(WARD_START + 3600 * hours, datetime.UTC)
            rows.append(
                {
                    "stream": stream,
                    "time": time,
                    "channel": channel,
                    "value": value,
                    "id": more[0] if more else None,
                    "order": number,
                    "at": at,
                    "static": None if static is None else static.get(stream),
                }
            )
            number += 1
        types = pa.schema(
            [
                ("stream", pa.string()),
                ("time", pa.float64()),
                ("channel", pa.string()),
                ("value", pa.float64()),
                ("id", pa.string()),
                ("order", pa.int64()),
                ("at", pa.timestamp("us", "UTC")),
                ("static", pa.list_(pa.float64())),
            ]
        )
        order = np.random.default_rng(number).permutation(len(rows))
        table = pa.Table.from_pylist([rows[i] for i in order], types)
        held = sorted(folder.glob("*.parquet"))
        file = folder / f"{len(held):05d}.parquet"
        pq.write_table(table, file)
        os.utime(file, (1e9 + len(held), 1e9 + len(held)))


def source(spark, folder):
    """The files of a folder, one a micro-batch."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def job(spark, folder, **settings):
    """The job of most tests: files in `folder/in`, the model in `folder/model`."""
    from onlinecde.scale.spark import predict_stream

    told = {"static": "static", "order": "order", "lateness": 1.0, "buckets": 3, "pages": 2}
    return predict_stream(source(spark, folder / "in"), folder / "model", **{**told, **settings})


def run(frame, out, checkpoint):
    """Run a job until it has taken in all there is; its answers are in the folder `out`."""
    writing = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    query = writing.trigger(availableNow=True).start(str(out))
    query.awaitTermination()
    return query


def answers(spark, out):
    """What a job wrote, as plain dicts."""
    return [row.asDict() for row in spark.read.parquet(str(out)).collect()]


def parcels(spark, checkpoint):
    """Parcels of the streams in a job's checkpoint, by name."""
    from onlinecde.scale.spark import read_streams

    return {row.stream: bytes(row.parcel) for row in read_streams(spark, checkpoint).collect()}


def followed(folder, batches, static=None, **settings):
    """An engine that was given the same batches, and what it refused: (stream, time, channel, code)."""
    engine = Engine(folder, **settings)
    for stream, features in (static or {}).items():
        engine.open_stream(stream, static=features)
    refused = []
    for batch in batches:
        receipts = engine.apply([Event(*one) for one in batch])
        for place, why in receipts.refusals.items():
            refused.append((*batch[place][:3], why.code))
    return engine, sorted(refused)
