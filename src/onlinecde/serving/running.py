"""Running the application: uvicorn in this thread, or in another for demos and tests."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from onlinecde.serving.live_socket import TRANSPORT
from onlinecde.serving.problems import ServingError
from onlinecde.serving.settings import ServeSettings

LINGER = 12.0
"""Seconds a socket that has ended may take to send what is left"""


class Sockets(WebSocketsSansIOProtocol):
    """uvicorn's sockets, which the application can drop, and which never wait for ever for whoever does not read."""

    async def run_asgi(self) -> None:
        self.scope["extensions"][TRANSPORT] = self.transport  # pyright: ignore
        await super().run_asgi()
        self.loop.call_later(LINGER, self.transport.abort)


def uvicorn_server(app: ASGIApp, settings: ServeSettings) -> uvicorn.Server:
    """A server for the application, not started."""
    limits = settings.limits
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            loop="auto",
            http="auto",
            ws=Sockets,
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
            timeout_keep_alive=30,
            backlog=512,
        )
    )


def bound(settings: ServeSettings) -> socket.socket:
    """A socket bound as the settings say, so that a port taken already is told before anything else."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except OSError as error:
        found.close()
        raise ServingError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}): choose another --port."
        ) from error
    found.set_inheritable(True)
    return found


def serve_forever(app: ASGIApp, settings: ServeSettings, listening: socket.socket) -> None:
    """Serve on a `bound` socket until SIGINT or SIGTERM; then commit what was taken, close the store and return."""
    # The engine's thread and the loop share one interpreter: neither waits 5 ms for the other.
    sys.setswitchinterval(0.001)
    # What is here now stays: collecting garbage need not look at it each time.
    gc.collect()
    gc.freeze()
    server = uvicorn_server(app, settings)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[listening]))


@contextmanager
def in_background(app: ASGIApp, settings: ServeSettings) -> Iterator[str]:
    """The address of a server that runs in another thread while the block does.

    A port of 0 is any that is free.
    """
    listening = bound(settings)
    port = listening.getsockname()[1]
    server = uvicorn_server(app, settings)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
                runner.run(server.serve(sockets=[listening]))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="server")
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.01)
        if not server.started:
            raise failed[0] if failed else ServingError("the server did not start: see the log.")
        yield f"http://{settings.host}:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()


def shown_address(settings: ServeSettings) -> str:
    """Where a browser finds it."""
    host: Any = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}/"
