"""PostgreSQL is killed, cut off, full, locked, taken over: nothing acknowledged is lost, nothing is done twice."""

import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from broken_stores import (
    apply_until_it_fails,
    everything,
    finishes_as_if_nothing_had_happened,
)
from killable_engine import CHANNELS, made_engine, micro_batches
from killing import kill_often

sys.path.append(str(Path(__file__).parents[1] / "streaming"))
import postgres_server

import onlinecde as oc
from onlinecde.streaming import (
    Engine,
    PostgresStore,
    StoreBusy,
    StoreError,
    StoreFull,
    UnknownStream,
)


@pytest.fixture(scope="module")
def server():
    """PostgreSQL that syncs its disk; each test has a schema of its own."""
    if why := postgres_server.missing():
        pytest.skip(why)
    with postgres_server.postgres(durable=True) as made:
        yield made


class Doing(threading.Thread):
    """Does one thing in a thread of its own; `error` is how it failed."""

    def __init__(self, what):
        super().__init__()
        self.what, self.error = what, None
        self.start()

    def run(self):
        try:
            self.what()
        except StoreError as error:
            self.error = error


# Where the engine's transaction is held up: before COMMIT, in COMMIT before it is decided, and in COMMIT
# when it is on disk and only the answer is missing. Each gives what undoes it.


@contextlib.contextmanager
def held_in_transaction(server, schema):
    other = server.connect()
    other.autocommit = False
    other.execute(f"LOCK TABLE {schema}.states IN EXCLUSIVE MODE")
    try:
        yield "wait_event_type = 'Lock' AND backend_xid IS NOT NULL"
    finally:
        other.close()


@contextlib.contextmanager
def held_before_decision(server, schema):
    server.ask(
        f"CREATE FUNCTION {schema}.hold() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(30); RETURN NULL; END $$"
    )
    server.ask(
        f"CREATE CONSTRAINT TRIGGER hold AFTER UPDATE ON {schema}.meta DEFERRABLE INITIALLY DEFERRED "
        f"FOR EACH ROW EXECUTE FUNCTION {schema}.hold()"
    )
    try:
        yield "wait_event = 'PgSleep' AND query = 'COMMIT'"
    finally:
        server.start()  # waits until it answers
        server.ask(f"DROP FUNCTION {schema}.hold() CASCADE")


@contextlib.contextmanager
def held_before_answer(server, schema):
    server.ask("ALTER SYSTEM SET synchronous_standby_names TO 'nobody'")
    server.ask("SELECT pg_reload_conf()")
    try:
        yield "wait_event = 'SyncRep' AND query = 'COMMIT'"
    finally:
        (server.data / "postgresql.auto.conf").write_text("")
        server.start()
        server.ask("SELECT pg_reload_conf()")
        while server.ask("SHOW synchronous_standby_names") != [("",)]:
            time.sleep(0.01)


def kill_server(server, store, backend):
    server.kill()
    (server.data / "postgresql.auto.conf").write_text("")


def kill_backend(server, store, backend):
    # PostgreSQL cannot trust its shared memory after that: it breaks all off and recovers by itself.
    sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
    before, until = server.ask(sql), time.monotonic() + 20
    os.kill(backend, signal.SIGKILL)
    now = before
    while now in (before, []) and time.monotonic() < until:
        time.sleep(0.02)
        with contextlib.suppress(Exception):
            now = server.ask(sql)
    assert now not in (before, [])


def cut_connection(server, store, backend):
    """The engine's end is gone and PostgreSQL does not know: its backend goes on with what it was doing."""
    with socket.socket(fileno=os.dup(store._at._writer.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)
    assert server.ask(f"SELECT state FROM pg_stat_activity WHERE pid = {backend}") == [("active",)]


HELD = {
    "in transaction": (held_in_transaction, 0),
    "in COMMIT, not decided": (held_before_decision, 0),
    "in COMMIT, on disk": (held_before_answer, 1),
}


@pytest.mark.parametrize("breaking", [kill_server, kill_backend, cut_connection])
@pytest.mark.parametrize("held", HELD)
def test_broken_off_in_mid_commit_it_is_done_whole_or_not_at_all_and_the_engine_knows(
    held, breaking, server
):
    hold, done = HELD[held]
    url, batches = server.url(), micro_batches(random.getrandbits(32))[:12]
    store = PostgresStore(url, wait=20.0)
    engine = made_engine(store)
    for events in batches[:6]:
        engine.apply(events)
    before = everything(engine)
    with hold(server, url.rpartition("=")[2]) as where:
        doing = Doing(lambda: engine.apply(batches[6]))
        backend = server.wait_for(where)
        breaking(server, store, backend)
        doing.join(20)
        assert isinstance(doing.error, StoreBusy), "the commit was not broken off"
        if breaking is kill_server:
            with pytest.raises(StoreBusy, match="cannot be reached"):
                store.head()
        server.start()
        assert engine.counters["commits"] == before[2]["commits"] + done
        assert server.ask(f"SELECT 1 FROM pg_stat_activity WHERE pid = {backend}") == []
    if not done:
        assert everything(engine) == before
    told = engine.apply(batches[6]).counts
    if done:
        assert told["applied"] == told["late_applied"] == 0, "it was done already"
    for events in batches[7:]:
        engine.apply(events)
    unbroken = made_engine()
    for events in batches:
        unbroken.apply(events)
    assert everything(engine)[1] == everything(unbroken)[1]
    assert engine.counters["rows"] == unbroken.counters["rows"]
    engine.close()


def test_killed_at_random_moments_nothing_is_lost_or_repeated(server):
    batches = micro_batches(random.getrandbits(32))[:200]
    engine = made_engine(PostgresStore(server.url()))
    failed, kills, stop = 0, 0, threading.Event()

    def follow():
        nonlocal failed
        for events in batches:
            while not stop.is_set():
                try:
                    engine.apply(events)
                    break
                except StoreBusy:
                    failed += 1
                    time.sleep(0.01)

    doing = Doing(follow)
    try:
        while doing.is_alive() and kills < 4:
            time.sleep(random.uniform(0.02, 0.25))
            server.kill()
            kills += 1
            server.start()
        doing.join(60)
        assert not doing.is_alive()
    finally:
        stop.set()
        server.start()
    assert doing.error is None
    assert kills >= 2
    assert failed >= 2, "no commit was broken off"
    unbroken = made_engine()
    for events in batches:
        unbroken.apply(events)
    found, wanted = everything(engine), everything(unbroken)
    assert found[1] == wanted[1]
    for ended in ("applied", "corrected", "late_applied", "rows", "streams"):
        assert found[2][ended] == wanted[2][ended]
    engine.close()


def test_a_killed_engine_is_taken_over_from_with_exactly_what_it_acknowledged(server):
    kill_often(server.url(), times=10, batches=200)


def test_who_was_cut_off_while_another_took_over_writes_no_more(server):
    url, batches = server.url(), micro_batches(random.getrandbits(32))[:8]
    first = made_engine(PostgresStore(url, wait=0.2))
    for events in batches[:4]:
        first.apply(events)
    with pytest.raises(StoreBusy, match="another engine"):
        PostgresStore(url, wait=0.1)
    known = everything(first)
    # Its connections are gone, as with a network that fails; it does not know yet.
    server.ask(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onlinecde'"
    )
    second = made_engine(PostgresStore(url))
    assert everything(second) == known
    for _ in range(2):
        with pytest.raises(StoreBusy):
            first.apply(batches[4])
    with pytest.raises(StoreBusy, match="another engine"):
        first.apply(batches[4])
    stream = second.overview().streams[0]
    second.forget(stream)  # no commit's sequence tells of it
    after = everything(second)
    second.close()
    for _ in range(2):
        with pytest.raises(StoreError, match="taken over"):
            first.apply(batches[4])
    with made_engine(PostgresStore(url)) as third:
        assert everything(third) == after
        assert stream not in third
    first.close()


def test_a_stream_forgotten_without_an_answer_is_forgotten(server):
    url, batches = server.url(), micro_batches(random.getrandbits(32))[:6]
    store = PostgresStore(url)
    engine = made_engine(store)
    for events in batches:
        engine.apply(events)
    stream, many = engine.overview().streams[0], len(engine)
    with held_before_answer(server, url.rpartition("=")[2]) as where:
        doing = Doing(lambda: engine.forget(stream))
        kill_server(server, store, server.wait_for(where))
        doing.join(20)
        server.start()
    assert isinstance(doing.error, StoreBusy)
    assert stream not in engine
    assert len(engine) == many - 1
    with pytest.raises(UnknownStream):
        engine.history(stream)
    engine.close()


def test_a_database_that_was_restarted_in_between_is_not_even_missed(server):
    batches = micro_batches(random.getrandbits(32))[:12]
    engine = made_engine(PostgresStore(server.url()))
    for events in batches[:5]:
        engine.apply(events)
    before, pid = everything(engine), server.process.pid
    for failed in (5, 8):
        server.kill()
        server.start()
        assert server.process.pid != pid
        if failed == 5:
            assert everything(engine) == before
        for events in batches[failed : failed + 3]:
            engine.apply(events)
    finishes_as_if_nothing_had_happened(engine, batches, 11)
    engine.close()


def test_a_rebuild_whose_server_is_killed_never_happened(server):
    url, batches = server.url(), micro_batches(random.getrandbits(32))[:8]
    with made_engine(PostgresStore(url)) as engine:
        for events in batches:
            engine.apply(events)
        before = everything(engine)
    other = oc.NeuralCDE(channels=4, hidden=6, field={"width": 7}).eval()
    store = PostgresStore(url, wait=20.0)
    with held_before_decision(server, url.rpartition("=")[2]) as where:
        doing = Doing(lambda: Engine(other, store, channels=CHANNELS, rebuild=True))
        kill_server(server, store, server.wait_for(where))
        doing.join(20)
        server.start()
    assert isinstance(doing.error, StoreBusy)
    with made_engine(store) as engine:
        assert everything(engine) == before
    with Engine(other, PostgresStore(url), channels=CHANNELS, rebuild=True) as engine:
        assert list(engine.overview().streams) == list(before[1])


def test_a_locked_table_is_said_to_be_busy_and_waited_for(server):
    url, batches = server.url(), micro_batches(random.getrandbits(32))[:12]
    engine = made_engine(PostgresStore(url, wait=0.1))
    for events in batches[:5]:
        engine.apply(events)
    before = everything(engine)
    with held_in_transaction(server, url.rpartition("=")[2]):
        for _ in range(2):
            with pytest.raises(StoreBusy, match="try again later") as caught:
                engine.apply(batches[5])
            assert caught.value.__cause__.sqlstate == "55P03"
        assert everything(engine) == before
    finishes_as_if_nothing_had_happened(engine, batches, 5)
    engine.close()


@pytest.fixture
def small_disk(server):
    """A file system of 64 kB in the server's folder, and a function that makes it larger."""
    folder = server.folder / f"small {secrets.token_hex(4)}"
    folder.mkdir()

    def mount(*options):
        return subprocess.run(
            ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)],
            capture_output=True,
        ).returncode

    if shutil.which("mount") is None or mount("size=64k"):
        pytest.skip("a small file system cannot be mounted here: that needs root")
    if server.who:
        os.chown(folder, server.who["user"], server.who["group"])
    yield folder, lambda: mount("remount", "size=100m")
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_applies_nothing_and_goes_on_when_there_is_room(server, small_disk):
    folder, enlarge = small_disk
    url, batches = server.url(), micro_batches(random.getrandbits(32))[:60]
    schema = url.rpartition("=")[2]
    engine = made_engine(PostgresStore(url))
    space = f"space_{secrets.token_hex(4)}"
    server.ask(f"CREATE TABLESPACE {space} LOCATION '{folder}'")
    server.ask(f"ALTER TABLE {schema}.rows SET TABLESPACE {space}")
    failed, error, before = apply_until_it_fails(engine, batches)
    assert isinstance(error, StoreFull)
    assert error.__cause__.sqlstate == "53100"
    assert everything(engine) == before
    assert enlarge() == 0
    finishes_as_if_nothing_had_happened(engine, batches, failed)
    server.ask(f"ALTER TABLE {schema}.rows SET TABLESPACE pg_default")
    server.ask(f"DROP TABLESPACE {space}")
    engine.close()


def test_a_disk_said_to_be_full_is_reported_as_full(server):
    url, batches = server.url(), micro_batches(random.getrandbits(32))[:10]
    schema = url.rpartition("=")[2]
    engine = made_engine(PostgresStore(url))
    engine.apply(batches[0])
    before = everything(engine)
    server.ask(
        f"CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'no room' USING ERRCODE = 'disk_full'; END $$"
    )
    server.ask(
        f"CREATE TRIGGER full_disk BEFORE INSERT ON {schema}.rows EXECUTE FUNCTION {schema}.full()"
    )
    with pytest.raises(StoreFull, match="make room"):
        engine.apply(batches[1])
    assert everything(engine) == before
    server.ask(f"DROP FUNCTION {schema}.full() CASCADE")
    finishes_as_if_nothing_had_happened(engine, batches, 1)
    engine.close()


def test_a_served_store_is_missed_with_503_and_goes_on_when_it_is_back(
    server, tmp_path, capsys, monkeypatch
):
    httpx = pytest.importorskip("httpx")
    from onlinecde.cli import main
    from onlinecde.serving import ServeSettings, create_app, in_background, opening

    url = server.url()
    folder = oc.save(made_engine().model, tmp_path / "model", channels=CHANNELS)
    engine, settings = opening.open_engine(folder, url, ServeSettings(port=0), lateness=1.0)
    monkeypatch.setattr(opening, "PostgresStore", partial(PostgresStore, wait=0.1))
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(folder), "--store", url])
    assert ended.value.code == 2
    assert "in use by another engine" in capsys.readouterr().err
    acknowledged, codes = [], []
    with (
        in_background(create_app(engine, settings), settings) as address,
        httpx.Client(base_url=address, timeout=20) as client,
    ):
        for number in range(120):
            row = {
                "stream": f"bed {number % 3}",
                "time": number / 10,
                "values": {"a": float(number)},
            }
            if number in (40, 80):
                server.kill()
                back = threading.Timer(0.3, server.start)
                back.start()
            while (answer := client.post("/v1/events", json=row)).status_code != 200:
                codes.append((answer.status_code, answer.json()["error"]["code"]))
                assert int(answer.headers["retry-after"]) >= 1
                time.sleep(0.05)
            counts = answer.json()["counts"]
            assert counts["applied"] + counts["duplicate"] == 1
            acknowledged.append(row)
            if number in (40, 80):
                back.join()
        assert set(codes) == {(503, "store_busy")}
        for name in ("bed 0", "bed 1", "bed 2"):
            rows = client.get(f"/v1/streams/{name}/history").json()["rows"]
            assert [(one["time"], one["values"]) for one in rows] == [
                (one["time"], one["values"]) for one in acknowledged if one["stream"] == name
            ]
