"""A model that forecasts, served live: each number with its interval, its quantiles, alarms, and a fan on the page."""

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.data import forecast_task, simulate_ward
from onlinecde.models import AlarmPolicy
from onlinecde.serving import models
from onlinecde.serving.replay import Server, replay
from onlinecde.serving.screenshots import browser, find_browser
from onlinecde.serving.verify import Questions, verify
from onlinecde.streaming import Engine, Event, MemoryStore, SQLiteStore, StreamingError
from onlinecde.training import build_model

NAMES = ("heart_rate in 3 h", "heart_rate in 6 h", "lactate in 3 h", "lactate in 6 h")


@pytest.fixture(scope="module")
def task():
    ward = simulate_ward(30, seed=1, hours=20).task
    return forecast_task(ward, ["heart_rate", "lactate"], [3, 6], within=[1.5, 4])


@pytest.fixture(scope="module")
def model(task):
    torch.manual_seed(0)
    made = build_model(task, "neural-cde", {"hidden": 6, "width": 8, "readout_width": 6})
    with torch.no_grad():
        made.readout.layers[-1].weight.normal_(std=0.3)
    return made.fit_scales(task.series).eval()


def test_a_replay_holds_whatever_channel_alarms_watch(start, task, model):
    policy = AlarmPolicy(85.0, quiet=0.5, every=0.25, output=1)
    engine = Engine(model, MemoryStore(), channels=task.series.channels, policy=policy)
    _, engine, url = start(engine=engine, classes=NAMES, clock_speed=3600.0)
    server, series = Server(url), task.split("test")[0]
    try:
        questions = Questions(server, series, "bed ")
        done = replay(series, server, speed=36_000.0, prefix="bed ", seconds=1.5, between=questions)
        found = verify(model, series, server, done, prefix="bed ", between=questions.answered)
        assert found.holds, str(found)
        assert min(found.compared[kind] for kind in ("stored", "between rows", "receipts")) > 0
        assert engine.alarms()
    finally:
        server.close()


@pytest.fixture
def served(start, task, model):
    engine = Engine(model, MemoryStore(), channels=task.series.channels)
    client, engine, url = start(engine=engine, classes=NAMES, clock_speed=1e-9)
    for time, value in enumerate((80.0, 95.0, 90.0)):
        row = {"stream": "a", "time": time, "static": {"age": 60, "sex": 0}}
        client.post("/v1/events", json=row | {"values": {"heart_rate": value, "lactate": time / 2}})
    return client, engine, url


def test_answers_have_names_intervals_and_quantiles(served):
    client, engine, _ = served
    about = client.get("/v1/model").json()
    assert (about["kind"], about["classes"], about["interval_level"]) == ("forecast", [*NAMES], 0.9)
    assert about["forecasts"][1] == {"channel": "heart_rate", "horizon": 6.0}
    for path, form in (
        ("/v1/model", models.About),
        ("/v1/streams", models.Streams),
        ("/v1/streams/a", models.Stream),
        ("/v1/streams/a/prediction?at=2.5", models.Prediction),
        ("/v1/streams/a/history", models.History),
        ("/v1/streams/a/curve?points=3&until=4", models.Curve),
    ):
        form.model_validate_json(client.get(path).content, strict=True)
    said = client.get("/v1/streams/a/prediction", params={"at": 2.5}).json()
    quantiles = engine.predict("a", 2.5).reshape(4, 9)
    np.testing.assert_allclose(np.array(said["outputs"]).reshape(4, 9), quantiles)
    for key, place in (("predicted", 4), ("lower", 0), ("upper", 8)):
        assert list(said[key].values()) == pytest.approx(quantiles[:, place].tolist())
        assert tuple(said[key]) == NAMES
    refused = client.get("/v1/streams/a/explanation")
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "not_explainable")


def test_what_is_watched_is_one_of_the_forecasts(task, model):
    channels = task.series.channels
    Engine(model, MemoryStore(), channels=channels, threshold=500.0, output=3).close()
    with pytest.raises(StreamingError, match="output is 4: the model has no such output"):
        Engine(model, MemoryStore(), channels=channels, threshold=1.0, output=4)


def test_states_of_another_process_go_on(tmp_path, task, model):
    oc.save(model, tmp_path / "model")
    with Engine(tmp_path / "model", SQLiteStore(tmp_path / "live.db")) as engine:
        engine.open_stream("a", static={"age": 60, "sex": 0})
        engine.apply([Event("a", 0.0, "lactate", 7.5)])
        before = engine.predict("a", 1.0)
    with Engine(tmp_path / "model", SQLiteStore(tmp_path / "live.db")) as engine:
        np.testing.assert_array_equal(engine.predict("a", 1.0), before)


@pytest.mark.skipif(find_browser()[0] is None, reason=find_browser()[1])
def test_the_page_shows_the_fan_of_a_chosen_channel(served):
    client, _, url = served
    with browser() as chromium:
        page = chromium.new_context(viewport={"width": 1200, "height": 1500}).new_page()
        complaints = []
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{url}/#/stream/a")
        page.wait_for_selector(".fan-chart .curve")
        assert page.locator(".fan-of option").all_inner_texts() == ["heart rate", "lactate"]
        assert page.locator(".fan-chart .fan").count() == 4
        assert page.locator(".fan-chart .dot").count() == 3
        now = client.get("/v1/streams/a").json()["now"]["predicted"]
        page.locator(".fan-of").select_option("lactate")
        said = page.locator(".ahead-list li").all_inner_texts()
        assert len(said) == 2
        assert f"{now['lactate in 6 h']:.2f}"[:3] in said[1]
        assert "in 6\u00a0h" in said[1]
        assert complaints == []
