"""Clients that hold connections, send endless headers or bodies that unpack without end: others are served on."""

import contextlib
import gzip
import json
import resource
import socket
import threading
import time
import zlib
from pathlib import Path

import httpx
import pytest

from onlinecde.serving import Limits, ServeSettings, ServingError
from onlinecde.serving.connections import RESERVED_FILES, connection_limit
from onlinecde.serving.protocols import HttpConnection

ROW = {"stream": "a", "time": 0.0, "values": {"lactate": 1.0, "oxygen": 2.0}}
HALF = b"GET /v1/model HTTP/1.1\r\nhost: 127.0.0.1\r\nx-half: "
SLOW_BODY = b"POST /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 90000\r\n\r\n["


def port_of(url):
    return httpx.URL(url).port


def connected(url, said=b"", stack=None):
    one = socket.create_connection(("127.0.0.1", port_of(url)), timeout=10)
    if stack is not None:
        stack.enter_context(one)
    one.sendall(said)
    return one


def all_of(one):
    """All that a server says until it closes."""
    told = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while piece := one.recv(65536):
            told += piece
    return told


def lines_of(process_output, event):
    lines = [json.loads(line) for line in process_output.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def send_without_end(one, most):
    """Bytes of a header value sent until the server has enough of them."""
    sent, piece = 0, b"a" * 65536
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while sent < most:
            one.sendall(piece)
            sent += len(piece)
    return sent


def test_endless_headers_are_cut_off_and_hold_no_one_up(serve_process):
    server = serve_process()
    status = Path(f"/proc/{server.process.pid}/status")

    def memory():
        return int(status.read_text().split("VmRSS:")[1].split()[0]) * 1024

    before, most, sent, slowest = memory(), 16 * 2**20, [], 0.0
    with contextlib.ExitStack() as stack, httpx.Client(base_url=server.url, timeout=30) as client:
        held = [connected(server.url, HALF, stack) for _ in range(4)]
        threads = [
            threading.Thread(target=lambda one=one: sent.append(send_without_end(one, most)))
            for one in held
        ]
        for thread in threads:
            thread.start()
        for _ in range(20):
            began = time.monotonic()
            assert client.get("/healthz").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
        for thread in threads:
            thread.join()
        assert all(b" 431 " in (told := all_of(one)) or not told for one in held)
    assert max(sent) < most, "a header went on without end"
    assert memory() - before < 32 * 2**20
    assert slowest < 5.0
    told = lines_of(server.end()[1], "connections closed")
    assert {line["reason"] for line in told} == {"header_too_large"}
    assert len(told) == 1, "one line a minute, not one a connection"


def test_trailers_and_sizes_of_chunks_without_end_are_cut_off(serve_process):
    server = serve_process()
    body = HALF.replace(b"GET /v1/model", b"POST /v1/events").replace(
        b"x-half: ", b"transfer-encoding: chunked\r\n\r\n"
    )
    most = 16 * 2**20
    for said in (b"5;", b"0", b"2\r\n[]\r\n0\r\nx: ", b"2\r\n[]\r\n0\r\n"):
        piece = b"a: b\r\n" * 10_000 if said.endswith(b"0\r\n") else b"0" * 65536
        with connected(server.url, body + said) as one:
            sent = 0
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                while sent < most:
                    one.sendall(piece)
                    sent += len(piece)
            assert sent < most, said
    # Chunks of a byte have more around them than in them, and are a body like any other.
    row = json.dumps(ROW).encode() + b" " * 50_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in row) + b"0\r\nx: y\r\n\r\n"
    head = body.replace(b"host:", b"connection: close\r\ncontent-type: application/json\r\nhost:")
    with connected(server.url, head + chunks) as one:
        assert b"200 OK" in all_of(one)
    told = lines_of(server.end()[1], "connections closed")
    assert {line["reason"] for line in told} == {"header_too_large"}


def test_requests_in_a_row_are_read_no_faster_than_they_are_answered(start, monkeypatch):
    waiting, begin = [], HttpConnection._start_asgi_task

    def counted(self, *given):
        waiting.append(len(self.pipeline))
        begin(self, *given)

    monkeypatch.setattr(HttpConnection, "_start_asgi_task", counted)
    client, _, url = start()
    asks = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 1000
    with connected(url) as one:
        one.settimeout(1)
        until = time.monotonic() + 4
        with contextlib.suppress(TimeoutError):
            while time.monotonic() < until:
                one.send(asks)
        assert client.get("/healthz").status_code == 200
    assert max(waiting) > 1000, "they came faster than they could be answered"
    assert max(waiting) * len(asks) / 1000 < 2**19, "no more wait than came at once"


def test_half_open_connections_beyond_all_file_descriptors_shut_no_one_out(serve_process):
    server = serve_process(files=96)
    handshake = (
        b"GET /v1/live HTTP/1.1\r\nhost: foreign.example\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    for said in (HALF, SLOW_BODY, b"", handshake):
        with contextlib.ExitStack() as stack:
            for _ in range(150):
                connected(server.url, said, stack)
            for _ in range(3):
                with httpx.Client(base_url=server.url, timeout=10) as client:
                    assert client.post("/v1/events", json=ROW).status_code == 200, said
    told = lines_of(server.end()[1], "connections closed")
    assert "too_many_connections" in {line["reason"] for line in told}
    assert len(told) <= 4, "more than one line a minute for each reason"
    assert {line["last_address"] for line in told} == {"127.0.0.1"}


def test_a_header_of_the_size_allowed_is_read_and_one_beyond_is_refused(start):
    client, _, url = start(limits=Limits(header_bytes=4096))
    assert client.get("/v1/model", headers={"x-long": "a" * 3700}).status_code == 200
    refused = client.get("/v1/model", headers={"x-long": "a" * 4096})
    assert (refused.status_code, refused.json()["error"]["code"]) == (431, "header_too_large")
    many = {f"x-{i}": "a" for i in range(1000)}
    assert client.get("/v1/model", headers=many).status_code == 431
    # A body may be as long as it may, and requests may follow each other on a connection as before.
    for _ in range(3):
        body = json.dumps(ROW).encode() + b" " * 300_000
        answer = client.post(
            "/v1/events", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 200
    with connected(url) as one:
        ask = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        last = ask.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        one.sendall(ask * 200 + last)
        assert all_of(one).count(b"HTTP/1.1 200 OK") == 201


def test_a_header_in_drops_is_answered_408_and_a_connection_without_a_request_is_closed(start):
    _, _, url = start(limits=Limits(header_seconds=0.6))
    with connected(url, HALF) as slow, connected(url) as silent:
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while time.monotonic() - began < 10:  # a byte now and then is no excuse
                slow.sendall(b"a")
                time.sleep(0.05)
        assert time.monotonic() - began < 8
        told = all_of(slow)
        assert b" 408 " in told
        assert b"header_slow" in told
        assert all_of(silent) == b""


def test_requests_that_come_in_time_may_go_on_for_longer_than_a_header_may(start):
    client, _, url = start(limits=Limits(header_seconds=0.4, idle_seconds=20))
    for _ in range(3):
        assert client.post("/v1/events", json=ROW).status_code == 200
        time.sleep(0.6)
    with connected(url) as one:
        one.sendall(SLOW_BODY.replace(b"90000", b"4"))
        time.sleep(1.0)
        one.sendall(b"{}]")
        assert b" 422 " in one.recv(4096)


def test_an_unread_answer_does_not_hold_a_connection_for_ever(start, logged):
    client, _, url = start(limits=Limits(idle_seconds=1, header_seconds=5))
    rows = [{**ROW, "stream": f"{'long name ' * 15}{i}"} for i in range(1000)]
    assert client.post("/v1/events", json=rows).status_code == 200
    ask = b"GET /v1/streams?limit=1000 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(30)
        one.connect(("127.0.0.1", port_of(url)))
        one.sendall(ask * 40)
        time.sleep(4)
        assert 0 < all_of(one).count(b"HTTP/1.1 200 OK") < 40
    assert [(r.getMessage(), r.told.get("reason")) for r in logged if r.levelname != "INFO"] == [
        ("connections closed", "answer_not_read")
    ]


def test_when_all_are_at_work_a_new_one_is_told_to_come_again(start):
    from websockets.sync.client import connect

    _, _, url = start(limits=Limits(connections=3))
    address = url.replace("http", "ws") + "/v1/live"
    with connect(address), connect(address), connect(address):
        refused = httpx.get(f"{url}/healthz")
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert refused.json()["error"]["code"] == "too_many_connections"
        assert int(refused.headers["retry-after"]) >= 1
    for _ in range(50):
        if httpx.get(f"{url}/healthz").status_code == 200:
            break
        time.sleep(0.1)
    else:
        pytest.fail("there was no room again")


def test_a_handshake_with_too_many_headers_is_refused_and_let_go(start):
    _, _, url = start()
    head = (
        b"GET /v1/live HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    )
    with connected(url, head + b"x: y\r\n" * 300 + b"\r\n") as one:
        assert b" 431 " in all_of(one)


def test_more_connections_than_open_files_are_refused_at_the_start():
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(ServingError, match="ulimit -n"):
        connection_limit(Limits(connections=files))
    assert connection_limit(Limits(connections=50)) == 50
    assert connection_limit(Limits()) <= files - RESERVED_FILES
    for name in ("header_seconds", "connections"):
        with pytest.raises(ServingError, match=name):
            ServeSettings(limits=Limits(**{name: 0}))


def packed(content, coding="gzip"):
    return {
        "content": content,
        "headers": {"content-type": "application/json", "content-encoding": coding},
    }


def test_a_body_in_gzip_is_taken(start):
    client, engine, _ = start()
    rows = [{**ROW, "stream": f"s {i}", "time": i / 7} for i in range(3000)]
    for body in (ROW, rows):
        raw = json.dumps(body).encode()
        assert client.post("/v1/events", **packed(gzip.compress(raw))).status_code == 200
    joined = gzip.compress(b'{"stream": "b", "time": 0,') + gzip.compress(
        b'"values": {"lactate": 1}}'
    )
    assert client.post("/v1/events", **packed(joined, "X-GZIP")).status_code == 200
    assert engine.counters["applied"] == 2 * 3001 + 1
    answer = client.put("/v1/streams/c", **packed(gzip.compress(b'{"origin": 5}')))
    assert answer.json()["origin"] == 5


def test_what_is_no_gzip_or_another_coding_is_refused_by_name(start):
    client, engine, _ = start()
    raw = json.dumps(ROW).encode()
    whole = gzip.compress(raw)
    for body in (raw, whole[:-9], whole[:5], whole + b"more", zlib.compress(raw)):
        refused = client.post("/v1/events", **packed(body))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "gzip_bad"), body
    for coding in ("br", "deflate", "gzip, gzip"):
        refused = client.post("/v1/events", **packed(whole, coding))
        assert (refused.status_code, refused.json()["error"]["code"]) == (415, "content_encoding")
        assert refused.headers["accept-encoding"] == "gzip"
    assert engine.counters["received"] == 0


def test_a_body_that_unpacks_without_end_is_cut_off(start):
    client, engine, _ = start(limits=Limits(body_bytes=100_000))
    bombs = [gzip.compress(b" " * size) for size in (100_001, 50_000_000)]
    bombs.append(b"".join([gzip.compress(b" " * 60_000)] * 2))
    for bomb in bombs:
        assert len(bomb) < 100_000
        refused = client.post("/v1/events", **packed(bomb))
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
    refused = client.post("/v1/events", **packed(gzip.compress(b"") * 4000))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "gzip_bad")
    fits = gzip.compress(json.dumps(ROW).encode().ljust(100_000))
    assert client.post("/v1/events", **packed(fits)).status_code == 200
    assert engine.counters["received"] == 2
