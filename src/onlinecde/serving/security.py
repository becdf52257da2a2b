"""Security: who is asking, from where, how often, and may they. Pure ASGI, before any route.

Every route is closed unless `OPEN` lists it. Scopes: `read` for what only looks, `write` for the rest.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

import orjson
from fastapi import FastAPI
from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from onlinecde.serving.problems import Problem
from onlinecde.serving.request_log import LOGGER, note
from onlinecde.serving.settings import ServeSettings
from onlinecde.serving.tokens import SCOPES, Token, TokenBook

COOKIE = "onlinecde_token"
OPEN = frozenset(("/healthz", "/readyz", "/login", "/assets/login.css", "/assets/icon.svg"))
"""What anyone may see: that it runs, whether it is ready, and the form to log in"""
_SAFE = ("GET", "HEAD", "OPTIONS")
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


class Access:
    """Middleware that lets in who may come in, and answers the others itself."""

    def __init__(
        self,
        app: FastAPI,
        *,
        settings: ServeSettings,
        tokens: TokenBook | None,
        rates: Rates,
        requests: Counter,
        shortcuts: Mapping[tuple[str, str], Endpoint] | None = None,
    ) -> None:
        self.app, self.settings, self.tokens = app, settings, tokens
        self._hosts = settings.hosts()
        self._rates = rates
        self._requests = requests
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

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                given = {name for name, _ in message["headers"]}
                added = [pair for pair in _ALWAYS if pair[0] not in given]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            scope["state"] = {**scope.get("state", {}), "client": self._enter(scope)}
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
        route, spent = _route(scope), time.perf_counter() - began
        self._requests.labels(route, status[0]).inc()
        if self.settings.log_requests or status[0] >= 500:
            note("request", route=route, status=status[0], ms=round(1000 * spent, 2))

    def _enter(self, scope: Scope) -> Client:
        headers = Headers(scope=scope)
        self._check_host(headers)
        method = scope.get("method", "GET")
        cookie = _cookie(headers)
        bearer = _bearer(headers)
        browser_asks = scope["type"] == "websocket" or method not in _SAFE
        if browser_asks:
            by_cookie = self.tokens is not None and bearer is None and cookie is not None
            self._check_origin(headers, by_cookie=by_cookie)
        if scope["path"] in OPEN:
            return Client(f"address {_address(scope)}", frozenset())
        client = self._whose(bearer if bearer is not None else cookie, scope)
        wait = self._rates.wait(client.name)
        if wait:
            raise Problem(429, "too_often", "too many requests: slow down.", retry_after=wait)
        if scope["type"] == "http":
            need = "read" if method in _SAFE else "write"
            if scope["path"] != "/logout" and need not in client.scopes:
                raise Problem(403, "scope_missing", f"this needs a token with the scope {need!r}.")
        return client

    def _whose(self, text: str | None, scope: Scope) -> Client:
        if self.tokens is None:
            return Client(f"address {_address(scope)}", frozenset(SCOPES))
        if text is None:
            raise Problem(401, "token_missing", "send `Authorization: Bearer <token>`.")
        token = self.tokens.whose(text)
        if token is None:
            # Guessing is hopeless at 256 bits, but need not be free.
            if self._rates.wait(f"guess {_address(scope)}"):
                raise Problem(429, "too_often", "too many requests: slow down.", retry_after=1)
            raise Problem(401, "token_wrong", "this token is not known here.")
        return Client(f"token {token.name}", token.scopes, token)

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


def _route(scope: Scope) -> str:
    """The route's pattern, never the path: names of streams are no one's business."""
    return getattr(scope.get("route"), "path", None) or "none"
