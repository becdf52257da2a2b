import json
import signal
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from onlinecde.serving import Limits, ServeSettings, ServingError, TokenBook, create_app
from onlinecde.serving.security import Rates
from onlinecde.serving.sessions import MOST_SESSIONS, Sessions
from onlinecde.streaming import Engine, MemoryStore


def row(stream, time=0.0, value=1.0):
    return {"stream": stream, "time": time, "values": {"lactate": value}}


def bearer(text, **headers):
    return {"authorization": f"Bearer {text}", **headers}


@pytest.fixture
def ward(start, small_model, tmp_path):
    """A server with tokens of every scope and for two wards, with an alarm at each stream."""
    book = TokenBook()
    texts = {
        one: book.add(one, [one]) for one in ("ingest", "read", "acknowledge", "delete", "admin")
    }
    every = ("ingest", "read", "acknowledge", "delete")
    texts |= {
        side: book.add(side, every, streams=[f"{side}/", f"{side} bed"])
        for side in ("east", "west")
    }
    texts["all"] = book.add("all", [*every, "admin"])
    engine = Engine(
        small_model, MemoryStore(), channels=("heart_rate", "lactate", "oxygen", "pressure"),
        threshold=0.0001, lateness=1.0,
    )  # fmt: skip
    client, _, url = start(engine=engine, tokens=book, audit=tmp_path / "audit.jsonl")
    streams = ["east/1", "west/1", "west bed 2"]
    sent = client.post(
        "/v1/events", json=[row(one) for one in streams], headers=bearer(texts["all"])
    )
    assert sent.json()["counts"]["applied"] == 3
    assert len(engine.alarms()) == 3
    return client, texts, url, book, engine


CHANGES = [
    ("ingest", "POST", "/v1/events", row("east/1", 1.0)),
    ("ingest", "PUT", "/v1/streams/east%2F9", {}),
    ("acknowledge", "POST", "/v1/alarms/1/acknowledge", {"by": "me"}),
    ("delete", "DELETE", "/v1/streams/east%2F1", None),
    ("admin", "POST", "/v1/admin/reload", None),
    ("read", "GET", "/v1/streams", None),
    ("admin", "GET", "/v1/admin/audit", None),
]


@pytest.mark.parametrize(("scope", "method", "path", "body"), CHANGES)
def test_a_scope_allows_its_own_kind_of_thing_alone(ward, scope, method, path, body):
    client, texts, *_ = ward
    for other in ("ingest", "read", "acknowledge", "delete", "admin"):
        if other != scope:
            refused = client.request(method, path, json=body, headers=bearer(texts[other]))
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "scope_missing")
    assert client.request(method, path, json=body, headers=bearer(texts[scope])).status_code < 300


def test_a_token_for_some_streams_neither_sees_nor_changes_others(ward):
    client, texts, _, _, engine = ward
    west, counts = bearer(texts["west"]), dict(engine.counters)
    listed = client.get("/v1/streams", headers=west).json()
    assert {one["stream"] for one in listed["streams"]} == {"west/1", "west bed 2"}
    assert (listed["total"], listed["found"], listed["alarms"]) == (2, 2, 2)
    assert {one["stream"] for one in client.get("/v1/alarms", headers=west).json()["alarms"]} == {
        "west/1", "west bed 2",
    }  # fmt: skip
    for name in ("east%2F1", "nobody"):  # known or not, the answer is the same
        for method, rest in (
            ("GET", ""), ("GET", "/prediction"), ("GET", "/history"), ("GET", "/curve"), ("GET", "/explanation"),
            ("PUT", ""), ("DELETE", ""),
        ):  # fmt: skip
            body = {} if method == "PUT" else None
            answer = client.request(method, f"/v1/streams/{name}{rest}", json=body, headers=west)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "stream_forbidden")
    assert client.get("/v1/alarms?stream=east/1", headers=west).status_code == 403
    theirs = next(one.number for one in engine.alarms("east/1"))
    unseen = client.post(f"/v1/alarms/{theirs}/acknowledge", json={"by": "me"}, headers=west)
    assert (unseen.status_code, unseen.json()["error"]["code"]) == (404, "alarm_unknown")
    mixed = client.post("/v1/events", json=[row("west/1", 1.0), row("east/1", 1.0)], headers=west)
    assert (mixed.status_code, mixed.json()["error"]["code"]) == (403, "stream_forbidden")
    for path in ("/metrics", "/v1/admin/audit"):
        assert client.get(path, headers=west).status_code == 403
    assert dict(engine.counters) == counts
    assert engine.alarms("east/1")[0].acknowledged is None
    own = next(one.number for one in engine.alarms("west/1"))
    done = client.post(f"/v1/alarms/{own}/acknowledge", json={"by": "me"}, headers=west)
    assert done.status_code == 200
    assert client.get("/v1/streams/west%2F1/curve", headers=west).status_code == 200


def test_live_sockets_hear_of_their_own_streams_alone(ward):
    client, texts, url, *_ = ward
    live = url.replace("http", "ws") + "/v1/live"
    with connect(live, additional_headers=bearer(texts["west"])) as socket:
        socket.send(json.dumps({"subscribe": ["west/1", "east/1"]}))
        assert "stream_forbidden" in socket.recv(timeout=10)
        socket.send(json.dumps(row("east/1", 2.0)))
        assert "stream_forbidden" in socket.recv(timeout=10)
        socket.send(json.dumps({"subscribe": "all", "ticks": True, "changes": True}))
        assert "subscribed" in socket.recv(timeout=10)
        both = [row("east/1", 3.0), row("west/1", 3.0), row("east/new", 3.0), row("west/new", 3.0)]
        client.post("/v1/events", json=both, headers=bearer(texts["all"]))
        client.delete("/v1/streams/east%2F1", headers=bearer(texts["all"]))
        client.delete("/v1/streams/west%2F1", headers=bearer(texts["all"]))
        heard = ""
        while '"tick"' not in heard or heard.count('"changed"') < 2:
            heard += socket.recv(timeout=10)
    assert "west/1" in heard
    assert "east" not in heard


def test_who_may_not_read_learns_no_more_than_it_must(ward):
    client, texts, *_ = ward
    sender, both = bearer(texts["ingest"]), bearer(texts["all"])
    late = [row("east/1", 90.5), row("east/1", 1.0)]
    told = client.post("/v1/events", json=late, headers=sender).json()
    assert told["counts"]["refused"] == 1
    assert (told["refusals"][0]["index"], told["refusals"][0]["code"]) == (1, "too_late")
    assert "90.5" not in json.dumps(told)
    assert "sequence" not in told
    again = client.post("/v1/events", json=late, headers=both).json()
    assert "90.5" in json.dumps(again)
    assert again["sequence"] > 0
    client.put("/v1/streams/east%2F7", json={"origin": 1234.5}, headers=sender)
    other = client.put("/v1/streams/east%2F7", json={"origin": 6.0}, headers=sender)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "origin_fixed")
    assert "1234.5" not in other.text


def test_a_token_ends_at_its_time_with_its_sessions_and_sockets(ward, monkeypatch):
    client, _, url, book, _ = ward
    text = book.add("guest", ["read", "ingest"], expires=time.time() + 3600)
    signed = client.post("/login", data={"token": text})
    session = {"cookie": signed.headers["set-cookie"].split(";")[0]}
    client.cookies.clear()
    live = url.replace("http", "ws") + "/v1/live"
    with (
        connect(live, additional_headers=bearer(text)) as by_token,
        connect(live, additional_headers={**session, "origin": url}) as by_session,
    ):
        assert client.get("/v1/model", headers=bearer(text)).status_code == 200
        assert client.get("/v1/model", headers=session).status_code == 200
        later = time.time() + 3601
        monkeypatch.setattr("onlinecde.serving.tokens.time.time", lambda: later)
        gone = client.get("/v1/model", headers=bearer(text))
        assert (gone.status_code, gone.json()["error"]["code"]) == (401, "token_expired")
        assert client.get("/v1/model", headers=session).status_code == 401
        assert client.post("/login", data={"token": text}).status_code == 401
        for socket in (by_token, by_session):
            socket.send(json.dumps({"subscribe": "all"}))
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=10)
            assert closed.value.rcvd.reason == "token_revoked"


def test_sessions_end_by_time_by_token_and_by_number():
    book, now = TokenBook(), [0.0]
    kept, gone = (book.whose(book.add(name, ["read"])) for name in ("kept", "gone"))
    sessions = Sessions(book, seconds=10.0, clock=lambda: now[0])
    first, other = sessions.open(kept), sessions.open(gone)
    assert sessions.whose(first) == kept
    book.remove("gone")
    assert sessions.whose(other) is None
    now[0] = 10.0
    assert sessions.whose(first) is None
    names = [sessions.open(kept) for _ in range(MOST_SESSIONS + 5)]
    assert len(sessions) == MOST_SESSIONS
    assert [sessions.whose(names[0]), sessions.whose(names[-1])] == [None, kept]


def test_answers_to_strangers_are_few_and_others_do_not_notice(start):
    book = TokenBook()
    text = book.add("own", ["read"])
    client, *_ = start(tokens=book, limits=Limits(knocks_per_second=0.01, knock_burst=6))
    knocks = [
        lambda: client.get("/v1/model"),
        lambda: client.get("/v1/model", headers=bearer("ocde_wrong")),
        lambda: client.get("/v1/model", headers={"cookie": "onlinecde_session=x"}),
        lambda: client.post("/login", data={"token": "wrong"}),
    ]
    assert [knocks[i % 4]().status_code for i in range(6)] == [401] * 6
    for knock in knocks:
        answer = knock()
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
    assert client.post("/login", data={"token": text}).status_code == 429
    assert client.get("/v1/model", headers=bearer(text)).status_code == 200
    for path in ("/healthz", "/readyz", "/login"):
        assert client.get(path).status_code == 200


def test_rates_remember_a_bounded_number_of_addresses():
    rates = Rates(1.0, 2, most_clients=100)
    for number in range(10_000):
        rates.wait(f"address {number}")
    assert len(rates._left) <= 100


def test_every_change_is_in_the_audit_log(ward, tmp_path):
    client, texts, *_ = ward
    file = tmp_path / "audit.jsonl"
    assert file.stat().st_mode & 0o077 == 0
    asked = bearer(texts["all"], **{"x-request-id": "night-shift.1"})
    assert (
        client.delete("/v1/streams/east%2F1", headers=asked).headers["x-request-id"]
        == "night-shift.1"
    )
    client.put("/v1/streams/new", json={}, headers=bearer(texts["ingest"]))
    client.post(
        "/v1/alarms/77/acknowledge", json={"by": "me"}, headers=bearer(texts["acknowledge"])
    )
    client.post("/login", data={"token": texts["read"]})
    client.get("/v1/streams", headers=asked)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(abs(line["at"] - time.time()) < 60 and line["request"] for line in lines)
    told = [(line["who"], line["what"], line.get("status")) for line in lines]
    assert told[:2] == [
        ("token all", "DELETE /v1/streams/east/1", None),
        ("token all", "DELETE /v1/streams/east/1", 204),
    ]
    assert [line["request"] for line in lines[:2]] == ["night-shift.1"] * 2
    assert ("token ingest", "PUT /v1/streams/new", 200) in told
    assert ("token acknowledge", "POST /v1/alarms/77/acknowledge", 404) in told
    assert ("token read", "signed in", None) in told
    assert not any("GET" in what for _, what, _ in told)
    newest = client.get("/v1/admin/audit?most=2", headers=bearer(texts["admin"])).json()["lines"]
    assert newest == lines[:-3:-1]


def test_events_are_in_the_audit_log_by_who_sent_them(model_folder, serve_process, tmp_path):
    book, file = TokenBook(), tmp_path / "tokens.json"
    one, two = (book.add(name, ["ingest"]) for name in ("one", "two"))
    book.write(file)
    server = serve_process("--tokens", str(file))
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for number in range(3):
            client.post("/v1/events", json=row("a", float(number)), headers=bearer(one))
        sent = client.post("/v1/events", json=row("b"), headers=bearer(two))
    server.end(signal.SIGTERM)
    lines = (tmp_path / "live.db.audit.jsonl").read_text().splitlines()
    sums = {line["who"]: line for line in map(json.loads, lines) if line["what"] == "events"}
    assert sums["token one"]["requests"] == 3
    assert sums["token one"]["counts"]["applied"] == 3
    assert sums["token two"]["last_request"] == sent.headers["x-request-id"]


def test_what_cannot_be_written_down_is_not_done(start):
    client, engine, _ = start(audit=Path("/dev/full"))
    assert client.post("/v1/events", json=row("a")).status_code == 200
    refused = client.delete("/v1/streams/a")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "audit_failed")
    assert "a" in engine


@pytest.mark.parametrize("given", ["x" * 65, "two words", "é".encode(), ""])
def test_a_request_that_is_badly_named_gets_another_id(start, given):
    client, *_ = start()
    answer = client.get("/healthz", headers={"x-request-id": given})
    assert len(answer.headers["x-request-id"]) == 16
    assert client.get("/healthz", headers={"x-request-id": "a-1"}).headers["x-request-id"] == "a-1"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
         "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-out", files[0], "-keyout", files[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return files


def test_tls_by_flag(start, certificate):
    client, _, url = start(tls_cert=certificate[0], tls_key=certificate[1])
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    assert url.startswith("https://")
    with httpx.Client(base_url=url, verify=trust, timeout=30) as known:
        assert known.post("/v1/events", json=row("a")).status_code == 200
    with pytest.raises(httpx.ConnectError):
        client.get("/healthz")  # does not know who signed it
    live = url.replace("https", "wss") + "/v1/live"
    with connect(live, ssl=trust) as socket:
        socket.send(json.dumps(row("a", 1.0)))
        assert "receipt" in socket.recv(timeout=10)


def test_plain_http_beyond_this_machine_must_be_asked_for(small_model, certificate):
    book = TokenBook()
    book.add("a", ["read"])
    with Engine(small_model, channels=("a", "b", "c", "d")) as engine:
        with pytest.raises(ServingError, match="--insecure-http"):
            create_app(engine, ServeSettings(host="0.0.0.0"), tokens=book)
        create_app(engine, ServeSettings(host="0.0.0.0", insecure_http=True), tokens=book)
        safe = ServeSettings(host="0.0.0.0", tls_cert=certificate[0], tls_key=certificate[1])
        create_app(engine, safe, tokens=book)
        with pytest.raises(ServingError, match="--tokens"):
            create_app(engine, ServeSettings(host="0.0.0.0", insecure_http=True))
    with pytest.raises(ServingError, match="--tls-key"):
        ServeSettings(tls_cert=certificate[0])


def test_an_admin_has_the_tokens_read_again(serve_process, tmp_path):
    book, file = TokenBook(), tmp_path / "tokens.json"
    admin = book.add("admin", ["admin"])
    book.write(file)
    server = serve_process("--tokens", str(file))
    with httpx.Client(base_url=server.url, timeout=60) as client:
        new = book.add("new", ["read"])
        book.write(file)
        assert client.get("/v1/model", headers=bearer(new)).status_code == 401
        again = client.post("/v1/admin/reload", headers=bearer(admin))
        assert again.json() == {"wrong": []}
        assert client.get("/v1/model", headers=bearer(new)).status_code == 200
        file.write_text("{")
        assert (
            "tokens.json"
            in client.post("/v1/admin/reload", headers=bearer(admin)).json()["wrong"][0]
        )
        assert client.get("/v1/model", headers=bearer(new)).status_code == 200


@pytest.mark.parametrize(
    ("scopes", "more"),
    [
        (["admin"], {"streams": ["a"]}),
        (["read"], {"streams": [""]}),
        (["read"], {"expires": 1.0}),
    ],
)
def test_tokens_that_make_no_sense_are_refused(scopes, more):
    with pytest.raises(ServingError):
        TokenBook().add("x", scopes, **more)


def test_a_file_of_tokens_keeps_streams_and_times(tmp_path):
    book, file = TokenBook(), tmp_path / "tokens.json"
    until = time.time() + 100
    text = book.add("a", ["ingest", "read"], streams=["east/"], expires=until)
    book.write(file)
    token = TokenBook.read(file).whose(text)
    assert (token.streams, token.expires, token.rights) == (("east/",), until, {"ingest", "read"})
    file.write_text(file.read_text().replace("ingest", "everything"))
    with pytest.raises(ServingError, match="everything"):
        TokenBook.read(file)
