"""A model of time to an event, served live: one risk for each horizon, all of one mind, and alarms by one of them."""

import json
import math

import numpy as np
import pytest
import torch
from websockets.sync.client import connect

import onlinecde as oc
from onlinecde.data import simulate_ward
from onlinecde.models import AlarmPolicy, AlarmPolicyError
from onlinecde.serving import models
from onlinecde.serving.replay import Server, replay
from onlinecde.serving.screenshots import browser, find_browser
from onlinecde.serving.verify import Questions, verify
from onlinecde.streaming import Engine, MemoryStore, StreamingError
from onlinecde.training import build_model

CHANNELS = ("heart_rate", "lactate")
EDGES = [2.0, 6.0, 12.0, 30.0]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(5)
    made = oc.NeuralCDE(
        len(CHANNELS),
        6,
        outputs=len(EDGES),
        field={"width": 8, "depth": 1},
        readout={"kind": "time-to-event", "width": 5},
    ).eval()
    made.readout.bins.put(EDGES, 12.0)
    with torch.no_grad():
        made.readout.layers[-1].bias.copy_(torch.tensor([-3.0, -2.0, -2.0, -1.0]))
        made.readout.layers[-1].weight.mul_(4.0)
    return made


@pytest.fixture
def served(start, model):
    """Four streams of three rows, watched within 12 hours."""
    engine = Engine(model, MemoryStore(), channels=CHANNELS, threshold=0.01)
    client, engine, url = start(engine=engine, clock_speed=1e-9)
    random = np.random.default_rng(2)
    for time in range(3):
        for bed in "abcd":
            values = dict(zip(CHANNELS, (2 * random.normal(size=2)).tolist(), strict=True))
            client.post("/v1/events", json={"stream": bed, "time": time, "values": values})
    return client, engine, url


def risk(model, outputs, horizon):
    return model.readout.bins.risk_within(torch.tensor(outputs, dtype=torch.float64), horizon)


def test_every_answer_takes_a_horizon(served, model):
    client, engine, _ = served
    about = client.get("/v1/model").json()
    assert about["kind"] == "time-to-event"
    assert (about["horizon"], about["horizons"]) == (12.0, [6.0, 12.0, 24.0])
    assert about["edges"] == EDGES
    outputs = engine.predict("a", 2.5)
    for horizon in (None, 1.0, 6.0, 12.0, 20.0, 30.0):
        asked = {} if horizon is None else {"horizon": horizon}
        told = client.get("/v1/streams/a/prediction", params={"at": 2.5, **asked}).json()
        assert told["outputs"] == pytest.approx(outputs.tolist())
        assert told["probabilities"] == [
            pytest.approx(risk(model, told["outputs"], horizon).item())
        ]
        for path, form in (
            ("/v1/streams", models.Streams),
            ("/v1/streams/a", models.Stream),
            ("/v1/streams/a/history", models.History),
            ("/v1/streams/a/curve", models.Curve),
            ("/v1/streams/a/explanation", models.Explanation),
        ):
            form.model_validate_json(client.get(path, params=asked).content, strict=True)
        history = client.get("/v1/streams/a/history", params=asked).json()["rows"][-1]
        after = risk(model, history["outputs"], horizon).item()
        assert history["probabilities"] == [pytest.approx(after)]
        stream = client.get("/v1/streams/a", params=asked).json()
        assert stream["probabilities"] == stream["now"]["probabilities"] == [pytest.approx(after)]
        span = {"points": 3, "until": 2.5, **asked}
        curve = client.get("/v1/streams/a/curve", params=span).json()
        assert curve["probabilities"][-1] == pytest.approx(told["probabilities"])
        assert len(curve["row_before"][0]) == len(curve["row_probabilities"][0]) == 1
        # What moved it adds up to its log-odds.
        [*_, row] = client.get("/v1/streams/a/explanation", params=asked).json()["rows"]
        parts = row["start"][0] + row["passing_of_time"][0]
        parts += sum(part for (part,) in row["channels"].values())
        assert parts == pytest.approx(math.log(after / (1 - after)), abs=1e-4)


def test_a_longer_horizon_never_has_the_smaller_risk(served):
    client, *_ = served
    risks = [
        client.get("/v1/streams/b/prediction", params={"at": 4.0, "horizon": h}).json()
        for h in np.linspace(0.5, 30, 12)
    ]
    assert (np.diff([one["probabilities"][0] for one in risks]) >= 0).all()


def test_the_overview_is_in_the_order_of_the_risk_that_is_shown(served, model):
    client, engine, _ = served
    for alarm in client.get("/v1/alarms").json()["alarms"]:
        client.post(f"/v1/alarms/{alarm['number']}/acknowledge", json={"by": "ann"})
    for horizon in (2.0, 30.0):
        told = client.get("/v1/streams", params={"horizon": horizon}).json()["streams"]
        shown = [one["probabilities"][0] for one in told]
        assert shown == sorted(shown, reverse=True)
        assert shown == [
            pytest.approx(risk(model, engine.predict(one["stream"], one["now"]), horizon).item())
            for one in told
        ]
        assert [one["trend"] for one in told] == [None] * 4
    watched = client.get("/v1/streams", params={"horizon": 12.0}).json()["streams"]
    assert all(one["trend"] is not None for one in watched)


def test_alarms_watch_the_risk_within_one_horizon(start, model):
    for within in (2.0, 30.0):
        engine = Engine(model, channels=CHANNELS, policy=AlarmPolicy(0.01, horizon=within))
        assert engine.horizon == within
        client, *_ = start(engine=engine)
        row = {"stream": "a", "time": 0, "values": {"lactate": 1.0}}
        told = client.post("/v1/events", json=row, params={"answers": True}).json()["answers"][0]
        [alarm] = client.get("/v1/alarms").json()["alarms"]
        assert alarm["probability"] == pytest.approx(told["probabilities"][0])
        assert alarm["probability"] == pytest.approx(risk(model, told["outputs"], within).item())
    assert (
        client.get("/v1/model")
        .json()["alarm_policy"]["words"]
        .startswith("alarms at 0.01 within 30 hours")
    )
    with pytest.raises(StreamingError, match="up to 30"):
        Engine(model, channels=CHANNELS, policy=AlarmPolicy(0.01, horizon=31.0))
    with pytest.raises(AlarmPolicyError, match="horizon is 0: give a time above 0"):
        AlarmPolicy(0.01, horizon=0.0)
    with pytest.raises(StreamingError, match="output is 1: the model has no such output"):
        Engine(model, channels=CHANNELS, output=1)
    with pytest.raises(AlarmPolicyError, match="that is for models of time to an event"):
        AlarmPolicy(0.01, horizon=3.0).check_outputs(1, "binary")
    assert AlarmPolicy.from_json(AlarmPolicy(0.01, horizon=3.0).as_json()).horizon == 3.0


def test_who_listens_names_a_horizon(served, model):
    client, _, url = served
    with (
        connect(url.replace("http", "ws") + "/v1/live") as one,
        connect(url.replace("http", "ws") + "/v1/live") as other,
    ):
        one.send(json.dumps({"subscribe": "all", "ticks": False, "horizon": 6}))
        other.send(json.dumps({"subscribe": ["a"], "ticks": False}))
        assert json.loads(one.recv())[0]["horizon"] == 6
        assert "horizon" not in json.loads(other.recv())[0]
        row = {"stream": "a", "time": 3, "values": {"lactate": 1.0}}
        asked = {"answers": True, "horizon": 6}
        told = client.post("/v1/events", json=row, params=asked).json()["answers"][0]
        [six], [usual] = json.loads(one.recv()), json.loads(other.recv())
        assert six["predictions"][0]["probabilities"] == told["probabilities"]
        watched = usual["predictions"][0]["probabilities"][0]
        assert watched == pytest.approx(risk(model, told["outputs"], 12.0).item())
        for bad in (31, "soon", True):
            one.send(json.dumps({"subscribe": "all", "horizon": bad}))
            assert json.loads(one.recv())[0]["error"]["field"] == "horizon"


def test_horizons_without_an_answer_are_refused(served, start):
    client, *_ = served
    for horizon in (31, 0, -1):
        for path in ("/v1/streams", "/v1/streams/a", "/v1/streams/a/prediction"):
            told = client.get(path, params={"horizon": horizon})
            assert told.status_code == 422
            assert told.json()["error"]["field"] == "horizon"
            assert "up to 30" in told.json()["error"]["message"]
    row = {"stream": "a", "time": 9, "values": {"lactate": 1.0}}
    for horizon in (31, "soon"):
        told = client.post("/v1/events", json=row, params={"answers": True, "horizon": horizon})
        assert told.status_code == 422
    assert client.get("/v1/streams/a").json()["rows"] == 3
    binary, *_ = start()
    told = binary.get("/v1/streams", params={"horizon": 6})
    assert told.status_code == 422
    assert "the model is binary" in told.json()["error"]["message"]


@pytest.mark.skipif(find_browser()[0] is None, reason=find_browser()[1])
def test_the_page_shows_the_risk_within_the_horizon_a_person_chooses(served):
    client, _, url = served
    with browser() as chromium:
        page = chromium.new_context(viewport={"width": 1200, "height": 800}).new_page()
        complaints = []
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))

        def shown():
            return dict(
                page.eval_on_selector_all(
                    "tr[data-stream]",
                    "all => all.map(row => [row.dataset.stream, Number(row.querySelector('output').dataset.risk)])",
                )
            )

        def wanted(horizon):
            told = client.get("/v1/streams", params={"horizon": horizon}).json()["streams"]
            return {one["stream"]: pytest.approx(one["probabilities"][0]) for one in told}

        page.goto(url)
        page.wait_for_selector("tr[data-stream]")
        assert page.locator("#horizon option").all_inner_texts() == [
            "6\u00a0h", "12\u00a0h", "24\u00a0h",
        ]  # fmt: skip
        assert page.locator("#horizon").input_value() == "12"
        assert shown() == wanted(12)
        assert page.locator(".meter b").count() == 4  # where the alarm is
        page.locator("#horizon").select_option("24")
        page.wait_for_url("**horizon=24*")
        page.wait_for_selector("tr[data-stream]")
        assert shown() == wanted(24)
        assert page.locator(".meter b").count() == 0
        assert "Risk within 24\u00a0h" in page.locator("thead").inner_text()
        page.locator("tr[data-stream] a").first.click()
        page.wait_for_selector(".moves li")
        assert "horizon=24" in page.url
        big = page.locator(".big output")
        name = page.locator("h1").inner_text()
        assert float(big.get_attribute("data-risk")) == wanted(24)[name]
        assert complaints == []


def test_a_replay_verifies_horizons_and_alarms(start):
    """What the server says within any horizon, and when it is alarmed, is what the model says of the whole history."""
    ward = simulate_ward(30, seed=1, hours=10, kind="time-to-event", horizon=6.0).task
    torch.manual_seed(0)
    made = build_model(ward, "neural-cde", {"hidden": 6, "width": 8, "readout_width": 6})
    made.fit_scales(ward.series).eval()
    policy = AlarmPolicy(0.01, rearm=0.005, quiet=0.5, every=0.25, horizon=3.0)
    engine = Engine(made, MemoryStore(), channels=ward.series.channels, policy=policy)
    _, engine, url = start(engine=engine, clock_speed=3600.0)
    server, series = Server(url), ward.split("test")[0]
    try:
        questions = Questions(server, series, "bed ")
        done = replay(series, server, speed=36_000.0, prefix="bed ", seconds=1.5, between=questions)
        found = verify(made, series, server, done, prefix="bed ", between=questions.answered)
        assert found.holds, str(found)
        assert found.compared["within horizons"] == len(questions.answered) > 0
        assert engine.alarms()
        place = len(questions.answered) - 1
        horizon, said = questions.answered.risks[place]
        questions.answered.risks[place] = (horizon, said + 1e-3)
        wrong = verify(made, series, server, done, prefix="bed ", between=questions.answered)
        assert not wrong.holds
        assert "within horizons" in wrong.worst
    finally:
        server.close()
