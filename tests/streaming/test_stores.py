"""Every store keeps what it is given, whole or not at all. A new store is added to `STORES` and to nothing else."""

import sqlite3

import pytest
from made_streams import CHANNELS, made_model

from onlinecde.streaming import Engine, Event, MemoryStore, SQLiteStore, StoreBusy, StoreError
from onlinecde.streaming.store import (
    AlarmRecord,
    CheckpointRecord,
    Commit,
    RefusedRecord,
    RevisedRecord,
    RowRecord,
    StateRecord,
    StreamRecord,
)

STORES = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SQLiteStore(folder / "live.db"),
}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    made = STORES[request.param](tmp_path)
    yield made
    made.close()


def stream(number=1, name="a"):
    return StreamRecord(number, name, b"static", 5.0)


def row(time, number=1, sequence=1, outputs=b"out"):
    return RowRecord(number, time, sequence, b"events", None, outputs)


def state(time, number=1, received=100.0):
    return StateRecord(number, time, 3, 1, 0.0, None, received, b"out", b"body")


def test_a_new_store_is_empty_and_belongs_to_nobody(store):
    assert store.head() == (None, 0, None)
    store.adopt("ab" * 32)
    assert store.head().model == "ab" * 32
    assert store.streams() == store.states() == store.rows(1) == store.alarms() == []
    assert store.find(["a"]) == [None]
    assert store.checkpoint(1, 9.0) is None


def test_what_is_committed_is_read_back(store):
    commit = Commit(
        1, 100.0, '{"a": 1}', opened=[tuple(stream()), tuple(stream(2, "b"))],
        rows=[tuple(row(0.0)), tuple(row(-2.5)), tuple(row(1.0)), tuple(row(7.0, number=2))],
        states=[tuple(state(1.0)), tuple(state(7.0, 2, 101.0))],
        checkpoints=[(1, -2.5, b"x"), (1, 1.0, b"y")],
        revised=[(1, 0.0, 1, b"old")],
        refused=[("a", "nan", "c", "1", "time_not_finite")],
        alarms=[(1, 1, 1.0, 0.9, 0.8, 100.0, None, None)],
    )  # fmt: skip
    store.commit(commit)
    assert store.head() == (None, 1, '{"a": 1}')
    assert store.find(["b", "nobody", "a"]) == [stream(2, "b"), None, stream()]
    assert store.streams() == [stream(), stream(2, "b")]
    assert store.streams([2, 9]) == [stream(2, "b")]
    assert store.rows(1) == [row(-2.5), row(0.0), row(1.0)]
    assert store.rows(1, -1.0, 0.5) == [row(0.0)]
    assert store.rows(1, 0.0, 0.0) == [row(0.0)]
    assert store.rows(1, newest=2) == [row(0.0), row(1.0)]
    assert store.states() == [state(1.0), state(7.0, 2, 101.0)]
    assert store.states([2]) == [state(7.0, 2, 101.0)]
    assert store.newest(1) == [2]
    assert store.checkpoint(1, 1.0) == CheckpointRecord(1, -2.5, b"x")
    assert store.checkpoint(1, 1.5) == CheckpointRecord(1, 1.0, b"y")
    assert store.checkpoint(2, 9.0) is None
    assert store.revised(1) == [RevisedRecord(1, 0.0, 1, b"old")]
    assert store.refused() == [RefusedRecord("a", "nan", "c", "1", "time_not_finite")]
    assert store.received([1, 7]) == {1: 100.0}
    assert store.alarms() == [AlarmRecord(1, 1, 1.0, 0.9, 0.8, 100.0, None, None)]


def test_a_row_or_state_sent_again_takes_the_place_of_the_old(store):
    store.commit(Commit(1, 1.0, "{}", rows=[tuple(row(0.0))], states=[tuple(state(0.0))]))
    store.commit(
        Commit(2, 2.0, "{}", rows=[tuple(row(0.0, outputs=b"new"))], states=[tuple(state(4.0))])
    )
    assert store.rows(1) == [row(0.0, outputs=b"new")]
    assert store.states() == [state(4.0)]


def test_cuts_drop_checkpoints_before_new_ones_are_written(store):
    store.commit(Commit(1, 1.0, "{}", checkpoints=[(1, t, b"x") for t in (0.0, 1.0, 2.0)]))
    store.commit(Commit(2, 2.0, "{}", cuts=[(1, 1.0)], checkpoints=[(1, 2.5, b"y")]))
    assert store.checkpoint(1, 2.5).time == 0.0
    assert store.checkpoint(1, 3.0).time == 2.5


def test_a_commit_that_does_not_follow_the_last_is_refused_whole(store):
    store.commit(Commit(1, 1.0, "{}", rows=[tuple(row(0.0))]))
    with pytest.raises(StoreError, match="does not follow"):
        store.commit(Commit(3, 1.0, "{}", rows=[tuple(row(5.0))]))
    assert store.rows(1) == [row(0.0)]
    assert store.head().sequence == 1


def test_alarms_are_acknowledged_once(store):
    alarm = (1, 1, 1.0, 0.9, 0.8, 100.0, None, None)
    store.commit(Commit(1, 1.0, "{}", alarms=[alarm, (2, 2, *alarm[2:])]))
    assert [one.number for one in store.alarms()] == [2, 1]
    assert store.acknowledge(1, 200.0, "nurse") == AlarmRecord(*alarm[:6], 200.0, "nurse")
    assert store.acknowledge(1, 300.0, "other") == AlarmRecord(*alarm[:6], 200.0, "nurse")
    assert store.acknowledge(9, 1.0, "x") is None
    assert [one.number for one in store.alarms(unacknowledged=True)] == [2]
    assert [one.number for one in store.alarms(1)] == [1]


def test_pruning_keeps_what_the_newest_rows_need(store):
    rows = [tuple(row(float(t))) for t in range(10)]
    store.commit(
        Commit(
            1,
            1.0,
            "{}",
            rows=rows,
            states=[tuple(state(9.0))],
            checkpoints=[(1, 2.0, b"x"), (1, 5.0, b"y")],
        )
    )
    assert not store.pruned()
    assert store.prune(20.0) == 0
    assert not store.pruned()
    assert store.prune(3.0) == 6
    assert store.pruned()
    assert [one.time for one in store.rows(1)] == [6.0, 7.0, 8.0, 9.0]
    assert store.checkpoint(1, 6.0).time == 5.0
    assert store.checkpoint(1, 5.0) is None


def test_forgetting_leaves_nothing_of_a_stream_and_all_of_the_others(store):
    store.commit(
        Commit(
            1, 1.0, "{}", opened=[tuple(stream()), tuple(stream(2, "b"))],
            rows=[tuple(row(0.0)), tuple(row(0.0, 2))], states=[tuple(state(0.0)), tuple(state(0.0, 2))],
            checkpoints=[(1, 0.0, b"x"), (2, 0.0, b"x")], revised=[(1, 0.0, 1, b"o"), (2, 0.0, 1, b"o")],
            alarms=[(1, 1, 1.0, 0.9, 0.8, 1.0, None, None), (2, 2, 1.0, 0.9, 0.8, 1.0, None, None)],
        )
    )  # fmt: skip
    store.forget(1, '{"left": 1}')
    assert store.find(["a", "b"]) == [None, stream(2, "b")]
    assert [len(store.rows(n)) + len(store.revised(n)) + len(store.alarms(n)) for n in (1, 2)] == [
        0,
        3,
    ]
    assert [one.stream for one in store.states()] == [2]
    assert store.checkpoint(1, 9.0) is None
    assert store.head().totals == '{"left": 1}'


def test_a_rebuild_happens_whole_or_not_at_all(store):
    store.adopt("aa" * 32)
    store.commit(Commit(1, 1.0, "{}", rows=[tuple(row(0.0))], states=[tuple(state(0.0))]))

    def broken():
        yield Commit(2, 2.0, "{}", states=[tuple(state(5.0))])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.rebuild("bb" * 32, broken())
    assert store.head() == ("aa" * 32, 1, "{}")
    assert store.states() == [state(0.0)]
    store.rebuild("bb" * 32, [Commit(2, 2.0, "{}", states=[tuple(state(5.0))])])
    assert store.head() == ("bb" * 32, 2, "{}")
    assert store.states() == [state(5.0)]


def test_a_sqlite_store_has_one_owner_at_a_time(tmp_path):
    first = SQLiteStore(tmp_path / "live.db")
    with pytest.raises(StoreBusy, match="another engine"):
        SQLiteStore(tmp_path / "live.db")
    first.close()
    SQLiteStore(tmp_path / "live.db").close()


def test_a_sqlite_store_syncs_at_every_commit_unless_told_otherwise(tmp_path):
    for name, level in (("FULL", 2), ("NORMAL", 1)):
        store = SQLiteStore(tmp_path / f"{name}.db", synchronous=name)
        assert store._read("PRAGMA synchronous") == [(level,)]
        assert store._read("PRAGMA journal_mode") == [("wal",)]
        store.close()
    with pytest.raises(StoreError, match="FULL"):
        SQLiteStore(tmp_path / "x.db", synchronous="OFF")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda file: file.write_bytes(b"something else entirely" * 100), "not a database"),
        (lambda file: sqlite3.connect(file).execute("CREATE TABLE t (x)").connection.close(), "something else"),
        (lambda file: _other_schema(file), "schema 99"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_store_is_refused_and_left_as_it_was(make, said, tmp_path):
    file = tmp_path / "live.db"
    make(file)
    with pytest.raises(StoreError, match=said):
        SQLiteStore(file)
    with pytest.raises(StoreError, match=said):  # and its lock was let go
        SQLiteStore(file)


def _other_schema(file):
    SQLiteStore(file).close()
    connection = sqlite3.connect(file)
    connection.execute("UPDATE meta SET schema = 99")
    connection.commit()
    connection.close()


def test_a_folder_that_is_not_there_is_said_to_be(tmp_path):
    with pytest.raises(StoreError, match="not a folder"):
        SQLiteStore(tmp_path / "nowhere" / "live.db")


def test_refusals_do_not_fill_the_disk(monkeypatch, tmp_path):
    from onlinecde.streaming import memory_store, sqlite_store

    for module, make in ((memory_store, STORES["memory"]), (sqlite_store, STORES["sqlite"])):
        monkeypatch.setattr(module, "KEPT_REFUSALS", 20)
        with Engine(made_model(), make(tmp_path), channels=CHANNELS) as engine:
            for _ in range(10):
                engine.apply([Event("a", 0.0, "no such", 1.0)] * 9)
            assert len(engine.store.refused()) == 20
            assert engine.refusals == {"channel_unknown": 90}
