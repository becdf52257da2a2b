"""Killed, told to stop, overloaded: what was acknowledged is there, what was refused is not, and no more."""

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

import onlinecde as oc
from onlinecde.cli import main
from onlinecde.serving import Limits
from onlinecde.streaming import Engine, Event, SQLiteStore

CHANNELS = ("heart_rate", "lactate", "oxygen", "pressure")
OVERLOAD = float(os.environ.get("ONLINECDE_OVERLOAD_SECONDS", "4"))
"""A minute by hand, seconds in every run of the tests"""


def memory():
    """Bytes of this process, the server's threads among its own, that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Sender(threading.Thread):
    """Sends rows of its own streams one request after the other, and again where no answer came."""

    def __init__(self, number, url, stop):
        super().__init__()
        self.url, self.stop = url, stop
        self.random = random.Random(number)
        self.names = [f"sender {number} stream {i}" for i in range(3)]
        self.acknowledged, self.sent, self.broken = [], [], 0

    def run(self):
        clock = 0.0
        client = httpx.Client(base_url=self.url, timeout=5)
        while not self.stop.is_set():
            clock = round(clock + self.random.uniform(0.01, 0.1), 4)
            values = {
                self.random.choice(CHANNELS): round(self.random.gauss(0, 1), 3) for _ in range(2)
            }
            rows = [{"stream": name, "time": clock, "values": values} for name in self.names]
            self.sent.append(rows)
            while not self.stop.is_set():
                try:
                    answer = client.post("/v1/events", json=rows)
                except httpx.TransportError:
                    self.broken += 1
                    time.sleep(0.05)
                    continue
                told = answer.json()
                if answer.status_code == 503 and told["error"]["code"] == "starting":
                    time.sleep(0.05)
                    continue
                assert answer.status_code == 200, told
                # Sent again after a kill, it is a duplicate if it was committed before.
                assert told["counts"]["applied"] + told["counts"]["duplicate"] == told["events"]
                self.acknowledged.append(rows)
                break
        client.close()


def test_killed_under_load_nothing_acknowledged_is_lost(serve_process, small_model):
    server, stop = serve_process("--lateness", "1"), threading.Event()
    senders = [Sender(i, server.url, stop) for i in range(3)]
    for sender in senders:
        sender.start()
    try:
        for _ in range(2):
            time.sleep(random.uniform(0.4, 1.0))
            code, _ = server.end(signal.SIGKILL)
            assert code == -signal.SIGKILL
            server.run()
        time.sleep(0.5)
    finally:
        stop.set()
        for sender in senders:
            sender.join()
    assert any(sender.broken for sender in senders), "no request was broken off"
    assert all(len(sender.acknowledged) > 5 for sender in senders)
    unbroken = Engine(small_model, channels=CHANNELS)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for sender in senders:
            rows = sender.acknowledged + sender.sent[len(sender.acknowledged) :]
            for place, name in enumerate(sender.names):
                stored = client.get(f"/v1/streams/{name}/history", params={"most": 5000}).json()[
                    "rows"
                ]
                own = [row[place] for row in rows]
                # Beyond what was acknowledged, at most the request that was under way may be there.
                assert 0 <= len(stored) - len(sender.acknowledged) <= 1
                assert [(r["time"], r["values"]) for r in stored] == [
                    (r["time"], r["values"]) for r in own[: len(stored)]
                ]
                for row in own[: len(stored)]:
                    unbroken.apply(
                        [Event(name, row["time"], c, v) for c, v in row["values"].items()]
                    )
                true = np.array([r.outputs for r in unbroken.history(name)])
                # In other micro-batches than then: the last bit of a float32 may differ, no more.
                told = np.array([r["outputs"] for r in stored])
                assert np.abs(told - true).max() <= 1e-6 * np.abs(true).max()


def test_told_to_stop_it_commits_closes_and_ends(
    serve_process, small_model, model_folder, tmp_path, capsys
):
    server = serve_process()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        row = {"stream": "secret patient", "time": 0, "values": {"lactate": 77.125}}
        assert client.post("/v1/events", json=row).status_code == 200
        assert client.post("/v1/events", json={**row, "channel": 1}).status_code == 422
        assert client.get("/v1/streams/secret%20patient").status_code == 200
    with pytest.raises(SystemExit) as ended:  # the store has an owner
        main(["serve", str(model_folder), "--store", str(tmp_path / "live.db")])
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
    code, told = server.end(signal.SIGTERM)
    assert code in (0, -signal.SIGTERM)
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert "stopped" in [line["event"] for line in lines]
    assert "secret" not in told
    assert "77.125" not in told
    with Engine(model_folder, SQLiteStore(tmp_path / "live.db")) as engine:
        assert engine.history("secret patient")[0].events == {"lactate": 77.125}


def test_overload_is_refused_and_what_was_accepted_is_done(start, monkeypatch):
    limits = Limits(queued_events=400, batch_events=100, requests_per_second=1e6, burst=10**6)
    client, engine, url = start(limits=limits)
    real = engine.apply

    def slow(batch):  # 100 events each 20 ms: 5,000 a second
        time.sleep(0.02)
        return real(batch)

    monkeypatch.setattr(engine, "apply", slow)
    answers, lock, until = [], threading.Lock(), time.monotonic() + OVERLOAD

    def flood(number):
        with httpx.Client(base_url=url, timeout=30) as own:
            sent = 0
            while time.monotonic() < until:
                rows = [
                    {"stream": f"{number} {i}", "time": sent / 1000, "values": {"lactate": 1.0, "oxygen": 1.0}}
                    for i in range(25)
                ]  # fmt: skip
                answer = own.post("/v1/events", json=rows)
                sent += 1
                with lock:
                    answers.append((answer.status_code, answer.headers.get("retry-after")))

    threads = [threading.Thread(target=flood, args=(i,)) for i in range(24)]
    gauges, sizes = [], []
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        sizes.append(memory())
        text = client.get("/metrics").text
        gauges.append(float(text.split("\nonlinecde_queued_events ")[1].split("\n")[0]))
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    done = [a for a in answers if a[0] == 200]
    refused = [a for a in answers if a[0] == 429]
    assert len(done) + len(refused) == len(answers)
    assert len(refused) > 2 * len(done) > 0, "it was not overloaded three times over"
    assert all(int(wait) >= 1 for _, wait in refused)
    assert max(gauges) <= limits.queued_events
    settled = sizes[len(sizes) // 4]
    assert max(sizes) < settled + 100 * 2**20, "memory grew with what was refused"
    assert engine.counters["applied"] == 50 * len(done)


def test_bodies_read_at_once_are_bounded(start):
    client, _, url = start(
        limits=Limits(body_bytes=200_000, bodies_bytes=250_000, body_seconds=2.0)
    )
    port, held = httpx.URL(url).port, []
    try:
        for _ in range(2):
            one = socket.create_connection(("127.0.0.1", port))
            head = b"POST /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 190000\r\n\r\n"
            one.sendall(head + b" " * 120_000)
            held.append(one)
        time.sleep(0.3)
        row = {"stream": "a", "time": 0, "values": {"lactate": 1}}
        answer = client.post("/v1/events", content=b" " * 50_000 + json.dumps(row).encode(),
                             headers={"content-type": "application/json"})  # fmt: skip
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
        # Whoever does not go on sending is not waited for.
        told = held[0].recv(4000)
        assert b"408" in told
        assert b"body_slow" in told or b"body_slow" in held[0].recv(4000)
    finally:
        for one in held:
            one.close()
    assert client.post("/v1/events", json=row).status_code == 200


def test_random_requests_at_once_leave_the_counts_right(start):
    _, engine, url = start()
    outcomes, lock = {}, threading.Lock()

    def send(number):
        own_random = np.random.default_rng(number)
        with httpx.Client(base_url=url, timeout=60) as own:
            for _ in range(20):
                events = [
                    {
                        "stream": f"{number} {own_random.integers(3)}",
                        "time": round(float(own_random.uniform(0, 5)), 1),
                        "channel": ["lactate", "oxygen", "pulse"][own_random.integers(3)],
                        "value": float(own_random.integers(3)),
                    }
                    for _ in range(int(own_random.integers(1, 20)))
                ]
                told = own.post("/v1/events", json=events).json()
                assert sum(told["counts"].values()) == told["events"] == len(events)
                with lock:
                    for name, many in told["counts"].items():
                        outcomes[name] = outcomes.get(name, 0) + many

    threads = [threading.Thread(target=send, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: engine.counters[name] for name in outcomes} == outcomes
    assert all(outcomes[name] for name in outcomes), outcomes


@pytest.mark.parametrize("options", [["--host", "0.0.0.0"], ["--clock-speed", "0"]])
def test_settings_that_cannot_be_are_one_clear_message(model_folder, tmp_path, options, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(model_folder), "--store", str(tmp_path / "x.db"), *options])
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_start_on_a_taken_port_leaves_the_store_as_it_was(model_folder, tmp_path, capsys):
    other = oc.NeuralCDE(
        4, 6, outputs=1, field={"width": 6, "depth": 1}, readout={"kind": "binary"}
    )
    with Engine(other, SQLiteStore(tmp_path / "x.db"), channels=CHANNELS) as engine:
        engine.apply([Event("a", 0.0, CHANNELS[0], 1.0)])
        before = engine.model_hash
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = ["--rebuild", "--port", str(taken.getsockname()[1])]
        with pytest.raises(SystemExit):
            main(["serve", str(model_folder), "--store", str(tmp_path / "x.db"), *options])
    assert "cannot listen" in capsys.readouterr().err
    with contextlib.closing(SQLiteStore(tmp_path / "x.db")) as store:
        assert store.head().model == before
    with pytest.raises(SystemExit):
        main(["serve", str(model_folder), "--store", str(tmp_path / "x.db"), *options[1:]])
    assert "serve --rebuild" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("", "give a file"),
        (".", "give a file"),
        ("{tmp}", "is a folder"),
        ("{tmp}/none/x.db", "make it first"),
        ("{tmp}/text.db", "no SQLite database"),
        ("/proc/x.db", "cannot be written"),
        ("postgresql://nobody@127.0.0.1:9/none", "try again later"),
    ],
)
def test_a_store_that_cannot_be_opened_says_what_to_do(model_folder, tmp_path, store, said, capsys):
    (tmp_path / "text.db").write_text("no database, but a text long enough to look into\n" * 50)
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(model_folder), "--store", store.format(tmp=tmp_path)])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())
