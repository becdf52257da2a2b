"""Alarms that rise while no data comes: raised by the server's clock, heard, listed, shown, and said in words."""

import time

import httpx
import numpy as np
import pytest
import torch
from test_live_socket import opened

import onlinecde as oc
from onlinecde.models import AlarmPolicy
from onlinecde.serving import ServeSettings, ServingError, models
from onlinecde.serving.opening import changed_policy, open_engine
from onlinecde.streaming import Engine, MemoryStore

CHANNELS = ("heart_rate", "lactate", "oxygen", "pressure")


@pytest.fixture(scope="module")
def rising(small_model):
    """A row after which the risk rises for hours, and a policy whose threshold it comes to in some of them."""
    random = np.random.default_rng(0)
    while True:
        values = random.normal(size=4).round(3) * 3
        batch = oc.SeriesBatch.from_padded(
            torch.zeros(1, 1), torch.tensor(values)[None, None].float()
        )
        with torch.no_grad():
            risk = (
                small_model(batch, at=torch.tensor([[0.0, 2.0, 4.0]]))[0, :, 0].sigmoid().tolist()
            )
        if risk[0] + 0.01 < risk[1] < risk[2] - 0.01:
            row = {"time": 0.0, "values": dict(zip(CHANNELS, values.tolist(), strict=True))}
            return row, AlarmPolicy(
                risk[1], rearm=risk[0], quiet=4.0, every=0.25, chosen={"budget": 0.5}
            )


@pytest.fixture
def started(start, small_model, rising):
    """A server that looks ten times a second, on which an hour passes in a second."""
    row, policy = rising
    engine = Engine(small_model, MemoryStore(), channels=CHANNELS, policy=policy)
    client, _, url = start(engine=engine, clock_speed=3600.0, look_every=0.1, silent_after=1000.0)
    return client, url, row, policy


def test_an_alarm_between_rows_is_heard_and_listed(started):
    client, url, row, policy = started
    with opened(url) as all_streams, opened(url) as one, opened(url) as another:
        all_streams.say({"subscribe": "all", "ticks": False})
        one.say({"subscribe": ["a"], "ticks": False})
        another.say({"subscribe": ["c"], "ticks": False, "changes": True})
        for talk in (all_streams, one, another):
            talk.hear("subscribed")
        client.post("/v1/events", json=[{**row, "stream": name} for name in ("a", "b")])
        for talk, names in ((all_streams, {"a", "b"}), (one, {"a"})):
            assert talk.hear("predictions")["reason"] == "rows"
            heard = talk.hear("predictions")
            assert (heard["reason"], heard["predictions"]) == ("alarms", [])
            assert {alarm["stream"] for alarm in heard["alarms"]} == names
        assert another.hear("changed")["streams"] == ["a", "b"]
    listed = client.get("/v1/alarms").json()["alarms"]
    assert heard["alarms"][0] in listed
    for alarm in listed:
        models.Alarm.model_validate(alarm)
        assert alarm["rose"] == "between rows"
        assert 2.0 <= alarm["time"] <= 2.25
        assert alarm["time"] % 0.25 == 0
        assert alarm["rearmed"] is None
        assert alarm["policy"] == {
            "threshold": policy.threshold, "rearm": policy.rearm, "quiet": 4.0, "every": 0.25, "output": 0
        }  # fmt: skip
        said = client.get(f"/v1/streams/{alarm['stream']}/prediction", params={"at": alarm["time"]})
        assert said.json()["probabilities"][0] == pytest.approx(alarm["probability"], abs=1e-6)
    counted = client.get("/metrics").text
    assert "onlinecde_alarms_total 2.0" in counted
    looks = float(counted.split("\nonlinecde_looks_total ")[1].split("\n")[0])
    assert looks >= 2 * 2.0 / 0.25


def test_the_model_says_by_what_policy_alarms_are_raised(started, start):
    client, _, _, policy = started
    about = client.get("/v1/model").json()
    models.About.model_validate(about)
    told = about["alarm_policy"]
    assert told["words"] == policy.words("hours")
    assert told["chosen"] == {"budget": 0.5}
    assert (told["every"], about["threshold"], about["look_every"]) == (0.25, policy.threshold, 0.1)
    plain, *_ = start()
    about = plain.get("/v1/model").json()
    assert about["alarm_policy"] is about["threshold"] is about["look_every"] is None


def test_a_stream_says_how_far_it_was_looked_at(started):
    client, _, row, _ = started
    client.post("/v1/events", json={**row, "stream": "a"})
    until = time.monotonic() + 20
    while (told := client.get("/v1/streams/a").json())["looked"] == 0.0:
        assert time.monotonic() < until
    assert 0.0 < told["looked"] <= told["now"]["time"]


@pytest.mark.parametrize(
    ("every", "given", "wanted"),
    [
        (1.0, None, 15.0),
        (1 / 240, None, 3.75),
        (1e-9, None, 1.0),
        (1.0, 0.5, 0.5),
        (None, 0.5, None),
    ],
)
def test_looks_are_made_in_time_for_the_policy(every, given, wanted):
    settings = ServeSettings(look_every=given)
    assert settings.looks_every(AlarmPolicy(0.5, every=every)) == wanted
    assert settings.looks_every(None) is None


def test_a_served_policy_is_the_models_with_what_is_named_changed():
    own = AlarmPolicy(0.3, 0.2, 4.0, 0.25, chosen={"budget": 0.5}).as_json()
    assert changed_policy(own, {"quiet": 2.0}) == AlarmPolicy(0.3, 0.2, 2.0, 0.25)
    assert changed_policy(own, {"threshold": 0.6, "output": 0}) == AlarmPolicy(0.6)
    assert changed_policy(None, {"threshold": 0.6, "every": 1.0}) == AlarmPolicy(0.6, every=1.0)
    with pytest.raises(ServingError, match="no alarm policy, so quiet and every alone say nothing"):
        changed_policy(None, {"quiet": 1.0, "every": 1.0})
    with pytest.raises(
        ServingError, match=r"the alarm policy: rearm is 0\.4, above the threshold 0\.3"
    ):
        changed_policy(own, {"rearm": 0.4, "quiet": 0.0})


def test_a_folders_own_policy_is_served(small_model, rising, tmp_path):
    _, policy = rising
    folder = oc.save(
        small_model, tmp_path / "model", channels=CHANNELS, extra={"time_unit": "hours"}
    )
    oc.artifacts.save_alarm_policy(folder, policy)
    engine, _ = open_engine(folder, None, ServeSettings())
    assert engine.policy == policy
    engine, _ = open_engine(folder, None, ServeSettings(), policy_changes={"quiet": 1.0})
    assert engine.policy.quiet == 1.0


def test_a_killed_server_raises_no_alarm_twice_and_loses_none(serve_process, rising):
    """Killed with -9 between rows and looks; what was due while it was away is made up for."""
    row, policy = rising
    server = serve_process(
        "--threshold", repr(policy.threshold), "--rearm", repr(policy.rearm), "--quiet", "0.1",
        "--every", "0.25", "--look-every", "0.05", "--clock-speed", "3600", "--silent-after", "4",
    )  # fmt: skip
    names = [f"bed {number}" for number in range(20)]
    httpx.post(f"{server.url}/v1/events", json=[{**row, "stream": name} for name in names])
    time.sleep(0.6)
    code, said = server.end()
    assert code == -9
    server.run()
    assert policy.words("hours").split(",")[0] in said
    until = time.monotonic() + 20
    while True:
        alarms = httpx.get(f"{server.url}/v1/alarms").json()["alarms"]
        if len(alarms) >= 20 or time.monotonic() > until:
            break
        time.sleep(0.1)
    assert sorted(alarm["stream"] for alarm in alarms) == sorted(names)
    assert {(alarm["time"], alarm["rose"]) for alarm in alarms} == {
        (alarms[0]["time"], "between rows")
    }
    assert alarms[0]["time"] <= 2.25
