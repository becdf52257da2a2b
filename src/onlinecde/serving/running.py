"""Running the application: uvicorn in this thread, or in another for demos and tests."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from onlinecde.serving.connections import raise_file_limit
from onlinecde.serving.problems import ServingError
from onlinecde.serving.protocols import ServerConfig
from onlinecde.serving.reloading import Reload
from onlinecde.serving.settings import ServeSettings
from onlinecde.serving.starting import StartingApp, freeze
from onlinecde.serving.systemd import notify, reloading, watchdog


def bound(settings: ServeSettings) -> socket.socket:
    """A socket bound as the settings say, so that a port taken already is told before anything else."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    result = socket.socket(family, socket.SOCK_STREAM)
    result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        result.bind((settings.host, settings.port))
    except OSError as error:
        result.close()
        raise ServingError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}): choose another --port."
        ) from error
    result.set_inheritable(True)
    return result


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        notify("STOPPING=1", "STATUS=stopping")
        await super().shutdown(sockets)


def serve_forever(
    app: ASGIApp | StartingApp,
    settings: ServeSettings,
    listening: socket.socket,
    *,
    reload: Reload | None = None,
) -> None:
    """Serve on a `bound` socket until SIGINT or SIGTERM; then commit what was taken, close the store and return.

    reload: called at SIGHUP, after which the certificate is read again, too. Raises what a `StartingApp` failed with.
    """
    # The engine's thread and the loop share one interpreter: neither waits 5 ms for the other.
    sys.setswitchinterval(0.001)
    raise_file_limit(settings.limits)
    config = ServerConfig(app, settings)
    server = _Server(config)
    reload = reload or Reload()
    reload.steps.append(config.reload_certificate)
    if isinstance(app, StartingApp):
        app.stop = lambda: setattr(server, "should_exit", True)
        app.on_progress = lambda share: notify(
            f"STATUS=rebuilding, {share:.0%} done", "EXTEND_TIMEOUT_USEC=60000000"
        )
        app.on_ready = lambda: notify("READY=1", "STATUS=serving")
    else:
        freeze()

    def read_again() -> None:
        reloading()
        reload()
        notify("READY=1")

    async def serve() -> None:
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, read_again)
        alive = asyncio.create_task(watchdog())
        try:
            await server.serve(sockets=[listening])
        finally:
            alive.cancel()

    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(serve())
    if isinstance(app, StartingApp) and app.failure is not None:
        raise app.failure


@contextmanager
def in_background(app: ASGIApp, settings: ServeSettings) -> Iterator[str]:
    """The address of a server that runs in another thread while the block does.

    A port of 0 is any that is free.
    """
    listening = bound(settings)
    port = listening.getsockname()[1]
    server = uvicorn.Server(ServerConfig(app, settings))
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
        yield f"{settings.scheme}://{settings.host}:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()


def shown_address(settings: ServeSettings) -> str:
    """Where a browser finds it."""
    host: Any = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    return f"{settings.scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}/"
