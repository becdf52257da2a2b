import contextlib
import json
import re
import signal
import time

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from onlinecde.serving import ServeSettings, ServingError, TokenBook, create_app
from onlinecde.serving.security import OPEN
from onlinecde.streaming import Engine

EVENT = {"stream": "a", "time": 0.0, "channel": "lactate", "value": 1.0}
ROUTES = [
    ("GET", "/v1/model", "read"),
    ("GET", "/v1/streams", "read"),
    ("GET", "/v1/streams/a", "read"),
    ("GET", "/v1/streams/a/prediction", "read"),
    ("GET", "/v1/streams/a/history", "read"),
    ("GET", "/v1/streams/a/curve", "read"),
    ("GET", "/v1/streams/a/explanation", "read"),
    ("GET", "/v1/alarms", "read"),
    ("GET", "/metrics", "read"),
    ("GET", "/openapi.json", "read"),
    ("GET", "/docs", "read"),
    ("GET", "/", "read"),
    ("GET", "/assets/monitor.js", "read"),
    ("POST", "/v1/events", "write"),
    ("PUT", "/v1/streams/b", "write"),
    ("DELETE", "/v1/streams/b", "write"),
    ("POST", "/v1/alarms/1/acknowledge", "write"),
    ("GET", "/v1/jobs", "read"),
    ("GET", "/v1/model/shadow", "read"),
    ("GET", "/v1/model/shadow/difference", "read"),
    ("POST", "/v1/model/shadow", "admin"),
    ("DELETE", "/v1/model/shadow", "admin"),
    ("POST", "/v1/model/shadow/promote", "admin"),
    ("POST", "/v1/streams/b/end", "write"),
    ("GET", "/v1/webhooks", "read"),
    ("POST", "/v1/admin/webhooks/a/retry", "admin"),
    ("GET", "/v1/admin/audit", "admin"),
    ("POST", "/v1/admin/reload", "admin"),
]
BODIES = {
    "/v1/events": EVENT,
    "/v1/streams/b": {"origin": 0.0},
    "/v1/alarms/1/acknowledge": {"by": "x"},
    "/v1/model/shadow": {"folder": "there is none"},
}


@pytest.fixture
def guarded(start):
    book = TokenBook()
    scopes = ("read", "write", "read+write", "admin")
    texts = {scope: book.add(scope, scope.split("+")) for scope in scopes}
    client, _, url = start(tokens=book)
    own = {"authorization": f"Bearer {texts['read+write']}"}
    assert client.post("/v1/events", json=EVENT, headers=own).status_code == 200
    return client, texts, url


def ask(client, method, path, token=None, **headers):
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return client.request(method, path, json=BODIES.get(path), headers=headers)


def test_the_table_has_every_route(start):
    tried = {
        (
            m,
            re.sub(r"/streams/[ab]", "/streams/{stream}", p)
            .replace("/1/", "/{number}/")
            .replace("/a/retry", "/{target}/retry"),
        )
        for m, p, _ in ROUTES
    }
    client, *_ = start()
    told = client.get("/openapi.json").json()["paths"]
    listed = {(m.upper(), p) for p, methods in told.items() for m in methods}
    own = {("GET", "/v1/jobs/{number}")}  # of a job its owner may hear, whatever else it may
    assert listed <= tried | {("GET", "/healthz"), ("GET", "/readyz")} | own


@pytest.mark.parametrize(("method", "path", "scope"), ROUTES)
def test_every_route_needs_its_scope(guarded, method, path, scope):
    client, texts, _ = guarded
    other = "write" if scope == "read" else "read"
    missing = ask(client, method, path)
    assert (missing.status_code, missing.json()["error"]["code"]) == (401, "token_missing")
    assert missing.headers["www-authenticate"] == "Bearer"
    wrong = ask(client, method, path, "ocde_" + "x" * 43)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "token_wrong")
    unfit = ask(client, method, path, texts[other])
    assert (unfit.status_code, unfit.json()["error"]["code"]) == (403, "scope_missing")
    assert ask(client, method, path, texts[scope]).status_code in (200, 204, 404, 422)


def test_unknown_paths_say_nothing_without_a_token(guarded):
    client, *_ = guarded
    assert client.get("/v1/nowhere").status_code == 401


def test_only_health_and_the_login_are_open(guarded):
    client, *_ = guarded
    for path in OPEN:
        assert client.get(path).status_code == 200, path
    assert client.get("/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize("text", ["", "Basic abc", "Bearer", "bearer é".encode("latin-1")])
def test_strange_headers_are_refused(guarded, text):
    client, *_ = guarded
    assert client.get("/v1/model", headers={"authorization": text}).status_code == 401


def closed_with(url, **headers):
    with connect(url.replace("http", "ws") + "/v1/live", additional_headers=headers) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=5)
        return closed.value.rcvd.code, closed.value.rcvd.reason


def test_sockets_need_a_token_and_the_scope(guarded):
    _, texts, url = guarded
    assert closed_with(url) == (4401, "token_missing")
    assert closed_with(url, authorization="Bearer no") == (4401, "token_wrong")
    for scope, message, refused in (
        ("read", '{"stream": "a", "time": 1, "channel": "lactate", "value": 1}', True),
        ("write", '{"subscribe": "all"}', True),
        ("read", '{"subscribe": "all"}', False),
    ):
        with connect(
            url.replace("http", "ws") + "/v1/live",
            additional_headers={"authorization": f"Bearer {texts[scope]}"},
        ) as socket:
            socket.send(message)
            assert ("scope_missing" in socket.recv(timeout=5)) == refused


def test_a_foreign_page_can_do_nothing(start):
    client, _, url = start()
    for origin in ("http://evil.example", "null", "http://[", ""):
        answer = client.post("/v1/events", json=EVENT, headers={"origin": origin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_foreign")
    assert closed_with(url, origin="http://evil.example") == (4403, "origin_foreign")
    assert client.post("/v1/events", json=EVENT, headers={"origin": url}).status_code == 200


def test_a_name_that_was_pointed_here_is_refused(start):
    client, _, url = start()
    for host in ("evil.example", "evil.example:80", "", "[", "127.0.0.1.evil.example"):
        answer = client.get("/v1/streams", headers={"host": host})
        assert answer.status_code in (400, 421), host
    port = url.rsplit(":", 1)[1]
    assert client.get("/v1/streams", headers={"host": f"localhost:{port}"}).status_code == 200


def test_the_cookie_is_as_good_as_the_token_and_no_better(guarded):
    client, texts, url = guarded
    failed = client.post("/login", data={"token": "nonsense"})
    assert failed.status_code == 401
    assert "set-cookie" not in failed.headers
    done = client.post("/login", data={"token": texts["read+write"]})
    cookie = done.headers["set-cookie"]
    assert done.status_code == 303
    for wanted in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert wanted in cookie
    name, session = cookie.split(";")[0].split("=")
    assert session != texts["read+write"]
    with httpx.Client(base_url=url, timeout=60, cookies={name: session}) as browser:
        assert browser.get("/v1/model").status_code == 200
        # A browser always says where a request that changes something comes from.
        assert browser.post("/v1/events", json=EVENT).json()["error"]["code"] == "origin_missing"
        assert browser.post("/v1/events", json=EVENT, headers={"origin": url}).status_code == 200
        out = browser.post("/logout", headers={"origin": url})
        assert out.status_code == 303
        assert 'onlinecde_token=""' in out.headers["set-cookie"]
        assert f'{name}=""' in out.headers["set-cookie"]
    for kept in (session, texts["read+write"]):  # signed out; and a token is no session
        with httpx.Client(base_url=url, timeout=60, cookies={name: kept}) as browser:
            over = browser.get("/v1/model")
            assert (over.status_code, over.json()["error"]["code"]) == (401, "session_over")


def test_a_token_that_only_writes_reads_nothing(guarded):
    client, texts, _ = guarded
    write, both = ({"authorization": f"Bearer {texts[one]}"} for one in ("write", "read+write"))
    assert client.put("/v1/streams/a", json={}, headers=write).json() == {"stream": "a"}
    assert client.put("/v1/streams/a", json={}, headers=both).json()["rows"] == 1
    later = {**EVENT, "time": 1.0}
    asked = {"params": {"answers": "true"}, "json": later}
    refused = client.post("/v1/events", **asked, headers=write)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "scope_missing")
    assert client.post("/v1/events", json=later, headers=write).json()["counts"]["applied"] == 1
    assert len(client.post("/v1/events", **asked, headers=both).json()["answers"]) == 1


def test_a_token_that_only_writes_does_not_sign_in(guarded):
    client, texts, _ = guarded
    refused = client.post("/login", data={"token": texts["write"]})
    assert refused.status_code == 403
    assert "scope read" in refused.text
    assert "set-cookie" not in refused.headers


def test_without_tokens_signing_in_leads_home_and_leaves_nothing(start):
    client, *_ = start()
    for asked in (
        client.get("/login"),
        client.post("/login", content=b"token=%E2%82%AC"),
        client.post("/login", data={"token": "x"}),
    ):
        assert (asked.status_code, asked.headers["location"]) == (303, "/")
        assert "set-cookie" not in asked.headers
    # One left behind by another server at this address is no reason to refuse.
    left = client.post("/v1/events", json=EVENT, headers={"cookie": "onlinecde_token=x"})
    assert left.status_code == 200


def test_every_request_is_counted_by_its_route(start):
    client, *_ = start()
    for path in ("/", "/docs", "/login", "/assets/monitor.js", "/v1/model", "/nowhere"):
        client.get(path)
    told = client.get("/metrics").text
    for route in ("/", "/docs", "/login", "/assets/{name}", "/v1/model", "none"):
        assert f'onlinecde_requests_total{{route="{route}",' in told


def test_a_browser_without_a_token_is_led_to_the_login(guarded):
    client, *_ = guarded
    answer = client.get("/", headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


def test_it_does_not_start_open_to_others(small_model):
    engine = Engine(small_model, channels=("a", "b", "c", "d"))
    with pytest.raises(ServingError, match="--tokens"):
        create_app(engine, ServeSettings(host="0.0.0.0"))
    with pytest.raises(ServingError, match="empty"):
        create_app(engine, ServeSettings(host="0.0.0.0"), tokens=TokenBook())
    engine.close()


def test_answers_forbid_scripts_from_elsewhere(start):
    client, *_ = start()
    for path in ("/", "/v1/model", "/login", "/nowhere"):
        headers = client.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_tokens_are_kept_as_hashes_only(tmp_path):
    book = TokenBook()
    text = book.add("gateway", ["read"])
    file = tmp_path / "tokens.json"
    book.write(file)
    assert text not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    again = TokenBook.read(file)
    assert again.whose(text).name == "gateway"
    assert again.whose(text[:-1]) is None
    again.remove("gateway")
    assert again.whose(text) is None
    for name, scopes in (("gateway", []), ("x", ["root"]), ("x", ["read", "root"]), ("", ["read"])):
        with pytest.raises(ServingError):
            book.add(name, scopes)
    for content in (
        "",
        "[]",
        '{"version": 3, "tokens": []}',
        '{"version": 1, "tokens": [{"name": 1}]}',
        '{"version": 1, "tokens": [{"name": "a", "sha256": "12", "scopes": ["read"]}]}',
    ):
        file.write_text(content)
        with pytest.raises(ServingError):
            TokenBook.read(file)


def test_sighup_reloads_tokens_and_breaks_no_connection(serve_process, tmp_path):
    book, file = TokenBook(), tmp_path / "tokens.json"
    old, kept = book.add("old", ["read", "write"]), book.add("kept", ["read", "write"])
    book.write(file)
    server = serve_process("--tokens", str(file))

    def status(token):
        headers = {"authorization": f"Bearer {token}"}
        return client.get("/v1/model", headers=headers).status_code

    def reload():
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)

    live = server.url.replace("http", "ws") + "/v1/live"
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        connect(live, additional_headers={"authorization": f"Bearer {kept}"}) as stays,
        connect(live, additional_headers={"authorization": f"Bearer {old}"}) as goes,
    ):
        assert status(old) == status(kept) == 200
        before = client._transport._pool.connections[0]
        book.remove("old")
        new = book.add("new", ["read"])
        book.write(file)
        assert status(new) == 401
        reload()
        assert (status(old), status(kept), status(new)) == (401, 200, 200)
        for broken in ("", "{", '{"version": 1, "tokens": []}'):
            file.write_text(broken)
            reload()
            assert (status(old), status(kept), status(new)) == (401, 200, 200)
        assert client._transport._pool.connections == [before], "the connection was dropped"
        stays.send(json.dumps(EVENT))
        assert '"receipt"' in stays.recv(timeout=10)
        goes.send(json.dumps({**EVENT, "stream": "b"}))
        with pytest.raises(ConnectionClosed) as closed:
            goes.recv(timeout=10)
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4401, "token_revoked")
        headers = {"authorization": f"Bearer {kept}"}
        assert client.get("/v1/streams", headers=headers).json()["total"] == 1
    lines = [
        json.loads(line) for line in server.end(signal.SIGTERM)[1].splitlines() if line[:1] == "{"
    ]
    told = [line["event"] for line in lines if "token" in line["event"]]
    assert told == ["tokens reloaded", *["tokens not reloaded"] * 3]


def test_neither_paths_nor_queries_nor_names_of_streams_reach_the_log(serve_process):
    server = serve_process("--log-requests")
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.post("/v1/events?answers=true&hidden=1", json={**EVENT, "stream": "secret patient"})
        client.get("/v1/streams/secret%20patient?hidden=1")
        client.get("/v1/streams", params={"search": "secret", "hidden": "1"})
        client.get("/secret/hidden")
    address = server.url.replace("http", "ws")
    with connect(f"{address}/v1/live?hidden=1") as socket:
        socket.send('{"subscribe": ["secret patient"]}')
        assert "secret patient" in socket.recv(timeout=5)
    for path in ("/v1/streams/secret%20patient", "/secret?hidden=1"):
        with (
            contextlib.suppress(InvalidStatus, ConnectionClosed),
            connect(address + path) as socket,
        ):
            socket.recv(timeout=5)
    told = server.end(signal.SIGTERM)[1]
    assert "secret" not in told
    assert "hidden" not in told
    routes = [json.loads(line).get("route") for line in told.splitlines() if line[:1] == "{"]
    for route in ("/v1/events", "/v1/streams/{stream}", "/v1/live", "none"):
        assert route in routes
