"""Stores that 0.1.0 wrote, closed or killed, are opened, say what they said, and are followed on."""

import json
import shutil
from dataclasses import asdict

import httpx
import pytest
from golden_answers import (
    CHANNELS,
    GOLDEN,
    json_agrees,
    same_machine,
    store_answers,
    stream_answers,
)

import onlinecde as oc
from onlinecde.models import AlarmPolicy
from onlinecde.serving import ServeSettings, TokenBook, create_app, in_background
from onlinecde.serving.opening import open_engine
from onlinecde.streaming import Engine, Event, MemoryStore, SQLiteStore, StreamClock

STORES = {"binary": "binary", "gru-d": "gru-d", "killed": "binary"}
"""Store -> the model it was written with."""


def rounding():
    """0 where answers must be the same bit for bit; else what float32 answers may differ by."""
    return 0.0 if same_machine() else 5e-6


def kept(name):
    return json.loads((GOLDEN / "stores" / name).read_text())


@pytest.fixture
def open_store(tmp_path):
    """Opens a copy of a golden store, WAL and all."""
    opened = []

    def begin(name, **changes):
        for file in (GOLDEN / "stores").glob(f"{name}.db*"):
            shutil.copy(file, tmp_path / file.name)
        settings = {"lateness": 2.0, "checkpoint_rows": 3, "recent": 2, "threshold": 0.5} | changes
        store = SQLiteStore(tmp_path / f"{name}.db")
        opened.append(Engine(GOLDEN / "models" / STORES[name], store, **settings))
        return opened[-1]

    yield begin
    for engine in opened:
        engine.close()


@pytest.mark.parametrize("name", STORES)
def test_a_store_says_what_it_said(name, open_store):
    json_agrees(store_answers(open_store(name)), kept(f"{name}.json"), within=rounding())


@pytest.mark.parametrize("name", sorted(set(STORES.values())))
def test_a_store_knows_its_model_in_memory_too(name, tmp_path):
    folder = GOLDEN / "models" / name
    of_store = next(store for store, model in STORES.items() if model == name)
    for file in (GOLDEN / "stores").glob(f"{of_store}.db*"):
        shutil.copy(file, tmp_path / file.name)
    store = SQLiteStore(tmp_path / f"{of_store}.db")
    with Engine(oc.load(folder), store, lateness=2.0) as engine:
        assert engine.model_hash == Engine(folder).model_hash == store.head().model


def test_they_hold_what_a_store_can_hold():
    told = kept("binary.json")
    for ended in ("duplicate", "corrected", "late_applied", "refused"):
        assert told["counters"][ended] > 0
    assert [alarm["by"] for alarm in told["alarms"]].count("nurse on call") == 1
    assert any(alarm["acknowledged"] is None for alarm in told["alarms"])
    rows = [row for stream in told["streams"].values() for row in stream["history"]]
    assert any(row["superseded"] for row in rows)
    assert any(row["revised"] for row in rows)
    assert "bed gone" not in told["streams"]
    assert (GOLDEN / "stores" / "killed.db-wal").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["binary", "killed"])
def test_a_store_goes_on_as_one_that_was_never_closed(name, open_store):
    """Late events integrate rows again from checkpoints: the answers are those of all rows in order."""
    engine = open_store(name)
    fresh = Engine(GOLDEN / "models" / STORES[name], lateness=1e4)
    for stream in engine.overview().streams:
        fresh.open_stream(stream, static=engine.stream(stream).static)
        for row in engine.history(stream):
            fresh.apply([Event(stream, row.time, *event) for event in row.events.items()])
        for event in three_more(stream, engine):
            for one in (engine, fresh):
                assert one.apply([event])[0].refusal is None
        last = engine.stream(stream).last_time
        found, wanted = (one.predict(stream, last + 2.0).tolist() for one in (engine, fresh))
        json_agrees(found, wanted, within=1e-5)


def three_more(stream, engine):
    """A late event, one more of the newest row, and one of a new row."""
    last = engine.stream(stream).last_time
    yield Event(stream, last - 0.6, "oxygen", 88.0)
    yield Event(stream, last, "lactate", 3.5)
    yield Event(stream, last + 0.5, "heart_rate", 120.0)


def test_a_pruned_store_goes_on_from_its_checkpoints(open_store):
    """As streams do that were exported before the pruning: they bring their states along."""
    engine = open_store("gru-d")
    fresh = Engine(GOLDEN / "models" / "gru-d", lateness=2.0)
    parcels = sorted((GOLDEN / "stores" / "gru-d.parcels").glob("*.bin"))
    for stream in fresh.take([file.read_bytes() for file in parcels]):
        assert len(engine.history(stream)) < engine.stream(stream).rows
        for event in three_more(stream, engine):
            for one in (engine, fresh):
                assert one.apply([event])[0].refusal is None
        last = engine.stream(stream).last_time
        found, wanted = (one.predict(stream, last + 2.0).tolist() for one in (engine, fresh))
        json_agrees(found, wanted, within=1e-5)


def test_an_alarm_is_acknowledged_where_it_was_left_open(open_store):
    engine = open_store("binary")
    alarm = engine.alarms(unacknowledged=True)[-1]
    assert engine.acknowledge(alarm.number, "day shift").by == "day shift"
    assert engine.stream("bed empty").rows == 0
    assert engine.stream("bed 1").origin == 1_699_990_000.0


@pytest.mark.parametrize("name", ["binary", "killed"])
def test_the_clock_is_followed_from_now_on(name, open_store):
    """Alarms of 0.1 stay what they are; streams that ended years ago raise none, one that goes on is looked at."""
    policy = AlarmPolicy(0.5, rearm=0.45, every=0.5)
    engine = open_store(name, threshold=None, policy=policy)
    wall = [engine.clock()]
    engine.clock = lambda: wall[0]
    engine.stream_clock = StreamClock(1 / 3600, 24.0)
    wanted = kept(f"{name}.json")["alarms"]
    assert engine.look() == ()
    old = json.loads(json.dumps([asdict(alarm) for alarm in engine.alarms()]))
    json_agrees(old, wanted, within=rounding())
    assert len(old) == len(wanted)
    assert {alarm["rose"] for alarm in old} == {None}
    streams = engine.overview().streams
    stream = next(one for one in streams if engine.stream(one).origin is None)
    last = engine.stream(stream).last_time
    engine.apply([Event(stream, last + 0.25, "lactate", 3.5)])
    wall[0] += 4 * 3600.0
    assert sum(piece.looks for piece in engine.look_pieces()) == 8
    assert engine.stream(stream).looked == pytest.approx(last + 4.25)


def test_a_store_is_rebuilt_for_another_model(open_store):
    before = open_store("binary")
    rows = {name: before.stream(name).rows for name in before.overview().streams}
    before.close()
    engine = Engine(
        GOLDEN / "models" / "gru-d", SQLiteStore(before.store.file), lateness=2.0, rebuild=True
    )
    assert {name: engine.stream(name).rows for name in rows} == rows
    engine.close()


@pytest.mark.parametrize("name", ["binary", "gru-d"])
def test_exported_streams_are_taken_in(name):
    engine = Engine(GOLDEN / "models" / name, MemoryStore(), lateness=2.0, threshold=0.5)
    home = GOLDEN / "stores" / f"{name}.parcels"
    taken = engine.take([file.read_bytes() for file in sorted(home.glob("*.bin"))])
    assert taken == ["bed 1", "bed 2"]
    for stream, wanted in kept(f"{name}.parcels/answers.json").items():
        found = json.loads(json.dumps(stream_answers(engine, stream, with_past=False)))
        json_agrees(found, wanted, within=rounding())
        last = wanted["last_time"]
        late = engine.apply([Event(stream, last - 1.3, CHANNELS[2], 91.5)])
        assert late[0].outcome.name == "LATE_APPLIED"


def test_a_killed_server_comes_back_with_the_same_answers(tmp_path):
    for file in (GOLDEN / "stores").glob("killed.db*"):
        shutil.copy(file, tmp_path / file.name)
    settings = ServeSettings(port=0)
    model = GOLDEN / "models" / "binary"
    engine, settings = open_engine(
        model, tmp_path / "killed.db", settings, lateness=1.0, threshold=0.5
    )
    wanted = kept("killed.json")
    with in_background(create_app(engine, settings), settings) as url:
        told = {name: httpx.get(f"{url}/v1/{name}").json() for name in ("alarms", "model")}
        json_agrees(told["alarms"]["alarms"], wanted["alarms"], within=rounding())
        assert told["model"]["time_unit"] == "hours"
        for name, stream in wanted["streams"].items():
            home = f"{url}/v1/streams/{name.replace('/', '%2F')}"
            rows = httpx.get(f"{home}/history").json()["rows"]
            for row, kept_row in zip(rows, stream["history"], strict=True):
                assert row["values"] == kept_row["events"]
                json_agrees(row["outputs"], kept_row["outputs"], within=rounding())
            at = stream["last_time"] + 3.0
            said = httpx.get(f"{home}/prediction", params={"at": at}).json()
            json_agrees(said["outputs"], stream["predictions"][2], within=rounding())


def test_tokens_open_what_they_opened():
    book = TokenBook.read(GOLDEN / "stores" / "tokens.json")
    scopes = {
        name: sorted(token.scopes)
        for name in ("ward-gateway", "board")
        if (token := book.whose(f"ocde_no-secret-of-{name}")) is not None
    }
    assert scopes == {"ward-gateway": ["write"], "board": ["read", "write"]}
    assert book.whose("ocde_no-secret-of-nobody") is None
