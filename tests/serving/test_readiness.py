"""Whether it runs, and whether it is ready: while it starts, rebuilds, has no room on its disk, is at work."""

import contextlib
import os
import signal
import threading
import time

import httpx
import pytest
import torch
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import onlinecde as oc
from onlinecde.serving import ServeSettings, create_app, in_background
from onlinecde.serving import readiness as readiness_module
from onlinecde.serving.opening import open_engine
from onlinecde.serving.starting import StartingApp
from onlinecde.streaming import Engine, Event, SQLiteStore
from onlinecde.streaming.stores.sqlite import ROOM

CHANNELS = ("heart_rate", "lactate", "oxygen", "pressure")
ROW = {"stream": "a", "time": 0.0, "values": {"lactate": 1.0, "oxygen": 2.0}}


@pytest.fixture
def store_of_another_model(model_folder, tmp_path):
    """A file with 600 streams of another model, and their number."""
    torch.manual_seed(9)
    other = oc.NeuralCDE(
        4, 6, outputs=1, field={"width": 6, "depth": 1}, readout={"kind": "binary"}
    ).eval()
    with Engine(other, SQLiteStore(tmp_path / "live.db"), channels=CHANNELS) as engine:
        engine.apply(
            [Event(f"s {i}", float(t), "lactate", 1.0) for i in range(600) for t in range(3)]
        )
    return tmp_path / "live.db"


@contextlib.contextmanager
def rebuilding(model_folder, store, progress_of):
    """The address of a server that opens a store with a rebuild, and its application."""

    def open_app(progress):
        engine, settings = open_engine(
            model_folder, store, ServeSettings(), rebuild=True, progress=progress_of(progress)
        )
        return create_app(engine, settings)

    app = StartingApp(open_app)
    with in_background(app, ServeSettings(port=0)) as url:
        yield url, app


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def test_the_port_is_open_and_says_how_far_it_is_while_states_are_rebuilt(
    model_folder, store_of_another_model
):
    go_on, told = threading.Semaphore(0), []

    def slowly(progress):
        def tell(done, total):
            progress(done, total)
            told.append((done, total))
            go_on.acquire()

        return tell

    with rebuilding(model_folder, store_of_another_model, slowly) as (url, _):
        client = httpx.Client(base_url=url, timeout=10)
        with client:
            shown = []
            for step in range(3):
                wait_for(lambda step=step: len(told) > step)
                assert client.get("/healthz").json() == {"status": "ok"}
                answer = client.get("/readyz")
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "rebuilding")
                shown.append(answer.json()["progress"])
                go_on.release()
            assert shown == [0.0, round(256 / 600, 4), round(512 / 600, 4)]
            wait_for(lambda: client.get("/readyz").status_code == 200)
            assert client.get("/readyz").json() == {"status": "ready"}
            assert client.get("/v1/streams").json()["total"] == 600


def test_while_it_starts_everything_else_is_told_to_come_again(model_folder, tmp_path):
    go_on = threading.Event()

    def open_app(progress):
        go_on.wait(60)
        engine, settings = open_engine(model_folder, tmp_path / "live.db", ServeSettings())
        return create_app(engine, settings)

    with in_background(StartingApp(open_app), ServeSettings(port=0)) as url:
        client = httpx.Client(base_url=url, timeout=60)
        with client:
            for method, path in (("POST", "/v1/events"), ("GET", "/v1/streams/a"), ("GET", "/")):
                answer = client.request(method, path, json=ROW if method == "POST" else None)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "starting")
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.headers["cache-control"] == "no-store"
            assert client.get("/readyz").json()["error"]["code"] == "starting"
            assert not (tmp_path / "live.db").exists()
            with (
                connect(url.replace("http", "ws") + "/v1/live") as one,
                pytest.raises(ConnectionClosed) as closed,
            ):
                one.recv(timeout=5)
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4503, "starting")
            go_on.set()
            wait_for(lambda: client.get("/readyz").status_code == 200)
            assert client.post("/v1/events", json=ROW).json()["counts"]["applied"] == 2


def test_a_server_told_to_stop_while_it_rebuilds_leaves_the_store_as_it_was(
    model_folder, store_of_another_model
):
    with contextlib.closing(SQLiteStore(store_of_another_model)) as store:
        before = store.head()
    stopping = threading.Event()

    def until_stopped(progress):
        def tell(done, total):
            if done:
                stopping.set()
                while True:  # the server's own stop ends this
                    progress(done, total)
                    time.sleep(0.01)

        return tell

    with rebuilding(model_folder, store_of_another_model, until_stopped) as (_, app):
        assert stopping.wait(60)
    assert app.failure is None
    with contextlib.closing(SQLiteStore(store_of_another_model)) as store:
        assert store.head() == before


def test_it_starts_and_rebuilds_as_a_process_too(
    serve_process, model_folder, store_of_another_model
):
    server = serve_process("--rebuild")
    with httpx.Client(base_url=server.url, timeout=30) as client:
        assert client.get("/v1/streams").json()["total"] == 600
        assert client.get("/readyz").status_code == 200
    assert "stopped" in server.end(signal.SIGTERM)[1]


def test_a_full_disk_is_not_ready_and_alive_and_ready_again_when_there_is_room(
    start, small_disk, monkeypatch, logged
):
    monkeypatch.setattr(readiness_module, "FRESH", 0.0)
    client, *_ = start(store=SQLiteStore(small_disk / "live.db"))
    assert client.get("/readyz").status_code == 200
    with (small_disk / "other").open("wb") as other:
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        with contextlib.suppress(OSError):
            other.write(b"\0" * (free + ROOM))
    for _ in range(2):
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_full")
        assert int(answer.headers["retry-after"]) >= 1
        assert str(small_disk) not in answer.text
    assert client.get("/healthz").json() == {"status": "ok"}
    rows = [{**ROW, "stream": f"s {i}"} for i in range(2000)]
    statuses = [
        client.post("/v1/events", json=[{**r, "time": t} for r in rows]).status_code
        for t in range(3)
    ]
    assert 503 in statuses, "the disk was not full"
    (small_disk / "other").unlink()
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client.post("/v1/events", json=ROW).status_code == 200
    told = [r for r in logged if r.getMessage() in ("not ready", "ready")]
    assert [r.getMessage() for r in told] == ["not ready", "ready"], "one line each time it changes"
    assert "make room" in told[0].told["reason"]


def test_a_store_that_was_deleted_is_not_ready(start, tmp_path, monkeypatch):
    monkeypatch.setattr(readiness_module, "FRESH", 0.0)
    client, *_ = start(store=SQLiteStore(tmp_path / "live.db"))
    assert client.get("/readyz").status_code == 200
    (tmp_path / "live.db").unlink()
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_failed")


def test_an_engine_that_does_not_answer_is_not_ready_and_asked_once(start, monkeypatch):
    monkeypatch.setattr(readiness_module, "FRESH", 0.0)
    monkeypatch.setattr(readiness_module, "PATIENCE", 0.3)
    client, engine, _ = start()
    stuck, asked = threading.Event(), []

    def check():
        asked.append(1)
        stuck.wait(30)

    monkeypatch.setattr(engine, "check_writable", check)
    for _ in range(3):
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_busy")
        assert client.get("/healthz").status_code == 200
    assert len(asked) == 1
    stuck.set()
    wait_for(lambda: client.get("/readyz").status_code == 200, 10)


def test_the_store_is_asked_seldom_however_often_readiness_is(start, tmp_path, monkeypatch):
    client, engine, _ = start(store=SQLiteStore(tmp_path / "live.db"))
    asked, real = [], engine.check_writable
    monkeypatch.setattr(engine, "check_writable", lambda: asked.append(1) or real())
    began = time.monotonic()
    while time.monotonic() < began + 1:
        assert client.get("/readyz").status_code == 200
    assert len(asked) == 1
