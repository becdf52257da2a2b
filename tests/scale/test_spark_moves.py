"""A stream moves between the live engine and a Spark job, and what does not fit is said on the driver."""

import shutil

import numpy as np
import pytest
import torch
from spark_jobs import (
    answers,
    delivered,
    events_of,
    followed,
    in_parts,
    job,
    parcels,
    run,
    source,
    ward_model,
    write_batches,
)

import onlinecde as oc
from onlinecde.artifacts import ArtifactError
from onlinecde.scale.spark import SparkError, predict_stream
from onlinecde.streaming import Engine, Event, StreamingError
from onlinecde.streaming.transfer import outline

pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def test_streams_move_from_engine_to_job_and_back(spark, tmp_path, rng):
    """Followed by an engine, then by a job, then by another engine: as if by one engine all along."""
    _, series = ward_model(tmp_path / "model", seed=int(rng.integers(1000)), hours=24.0)
    static = {f"bed {n}": series.static[n].tolist() for n in range(len(series))}
    first, second, third = _one_late(in_parts(delivered(rng, events_of(series)), 3))
    engine, _ = followed(tmp_path / "model", [first], static, lateness=1.0)
    begun = [(name, engine.export(name)) for name in engine.overview().streams]
    write_batches(tmp_path / "in", [second], static)
    begin = spark.createDataFrame(begun, "stream string, parcel binary")
    run(job(spark, tmp_path, begin=begin), tmp_path / "out", tmp_path / "checkpoint")

    whole, _ = followed(tmp_path / "model", [first, second], static, lateness=1.0)
    held = parcels(spark, tmp_path / "checkpoint")
    assert sorted(held) == sorted(whole.overview().streams)
    assert all(outline(held[name]).state.body == whole.state(name) for name in held)
    changed = {(row["stream"], row["time"]) for row in answers(spark, tmp_path / "out")}
    seen = {one[:2] for one in first}
    assert any((name, row.time) in seen for name, row in _rows(whole) if row.revised)
    assert changed

    other = Engine(tmp_path / "model", lateness=1.0)
    assert sorted(other.take(held.values())) == sorted(held)
    for going in (whole, other):
        going.apply([Event(*one) for one in third])
    for name in held:
        assert other.state(name) == whole.state(name)
        recent = {row.time: row for row in whole.history(name)}
        for row in other.history(name):
            np.testing.assert_allclose(row.outputs, recent[row.time].outputs, rtol=1e-6, atol=1e-6)


def _one_late(parts):
    """The parts, with one moment of the first held back to the second though its stream has gone on.

    The last but one of its stream, so that it is not too late to be taken.
    """
    first, second, *others = parts
    times = {}
    for name, time, *_ in first:
        times.setdefault(name, set()).add(time)
    last = {name: sorted(found)[-2:] for name, found in times.items() if len(found) > 1}
    bed = min(last, key=lambda name: last[name][1] - last[name][0])
    held = [one for one in first if one[:2] == (bed, last[bed][0])]
    return [[one for one in first if one not in held], held + second, *others]


def _rows(engine):
    return [(name, row) for name in engine.overview().streams for row in engine.history(name)]


def small(folder, seed=0):
    torch.manual_seed(seed)
    model = oc.NeuralCDE(2, 4, field={"width": 4, "depth": 1}).eval()
    oc.save(model, folder, channels=["hr", "bp"])
    return model


def message(frame, tmp_path):
    """What the driver is told when a job fails on a worker."""
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as caught:
        run(frame, tmp_path / "out", tmp_path / "checkpoint")
    return str(caught.value)


def test_what_a_worker_finds_wrong_is_read_on_the_driver(spark, tmp_path):
    """A folder that is not there, then sent with the job; then another model, and another layout."""
    small(tmp_path / "model")
    write_batches(tmp_path / "in", [[("a", 0.0, "hr", 1.0), ("b", 0.0, "bp", 2.0)]])
    frame = job(spark, tmp_path, static=None, pages=1)
    shutil.move(tmp_path / "model", tmp_path / "away" / "model")
    told = message(frame, tmp_path)
    assert f"model folder {tmp_path / 'model'}" in told
    assert "SparkError: on worker" in told
    assert "addFile(folder, recursive=True)" in told

    spark.sparkContext.addFile(str(tmp_path / "away" / "model"), recursive=True)
    run(frame, tmp_path / "out", tmp_path / "checkpoint")
    assert {row["stream"] for row in answers(spark, tmp_path / "out")} == {"a", "b"}

    write_batches(tmp_path / "in", [[("a", 1.0, "hr", 1.0)]])
    small(tmp_path / "model", seed=5)
    told = message(job(spark, tmp_path, static=None, pages=1), tmp_path)
    assert "the checkpoint's states belong to another job: the model was" in told
    shutil.rmtree(tmp_path / "model")
    shutil.copytree(tmp_path / "away" / "model", tmp_path / "model")
    told = message(job(spark, tmp_path, static=None, pages=3), tmp_path)
    assert "pages was 1, now it is 3" in told


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value": "worth"}, r"no column 'worth' for value \(they have stream, time"),
        ({"id": "at"}, "column 'at' for id is timestamp: cast it to string"),
        ({"time": "at"}, "column 'at' for time is timestamp: give numbers in the model's unit"),
        ({"channel": "value"}, "column 'value' for channel is double"),
        ({"order": "value"}, "column 'value' for order is double: give whole numbers"),
        ({"static": "id"}, "column 'id' for static is string: give an array"),
        ({"every": 1.0}, "every and forget_after go by a clock"),
        ({"clock": "time"}, "column 'time' for clock is double: give a timestamp"),
        ({"every": -1.0, "clock": "at"}, "every is -1.0: give a positive number"),
        ({"buckets": 0}, "buckets is 0: give at least 1"),
    ],
)
def test_what_cannot_be_right_is_refused_before_the_start(spark, tmp_path, change, words):
    small(tmp_path / "model")
    write_batches(tmp_path / "in", [[("a", 0.0, "hr", 1.0)]])
    with pytest.raises(SparkError, match=words):
        predict_stream(source(spark, tmp_path / "in"), tmp_path / "model", **change)


def test_models_and_sessions_that_do_not_fit_are_refused_before_the_start(spark, tmp_path):
    (tmp_path / "in").mkdir()
    events = source(spark, tmp_path / "in")
    with pytest.raises(ArtifactError, match="is not a folder"):
        predict_stream(events, tmp_path / "model")
    small(tmp_path / "model")
    with pytest.raises(StreamingError, match="lateness is -1"):
        predict_stream(events, tmp_path / "model", lateness=-1.0)
    begin = spark.createDataFrame([("a", 1)], "stream string, parcel int")
    with pytest.raises(SparkError, match="begin has columns stream string, parcel int"):
        predict_stream(events, tmp_path / "model", begin=begin)
    ward_model(tmp_path / "ward")
    with pytest.raises(SparkError, match="the model takes 2 static features"):
        predict_stream(events, tmp_path / "ward")
    rocks = spark.conf.get(PROVIDER)
    spark.conf.unset(PROVIDER)
    spark.conf.set(PROVIDER, rocks.replace("RocksDB", "HDFSBacked"))
    try:
        with pytest.raises(SparkError, match="need Spark's RocksDB store, this session has HDFS"):
            predict_stream(events, tmp_path / "model")
    finally:
        spark.conf.set(PROVIDER, rocks)
