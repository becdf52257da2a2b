"""uvicorn's HTTP connections and sockets under limits: `connections` says which."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from http import HTTPStatus
from typing import Any

import httptools
import orjson
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from onlinecde.serving.connections import Connections, State
from onlinecde.serving.live import TRANSPORT
from onlinecde.serving.problems import Problem, ServingError
from onlinecde.serving.request_log import note
from onlinecde.serving.settings import ServeSettings

UNREAD_AFTER_CLOSE = 65_536
"""Bytes a socket may still send after the server has closed it"""

# uvicorn logs the path of every socket, and a path may name a stream: `Access` logs requests, by route.
_SOCKET_LOG = logging.getLogger("onlinecde.serving.sockets")
_SOCKET_LOG.setLevel(logging.WARNING)


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration, and the connections of the server that has it."""

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        limits = settings.limits
        super().__init__(
            app,
            host=settings.host,
            port=settings.port,
            loop="auto",
            http=HttpConnection,
            ws=SocketConnection,
            ws_max_size=limits.body_bytes,
            ws_max_queue=4,
            ws_per_message_deflate=False,
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=settings.forwarded_by is not None,
            forwarded_allow_ips=settings.forwarded_by,
            timeout_graceful_shutdown=10,
            timeout_keep_alive=math.ceil(limits.idle_seconds),
            backlog=512,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        self.registry = Connections(limits)
        self._tls_files = settings.tls_cert, settings.tls_key

    def reload_certificate(self) -> None:
        """Read the certificate and its key again, for connections to come."""
        certificate, key = self._tls_files
        if certificate is None:
            return
        try:
            # Tried on another context first: of two files that do not fit, a context would keep the one.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            assert self.ssl is not None
            self.ssl.load_cert_chain(certificate, key)
        except OSError as error:  # ssl.SSLError is one
            note("certificate not reloaded", logging.ERROR, reason=str(error))
            raise ServingError(f"the certificate {certificate} cannot be read: {error}.") from error
        note("certificate reloaded")


class HttpConnection(HttpToolsProtocol):
    """uvicorn's HTTP connections, under limits."""

    config: ServerConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state: State | None = None
        self._registry = self.config.registry
        self._most_header = self._registry.limits.header_bytes
        self._header_bytes = self._framing_bytes = self._requests = 0
        self._in_header, self._body_came, self._complete = False, False, True
        self._unsent = 0
        self._answered: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore
        super().connection_made(transport)
        if not self._registry.admit(self, State.HEADER):
            self._refuse(Problem(503, "too_many_connections", "the server has no room for another connection: "
                                 "try again later.", retry_after=5))  # fmt: skip

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.remove(self)
        self.pipeline.clear()
        if self._answered is not None:  # uvicorn tells the last request of a pipeline only
            self._answered.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        view, most = memoryview(data), self._most_header
        for start in range(0, len(data), most):
            assert self.parser is not None
            part = view[start : start + most]
            # Only what cannot belong to an earlier request is counted: all of the part, if this is its first.
            first = self._requests + self._complete
            self._body_came = False
            try:
                self.parser.feed_data(part)
            except httptools.HttpParserUpgrade:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    return
            except httptools.HttpParserError:
                self._registry.report("not_http", self)
                self._refuse(Problem(400, "not_http", "this is not a valid HTTP request."))
                return
            if self._in_header:
                self._header_bytes += len(part) if self._requests == first else 0
            elif (
                not self._complete
            ):  # the sizes of chunks, and trailers, count from the last of the body on
                self._framing_bytes = 0 if self._body_came else self._framing_bytes + len(part)
            if not self._complete and max(self._header_bytes, self._framing_bytes) >= most:
                self._registry.report("header_too_large", self)
                message = f"a request's header has at most {most} bytes, and so have its trailers."
                self._refuse(Problem(431, "header_too_large", message))
                return
        self._note_state()

    def handle_websocket_upgrade(self) -> None:
        self._registry.remove(self)
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        self._in_header, self._complete = True, False
        self._header_bytes = self._framing_bytes = 0
        self._requests += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_header = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_came = True
        super().on_body(body)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        self._complete = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if (
            self.pipeline
        ):  # uvicorn reads on after each answer, and so ever more requests than it answers
            self.flow.pause_reading()
        self._note_state()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._note_state()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._note_state()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._note_state()

    def _note_state(self) -> None:
        if self.state is None:  # let go already
            return
        cycle = self.cycle
        if self.transport.is_closing():
            state = State.CLOSING
        elif self.flow.write_paused:
            state = State.UNREAD
        elif self.pipeline or (
            cycle is not None and not cycle.response_complete and self._complete
        ):
            state = State.BUSY
        elif cycle is None or self._in_header:
            state = State.HEADER
        else:
            state = State.IDLE if self._complete else State.BODY
        if state is not self.state and state in (State.UNREAD, State.CLOSING):
            self._unsent = self.transport.get_write_buffer_size()
        self._registry.move(self, state)

    def expire(self) -> str | None:
        if self.state in (State.UNREAD, State.CLOSING):
            unsent = self.transport.get_write_buffer_size()
            if unsent < self._unsent:
                self._unsent = unsent
                return None
            self.transport.abort()
            self._registry.remove(self)
            return "answer_not_read"
        if self._in_header:
            self._refuse(Problem(408, "header_slow", "the request's header did not come in time."))
            return "header_slow"
        reason = "body_slow" if self.state is State.BODY else "no_request"
        self.transport.close()
        self._note_state()
        return reason

    def evict(self) -> None:
        self.transport.abort()

    def _refuse(self, problem: Problem) -> None:
        """Answer before any route could, and close."""
        body = orjson.dumps(problem.as_json())
        phrase = HTTPStatus(problem.status).phrase
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = [f"HTTP/1.1 {problem.status} {phrase}"]
        lines += [f"{name}: {value}" for name, value in {**headers, **problem.headers}.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()
        self._note_state()


class SocketConnection(WebSocketsSansIOProtocol):
    """uvicorn's sockets, which the application can drop, and which never wait for ever for whoever does not read."""

    config: ServerConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state: State | None = None
        self.logger = _SOCKET_LOG
        self._registry = self.config.registry
        self._after_close = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._registry.move(self, State.BUSY)

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.close_sent:
            self._after_close += len(data)
            if self._after_close > UNREAD_AFTER_CLOSE:
                self.transport.abort()
                return
        super().data_received(data)
        if not self.handshake_initiated:  # the whole header came at once, and is no handshake
            self._registry.report("handshake_refused", self)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
            self._registry.move(self, State.CLOSING)

    async def run_asgi(self) -> None:
        self.scope["extensions"][TRANSPORT] = self.transport  # pyright: ignore
        await super().run_asgi()
        self._registry.move(self, State.CLOSING)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.close_sent:
            self._registry.move(self, State.CLOSING)

    def expire(self) -> str | None:
        self.transport.abort()
        self._registry.remove(self)
        return "socket_not_closed"

    def evict(self) -> None:
        self.transport.abort()
