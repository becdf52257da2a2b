"""Every store keeps what it is given, whole or not at all. A new store is added to `STORES` and to nothing else."""

import sqlite3
import subprocess
import sys

import numpy as np
import postgres_server
import pytest
import torch
from made_streams import CHANNELS, made_model

import onlinecde as oc
from onlinecde.streaming import (
    Alarm,
    Engine,
    Event,
    MemoryStore,
    PostgresStore,
    SQLiteStore,
    StoreBusy,
    StoreError,
)
from onlinecde.streaming.stores.base import (
    CheckpointRecord,
    Commit,
    RefusedRecord,
    RevisedRecord,
    RowRecord,
    StateRecord,
    StreamRecord,
)

STORES = {
    "memory": lambda folder, ask: MemoryStore(),
    "sqlite": lambda folder, ask: SQLiteStore(folder / "live.db"),
    "postgres": lambda folder, ask: PostgresStore(ask("server").url()),
}


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
        alarms=[(1, 1, 1.0, 0.9, 0.8, 100.0, None, None, None, None, None)],
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
    assert store.alarms() == [Alarm(1, 1, 1.0, 0.9, 0.8, 100.0, None, None)]


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


def test_a_look_whether_it_can_be_written_changes_nothing(store):
    store.adopt("a model")
    before = store.head()
    for _ in range(2):
        store.check_writable()
    assert store.head() == before


def test_alarms_are_acknowledged_once(store):
    alarm = (1, 1, 1.0, 0.9, 0.8, 100.0, None, None, None, None, None)
    store.commit(Commit(1, 1.0, "{}", alarms=[alarm, (2, 2, *alarm[2:])]))
    assert [one.number for one in store.alarms()] == [2, 1]
    assert store.acknowledge(1, 200.0, "nurse") == Alarm(*alarm[:6], 200.0, "nurse")
    assert store.acknowledge(1, 300.0, "other") == Alarm(*alarm[:6], 200.0, "nurse")
    assert store.acknowledge(9, 1.0, "x") is None
    assert [one.number for one in store.alarms(unacknowledged=True)] == [2]
    assert [one.number for one in store.alarms(1)] == [1]


def alarm(number, of, time):
    return (number, of, time, 0.9, 0.8, 100.0, None, None, "between rows", "{}", None)


def test_the_newest_alarm_of_each_stream_is_over_from_the_earliest_time_said(store):
    some = [alarm(1, 1, 1.0), alarm(2, 2, 2.0), alarm(3, 1, 3.0)]
    store.commit(Commit(1, 1.0, "{}", alarms=some))
    assert [(one.number, one.rearmed) for one in store.newest_alarms()] == [(3, None), (2, None)]
    assert store.newest_alarms()[0] == Alarm(*some[2])
    assert [one.number for one in store.newest_alarms([7, 1])] == [3]
    assert store.newest_alarms([]) == store.newest_alarms([9]) == []
    store.commit(Commit(2, 1.0, "{}", rearmed=[(1, 4.0), (9, 1.0)], alarms=[alarm(4, 2, 5.0)]))
    store.commit(Commit(3, 1.0, "{}", rearmed=[(1, 4.5), (2, 6.0)]))
    store.commit(Commit(4, 1.0, "{}", rearmed=[(2, 5.5)], alarms=[alarm(5, 2, 7.0)]))
    found = {one.number: one.rearmed for one in store.alarms()}
    assert found == {1: None, 2: None, 3: 4.0, 4: 5.5, 5: None}


def test_the_clock_is_told_of_streams_changed_lately_and_of_those_with_an_origin(store):
    opened = [StreamRecord(1, "a", None, 5.0), StreamRecord(2, "b", None, None)]
    opened += [StreamRecord(3, "c", None, None), StreamRecord(4, "no row", None, None)]
    states = [state(1.0, 1, 100.0), state(2.0, 2, 300.0), state(3.0, 3, 100.0)]
    store.commit(
        Commit(1, 1.0, "{}", opened=list(map(tuple, opened)), states=list(map(tuple, states)))
    )
    assert store.clocks(200.0) == [(1, 1.0, 100.0, 5.0, b"out"), (2, 2.0, 300.0, None, b"out")]
    assert [one.stream for one in store.clocks(0.0)] == [1, 2, 3]


LATER = {
    "alarms": ("rose", "policy", "rearmed", "crc"), "meta": ("notes", "crc"), "streams": ("ended", "crc"),
    "rows": ("before", "crc"), "states": ("sequence", "crc"),
    **dict.fromkeys(("checkpoints", "revised", "refused", "commits"), ("crc",)),
}  # fmt: skip
OLD_TABLES = [
    *(
        f"ALTER TABLE {{0}}{table} DROP COLUMN {one}"
        for table, some in LATER.items()
        for one in some
    ),
    *(f"DROP TABLE {{0}}shadow_{table}" for table in ("states", "checkpoints")),
]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_store_of_an_earlier_version_is_brought_up_to_date(kind, tmp_path, request):
    server = request.getfixturevalue("server") if kind == "postgres" else None
    url = server.url() if server else None
    store = PostgresStore(url) if url else SQLiteStore(tmp_path / "live.db")
    store.commit(Commit(1, 1.0, "{}", alarms=[alarm(1, 1, 1.0)]))
    store.close()
    if server:
        schema = url.rpartition("=")[2]
        for statement in [*OLD_TABLES, "UPDATE {0}meta SET schema = 1"]:
            server.ask(statement.format(f"{schema}."))
    else:
        with sqlite3.connect(tmp_path / "live.db") as db:
            for statement in [*OLD_TABLES, "UPDATE {0}meta SET schema = 1"]:
                db.execute(statement.format(""))
        db.close()
    for _ in range(2):
        store = PostgresStore(url) if url else SQLiteStore(tmp_path / "live.db")
        assert store.alarms() == [Alarm(1, 1, 1.0, 0.9, 0.8, 100.0)]
        store.close()


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
            alarms=[(n, n, 1.0, 0.9, 0.8, 1.0, *[None] * 5) for n in (1, 2)],
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


def test_the_same_row_state_or_checkpoint_twice_in_a_commit_counts_as_the_last(store):
    store.commit(
        Commit(
            1, 1.0, "{}", rows=[tuple(row(0.0)), tuple(row(0.0, outputs=b"new"))],
            states=[tuple(state(0.0)), tuple(state(4.0))], checkpoints=[(1, 0.0, b"x"), (1, 0.0, b"y")],
        )
    )  # fmt: skip
    assert store.rows(1) == [row(0.0, outputs=b"new")]
    assert store.states() == [state(4.0)]
    assert store.checkpoint(1, 1.0).body == b"y"


def test_numbers_and_texts_come_back_as_they_were(store, rng):
    times = np.unique(rng.standard_normal(300) * 10.0 ** rng.integers(-300, 300, 300))
    names = ["\u00e9\u4e2d\U0001f9e0 '\";--%s", "a" * 200, "$1"]
    rows = [
        RowRecord(2**40, t, 2**50, rng.bytes(n % 7), None if n % 3 else "{}", rng.bytes(8))
        for n, t in enumerate(times.tolist())
    ]
    states = [
        state(t, n, 1.7e9 + t)._replace(previous=None if n % 2 else t)
        for n, t in enumerate([0.1, -0.2, 1e-9])
    ]
    opened = [StreamRecord(n, name, None, None if n else 1e9 / 7) for n, name in enumerate(names)]
    store.commit(
        Commit(1, 1e9 / 3, "{}", opened=[tuple(o) for o in opened], rows=[tuple(r) for r in rows],
               states=[tuple(s) for s in states], refused=[("", "\u00df", "x", "inf", "bad")])
    )  # fmt: skip
    assert store.rows(2**40) == rows
    assert store.states() == states
    assert store.find(names) == opened
    assert store.received([1]) == {1: 1e9 / 3}
    assert store.refused() == [RefusedRecord("", "\u00df", "x", "inf", "bad")]


def test_refused_events_may_say_anything(store):
    with Engine(made_model(), store, channels=CHANNELS) as engine:
        told = engine.apply([Event("a\0b", 0.0, CHANNELS[0], 1.0), Event("\ud800", 0.0, "\0", 1.0)])
        assert told.counts["refused"] == 2
        assert len(store.refused()) == 2
        assert all(one.code == "stream_bad" for one in store.refused())


def test_a_rebuild_keeps_when_streams_were_heard_of(store):
    clock = iter(np.arange(1000.0, 2000.0))
    engine = Engine(made_model(), store, channels=CHANNELS, clock=lambda: float(next(clock)))
    for stream in "abc":
        engine.apply([Event(stream, 0.0, CHANNELS[0], 1.0)])
    before = [one.received for one in store.states()]
    assert before == sorted(set(before))
    torch.manual_seed(2)
    other = oc.NeuralCDE(channels=len(CHANNELS), hidden=5, field={"width": 5}).eval()
    Engine(other, store, channels=CHANNELS, rebuild=True)
    assert [one.received for one in store.states()] == before


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


@pytest.mark.parametrize("kind", STORES)
def test_refusals_do_not_fill_the_disk(kind, monkeypatch, tmp_path, request):
    from onlinecde.streaming.stores import memory, postgres, sqlite

    for module in (memory, postgres, sqlite):
        monkeypatch.setattr(module, "KEPT_REFUSALS", 20)
    store = STORES[kind](tmp_path, request.getfixturevalue)
    with Engine(made_model(), store, channels=CHANNELS) as engine:
        for _ in range(10):
            engine.apply([Event("a", 0.0, "no such", 1.0)] * 9)
        assert len(engine.store.refused()) == 20
        assert engine.refusals == {"channel_unknown": 90}


def test_a_postgres_schema_has_one_owner_at_a_time(server):
    url = server.url()
    first = PostgresStore(url)
    with pytest.raises(StoreBusy, match=r"another engine \(backend .* another schema"):
        PostgresStore(url, wait=0.1)
    PostgresStore(server.url()).close()  # another schema is another store
    first.commit(Commit(1, 1.0, "{}", rows=[tuple(row(0.0))]))
    first.close()
    second = PostgresStore(url)
    assert second.rows(1) == [row(0.0)]
    with pytest.raises(StoreError, match="was closed"):
        first.head()
    second.close()


def test_who_lost_the_lock_unawares_still_writes_nothing(server):
    url = server.url()
    first = PostgresStore(url)
    first.commit(Commit(1, 1.0, "{}", opened=[tuple(stream())], rows=[tuple(row(0.0))]))
    with first._at.writing() as db:  # as a pooler does that hands its connections round
        db.execute("SELECT pg_advisory_unlock_all()")
    second = PostgresStore(url)
    with pytest.raises(StoreError, match="another engine has written"):
        first.commit(Commit(2, 1.0, "{}", rows=[tuple(row(5.0))]))
    for write in (
        lambda: first.forget(1, "{}"),
        lambda: first.prune(0.0),
        lambda: first.adopt("ab" * 32),
        lambda: first.acknowledge(1, 1.0, "nurse"),
        lambda: first.rebuild("ab" * 32, []),
    ):
        with pytest.raises(StoreError, match="taken over"):
            write()
    first.close()
    assert second.head() == (None, 1, "{}")
    assert second.rows(1) == [row(0.0)]
    assert second.streams() == [stream()]
    second.close()


def test_a_postgres_store_syncs_at_every_commit_unless_told_otherwise(server):
    # Whatever the role's own setting.
    server.ask("ALTER ROLE onlinecde SET synchronous_commit TO off")
    for asked in ("on", "off", "remote_apply"):
        store = PostgresStore(server.url(), synchronous=asked)
        for question in (
            store._at.read,
            lambda sql, at=store._at: at._connected().execute(sql).fetchall(),
        ):
            assert question("SHOW synchronous_commit") == [(asked,)]
        store.close()
    with pytest.raises(StoreError, match="synchronous"):
        PostgresStore(server.url(), synchronous="fast")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        ("CREATE SCHEMA {0}; CREATE TABLE {0}.patients (x INT)", "something else"),
        ("UPDATE {0}.meta SET schema = 99", "schema 99"),
    ],
)
def test_a_schema_that_is_no_store_is_refused_and_left_as_it_was(make, said, server):
    url = server.url()
    schema = url.rpartition("=")[2]
    if "UPDATE" in make:
        PostgresStore(url).close()
    server.ask(make.format(schema))
    tables = (
        f"SELECT relname FROM pg_class WHERE relnamespace = '{schema}'::regnamespace ORDER BY 1"
    )
    before = server.ask(tables)
    for _ in range(2):  # and its lock was let go
        with pytest.raises(StoreError, match=said):
            PostgresStore(url, wait=0.2)
    assert server.ask(tables) == before


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://u:hush@127.0.0.1:1/x", "cannot be reached"),
        ("postgresql://u:hush@127.0.0.1:1/x?schema=a;b", "schema is"),
        ("postgresql://u:hush@127.0.0.1/x?no_such=1", "no_such"),
    ],
)
def test_a_url_that_leads_nowhere_is_one_clear_message_without_its_password(url, said):
    pytest.importorskip("psycopg", reason='pip install "onlinecde[postgres]"')
    with pytest.raises(StoreError, match=said) as caught:
        PostgresStore(url)
    assert "hush" not in str(caught.value)


def test_a_postgres_store_says_where_it_is_without_its_password(server):
    url = server.url("shown").replace("onlinecde@", "onlinecde:hush@")
    store = PostgresStore(url)
    assert str(store) == f"PostgreSQL 127.0.0.1:{server.port}/postgres schema shown"
    store.close()


def test_without_psycopg_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install \"onlinecde\[postgres\]\""):
        PostgresStore("postgresql://localhost/x")


def test_the_core_does_not_import_psycopg():
    said = subprocess.run(
        [sys.executable, "-c", "import sys, onlinecde.streaming; print('psycopg' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "False\n"
