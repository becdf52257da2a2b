"""The disk is full, the file is locked, the WAL is torn: nothing half done, and work goes on afterwards."""

import resource
import shutil
import sqlite3
import subprocess
import sys

import pytest
from broken_stores import (
    apply_until_it_fails,
    everything,
    finishes_as_if_nothing_had_happened,
)
from killable_engine import CHANNELS, made_engine, micro_batches

from onlinecde.streaming import (
    CodecError,
    Engine,
    Event,
    EventBatch,
    ModelMismatch,
    SQLiteStore,
    StoreBusy,
    StoreFull,
    StreamingError,
    UnknownStream,
)


def test_a_full_database_applies_nothing_and_goes_on_when_there_is_room(tmp_path):
    store, batches = SQLiteStore(tmp_path / "live.db"), micro_batches(seed=1)[:120]
    engine = made_engine(store)
    engine.apply(batches[0])
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages + 8}")
    failed, error, before = apply_until_it_fails(engine, batches)
    assert isinstance(error, StoreFull)
    assert error.__cause__.sqlite_errorcode == sqlite3.SQLITE_FULL
    assert everything(engine) == before
    with pytest.raises(StoreFull):
        engine.open_stream("one more" * 20)
        for _ in range(100):
            engine.apply([Event("x" * 150, 0.0, "no such", 1.0)] * 50)
    store._db.execute("PRAGMA max_page_count = 1000000")
    recovered = made_engine()
    for events in batches[:failed]:
        recovered.apply(events)
    assert everything(engine)[1] == everything(recovered)[1]
    engine.apply(batches[failed])
    recovered.apply(batches[failed])
    assert everything(engine)[1] == everything(recovered)[1]
    engine.close()


def test_a_file_that_cannot_grow_applies_nothing(tmp_path):
    batches = micro_batches(seed=2)[:150]
    engine = made_engine(SQLiteStore(tmp_path / "live.db"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
    try:
        failed, error, before = apply_until_it_fails(engine, batches)
        assert error.code in ("store_failed", "store_full")
        assert isinstance(error.__cause__, sqlite3.OperationalError)
        # The system refused to let the WAL grow.
        assert (tmp_path / "live.db-wal").stat().st_size > 500_000
        assert everything(engine) == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    finishes_as_if_nothing_had_happened(engine, batches, failed)
    engine.close()


def test_a_database_locked_by_another_process_is_said_to_be_and_waited_for(tmp_path):
    batches = micro_batches(seed=3)[:30]
    engine = made_engine(SQLiteStore(tmp_path / "live.db", wait=0.05))
    for events in batches[:10]:
        engine.apply(events)
    before = everything(engine)
    hold = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "db.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "live.db")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert other.stdout.readline() == "held\n"
        for _ in range(2):
            with pytest.raises(StoreBusy, match="another process holds it") as caught:
                engine.apply(batches[10])
            assert caught.value.__cause__.sqlite_errorcode == sqlite3.SQLITE_BUSY
        assert everything(engine) == before
        assert len(engine.predict_many(engine.overview().streams)) > 0
    finally:
        other.communicate()
    finishes_as_if_nothing_had_happened(engine, batches, 10)
    engine.close()


def test_a_torn_wal_loses_only_what_was_never_acknowledged(tmp_path, rng):
    batches = micro_batches(seed=4)[:40]
    store = SQLiteStore(tmp_path / "live.db")
    store._db.execute("PRAGMA wal_autocheckpoint = 0")
    engine, wal = made_engine(store), tmp_path / "live.db-wal"
    known, sizes = [everything(engine)], [wal.stat().st_size]
    for events in batches:
        engine.apply(events)
        known.append(everything(engine))
        sizes.append(wal.stat().st_size)
    assert sizes == sorted(set(sizes))
    for trial in range(24):
        acknowledged = int(rng.integers(1, len(batches)))
        # A loss of power while the next commit was being written: its frames are there in part, or wrong.
        cut = int(rng.integers(sizes[acknowledged], sizes[acknowledged + 1]))
        data = bytearray(wal.read_bytes()[: cut if trial % 2 else sizes[acknowledged + 1]])
        if trial % 2 == 0:
            data[cut] ^= 0xFF
        folder = tmp_path / str(trial)
        folder.mkdir()
        shutil.copy(tmp_path / "live.db", folder)
        (folder / "live.db-wal").write_bytes(data)
        torn = made_engine(SQLiteStore(folder / "live.db"))
        assert torn.counters["commits"] == acknowledged
        assert everything(torn) == known[acknowledged]
        torn.apply(batches[acknowledged])
        assert everything(torn)[1] == known[acknowledged + 1][1]
        torn.close()
    engine.close()


def test_a_wal_damaged_in_the_middle_gives_an_earlier_state_and_never_half_of_one(tmp_path, rng):
    batches = micro_batches(seed=5)[:40]
    store = SQLiteStore(tmp_path / "live.db")
    store._db.execute("PRAGMA wal_autocheckpoint = 0")
    engine, wal = made_engine(store), tmp_path / "live.db-wal"
    known = {0: everything(engine)}
    begun = wal.stat().st_size
    for number, events in enumerate(batches, 1):
        engine.apply(events)
        known[number] = everything(engine)
    fewer = 0
    for trial in range(12):
        data = bytearray(wal.read_bytes())
        data[int(rng.integers(begun, len(data)))] ^= 0xFF
        folder = tmp_path / str(trial)
        folder.mkdir()
        shutil.copy(tmp_path / "live.db", folder)
        (folder / "live.db-wal").write_bytes(data)
        torn = made_engine(SQLiteStore(folder / "live.db"))
        left = torn.counters["commits"]
        fewer += left < len(batches)
        assert everything(torn) == known[left]
        torn.close()
    assert fewer == 12
    engine.close()


def test_a_damaged_state_is_refused_and_never_served(tmp_path):
    engine = made_engine(SQLiteStore(tmp_path / "live.db"))
    engine.apply([Event("bed 1", 0.0, "a", 1.0), Event("bed 2", 0.0, "a", 1.0)])
    sound = engine.state("bed 1")
    engine.evict(["bed 1"])
    body = bytearray(engine.store.states([1])[0].body)
    body[-40] ^= 1
    engine.store._db.execute("UPDATE states SET body = ? WHERE stream = 1", (bytes(body),))
    for _ in range(2):
        with pytest.raises(CodecError, match="checksum"):
            engine.predict("bed 1")
    told = engine.apply([Event("bed 1", 1.0, "a", 1.0), Event("bed 2", 1.0, "a", 1.0)])
    assert told.counts["applied"] == 1
    assert (told[0].refusal.code, told[0].refusal.field) == ("state_unreadable", "stream")
    engine.close()
    # It does not keep the others from being followed, and its rows are all there still.
    again = made_engine(SQLiteStore(tmp_path / "live.db"))
    assert again.predict("bed 2").shape == (1,)
    assert len(again.history("bed 1")) == 1
    assert again.alarms("bed 1") == []
    with pytest.raises(CodecError, match=r"'bed 1'.*checksum.*repair.*forget"):
        again.state("bed 1")
    again.repair("bed 1")
    assert again.state("bed 1") == sound
    assert again.apply([Event("bed 1", 1.0, "a", 1.0)]).counts["applied"] == 1
    again.close()


def test_a_stream_whose_state_is_damaged_can_be_forgotten(tmp_path):
    engine = made_engine(SQLiteStore(tmp_path / "live.db"))
    engine.apply([Event("bed 1", 0.0, "a", 1.0), Event("bed 2", 0.0, "a", 1.0)])
    engine.evict(["bed 1"])
    engine.store._db.execute("UPDATE states SET body = zeroblob(length(body)) WHERE stream = 1")
    with pytest.raises(CodecError):
        engine.predict("bed 1")
    engine.forget("bed 1")
    assert engine.overview().streams == ("bed 2",)
    assert engine.apply([Event("bed 1", 0.0, "a", 1.0)]).counts["applied"] == 1
    engine.close()


def test_while_the_store_is_away_memory_answers_with_what_was_acknowledged(tmp_path, monkeypatch):
    batches = micro_batches(seed=8)[:30]
    engine = made_engine(SQLiteStore(tmp_path / "live.db"))
    for events in batches[:10]:
        engine.apply(events)
    streams, counters = engine.overview().streams, dict(engine.counters)
    said, asked = engine.predict_many(streams).outputs, []

    def away(*_):
        asked.append(1)
        raise StoreBusy("the database is away")

    for name in ("commit", "head"):
        monkeypatch.setattr(engine.store, name, away)
    fresh = Event("never heard of", 0.0, CHANNELS[0], 1.0)
    with pytest.raises(StoreBusy):
        engine.apply([*batches[10], fresh])
    assert asked
    assert (engine.predict_many(streams).outputs == said).all()
    assert dict(engine.counters) == counters
    assert engine.stream(streams[0]).rows > 0
    with pytest.raises(UnknownStream):
        engine.stream(fresh.stream)
    many = len(asked)
    engine.predict(streams[0])  # and does not ask for it anew at every question
    assert len(asked) == many
    with pytest.raises(StoreBusy):
        engine.apply(batches[10])
    monkeypatch.undo()
    finishes_as_if_nothing_had_happened(engine, batches, 10)
    engine.close()


def test_another_models_store_is_refused_until_it_is_rebuilt(tmp_path):
    import onlinecde as oc

    batches = micro_batches(seed=6)[:20]
    engine = made_engine(SQLiteStore(tmp_path / "live.db"))
    for events in batches:
        engine.apply(events)
    before = everything(engine)
    engine.close()
    other = oc.NeuralCDE(channels=4, hidden=6, outputs=2, field={"width": 7}).eval()
    settings = {"channels": CHANNELS, "lateness": 2.0}
    with pytest.raises(ModelMismatch, match="rebuild=True"):
        Engine(other, (store := SQLiteStore(tmp_path / "live.db")), **settings)
    store.close()
    fresh = Engine(other, **settings)
    for events in batches:
        fresh.apply(events)
    rebuilt = Engine(other, SQLiteStore(tmp_path / "live.db"), rebuild=True, **settings)
    assert everything(rebuilt)[1] == everything(fresh)[1]
    counts = ("received", "applied", "duplicate", "rows", "streams")
    assert [rebuilt.counters[c] for c in counts] == [before[2][c] for c in counts]
    # What the first model said is still told.
    for name, rows in before[0].items():
        assert [row.revised[-1].outputs for row in rebuilt.history(name)] == [
            row[2] for row in rows
        ]
    # And live goes on, late events too.
    more = micro_batches(seed=6)[20:40]
    for events in more:
        rebuilt.apply(events)
        fresh.apply(events)
    assert everything(rebuilt)[1] == everything(fresh)[1]
    rebuilt.close()


def test_a_rebuild_is_bit_for_bit_for_models_with_static_features_too(tmp_path):
    import onlinecde as oc

    features = {f"bed {n}": [n / 7, -n / 3] for n in range(40)}
    events = [event for batch in micro_batches(seed=10)[:20] for event in batch]
    batch = EventBatch.from_events(events, static=features)
    for kind in ("NeuralCDE", "ODERNN"):
        first, second = (getattr(oc, kind)(channels=4, hidden=6, static=2).eval() for _ in range(2))
        with Engine(first, SQLiteStore(tmp_path / kind), channels=CHANNELS, lateness=2.0) as engine:
            engine.apply(batch)
        fresh = Engine(second, channels=CHANNELS, lateness=2.0)
        fresh.apply(batch)
        store = SQLiteStore(tmp_path / kind)
        with Engine(second, store, channels=CHANNELS, lateness=2.0, rebuild=True) as rebuilt:
            assert everything(rebuilt)[1] == everything(fresh)[1]


def test_a_rebuild_finds_channels_by_their_names(tmp_path):
    import onlinecde as oc

    batches = micro_batches(seed=9)[:20]
    for name in ("more.db", "fewer.db"):
        engine = made_engine(SQLiteStore(tmp_path / name))
        for events in batches:
            engine.apply(events)
        engine.close()
    wider = oc.NeuralCDE(channels=5, hidden=6, field={"width": 7}).eval()
    names = ["new", *CHANNELS[::-1]]
    rebuilt = Engine(
        wider, SQLiteStore(tmp_path / "more.db"), channels=names, lateness=2.0, rebuild=True
    )
    fresh = Engine(wider, channels=names, lateness=2.0)
    for events in batches:
        fresh.apply(events)
    found, wanted = everything(rebuilt), everything(fresh)
    assert found[1] == wanted[1]
    assert [[row[:2] for row in rows] for rows in found[0].values()] == [
        [row[:2] for row in rows] for rows in wanted[0].values()
    ]
    rebuilt.close()
    store = SQLiteStore(tmp_path / "fewer.db")
    with pytest.raises(StreamingError, match="channel 'd'"):
        Engine(
            oc.NeuralCDE(channels=3, hidden=6, field={"width": 7}),
            store,
            channels=CHANNELS[:3],
            rebuild=True,
        )
    store.close()


def test_a_store_whose_rows_were_pruned_cannot_be_rebuilt(tmp_path):
    import onlinecde as oc

    engine = made_engine(SQLiteStore(tmp_path / "live.db"))
    for events in micro_batches(seed=7)[:150]:
        engine.apply(events)
    assert engine.prune(2.0) > 0
    engine.close()
    store = SQLiteStore(tmp_path / "live.db")
    with pytest.raises(StreamingError, match="pruned"):
        Engine(
            oc.NeuralCDE(channels=4, hidden=6, field={"width": 7}),
            store,
            channels=CHANNELS,
            rebuild=True,
        )
    store.close()
    made_engine(SQLiteStore(tmp_path / "live.db")).close()
