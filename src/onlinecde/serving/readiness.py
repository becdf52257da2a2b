"""Whether a server can take events now: whether its engine answers and its store can be written."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from onlinecde.serving.problems import Problem
from onlinecde.serving.request_log import note

FRESH = 3.0
"""Seconds for which the store's answer stands; it is asked by a write that is synced"""
PATIENCE = 5.0
"""Seconds after which an engine at work counts as one that does not answer"""


class Readiness:
    """Looks whether events could be taken, at most once in a while, however often it is asked.

    look: gives the reason why they could not, or None.
    """

    def __init__(self, look: Callable[[], Awaitable[Problem | None]]) -> None:
        self._look = look
        self._looking: asyncio.Future[Problem | None] | None = None
        self._since = 0.0
        self._code: str | None = None

    async def problem(self) -> Problem | None:
        """Why events cannot be taken; None where they can."""
        now = time.monotonic()
        if self._looking is None or (self._looking.done() and now - self._since > FRESH):
            self._looking, self._since = asyncio.ensure_future(self._look()), now
        looking = self._looking
        await asyncio.wait([looking], timeout=max(0.0, PATIENCE - (now - self._since)))
        if looking.done():
            problem = looking.result()
        else:
            message = f"the engine has not answered for {PATIENCE:g} s: it is at work, or stuck."
            problem = Problem(503, "engine_busy", message, retry_after=PATIENCE)
        code = None if problem is None else problem.code
        if code != self._code:
            self._code = code
            if problem is None:
                note("ready")
            else:
                reason = str(problem.__cause__ or problem)
                note("not ready", logging.WARNING, code=code, reason=reason)
        return problem
