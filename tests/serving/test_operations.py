"""What is for who runs a server: metrics and their dashboard, the systemd unit, fair shares, request ids in logs."""

import configparser
import contextlib
import json
import os
import queue
import re
import shlex
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from typer.main import get_command

from onlinecde.cli.app import app
from onlinecde.serving import Limits, TokenBook
from onlinecde.serving.webhooks import Target
from onlinecde.streaming import Engine, SQLiteStore

DEPLOY = Path(__file__).parents[2] / "deploy"
CHANNELS = ("heart_rate", "lactate", "oxygen", "pressure")


def row(stream, time=0.0):
    return {"stream": stream, "time": time, "values": {"lactate": 1.0}}


def metrics_of(text):
    """Name -> value of what has no labels, and the names of everything."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}, {
        name.split("{")[0] for name, _, _ in lines
    }


@pytest.fixture
def watched(start, small_model, tmp_path):
    """A server on a file, with a target that is away, after an event, an alarm and an error."""
    engine = Engine(small_model, SQLiteStore(tmp_path / "a.db"), channels=CHANNELS, threshold=1e-6)
    target = Target("pager", "http://127.0.0.1:9/x", "whsec_" + "A" * 32)
    client, *_ = start(engine=engine, webhooks=(target,))
    assert client.post("/v1/events", json=[row("a"), row("b"), row("b", "x")]).status_code == 200
    assert client.get("/v1/streams/nobody").status_code == 404
    return client, tmp_path / "a.db"


def test_metrics_say_what_one_wants_to_know_at_night(watched):
    client, file = watched
    text = client.get("/metrics").text
    values, _ = metrics_of(text)
    assert values["onlinecde_streams"] == values["onlinecde_resident_streams"] == 2
    assert 0 <= values["onlinecde_last_commit_age_seconds"] < 60
    assert values["onlinecde_store_bytes"] == file.stat().st_size
    assert values["onlinecde_store_free_bytes"] > 0
    assert values['onlinecde_errors_total{code="stream_unknown",status="404"}'] == 1
    assert values['onlinecde_webhook_waiting{target="pager"}'] == 2
    assert values["process_resident_memory_bytes"] > 1e6
    assert re.search(
        r'onlinecde_build_info\{kind="binary",model="[0-9a-f]{12}",python="3[^"]*",version="[^"]+"\} 1',
        text,
    )
    for secret in ('"a"', '"b"', "nobody"):
        assert secret not in text


def test_every_query_of_the_dashboard_names_a_metric_there_is(watched):
    client, _ = watched
    text = client.get("/metrics").text
    _, known = metrics_of(text)
    types = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE onlinecde")}
    known |= types
    board = json.loads((DEPLOY / "grafana.json").read_text())
    asked = [one["expr"] for panel in board["panels"] for one in panel["targets"]]
    asked += [one["query"] for one in board["templating"]["list"]]
    names = {name for text in asked for name in re.findall(r"\b(?:onlinecde|process)_\w+", text)}
    assert len(names) > 25
    assert names <= known, names - known
    shown = {*names, *(name.removesuffix("_bucket") for name in names)}
    missing = {name for name in types - shown if not name.endswith("_created")}
    assert not missing, "not on the dashboard"


def test_the_metrics_do_not_wait_for_the_engine(watched, monkeypatch):
    client, _ = watched
    free = threading.Event()
    real = Engine.apply
    monkeypatch.setattr(Engine, "apply", lambda self, batch: free.wait(30) and real(self, batch))
    sending = threading.Thread(target=lambda: client.post("/v1/events", json=row("c")))
    sending.start()
    try:
        with httpx.Client(base_url=client.base_url, timeout=10) as other:
            for path in ("/metrics", "/healthz"):
                assert other.get(path).status_code == 200
            assert metrics_of(other.get("/metrics").text)[0]["onlinecde_queued_events"] == 1
        assert not free.is_set()
    finally:
        free.set()
        sending.join()


def test_systemd_is_told_what_the_server_does(serve_process, tmp_path, monkeypatch):
    file, heard = tmp_path / "notify", queue.Queue()
    book = TokenBook()
    book.add("a", ["read"])
    book.write(tmp_path / "tokens.json")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(file))
        listening.settimeout(120)
        monkeypatch.setenv("NOTIFY_SOCKET", str(file))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")

        def hear():
            with contextlib.suppress(OSError):
                while True:
                    heard.put(listening.recv(4096).decode().split("\n"))

        def until(line):
            while line not in (lines := heard.get(timeout=60)):
                pass
            return lines

        threading.Thread(target=hear, daemon=True).start()
        server = serve_process("--tokens", str(tmp_path / "tokens.json"))
        until("READY=1")
        until("WATCHDOG=1")
        os.kill(server.process.pid, signal.SIGHUP)
        assert any(line.startswith("MONOTONIC_USEC=") for line in until("RELOADING=1"))
        until("READY=1")
        server.end(signal.SIGTERM)
        until("STOPPING=1")


def test_the_unit_starts_what_there_is(tmp_path):
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str
    unit.read(DEPLOY / "onlinecde.service")
    service = dict(unit["Service"])
    assert (service["Type"], service["ProtectSystem"], service["NoNewPrivileges"]) == (
        "notify",
        "strict",
        "yes",
    )
    words = shlex.split(service["ExecStart"])
    command = get_command(app).commands[words[1]]
    options = {name for one in command.params for name in one.opts}
    assert {word for word in words if word.startswith("--")} <= options
    assert "MemoryDenyWriteExecute" not in service  # numba compiles


def test_a_token_that_floods_is_refused_and_one_that_sends_little_is_not(start, monkeypatch):
    book = TokenBook()
    flooding, calm = (book.add(name, ["ingest"]) for name in ("flooding", "calm"))
    limits = Limits(queued_events=4_000, batch_events=3_000, requests_per_second=1e6, burst=10**6)
    _, engine, url = start(tokens=book, limits=limits)
    real, batches, stop = engine.apply, [], threading.Event()

    def slow(batch):
        batches.append(set(batch.streams))
        time.sleep(0.01 + len(batch) / 50_000)
        return real(batch)

    monkeypatch.setattr(engine, "apply", slow)
    statuses = []

    def flood(number):
        with httpx.Client(
            base_url=url, timeout=60, headers={"authorization": f"Bearer {flooding}"}
        ) as own:
            turn = 0
            while not stop.is_set():
                rows = [row(f"flood {number} {i}", float(turn)) for i in range(900)]
                statuses.append(own.post("/v1/events", json=rows).status_code)
                turn += 1

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    try:
        waited = []
        with httpx.Client(
            base_url=url, timeout=60, headers={"authorization": f"Bearer {calm}"}
        ) as own:
            while 429 not in statuses and len(statuses) < 200:
                time.sleep(0.01)
            for turn in range(15):
                before = len(batches)
                answer = own.post("/v1/events", json=row("calm", float(turn)))
                assert answer.status_code == 200
                waited.append(len(batches) - before)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert 429 in statuses, "nothing was flooded"
    assert 200 in statuses
    # The micro-batch under way when it comes, its own, and one or two that end while it is answered.
    assert sorted(waited)[len(waited) // 2] <= 3
    assert engine.stream("calm").rows == 15


def test_a_request_taken_in_parts_is_answered_as_one(start, monkeypatch):
    book = TokenBook()
    big, other = (book.add(name, ["ingest", "read"]) for name in ("big", "other"))
    client, engine, _ = start(tokens=book)
    real, sizes = engine.apply, []

    def noted(batch):
        sizes.append(len(batch))
        return real(batch)

    monkeypatch.setattr(engine, "apply", noted)
    client.post("/v1/events", json=row("other"), headers={"authorization": f"Bearer {other}"})
    rows = [
        {"stream": f"s{i % 40}", "time": float(i // 40), "values": {"lactate": 1.0, "oxygen": 2.0}}
        for i in range(1500)
    ]
    rows[1200]["values"]["nonsense"] = 1.0
    rows[1300]["time"] = "x"
    told = client.post(
        "/v1/events?answers=true", json=rows, headers={"authorization": f"Bearer {big}"}
    ).json()
    assert len(sizes) > 2, "it was not taken in parts"
    assert told["counts"]["applied"] == 2 * 1499
    assert told["counts"]["refused"] == 3
    assert {one["index"] for one in told["refusals"]} == {1200, 1300}
    assert {one["stream"]: one["time"] for one in told["answers"]} == {
        f"s{i}": max(float(n // 40) for n in range(1500) if n % 40 == i and n != 1300)
        for i in range(40)
    }


def test_log_lines_of_a_request_carry_its_id(serve_process):
    server = serve_process("--log-requests")
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.get("/v1/model", headers={"x-request-id": "night-7"})
    lines = [
        json.loads(line) for line in server.end(signal.SIGTERM)[1].splitlines() if line[:1] == "{"
    ]
    (line,) = [one for one in lines if one.get("route") == "/v1/model"]
    assert line["request"] == "night-7"
