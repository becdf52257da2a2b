"""Bulk scoring gives what `model(batch)` gives, for any control, and loses nothing that is wrong."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from spark_jobs import delivered, events_of, ward_model, without_static

import onlinecde as oc
from onlinecde.data.ward import simulate_ward
from onlinecde.scale.spark import SparkError, bulk, score
from onlinecde.series import Schema, StaticColumn
from onlinecde.streaming.served import named_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)
COLUMNS = "stream string, time double, channel string, value double"


def compared(found, model, series):
    """Check every row against the model on the whole batch."""
    with torch.no_grad():
        outputs = model(series)
        probabilities = model.readout.probabilities(outputs).numpy()
    assert len(found) == int(series.real.sum())
    for number in range(len(series)):
        for place, time in enumerate(series.times[number][series.real[number]].tolist()):
            row = found[f"bed {number}", time]
            np.testing.assert_allclose(
                row.outputs, outputs[number, place].numpy(), rtol=1e-6, atol=1e-6
            )
            np.testing.assert_allclose(
                row.probabilities, probabilities[number, place], rtol=1e-6, atol=1e-6
            )


def test_a_lake_is_scored_as_one_batch(spark, tmp_path, rng):
    model, series = ward_model(tmp_path / "model", streams=30, seed=int(rng.integers(1000)))
    static = {f"bed {n}": series.static[n].tolist() for n in range(len(series))}
    events = delivered(rng, events_of(series), late=50.0)
    strange = [("bed 0", 1.0, "no such", 1.0), ("bed 1", float("nan"), series.channels[0], 1.0)]
    lake = [(*one, static[one[0]]) for one in [*events, *strange]]
    lake += [("bed 99", 0.0, series.channels[0], 1.0, [1.0])]
    spark.createDataFrame(lake, COLUMNS + ", static array<double>").write.parquet(
        str(tmp_path / "lake")
    )
    frame = score(
        spark.read.parquet(str(tmp_path / "lake")), tmp_path / "model", static="static", together=7
    )
    rows = frame.collect()
    wrong = {(row.stream, row.code) for row in rows if row.kind == "refused"}
    assert wrong == {
        ("bed 0", "channel_unknown"),
        ("bed 1", "time_not_finite"),
        ("bed 99", "stream_refused"),
    }
    assert "static features" in next(r.message for r in rows if r.code == "stream_refused")
    compared({(r.stream, r.time): r for r in rows if r.kind == "row"}, model, series)


def test_models_that_need_the_whole_series_are_scored_too(spark, tmp_path):
    series = without_static(simulate_ward(6, seed=4, hours=6.0).task.series)
    torch.manual_seed(0)
    model = oc.NeuralCDE(
        len(series.channels), 5, control="natural_cubic", outputs=2, field={"width": 5, "depth": 1}
    ).eval()
    model.fit_scales(series)
    oc.save(model, tmp_path / "model", channels=series.channels)
    found = score(spark.createDataFrame(events_of(series), COLUMNS), tmp_path / "model").collect()
    compared({(row.stream, row.time): row for row in found}, model, series)


def test_streams_are_whole_however_frames_are_cut(tmp_path, monkeypatch, rng):
    """The last stream of a frame waits for the next one; the last by `order` counts."""
    pd = pytest.importorskip("pandas")
    series = without_static(simulate_ward(9, seed=5, hours=6.0).task.series)
    torch.manual_seed(0)
    model = oc.NeuralCDE(
        len(series.channels), 5, field={"width": 5, "depth": 1}, readout={"kind": "binary"}
    ).eval()
    oc.save(model, tmp_path / "model", channels=series.channels)
    events = pd.DataFrame(events_of(series), columns=["stream", "time", "channel", "value"])
    events["order"] = 1
    wrong = events.assign(order=0, value=events["value"] + 3.0)
    lake = pd.concat([events, wrong]).sort_values("stream", kind="stable")
    cuts = np.sort(rng.integers(0, len(lake), 6))
    frames = [lake.iloc[a:b] for a, b in zip([0, *cuts], [*cuts, len(lake)], strict=True)]
    monkeypatch.setattr(bulk, "EVENTS_TOGETHER", 50)
    told = named_model(tmp_path / "model").hash
    found = pd.concat(bulk._scored(frames, str(tmp_path / "model"), told, None, 4))
    compared({(row.stream, row.time): row for row in found.itertuples()}, model, series)


def test_a_lake_without_the_columns_is_refused_on_the_driver(spark, tmp_path):
    ward_model(tmp_path / "model")
    lake = spark.createDataFrame(
        [("bed 1", 0.0, "hr")], "stream string, time double, channel string"
    )
    with pytest.raises(SparkError, match=r"no column 'value' for value \(they have stream, time"):
        score(lake, tmp_path / "model")


def test_static_features_come_raw_and_by_name(spark, tmp_path):
    """What is absent or unknown is missing, as it is live."""
    series = without_static(simulate_ward(6, seed=4, hours=4.0).task.series)[:3]
    torch.manual_seed(0)
    model = oc.NeuralCDE(
        len(series.channels),
        5,
        static=3,
        field={"width": 5, "depth": 1},
        readout={"kind": "binary"},
    ).eval()
    columns = (StaticColumn("age", fill=60.0), StaticColumn("sex", categories=("f", "m")))
    model.schema = Schema(series.channels, columns)
    oc.save(model, tmp_path / "model")
    facts = [{"age": 70.0, "sex": "m"}, {"age": None, "sex": "f"}, {"age": 50.0, "sex": "x"}]
    lake = [(*one, facts[int(one[0].split()[1])]) for one in events_of(series)]
    frame = spark.createDataFrame(lake, COLUMNS + ", facts struct<age: double, sex: string>")
    found = score(frame, tmp_path / "model", static="facts").collect()
    encoded = torch.tensor([[70.0, 0.0, 1.0], [60.0, 1.0, 0.0], [50.0, 0.0, 0.0]])
    whole = replace(series, static=encoded, features=model.schema.features)
    compared({(row.stream, row.time): row for row in found}, model, whole)
