"""Another model is built beside the one that serves, compared, and takes over or is thrown away; nothing stops."""

import time

import httpx
import pytest
import torch

import onlinecde as oc
from onlinecde.cli.app import main
from onlinecde.serving import ServeSettings, create_app, in_background
from onlinecde.serving.opening import open_engine
from onlinecde.streaming import Engine, SQLiteStore, StreamingError

CHANNELS = ["heart_rate", "lactate"]


@pytest.fixture
def folders(tmp_path):
    """Two models that may take each other's place, and one that answers something else."""
    made = {}
    for seed, name, outputs in ((1, "first", 1), (2, "second", 1), (3, "other", 2)):
        torch.manual_seed(seed)
        model = oc.NeuralCDE(
            channels=2, hidden=4 + seed, outputs=outputs, field={"width": 6}, readout={"kind": "binary"}
        ) if outputs == 1 else oc.NeuralCDE(channels=2, hidden=4, outputs=2, field={"width": 6})  # fmt: skip
        made[name] = tmp_path / name
        oc.save(model.eval(), made[name], channels=CHANNELS)
    return made


def rows(first, last):
    return [
        {"stream": f"bed {n % 5}", "time": float(n // 5), "values": {"heart_rate": 60.0 + n % 7, "lactate": n % 3}}
        for n in range(first, last)
    ]  # fmt: skip


def wait_until(client, state):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        told = client.get("/v1/model/shadow").json()
        if told["state"] == state:
            return told
        time.sleep(0.05)
    raise AssertionError(told)


def test_a_model_is_built_compared_and_takes_over(folders, tmp_path, capsys):
    settings = ServeSettings(port=0)
    engine, settings = open_engine(folders["first"], tmp_path / "live.db", settings, lateness=2.0)
    before = engine.model_hash
    with (
        in_background(create_app(engine, settings), settings) as url,
        httpx.Client(base_url=url) as client,
    ):
        client.post("/v1/events", json=rows(0, 60)).raise_for_status()
        assert client.post("/v1/model/shadow/promote").status_code == 404
        told = client.post("/v1/model/shadow", json={"folder": str(folders["other"])})
        assert told.json()["error"]["code"] == "shadow_unfit"
        assert client.post("/v1/model/shadow", json={"folder": "nowhere"}).status_code == 422
        main_exits(["model", "shadow", str(folders["second"]), "--to", url])
        told = wait_until(client, "following")
        assert (told["built"], told["streams"], told["from_cut"]) == (5, 5, 0)
        assert told["compared"] == 5
        assert told["mean_difference"] > 0
        assert (
            f"onlinecde_shadow_mean_difference {told['mean_difference']}"
            in client.get("/metrics").text
        )
        again = client.post("/v1/model/shadow", json={"folder": str(folders["second"])})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "shadow_exists")
        client.post("/v1/events", json=rows(60, 70)).raise_for_status()
        main_exits(["model", "promote", "--to", url])
        client.post("/v1/events", json=rows(70, 100)).raise_for_status()
        assert client.get("/v1/model").json()["model"] != before
        assert wait_until(client, "none")["model"] is None
        main_exits(["model", "status", "--to", url])
        says = client.get("/v1/streams/bed 3/prediction", params={"at": 19.0}).json()
    out = capsys.readouterr().out
    assert "streams built" in out
    assert "no model beside" in out
    fresh = Engine(folders["second"], lateness=2.0)
    for row in rows(0, 100):
        fresh.apply(events_of(row))
    # Whoever starts the server with the old model is given the one that took over; states are as if it had always been.
    engine, _ = open_engine(folders["first"], tmp_path / "live.db", ServeSettings(), lateness=2.0)
    assert engine.model_hash == fresh.model_hash != before
    for stream in fresh.overview().streams:
        assert engine.state(stream) == fresh.state(stream)
    # float32: the last bits of an answer may depend on which streams were asked together.
    wanted = fresh.probabilities(fresh.predict("bed 3", 19.0))[0]
    assert says["probabilities"][0] == pytest.approx(wanted, abs=1e-6)
    assert len(engine.history("bed 3")) == 20
    engine.close()


def events_of(row):
    from onlinecde.streaming import Event

    return [Event(row["stream"], row["time"], name, value) for name, value in row["values"].items()]


def main_exits(words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code


def test_what_is_discarded_leaves_nothing_and_a_folder_that_changed_is_not_gone_on_with(
    folders, tmp_path
):
    with Engine(folders["first"], SQLiteStore(tmp_path / "live.db")) as engine:
        for row in rows(0, 40):
            engine.apply(events_of(row))
        states = [engine.state(f"bed {n}") for n in range(5)]
        engine.shadow.begin(folders["second"])
        assert engine.shadow.piece()
        assert engine.shadow.piece()
    with Engine(folders["first"], SQLiteStore(tmp_path / "live.db")) as engine:
        assert engine.shadow.status().model is not None, "it goes on after a restart"
        while engine.shadow.piece():
            pass
        assert engine.shadow.status().built == 5
    oc.save(oc.load(folders["first"]), tmp_path / "elsewhere", channels=CHANNELS)
    folders["second"].rename(tmp_path / "moved")
    (tmp_path / "elsewhere").rename(folders["second"])
    with Engine(folders["first"], SQLiteStore(tmp_path / "live.db")) as engine:
        assert engine.shadow.status().state == "clearing"
        while engine.shadow.piece():
            pass
        assert engine.shadow.status().state == "none"
        assert engine.store.shadows(range(10)) == {}
        assert [engine.state(f"bed {n}") for n in range(5)] == states


def test_streams_that_retention_cut_are_counted_and_begin_with_what_is_left(folders, tmp_path):
    with Engine(folders["first"], SQLiteStore(tmp_path / "live.db"), checkpoint_rows=4) as engine:
        for row in rows(0, 100):
            engine.apply(events_of(row))
        assert engine.prune(5.0) > 0
        engine.shadow.begin(folders["second"])
        while engine.shadow.piece():
            pass
        told = engine.shadow.status()
        assert (told.from_cut, told.built) == (5, 5)
        left = engine.history("bed 1")
        for question in (engine.history, engine.curve):
            with pytest.raises(StreamingError, match="deleted by retention") as refused:
                question("bed 1", 0.0, left[0].time - 1.0)
            assert refused.value.code == "before_cut"
        list(engine.shadow.promote_pieces())
        fresh = Engine(folders["second"], checkpoint_rows=4)
        for row in left:
            fresh.apply(events_of({"stream": "bed 1", "time": row.time, "values": row.events}))
        assert engine.state("bed 1") == fresh.state("bed 1")
