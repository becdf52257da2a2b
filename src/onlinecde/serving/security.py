"""Security: who is asking, from where, how often, and may they. Pure ASGI, before any route.

Every route is closed unless `OPEN` lists it. What only looks needs `read`, what changes something the scope of its
kind, and what is not listed here `admin`.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_network
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson
from fastapi import FastAPI
from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from onlinecde.serving.audit_log import AuditLog
from onlinecde.serving.problems import Problem
from onlinecde.serving.request_log import LOGGER, REQUEST, note, request_id
from onlinecde.serving.sessions import Sessions
from onlinecde.serving.settings import ServeSettings
from onlinecde.serving.tokens import SCOPES, Token, TokenBook

COOKIE = "onlinecde_session"
OPEN = frozenset(("/healthz", "/readyz", "/login", "/assets/login.css", "/assets/icon.svg"))
"""What anyone may see: that it runs, whether it is ready, and the form to log in"""
_SAFE = ("GET", "HEAD", "OPTIONS")
_STREAM, _JOB = "/v1/streams/", "/v1/jobs/"
_FILTERED = frozenset(
    ("/", "/docs", "/openapi.json", "/logout", "/v1/model", "/v1/streams", "/v1/alarms", "/v1/events", "/v1/live")
)  # fmt: skip
"""What a token of some streams alone may ask for, beside those, its alarms and the page's files"""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_ALWAYS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class _Shortcut:
    path: str


class Rates:
    """A bucket for each client: `burst` at once, `per_second` from then on.

    >>> now = [0.0]
    >>> rates = Rates(2.0, 2, clock=lambda: now[0])
    >>> [rates.wait("a") for _ in range(3)]
    [0.0, 0.0, 0.5]
    >>> now[0] = 0.5
    >>> rates.wait("a")
    0.0
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        most_clients: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._burst, self._most = per_second, float(burst), most_clients
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """0 where the client may ask now, and then it has; else the seconds until it may."""
        now = self._clock()
        left, since = self._left.pop(client, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - since) * self._rate)
        wait = 0.0 if left >= 1.0 else (1.0 - left) / self._rate
        self._left[client] = (left - 1.0 if wait == 0.0 else left, now)
        if len(self._left) > self._most:  # whoever asked longest ago has a full bucket anyway
            self._left.popitem(last=False)
        return wait


@dataclass(frozen=True)
class Client:
    """Who is asking."""

    name: str
    """of the token, or the address where there are no tokens: what a rate is counted by"""
    scopes: frozenset[str]
    token: Token | None = None
    session: str | None = None
    """Name of the session that it came in by"""

    @property
    def all_streams(self) -> bool:
        """Whether there is no stream that is not its business."""
        return self.token is None or not self.token.streams

    def may_touch(self, stream: object) -> bool:
        """Whether a stream is its business; what is no name is left to the engine to refuse."""
        if self.token is None or not self.token.streams:
            return True
        return not isinstance(stream, str) or stream.startswith(self.token.streams)

    def check_stream(self, stream: object) -> None:
        """Refuse a stream that is not its business, be there one of that name or not."""
        if not self.may_touch(stream):
            raise Problem(
                403, "stream_forbidden", "this token is for other streams: see the file of tokens.", field="stream"
            )  # fmt: skip


class Access:
    """Middleware that lets in who may come in, and answers the others itself."""

    def __init__(
        self,
        app: FastAPI,
        *,
        settings: ServeSettings,
        tokens: TokenBook | None,
        sessions: Sessions,
        audit: AuditLog,
        rates: Rates,
        requests: Counter,
        errors: Counter,
        shortcuts: Mapping[tuple[str, str], Endpoint] | None = None,
    ) -> None:
        self.app, self.settings, self.tokens = app, settings, tokens
        self._hosts = settings.hosts()
        self._rates, self._sessions, self._audit = rates, sessions, audit
        limits = settings.limits
        self._knocks = Rates(limits.knocks_per_second, limits.knock_burst)
        """Answers to who has no token, or signs in, by address"""
        self._requests, self._errors = requests, errors
        # Choosing a route costs more than one small micro-batch does: the busiest are found at once.
        self._shortcuts = dict(shortcuts or {})

    def running(self) -> AbstractAsyncContextManager[Any]:
        """What must be entered before the first request, and left after the last, unless a server does so."""
        return self.app.router.lifespan_context(self.app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or one socket."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), [0]
        _keep_names_whole(scope)
        headers = Headers(scope=scope)
        request = request_id(headers.get("x-request-id"))
        REQUEST.set(request)
        marked = [*_ALWAYS, (b"x-request-id", request.encode())]
        client: Client | None = None

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                given = {name for name, _ in message["headers"]}
                added = [pair for pair in marked if pair[0] not in given]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            client = self._enter(scope, headers)
            scope["state"] = {**scope.get("state", {}), "client": client}
            changes = _is_change(scope)
            if changes:
                self._audit.write(_change(scope), client.name, request)
        except Problem as problem:
            await refuse(problem, scope, receive, answer)
            if not status[0]:
                status[0] = problem.status
        else:
            try:
                short = self._shortcuts.get((scope.get("method", ""), scope["path"]))
                if short is None:
                    await self.app(scope, receive, answer)
                else:
                    scope["route"] = _Shortcut(scope["path"])
                    await _directly(short, scope, receive, answer)
            except Exception:
                LOGGER.exception("failed", extra={"told": {"route": _route(scope)}})
                if scope["type"] == "http" and not status[0]:
                    problem = Problem(500, "failed", "something went wrong; it was logged.")
                    await refuse(problem, scope, receive, answer)
            if changes:
                with contextlib.suppress(Problem):  # it was logged
                    self._audit.write(_change(scope), client.name, request, status=status[0])
        route, spent = _route(scope), time.perf_counter() - began
        self._requests.labels(route, status[0]).inc()
        if (code := scope.get("state", {}).get("problem")) is not None:
            self._errors.labels(code, status[0]).inc()
        if self.settings.log_requests or status[0] >= 500:
            note("request", route=route, status=status[0], ms=round(1000 * spent, 2))

    def _enter(self, scope: Scope, headers: Headers) -> Client:
        self._check_host(headers)
        method = scope.get("method", "GET")
        cookie = _cookie(headers)
        bearer = _bearer(headers)
        browser_asks = scope["type"] == "websocket" or method not in _SAFE
        if browser_asks:
            by_cookie = self.tokens is not None and bearer is None and cookie is not None
            self._check_origin(headers, by_cookie=by_cookie)
        path = scope["path"]
        if path in OPEN:
            if path == "/login" and method not in _SAFE:
                self._knock(scope)
            return Client(f"address {_address(scope)}", frozenset())
        client = self._whose(bearer, cookie, scope)
        wait = self._rates.wait(client.name)
        if wait:
            raise Problem(429, "too_often", "too many requests: slow down.", retry_after=wait)
        if scope["type"] == "http":
            need = _needed_scope(method, path)
            if need is not None and need not in client.scopes:
                raise Problem(403, "scope_missing", f"this needs a token with the scope {need!r}.")
        if not client.all_streams:
            if path.startswith(_STREAM):
                client.check_stream(_stream_of(path))
            elif not (path in _FILTERED or path.startswith(("/assets/", "/v1/alarms/", _JOB))):
                raise Problem(403, "stream_forbidden", "this needs a token for all streams.")
        return client

    def _whose(self, bearer: str | None, cookie: str | None, scope: Scope) -> Client:
        if self.tokens is None:
            return Client(f"address {_address(scope)}", frozenset(SCOPES))
        if bearer is None and cookie is None:
            self._knock(scope)
            raise Problem(401, "token_missing", "send `Authorization: Bearer <token>`.")
        token = (
            self.tokens.whose(bearer) if bearer is not None else self._sessions.whose(cookie or "")
        )
        if token is None or token.expired:
            self._knock(scope)
            if token is not None:
                raise Problem(401, "token_expired", "this token has expired: ask for another.")
            if bearer is None:
                raise Problem(401, "session_over", "this session is over: sign in again.")
            raise Problem(401, "token_wrong", "this token is not known here.")
        session = cookie if bearer is None else None
        return Client(f"token {token.name}", token.rights, token, session)

    def _knock(self, scope: Scope) -> None:
        """Count an answer to who has no token yet; whoever knocks too often is let wait."""
        wait = self._knocks.wait(_network(_address(scope)))
        if wait:
            raise Problem(
                429, "too_often", "too many requests without a token: slow down.", retry_after=wait
            )

    def _check_host(self, headers: Headers) -> None:
        if self._hosts is None:
            return
        if _host_name(headers.get("host", "")) not in self._hosts:
            raise Problem(
                421, "host_unknown", "the server goes by another name: see `--allow-host`.", field="host"
            )  # fmt: skip

    def _check_origin(self, headers: Headers, *, by_cookie: bool) -> None:
        """A page of another site may not act with this browser's rights."""
        origin = headers.get("origin")
        if origin is None:
            if by_cookie:
                raise Problem(403, "origin_missing", "with a cookie, `Origin` must be sent.")
            return
        try:
            site = urlsplit(origin).netloc.lower()
        except ValueError:
            site = ""
        if not site or site != headers.get("host", "").lower():
            raise Problem(403, "origin_foreign", "pages of other sites may not do this.")


async def _directly(endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    try:
        response = await endpoint(Request(scope, receive))
    except Problem as problem:
        await refuse(problem, scope, receive, send)
    else:
        await response(scope, receive, send)


async def refuse(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with a problem: JSON, or the way to the login form for a browser that asked for a page."""
    scope.setdefault("state", {})["problem"] = problem.code
    if scope["type"] == "websocket":
        code = {401: 4401, 403: 4403, 429: 4429, 503: 4503}.get(problem.status, 4400)
        # Accepted and closed at once: a browser is never told why a handshake failed.
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": code, "reason": problem.code})
        return
    wants_page = "text/html" in Headers(scope=scope).get("accept", "")
    if problem.status == 401 and scope.get("method") == "GET" and wants_page:
        await reply(send, 303, None, {"location": f"{scope.get('root_path', '')}/login"})
    else:
        await reply(send, problem.status, problem.as_json(), problem.headers)


async def reply(
    send: Send, status: int, content: Any = None, headers: Mapping[str, str] | None = None
) -> None:
    """Answer with JSON, or without a body, before any route."""
    body = b"" if content is None else orjson.dumps(content)
    headers = {**(headers or {}), "content-length": str(len(body))}
    if body:
        headers["content-type"] = "application/json"
    pairs = [*((name.encode(), value.encode()) for name, value in headers.items()), *_ALWAYS]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _keep_names_whole(scope: Scope) -> None:
    """Leave names of streams percent-encoded, so that one with a slash in it stays one part of the path."""
    raw = scope.get("raw_path")
    if raw and raw.startswith(b"/v1/streams/") and b"%" in raw:
        scope["path"] = raw.split(b"?", 1)[0].decode("latin-1")


def _bearer(headers: Headers) -> str | None:
    kind, _, text = headers.get("authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" else None


@lru_cache(maxsize=64)
def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _cookie(headers: Headers) -> str | None:
    if "cookie" not in headers:
        return None
    try:
        result = SimpleCookie(headers["cookie"]).get(COOKIE)
    except CookieError:
        return None
    return result.value if result is not None else None


def _address(scope: Scope) -> str:
    client: Any = scope.get("client")
    return client[0] if client else "unknown"


def _network(address: str) -> str:
    """What an address is counted by: whoever has one of IPv6 has the 64 bits behind it, too."""
    if ":" not in address:
        return address
    try:
        return str(ip_network(f"{address.partition('%')[0]}/64", strict=False))
    except ValueError:
        return address


def _needed_scope(method: str, path: str) -> str | None:
    if path == "/logout" or (path.startswith(_JOB) and method in _SAFE):
        return None  # of a job its owner may hear, whatever else it may
    if method in _SAFE:
        return "admin" if path.startswith("/v1/admin/") else "read"
    if method == "DELETE" and path.startswith(_STREAM):
        return "delete"
    if path.startswith("/v1/alarms/"):
        return "acknowledge"
    if path == "/v1/events" or path.startswith(_STREAM):
        return "ingest"
    return "admin"


def _stream_of(path: str) -> str:
    """The name of the stream in a path, as routes read it."""
    quoted = path[len(_STREAM) :].partition("/")[0]
    try:
        return unquote(quoted, errors="strict")
    except UnicodeDecodeError as error:
        raise Problem(400, "utf8_bad", "the name is not UTF-8.", field="stream") from error


def _is_change(scope: Scope) -> bool:
    """Whether a request changes something other than by events, of which the audit log has sums."""
    return (
        scope["type"] == "http" and scope["method"] not in _SAFE and scope["path"] != "/v1/events"
    )


def _change(scope: Scope) -> str:
    return f"{scope['method']} {unquote(scope['path'], errors='replace')[:400]}"


def _route(scope: Scope) -> str:
    """The route's pattern, never the path: names of streams are no one's business."""
    return getattr(scope.get("route"), "path", None) or "none"
