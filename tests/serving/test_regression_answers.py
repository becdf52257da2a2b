"""A regression served live answers in its own units, by name, and raises alarms at any number."""

import json

import pytest
import torch
from websockets.sync.client import connect

import onlinecde as oc
from onlinecde.serving import models
from onlinecde.streaming import Engine, MemoryStore, StreamingError

CHANNELS = ("heart_rate", "lactate")
NAMES = ("SOFA", "platelets")


@pytest.fixture
def served(start):
    """A client of a server of two numbers, of which platelets are watched, with alarms from -40 on."""
    torch.manual_seed(5)
    model = oc.NeuralCDE(
        len(CHANNELS), 8, outputs=2, field={"width": 8, "depth": 1}, readout={"kind": "regression"}
    ).eval()
    with torch.no_grad():
        model.readout.layers.bias.copy_(torch.tensor([3.0, -30.0]))
    engine = Engine(model, MemoryStore(), channels=CHANNELS, threshold=-40.0, output=1)
    return start(engine=engine, classes=NAMES)


def test_numbers_come_by_name_and_are_never_called_probabilities(served):
    client, engine, url = served
    with connect(url.replace("http", "ws") + "/v1/live") as socket:
        socket.send(json.dumps({"subscribe": "all", "ticks": False}))
        json.loads(socket.recv())
        row = {"stream": "a", "time": 0, "values": {"lactate": 1.0}}
        told = client.post("/v1/events", json=row, params={"answers": True}).json()
        [heard] = json.loads(socket.recv())
    assert told["answers"][0]["predicted"] == dict(
        zip(NAMES, told["answers"][0]["outputs"], strict=True)
    )
    assert heard["predictions"][0]["predicted"] == told["answers"][0]["predicted"]
    assert client.get("/v1/model").json()["classes"] == list(NAMES)
    client.post("/v1/events", json={"stream": "a", "time": 1, "values": {"lactate": 2.0}})
    for path, model in (
        ("/v1/model", models.About),
        ("/v1/streams", models.Streams),
        ("/v1/streams/a", models.Stream),
        ("/v1/streams/a/prediction?at=1.5", models.Prediction),
        ("/v1/streams/a/history", models.History),
        ("/v1/streams/a/curve?points=3&until=2", models.Curve),
        ("/v1/alarms", models.Alarms),
    ):
        content = client.get(path).content
        model.model_validate_json(content, strict=True)
        assert b"probabilit" not in content, path
    soon = client.get("/v1/streams/a/prediction", params={"at": 1.5}).json()["predicted"]
    assert list(soon) == list(NAMES)
    assert list(soon.values()) == pytest.approx(engine.predict("a", 1.5).tolist())
    curve = client.get("/v1/streams/a/curve?points=3&until=2").json()
    assert [row[1] for row in curve["outputs"]] == curve["predicted"]["platelets"]
    assert len(curve["row_predicted"]["SOFA"]) == len(curve["row_times"]) == 2
    history = client.get("/v1/streams/a/history").json()["rows"][-1]
    assert history["values"] == {"lactate": 2.0}
    assert list(history["predicted"].values()) == history["outputs"]


def test_an_alarm_says_which_number_was_reached(served):
    client, *_ = served
    client.post("/v1/events", json={"stream": "a", "time": 0, "values": {"lactate": 1.0}})
    [alarm] = client.get("/v1/alarms").json()["alarms"]
    assert alarm["threshold"] == -40.0
    now = client.get("/v1/streams/a").json()["predicted"]["platelets"]
    assert alarm["value"] == pytest.approx(now)
    assert -40 < now < 0
    assert "probability" not in alarm


@pytest.mark.parametrize(
    ("kind", "threshold", "wanted"),
    [
        ("binary", 1.5, "a probability from 0 to 1"),
        ("binary", float("nan"), "a probability from 0 to 1"),
        ("regression", float("inf"), "a finite number"),
    ],
)
def test_a_threshold_that_can_never_be_reached_is_refused(kind, threshold, wanted):
    model = oc.NeuralCDE(
        len(CHANNELS), 4, outputs=1, field={"width": 4, "depth": 1}, readout={"kind": kind}
    )
    with pytest.raises(StreamingError, match=wanted):
        Engine(model, channels=CHANNELS, threshold=threshold)


def test_numbers_without_names_are_counted(start):
    model = oc.NeuralCDE(
        len(CHANNELS), 4, outputs=2, field={"width": 4, "depth": 1}, readout={"kind": "regression"}
    ).eval()
    client, *_ = start(engine=Engine(model, channels=CHANNELS))
    client.post("/v1/events", json={"stream": "a", "time": 0, "values": {"lactate": 1.0}})
    assert list(client.get("/v1/streams/a").json()["predicted"]) == ["output 1", "output 2"]


def test_intervals_come_beside_the_numbers_by_name(start):
    torch.manual_seed(5)
    model = oc.NeuralCDE(
        len(CHANNELS), 8, outputs=2, field={"width": 8, "depth": 1}, readout={"kind": "regression"}
    ).eval()
    model.intervals = oc.models.Intervals(
        (0.8, 0.9), ((1.0, 1.0), (2.0, 3.0)), ((0.0,), (0.0,)), ((1.0,), (2.0,)), subjects=40
    )
    client, engine, _ = start(engine=Engine(model, MemoryStore(), channels=CHANNELS), classes=NAMES)
    assert client.get("/v1/model").json()["interval_level"] == 0.9
    for time in (0, 1):
        row = {"stream": "a", "time": time, "values": {"lactate": 1.0 + time}}
        told = client.post("/v1/events", json=row, params={"answers": True}).json()["answers"][0]
    assert told["upper"]["platelets"] - told["lower"]["platelets"] == pytest.approx(12.0)
    for path, model_of in (
        ("/v1/streams", models.Streams),
        ("/v1/streams/a", models.Stream),
        ("/v1/streams/a/prediction?at=1.5", models.Prediction),
        ("/v1/streams/a/history", models.History),
        ("/v1/streams/a/curve?points=3&until=2", models.Curve),
    ):
        content = client.get(path).content
        model_of.model_validate_json(content, strict=True)
        assert b'"lower"' in content, path
    live = client.get("/v1/streams/a/prediction?at=1.5").json()
    outputs = torch.from_numpy(engine.predict("a", 1.5))
    lower, upper = model.interval(outputs, 0.9)
    assert list(live["lower"].values()) == pytest.approx(lower.tolist())
    assert list(live["upper"].values()) == pytest.approx(upper.tolist())
    curve = client.get("/v1/streams/a/curve?points=3&until=2").json()
    assert len(curve["lower"]["SOFA"]) == len(curve["times"])
    assert len(curve["row_upper"]["SOFA"]) == len(curve["row_times"])
