"""From the first moment on the port: health and progress while the engine is opened or its states are rebuilt."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import AsyncExitStack

from starlette.types import Receive, Scope, Send

from onlinecde.serving.models import NotReady
from onlinecde.serving.problems import Problem
from onlinecde.serving.security import Access, refuse, reply

Progress = Callable[[int, int], None]


class StoppedOpening(Exception):  # noqa: N818
    """The server was told to stop while it was being opened."""


class StartingApp:
    """Answers by itself until `open_app`, in a thread, has made the application; from then on, as that one.

    `open_app` gets a function to tell its progress to, which raises where the server is to stop. Where it fails,
    `failure` is its error and `stop` is called.
    """

    def __init__(self, open_app: Callable[[Progress], Access]) -> None:
        self._open_app = open_app
        self._app: Access | None = None
        self._rebuilt: tuple[int, int] | None = None
        self._stopping = False
        self.failure: BaseException | None = None
        self.stop: Callable[[], None] = lambda: None
        self.on_progress: Callable[[float], None] = lambda share: None
        """Hears, in the thread, the part of a rebuild that is done"""
        self.on_ready: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or one socket, or the life of the server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == "/healthz":
            await reply(send, 200, {"status": "ok"})
        elif scope["type"] == "http" and scope["path"] == "/readyz":
            problem = self._problem()
            content = NotReady.of(problem, **self._progress())
            await reply(send, 503, content, problem.headers)
        else:
            await refuse(self._problem(), scope, receive, send)

    def _problem(self) -> Problem:
        if self._rebuilt is not None:
            message = "the server is integrating all stored rows again under a new model: try again later."
            return Problem(503, "rebuilding", message, retry_after=10)
        return Problem(503, "starting", "the server is starting: try again soon.", retry_after=2)

    def _progress(self) -> dict[str, float]:
        """The part that is done; no numbers of streams, for whoever asks needs no token."""
        if self._rebuilt is None:
            return {}
        done, total = self._rebuilt
        return {"progress": round(done / max(1, total), 4)}

    def _tell(self, done: int, total: int) -> None:
        self._rebuilt = (done, total)
        self.on_progress(done / max(1, total))
        if self._stopping:
            raise StoppedOpening

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with AsyncExitStack() as running:
            opening = asyncio.create_task(self._open(running))
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self._stopping = True
            await opening
        await send({"type": "lifespan.shutdown.complete"})

    async def _open(self, running: AsyncExitStack) -> None:
        try:
            app = await asyncio.to_thread(self._open_app, self._tell)
            await running.enter_async_context(app.running())
        except StoppedOpening:
            return
        except asyncio.CancelledError:
            self._stopping = True
            raise
        except BaseException as error:
            self.failure = error
            self.stop()
            return
        freeze()
        self._app = app
        self.on_ready()


def freeze() -> None:
    """Keep what is here now from being looked at each time garbage is collected."""
    gc.collect()
    gc.freeze()
