import contextlib
import json
import socket
import time
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from onlinecde.serving import Limits


@contextlib.contextmanager
def opened(url, **options):
    with connect(url.replace("http", "ws") + "/v1/live", compression=None, **options) as socket:
        yield Talk(socket)


class Talk:
    """Messages one by one, whatever frames they came in."""

    def __init__(self, socket):
        self.socket, self.waiting = socket, []

    def say(self, told):
        self.socket.send(told if isinstance(told, str | bytes) else json.dumps(told))

    def hear(self, kind=None):
        while True:
            if not self.waiting:
                self.waiting = json.loads(self.socket.recv(timeout=5))
            message = self.waiting.pop(0)
            if kind is None or message["type"] == kind:
                return message


ROW = {"stream": "a", "time": 0.0, "values": {"lactate": 1.0, "oxygen": 2.0}}


def test_events_in_receipts_out(start):
    client, engine, url = start()
    with opened(url) as talk:
        for number in range(20):
            talk.say({"ref": number, "events": [{**ROW, "time": number / 10}]})
        receipts = [talk.hear("receipt") for _ in range(20)]
    assert [one["ref"] for one in receipts] == list(range(20))
    assert all(one["counts"]["applied"] == 2 for one in receipts)
    assert client.get("/v1/streams/a").json()["rows"] == 20
    assert engine.counters["applied"] == 40


def test_who_asks_for_changes_hears_whose_alarms_are_others_and_who_is_gone(start):
    client, _, url = start(threshold=0.0001)
    with opened(url) as talk, opened(url) as other:
        talk.say({"subscribe": [], "ticks": False, "changes": True})
        assert talk.hear("subscribed")["changes"] is True
        other.say({"subscribe": ["a"], "ticks": False})
        assert "changes" not in other.hear("subscribed")
        client.post("/v1/events", json=[ROW, {**ROW, "stream": "b"}])
        assert talk.hear() == {"type": "changed", "streams": ["a", "b"]}
        client.post("/v1/alarms/2/acknowledge", json={"by": "me"})
        assert talk.hear() == {"type": "changed", "streams": ["b"]}
        client.delete("/v1/streams/a")
        assert talk.hear() == {"type": "changed", "streams": ["a"]}
        talk.say({"subscribe": "all", "changes": 1})
        assert talk.hear("error")["error"]["field"] == "changes"
        assert other.hear()["type"] == "predictions"


def test_new_predictions_and_ticks_are_heard(start):
    client, _, url = start(clock_speed=3600.0, tick=0.1, threshold=0.0001)
    with opened(url) as everything, opened(url) as one, opened(url) as quiet:
        everything.say({"subscribe": "all"})
        one.say({"subscribe": ["b"], "ticks": False})
        for talk, wanted in ((everything, "all"), (one, ["b"])):
            assert talk.hear("subscribed")["streams"] == wanted
        told = client.post("/v1/events", json=[ROW, {**ROW, "stream": "b"}], params={"answers": 1})
        for talk, names in ((everything, {"a", "b"}), (one, {"b"})):
            heard = talk.hear("predictions")
            # On a slow machine a tick may come first.
            while talk is everything and heard["reason"] == "tick":
                heard = talk.hear("predictions")
            assert heard["reason"] == "rows"
            assert {p["stream"] for p in heard["predictions"]} == names
            assert {a["stream"] for a in heard["alarms"]} == names
        answers = {p["stream"]: p for p in told.json()["answers"]}
        assert heard["predictions"] == [answers["b"]]
        ticks = [everything.hear("predictions") for _ in range(4)]
        assert {tick["reason"] for tick in ticks} == {"tick"}
        moved = [{p["stream"]: p["time"] for p in tick["predictions"]}.get("a") for tick in ticks]
        # The first may have been under way when the rows came.
        assert moved[1] < moved[2] < moved[3]
        assert moved[0] is None or moved[0] < moved[1]
        everything.say({"unsubscribe": True})
        assert everything.hear("subscribed")["streams"] == []
        with pytest.raises(TimeoutError):
            quiet.socket.recv(timeout=0.3)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("{", "json_bad"),
        (b"\xff", "utf8_bad"),
        ("[" * 2000, "json_depth"),
        ("5", "body_type"),
        ({"subscribe": 5}, "subscribe_bad"),
        ({"subscribe": [5]}, "subscribe_bad"),
        ({"subscribe": "all", "ticks": "no"}, "subscribe_bad"),
        ({"subscribe": "all", "events": [ROW]}, "field_unknown"),
        ({"unsubscribe": True, "events": [ROW]}, "field_unknown"),
        ('{"subscribe": ["\\ud800"]}', "utf8_bad"),
        ('{"ref": "\\ud800", "events": []}', "utf8_bad"),
        ({"ref": [], "events": [ROW]}, "ref_bad"),
        (
            json.dumps({"ref": 2**70, "events": [{**ROW, "values": {"lactate": float("nan")}}]}),
            "ref_bad",
        ),
        ({"events": []}, "no_events"),
        ({**ROW, "more": 1}, "field_unknown"),
    ],
)
def test_bad_messages_are_answered_and_the_socket_lives(start, said, code):
    _, _, url = start()
    with opened(url) as talk:
        talk.say(said)
        heard = talk.hear()
        assert (heard["type"], heard["error"]["code"]) == ("error", code)
        talk.say(ROW)
        assert talk.hear("receipt")["counts"]["applied"] == 2


def test_a_receipt_that_cannot_be_written_is_an_error_with_its_ref(start, monkeypatch, caplog):
    from onlinecde.serving.ingest import Committed

    _, _, url = start()
    monkeypatch.setattr(Committed, "as_json", lambda *_: {"unwritable": object()})
    with opened(url) as talk:
        talk.say({"ref": 17, "events": [ROW]})
        heard = talk.hear()
        assert (heard["type"], heard["ref"], heard["status"]) == ("error", 17, 500)
        monkeypatch.undo()
        talk.say({"ref": 18, "events": [ROW]})
        assert talk.hear("receipt")["counts"]["duplicate"] == 2


def test_an_event_beside_a_row_has_its_receipt(start):
    _, _, url = start()
    with opened(url) as talk:
        talk.say({"ref": 1, "events": [ROW, {"stream": "a", "time": 1, "channel": [], "value": 1}]})
        receipt = talk.hear("receipt")
        assert (receipt["ref"], receipt["refusals"][0]["code"]) == (1, "channel_type")


def test_a_refused_event_has_its_reason(start):
    _, _, url = start()
    with opened(url) as talk:
        talk.say({"stream": "a", "time": 0, "channel": "pulse", "value": 1})
        receipt = talk.hear("receipt")
        assert receipt["counts"]["refused"] == 1
        assert receipt["refusals"][0]["code"] == "channel_unknown"


def test_a_message_too_large_ends_the_socket(start):
    _, _, url = start(limits=Limits(body_bytes=10_000))
    with opened(url) as talk:
        talk.say("x" * 20_000)
        with pytest.raises(ConnectionClosed) as closed:
            talk.hear()
        assert closed.value.rcvd.code == 1009


def test_too_many_sockets_are_refused(start):
    _, _, url = start(limits=Limits(sockets=2))
    with opened(url), opened(url), opened(url) as third, pytest.raises(ConnectionClosed) as closed:
        third.hear()
    assert closed.value.rcvd.code == 4429


def held_open(local, remote):
    """Whether a process still holds the end of a TCP connection at port `local` with one at `remote`."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = [(row[1].split(":")[1], row[2].split(":")[1]) for row in rows]
    return any(
        (int(a, 16), int(b, 16)) == (local, remote) and row[9] != "0"
        for row, (a, b) in zip(rows, ports, strict=True)
    )


def test_who_does_not_read_is_let_go_and_holds_no_one_up(start):
    client, _, url = start(limits=Limits(socket_messages=8))
    rows = [
        {"stream": f"{'long name ' * 15}{i}", "time": 0.0, "values": {"lactate": 1.0}}
        for i in range(2000)
    ]
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.connect(("127.0.0.1", httpx.URL(url).port))
    with opened(url, max_queue=1, sock=small, close_timeout=0.2) as slow:
        slow.say({"subscribe": "all", "ticks": False})
        slow.hear("subscribed")
        began = time.monotonic()
        for number in range(60):
            told = [{**row, "time": number / 100} for row in rows]
            assert client.post("/v1/events", json=told).json()["counts"]["applied"] == 2000
            if "onlinecde_sockets_dropped_total 1.0" in client.get("/metrics").text:
                break
        else:
            pytest.fail("the slow socket was never let go")
        assert time.monotonic() - began < 60
        # The server's end is closed too, though nobody has read what it was sent.
        ports = httpx.URL(url).port, small.getsockname()[1]
        for _ in range(100):
            if not held_open(*ports):
                break
            time.sleep(0.1)
        assert not held_open(*ports)
        assert "onlinecde_sockets 0.0" in client.get("/metrics").text
    assert "onlinecde_sockets 0.0" in client.get("/metrics").text
