"""A Spark job answers what the live engine answers, and what the model says offline."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from spark_jobs import (
    WARD_START,
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
    without_static,
    write_batches,
)

import onlinecde as oc
from onlinecde.scale.spark import predict_stream
from onlinecde.streaming.transfer import outline

pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)


def newest(rows):
    """The last revision of each answer after a row."""
    found = {}
    for row in rows:
        place = row["stream"], row["time"]
        if (
            row["kind"] == "row"
            and row["revision"] >= found.get(place, {"revision": -1})["revision"]
        ):
            found[place] = row
    return found


def test_a_job_is_the_engine_is_the_model(spark, tmp_path, rng):
    """Late, shuffled and repeated events over several micro-batches."""
    model, series = ward_model(tmp_path / "model", seed=int(rng.integers(1000)))
    static = {f"bed {n}": series.static[n].tolist() for n in range(len(series))}
    batches = in_parts(delivered(rng, events_of(series)), 3)
    strange = [
        ("bed 0", 0.5, "no such", 1.0),
        ("bed 1", 1e9, "lactate", 1.0),
        ("", 1.0, "lactate", 1.0),
    ]
    batches[1] += [*strange, ("bed 2", -50.0, series.channels[0], 1.0)]
    write_batches(tmp_path / "in", batches, static)
    run(job(spark, tmp_path), tmp_path / "out", tmp_path / "checkpoint")
    engine, refused = followed(tmp_path / "model", batches, static, lateness=1.0)
    said = answers(spark, tmp_path / "out")

    told = [
        (r["stream"], r["time"], r["channel"], r["code"]) for r in said if r["kind"] == "refused"
    ]
    assert {"channel_unknown", "time_absurd", "stream_bad", "too_late"} <= {one[3] for one in told}
    assert sorted(told) == refused
    assert engine.counters["late_applied"] > 0
    assert engine.counters["duplicate"] > 0
    held = parcels(spark, tmp_path / "checkpoint")
    assert sorted(held) == sorted(engine.overview().streams)
    last = newest(said)
    with torch.no_grad():
        offline = model(series).numpy()
    rows = 0
    for number in range(len(series)):
        name = f"bed {number}"
        assert outline(held[name]).state.body == engine.state(name)
        for place, row in enumerate(engine.history(name)):
            mine = last[name, row.time]
            np.testing.assert_allclose(mine["outputs"], row.outputs, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(
                mine["probabilities"], row.probabilities, rtol=1e-6, atol=1e-6
            )
            np.testing.assert_allclose(
                mine["outputs"], offline[number, place], rtol=1e-5, atol=1e-5
            )
            assert mine["revision"] == len(row.revised)
            rows += 1
    assert rows == len(last) == int(series.real.sum())
    assert max(row["revision"] for row in last.values()) > 0


def test_answers_between_rows_come_with_the_watermark(spark, tmp_path):
    """At each tick of the shared clock, from the newest row before it; nothing late is dropped unseen."""
    _, series = ward_model(tmp_path / "other", streams=5, hours=6.0)
    series = without_static(series)
    torch.manual_seed(2)
    model = oc.NeuralCDE(
        len(series.channels), 6, field={"width": 6, "depth": 1}, readout={"kind": "binary"}
    ).eval()
    model.fit_scales(series)
    oc.save(model, tmp_path / "model", channels=series.channels)
    shift = {f"bed {n}": 0.3 * n for n in range(len(series))}
    events = sorted(events_of(series), key=lambda one: one[1] + shift[one[0]])
    end = events[-1][1] + shift[events[-1][0]]
    batches = [[], [], []]
    for one in events:
        batches[min(2, int(3 * (one[1] + shift[one[0]]) / end))].append(one)
    # Behind the watermark when they come: one within the allowed lateness, one beyond it.
    newest = max(one[1] for one in events if one[0] == "bed 0")
    batches.append(
        [("bed 0", newest - 0.4, series.channels[0], 3.0), ("bed 0", -1.0, "lactate", 2.0)]
    )
    write_batches(tmp_path / "in", batches, shift=shift)
    frame = predict_stream(
        source(spark, tmp_path / "in").withWatermark("at", "6 minutes"),
        tmp_path / "model",
        lateness=0.5,
        every=0.25,
        clock="at",
        silent_after=0.9,
        buckets=2,
        pages=2,
    )
    run(frame, tmp_path / "out", tmp_path / "checkpoint")
    said = answers(spark, tmp_path / "out")
    late = [row for row in said if row["time"] in (newest - 0.4, -1.0)]
    assert {(row["kind"], row["code"]) for row in late} == {("row", None), ("refused", "too_late")}

    between = {
        (row["stream"], round(row["time"], 6)): row for row in said if row["kind"] == "between"
    }
    assert len(between) == sum(row["kind"] == "between" for row in said)
    watermark = end - 0.1
    wanted, silent = {}, 0
    for number in range(len(series)):
        name = f"bed {number}"
        rows = series.times[number][series.real[number]].numpy()
        tick = np.ceil(WARD_START / 900) * 900
        while tick <= WARD_START + 3600 * watermark:
            time = (tick - WARD_START) / 3600 - shift[name]
            tick += 900
            earlier = rows[rows <= time]
            if len(earlier) and time - earlier[-1] <= 0.9:
                wanted[name, round(time, 6)] = number, time
            silent += bool(len(earlier) and time - earlier[-1] > 0.9)
    assert silent > 0
    assert sorted(between) == sorted(wanted)
    for place, (number, time) in wanted.items():
        if number == 0 and time >= newest - 0.4:
            continue  # the late event has changed these
        with torch.no_grad():
            offline = model(series, at=torch.tensor([time], dtype=torch.float64))[number, 0]
        np.testing.assert_allclose(between[place]["outputs"], offline.numpy(), rtol=1e-4, atol=1e-5)


def test_a_killed_driver_goes_on_from_its_checkpoint(spark, tmp_path, rng):
    """kill -9 in the middle of a micro-batch: nothing is lost and nothing comes twice."""
    _, series = ward_model(tmp_path / "model", streams=12, seed=int(rng.integers(1000)))
    static = {f"bed {n}": series.static[n].tolist() for n in range(len(series))}
    batches = in_parts(delivered(rng, events_of(series)), 6)
    write_batches(tmp_path / "in", batches, static)
    log = tmp_path / "checkpoint"
    with (tmp_path / "errors").open("w") as errors:
        child = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("killable_spark.py")), str(tmp_path)],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        deadline = time.monotonic() + 120
        while not (1 <= logged(log / "commits") < logged(log / "offsets")):
            assert child.poll() is None, (tmp_path / "errors").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert child.poll() is None
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert child.returncode == -signal.SIGKILL
    assert 1 <= logged(log / "commits") < len(batches)

    run(job(spark, tmp_path), tmp_path / "out", tmp_path / "checkpoint")
    assert logged(log / "commits") == len(batches)
    engine, refused = followed(tmp_path / "model", batches, static, lateness=1.0)
    said = answers(spark, tmp_path / "out")
    rows = [(r["stream"], r["time"], r["revision"]) for r in said if r["kind"] == "row"]
    history = [(name, row) for name in engine.overview().streams for row in engine.history(name)]
    assert sorted(rows) == sorted(
        (name, row.time, revision)
        for name, row in history
        for revision in range(len(row.revised) + 1)
    )
    told = [
        (r["stream"], r["time"], r["channel"], r["code"]) for r in said if r["kind"] == "refused"
    ]
    assert sorted(told) == refused
    held = parcels(spark, log)
    assert {name: outline(body).state.body for name, body in held.items()} == {
        name: engine.state(name) for name in engine.overview().streams
    }


def logged(folder):
    """How many entries one of a checkpoint's logs has."""
    return sum(1 for file in folder.glob("*") if file.name.isdigit())
