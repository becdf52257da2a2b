"""Alarms that are sent to other servers: signed, at least once, whoever is killed, slow or away."""

import base64
import hashlib
import hmac
import json
import os
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from onlinecde.serving import ServingError, TokenBook
from onlinecde.serving.webhooks import Target, read_targets
from onlinecde.streaming import Engine, Event, MemoryStore, SQLiteStore

KILLS = int(os.environ.get("ONLINECDE_KILLS", "1"))
SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
CHANNELS = ("heart_rate", "lactate", "oxygen", "pressure")


class Receiver:
    """A server on loopback that notes what it is sent; `answer` says how it answers, given the alarm."""

    def __init__(self, port=0):
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                whole = len(body) == int(self.headers["content-length"])  # or the sender was killed
                status = receiver.take(dict(self.headers.items()), body) if whole else 400
                self.send_response(status)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.came, self.taken = [], []
        self.answer = lambda alarm: 200
        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/alarms"

    def take(self, headers, body):
        content = json.loads(body)
        self.came.append(content)
        status = self.answer(content["data"])
        if status == 200:
            signed = b"%s.%s.%s" % (
                headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body,
            )  # fmt: skip
            right = base64.b64encode(hmac.digest(b"k" * 32, signed, hashlib.sha256)).decode()
            assert headers["webhook-signature"] == f"v1,{right}"
            assert content["id"] == headers["webhook-id"]
            assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
            self.taken.append(content)
        return status

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver():
    one = Receiver()
    yield one
    one.close()


def until(true, seconds=30):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


def alarming(names, time=0.0):
    """Rows of new streams, each of which raises an alarm at a threshold of almost nothing."""
    return [{"stream": name, "time": time, "values": {"lactate": 1.0}} for name in names]


@pytest.fixture
def sending(start, small_model):
    def begin(*targets, store=None, **more):
        engine = Engine(small_model, store or MemoryStore(), channels=CHANNELS, threshold=1e-6)
        return start(engine=engine, webhooks=targets, **more)

    return begin


def target(url, name="pager", **more):
    return Target(**{"name": name, "url": url, "secret": SECRET, "retry_seconds": 0.05, **more})


def numbers(contents):
    return [one["data"]["number"] for one in contents]


def test_each_alarm_is_sent_once_signed_and_as_the_api_has_it(sending, receiver):
    client, *_ = sending(target(receiver.url))
    client.post("/v1/events", json=alarming(f"bed {i}" for i in range(20)))
    until(lambda: len(receiver.taken) == 20)
    told = client.get("/v1/alarms").json()["alarms"]
    assert sorted((one["data"] for one in receiver.taken), key=lambda one: -one["number"]) == told
    assert len({one["id"] for one in receiver.came}) == len(receiver.came) == 20
    until(lambda: client.get("/v1/webhooks").json()["targets"][0]["waiting"] == 0)


def test_a_new_target_gets_the_alarms_from_then_on(sending, receiver, tmp_path, small_model):
    with Engine(
        small_model, SQLiteStore(tmp_path / "a.db"), channels=CHANNELS, threshold=1e-6
    ) as engine:
        assert engine.apply([Event("before", 0.0, "lactate", 1.0)]).alarms
    store = SQLiteStore(tmp_path / "a.db")
    client, engine, _ = sending(target(receiver.url), store=store)
    client.post("/v1/events", json=alarming(["after"]))
    until(lambda: receiver.taken)
    assert [one["data"]["stream"] for one in receiver.taken] == ["after"]


def test_what_fails_is_tried_again_and_holds_up_no_other(sending, receiver):
    failures = Counter()

    def answer(alarm):
        failures[alarm["stream"]] += 1
        return 503 if alarm["stream"] == "bed 3" and failures["bed 3"] < 4 else 200

    receiver.answer = answer
    client, *_ = sending(target(receiver.url, retry_most_seconds=0.2))
    client.post("/v1/events", json=alarming(f"bed {i}" for i in range(12)))
    until(lambda: len(receiver.taken) == 12)
    assert failures["bed 3"] == 4
    assert receiver.taken[-1]["data"]["stream"] == "bed 3"
    ids = {one["id"] for one in receiver.came if one["data"]["stream"] == "bed 3"}
    assert len(ids) == 1, "attempts of one alarm have one id"


def test_what_is_given_up_is_seen_and_can_be_sent_again(sending, receiver):
    receiver.answer = lambda alarm: 500 if alarm["stream"] == "bad" else 200
    client, *_ = sending(target(receiver.url, give_up_seconds=0.2, retry_most_seconds=0.1))
    client.post("/v1/events", json=alarming(["bad", "good"]))

    def state():
        return client.get("/v1/webhooks").json()["targets"][0]

    until(lambda: state()["dead"])
    (dead,) = state()["dead"]
    assert (dead["error"], dead["attempts"] > 1) == ("answered 500", True)
    text = client.get("/metrics").text
    assert 'onlinecde_webhook_dead{target="pager"} 1.0' in text
    assert 'onlinecde_webhook_deliveries_total{result="delivered",target="pager"} 1.0' in text
    receiver.answer = lambda alarm: 200
    assert client.post("/v1/admin/webhooks/pager/retry").json() == {"alarms": 1}
    until(lambda: len(receiver.taken) == 2)
    assert client.post("/v1/admin/webhooks/nobody/retry").status_code == 404
    until(lambda: state()["waiting"] == 0 and not state()["dead"])


def test_who_answers_slowly_or_never_holds_up_neither_events_nor_other_targets(sending, receiver):
    slow, release = Receiver(), threading.Event()
    slow.answer = lambda alarm: release.wait(20) and 200
    try:
        client, *_ = sending(
            target(slow.url, "slow", timeout_seconds=0.3), target(receiver.url, "quick")
        )
        for number in range(3):
            sent = client.post("/v1/events", json=alarming([f"{number} {i}" for i in range(10)]))
            assert sent.status_code == 200
        until(lambda: len(receiver.taken) == 30)
        assert not slow.taken
        waiting = {one["name"]: one for one in client.get("/v1/webhooks").json()["targets"]}
        assert waiting["slow"]["waiting"] == 30
        assert "no answer" in waiting["slow"]["failing"][0]["error"]
        release.set()
        until(lambda: set(numbers(slow.taken)) == set(range(1, 31)))
    finally:
        release.set()
        slow.close()


def test_a_receiver_that_is_away_gets_everything_when_it_is_back(sending, monkeypatch):
    monkeypatch.setattr("onlinecde.serving.webhooks.MOST_FAILING", 20)
    away = Receiver()
    away.close()
    client, engine, _ = sending(target(away.url, retry_most_seconds=0.2))
    client.post("/v1/events", json=alarming(f"bed {i}" for i in range(50)))
    count = len(engine.alarms())
    until(lambda: len(client.get("/v1/webhooks").json()["targets"][0]["failing"]) >= 20)
    state = client.get("/v1/webhooks").json()["targets"][0]
    assert (len(state["failing"]), state["waiting"], count) == (20, 50, 50), (
        "more were tried at once"
    )
    back = Receiver(away.port)
    try:
        until(lambda: set(numbers(back.taken)) == set(range(1, count + 1)))
    finally:
        back.close()


def test_a_target_may_be_for_some_streams(sending, receiver):
    client, *_ = sending(target(receiver.url, streams=("east/",)))
    client.post("/v1/events", json=alarming(["east/1", "west/1", "east/2"]))
    until(lambda: len(receiver.taken) == 2)
    until(lambda: client.get("/v1/webhooks").json()["targets"][0]["waiting"] == 0)
    assert {one["data"]["stream"] for one in receiver.came} == {"east/1", "east/2"}


def test_killed_between_commit_and_delivery_no_alarm_is_lost(serve_process, receiver, tmp_path):
    """The receiver holds every request until the server is dead, or takes some of them before."""
    file = tmp_path / "webhooks.json"
    one = {"name": "pager", "url": receiver.url, "secret": SECRET, "retry_seconds": 0.05}
    file.write_text(json.dumps({"targets": [one]}))
    file.chmod(0o600)
    dead = threading.Event()
    server = serve_process("--webhooks", str(file), "--threshold", "0.000001")
    committed = 0
    for kill in range(KILLS):
        dead.clear()
        before = set(numbers(receiver.taken))
        some = kill % 3  # how many are taken before the kill
        receiver.answer = lambda alarm, some=some, before=before: (
            200 if len(set(numbers(receiver.taken)) - before) < some or dead.wait(30) else 500
        )
        with httpx.Client(base_url=server.url, timeout=60) as client:
            sent = client.post("/v1/events", json=alarming(f"{kill} {i}" for i in range(12)))
            assert sent.json()["counts"]["applied"] == 12
        committed += 12
        until(lambda before=before, some=some: len(set(numbers(receiver.came)) - before) > some)
        server.end()
        taken = set(numbers(receiver.taken))
        assert len(taken) < committed, "the kill came after everything was delivered"
        receiver.answer = lambda alarm: 200
        dead.set()
        server.run()
        every = set(range(1, committed + 1))
        until(lambda every=every: set(numbers(receiver.taken)) == every)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        alarms = client.get("/v1/alarms").json()["alarms"]
        assert [one["number"] for one in alarms] == list(range(committed, 0, -1))
        until(lambda: client.get("/v1/webhooks").json()["targets"][0]["waiting"] == 0)
    ids = {}
    for content in receiver.taken:
        assert ids.setdefault(content["data"]["number"], content["id"]) == content["id"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"url": "ftp://x"}, "http"), ({"secret": "whsec_YQ=="}, "24 bytes"), ({"secret": "plain"}, "whsec_"),
        ({"name": ""}, "name"), ({"colour": 1}, "colour"), ({"timeout_seconds": 0}, "timeout_seconds"),
    ],
)  # fmt: skip
def test_targets_that_make_no_sense_are_refused(tmp_path, change, word):
    file = tmp_path / "webhooks.json"
    right = {"name": "a", "url": "https://a.example/x", "secret": SECRET}
    file.write_text(json.dumps({"targets": [right]}))
    file.chmod(0o644)
    with pytest.raises(ServingError, match="chmod 600"):
        read_targets(file)
    file.chmod(0o600)
    assert read_targets(file)[0].name == "a"
    file.write_text(json.dumps({"targets": [{**right, **change}]}))
    with pytest.raises(ServingError, match=word):
        read_targets(file)
    file.write_text(json.dumps({"targets": [right, right]}))
    with pytest.raises(ServingError, match="one name"):
        read_targets(file)


def test_addresses_of_targets_are_not_told(sending, receiver):
    book = TokenBook()
    text = book.add("looks", ["read"])
    client, *_ = sending(target(receiver.url + "/a-secret-path"), tokens=book)
    told = client.get("/v1/webhooks", headers={"authorization": f"Bearer {text}"}).text
    assert "127.0.0.1" in told
    assert "secret" not in told
