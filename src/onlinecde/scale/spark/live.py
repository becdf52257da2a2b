"""Live streams as a Structured Streaming job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from onlinecde.scale.spark.columns import ANSWERS, SparkError, placed, prepared
from onlinecde.scale.spark.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def predict_stream(
    events: DataFrame,
    model: str | os.PathLike[str],
    *,
    stream: str = "stream",
    time: str = "time",
    channel: str = "channel",
    value: str = "value",
    id: str | None = None,
    order: str | None = None,
    static: str | None = None,
    lateness: float = 0.0,
    horizon: float | None = None,
    ahead: float | None = None,
    every: float | None = None,
    clock: str | None = None,
    rate: float = 1 / 3600,
    silent_after: float = float("inf"),
    forget_after: float | None = None,
    begin: DataFrame | None = None,
    checkpoint_rows: int = 16,
    buckets: int = 32,
    pages: int = 64,
) -> DataFrame:
    """Answers to streaming events, by the rules of `Engine`: a streaming frame with the columns of `ANSWERS`.

    events: one event a row, under the names given by `stream`, `time`, `channel`, `value`, `id`, `static`.
    model: a folder of `oc.save`, at the same place on every worker or sent with `SparkContext.addFile`.
    order: a column (a Kafka offset, a time of arrival) that tells which of two events of a stream came
        first; without it events of one micro-batch are taken in order of time.
    lateness, horizon, ahead, checkpoint_rows: as in `Engine`.
    every: also answer between rows, at every multiple of this (in the model's unit) of the shared clock.
    clock: the timestamp column of the shared clock, with a watermark; needed for `every`, `forget_after`.
    rate: units of the model's time a second; default: the model counts hours.
    silent_after: no more answers between rows so long after a stream's newest row.
    forget_after: drop the state of a stream so long after its newest row.
    begin: streams to go on with, as `read_streams` or `Engine.export` gives them: (stream, parcel).
    buckets: how many groups of streams there are; a group is advanced in one call. pages: into how many
        values of Spark's state a group's streams go. These two, `every` and `rate` stay as they are for the
        life of a checkpoint.

    Raises SparkError before the job starts where columns, settings or the model cannot be right.
    """
    from onlinecde.streaming import Engine

    _check_session(events)
    folder = os.path.abspath(os.fspath(model))  # noqa: PTH100
    engine = Engine(
        folder,
        lateness=lateness,
        horizon=horizon,
        ahead=ahead,
        checkpoint_rows=checkpoint_rows,
    )
    plan = Plan(
        folder,
        engine.model_hash,
        float(lateness),
        horizon,
        ahead,
        checkpoint_rows,
        buckets,
        pages,
        every,
        rate,
        silent_after,
        forget_after,
    )
    plan.check()
    if clock is None and (every is not None or forget_after is not None):
        raise SparkError(
            "every and forget_after go by a clock that all streams share: give clock=, a timestamp "
            'column, and events.withWatermark(that column, "10 minutes").'
        )
    columns = prepared(
        events,
        stream=stream,
        time=time,
        channel=channel,
        value=value,
        id=id,
        order=order,
        clock=clock,
        static=static,
        features=engine.model.static,
    )
    known = None
    if begin is not None:
        known = _parcels(begin, buckets, pages)
    return _transformed(placed(columns, buckets, pages), plan, known)


def _transformed(events: DataFrame, plan: Plan, begin: Any) -> DataFrame:
    from onlinecde.scale.spark.processor import BucketProcessor

    processor: Any = BucketProcessor(plan)
    timed = plan.every is not None or plan.forget_after is not None
    return events.groupBy("bucket").transformWithStateInPandas(
        processor, ANSWERS, "Append", "EventTime" if timed else "None", begin
    )


def _parcels(begin: DataFrame, buckets: int, pages: int) -> Any:
    result = dict(begin.dtypes)
    if result.get("stream") != "string" or result.get("parcel") != "binary":
        raise SparkError(
            f"begin has columns {', '.join(f'{n} {k}' for n, k in result.items())}: give stream string, "
            "parcel binary."
        )
    return placed(begin.select("stream", "parcel"), buckets, pages).groupBy("bucket")


def _check_session(events: DataFrame) -> None:
    spark = events.sparkSession
    provider = spark.conf.get(PROVIDER, "")
    if "RocksDB" not in str(provider):
        raise SparkError(
            f"states need Spark's RocksDB store, this session has {str(provider).rpartition('.')[2]}: "
            f'spark.conf.set("{PROVIDER}", "{ROCKSDB}").'
        )


def read_streams(spark: SparkSession, checkpoint: str | os.PathLike[str]) -> DataFrame:
    """The streams in the checkpoint of a stopped job, (stream, parcel): for `Engine.take` or another job."""
    from pyspark.sql import functions as F  # noqa: N812

    pages = (
        spark.read.format("statestore")
        .option("stateVarName", "pages")
        .load(os.fspath(checkpoint))
        .select(F.col("user_map_value.body").alias("body"))
    )
    return pages.mapInPandas(_opened, "stream string, parcel binary")


def _opened(frames: Any) -> Any:
    import pandas as pd

    from onlinecde.scale.spark.pages import read_page

    for frame in frames:
        kept: dict[str, bytes] = {}
        for body in frame["body"]:
            kept |= read_page(bytes(body))
        yield pd.DataFrame({"stream": list(kept), "parcel": list(kept.values())})
