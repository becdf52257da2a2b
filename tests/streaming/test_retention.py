"""What is old is deleted a little at a time; answers, states and alarms to come stay as they were. On every store."""

import numpy as np
import postgres_server
import pytest
import torch
from made_streams import CHANNELS, made_model
from test_stores import STORES

import onlinecde as oc
from onlinecde.models import AlarmPolicy
from onlinecde.streaming import Engine, Event, StreamingError, UnknownStream
from onlinecde.streaming.maintenance import check_store, export_events, repair_store
from onlinecde.streaming.pieces import result_of
from onlinecde.streaming.retention import Retention

POLICY = AlarmPolicy(0.1, rearm=0.05)


@pytest.fixture(scope="module")
def server():
    """PostgreSQL for all tests of this file, each in a schema of its own."""
    if why := postgres_server.missing():
        pytest.skip(why)
    with postgres_server.postgres(durable=False) as made:
        yield made


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    made = STORES[request.param](tmp_path, request.getfixturevalue)
    yield made
    made.close()


def followed(store=None, wall=None, model=None):
    return Engine(
        model or made_model(), store, channels=CHANNELS, lateness=2.0, checkpoint_rows=4, policy=POLICY,
        clock=lambda: 0.0 if wall is None else wall[0],
    )  # fmt: skip


def feed(engines, wall, first, last, streams="abc"):
    random = np.random.default_rng(first)
    for step in range(first, last):
        wall[0] = 100.0 + step
        events = [
            Event(
                name,
                step / 2,
                CHANNELS[random.integers(3)],
                float(random.normal()),
                f"{name}{step}",
            )
            for name in streams
        ]
        for engine in engines:
            engine.apply(events)


def test_old_rows_alarms_and_refusals_go_and_no_answer_changes(store):
    wall = [0.0]
    engine, whole = followed(store, wall), followed(wall=wall)
    feed((engine, whole), wall, 0, 60)
    engine.apply([Event("a", 1.0, "no such", 1.0)])
    before = {name: engine.state(name) for name in "abc"}
    wall[0] = 160.0
    pieces = list(engine.retain_pieces(Retention(received=20.0)))
    deleted = pieces[-1]
    assert len(pieces) > 3
    assert deleted.rows > 60
    for name in "abc":
        left, all_ = engine.history(name), whole.history(name)
        assert [(row.time, row.events, row.outputs) for row in left] == [
            (row.time, row.events, row.outputs) for row in all_[-len(left) :]
        ]
        assert 20 <= len(left) <= 26, (
            "those received lately, and those from the state before them on"
        )
        assert engine.state(name) == before[name]
        with pytest.raises(StreamingError, match="deleted by retention"):
            engine.history(name, until=left[0].time - 1.0)
        # Late events within the lateness need nothing that is gone.
        late = Event(name, left[-1].time - 1.7, CHANNELS[0], 0.25)
        assert engine.apply([late]).counts == whole.apply([late]).counts
        assert engine.state(name) == whole.state(name)
    newest = {one.stream: one for one in reversed(whole.alarms()) if one.number}
    kept = {one.number for one in engine.alarms()}
    assert kept >= {one.number for one in newest.values()}
    assert kept >= {one.number for one in whole.alarms() if one.raised >= 140.0}
    assert len(kept) < len(whole.alarms())
    feed((engine, whole), wall, 60, 70)
    assert [(one.stream, one.time) for one in engine.alarms() if one.raised > 161.0] == [
        (one.stream, one.time) for one in whole.alarms() if one.raised > 161.0
    ]


def test_a_late_event_before_the_cut_is_refused_by_name(store):
    wall = [0.0]
    engine = followed(store, wall)
    feed((engine,), wall, 0, 40)
    engine.prune(3.0)
    first = engine.history("a")[0].time
    patient = Engine(
        made_model(), store, channels=CHANNELS, lateness=50.0, checkpoint_rows=4, policy=POLICY
    )
    told = patient.apply(
        [Event("a", first - 0.7, CHANNELS[0], 1.0), Event("b", 20.0, CHANNELS[0], 1.0)]
    )
    assert [one.outcome.name for one in told] == ["REFUSED", "APPLIED"]
    assert told[0].refusal.code == "before_cut"


def test_streams_that_ended_or_fell_silent_are_forgotten(store):
    wall = [0.0]
    engine = followed(store, wall)
    feed((engine,), wall, 0, 10)
    engine.end_stream("a")
    engine.end_stream("b")
    feed((engine,), wall, 10, 12, "bc")  # b goes on after all
    wall[0] += 50.0
    assert result_of(engine.retain_pieces(Retention(ended=60.0))).streams == 0
    wall[0] += 20.0
    assert result_of(engine.retain_pieces(Retention(ended=60.0))).streams == 1
    with pytest.raises(UnknownStream):
        engine.stream("a")
    assert engine.alarms() == [one for one in engine.alarms() if one.stream != "a"]
    feed((engine,), wall, 200, 201, "c")
    assert result_of(engine.retain_pieces(Retention(idle=60.0))).streams == 1
    assert list(engine.overview().streams) == ["c"]


def test_another_model_takes_over_on_every_store(store, tmp_path):
    wall = [0.0]
    torch.manual_seed(5)
    other = oc.NeuralCDE(channels=3, hidden=4, outputs=2, field={"width": 5}).eval()
    oc.save(other, tmp_path / "other", channels=CHANNELS)
    engine, fresh = followed(store, wall), followed(wall=wall, model=other)
    feed((engine, fresh), wall, 0, 20)
    engine.shadow.begin(tmp_path / "other")
    for step in range(20, 30):
        feed((engine, fresh), wall, step, step + 1)
        late = [Event("b", step / 2 - 1.2, CHANNELS[1], 0.5)]
        for one in (engine, fresh):
            one.apply(late)
        engine.shadow.piece()
    list(engine.shadow.promote_pieces())
    feed((engine, fresh), wall, 30, 40)
    for name in "abc":
        assert engine.state(name) == fresh.state(name)
    while engine.shadow.piece():
        pass
    assert store.shadows([1, 2, 3]) == {}
    assert store.head().model == engine.model_hash == fresh.model_hash


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_store_is_looked_through_mended_and_written_out(kind, tmp_path, request):
    store = STORES[kind](tmp_path, request.getfixturevalue)
    wall = [0.0]
    engine = followed(store, wall)
    feed((engine,), wall, 0, 30)
    states = {name: engine.state(name) for name in "abc"}
    report = check_store(store)
    assert report.faults == []
    assert (report.records["rows"], report.records["states"]) == (90, 3)
    with store._transaction():
        store._change("UPDATE rows SET sequence = sequence + 4096 WHERE stream = 1 AND time = 2.5")
        store._change("DELETE FROM rows WHERE stream = 2 AND time = 3.0")
        store._change("UPDATE alarms SET threshold = 3.25 WHERE number = 1")
    told = [str(one) for one in check_store(store).faults]
    assert any("stream 'a': rows at 2.5" in one for one in told)
    assert any("stream 'b': rows" in one for one in told)
    assert any("alarms" in one for one in told)
    result = repair_store(store, tmp_path / "aside.jsonl")
    assert any("one bit was flipped" in one for one in result.done)
    assert any("'b': a row is lost" in one for one in result.done)
    assert check_store(store).faults == []
    assert "alarms" in (tmp_path / "aside.jsonl").read_text()
    engine._state.reread()
    assert {name: engine.state(name) for name in "abc"} == states
    assert len(engine.history("a")) == 30
    left = len(engine.history("b"))
    assert 15 < left < 25
    assert export_events(store, tmp_path / "events.csv")[:2] == (3, 60 + left)
    store.compact()
    store.close()


def test_records_of_an_earlier_version_get_their_checksums(tmp_path):
    import shutil
    from pathlib import Path

    from onlinecde.streaming import SQLiteStore

    golden = Path(__file__).parents[1] / "golden" / "v0_1" / "stores"
    for file in golden.glob("binary.db*"):
        shutil.copy(file, tmp_path / file.name)
    store = SQLiteStore(tmp_path / "binary.db")
    assert store.unchecked
    report = check_store(store)
    assert report.faults == []
    assert report.without_checksum > 0
    repair_store(store, tmp_path / "aside.jsonl")
    store.close()
    store = SQLiteStore(tmp_path / "binary.db")
    assert not store.unchecked
    report = check_store(store)
    assert report.faults == []
    assert report.without_checksum == 0
    rows = [row for stream in store.streams() for row in store.rows(stream.number)]
    assert all(row.before is not None for row in rows)
    store.close()
