"""Jobs: work that takes longer than a request should, done in pieces beside the service, with its progress."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from onlinecde.serving.problems import Problem
from onlinecde.streaming.pieces import Progress

KEPT = 1_000
"""Jobs that are remembered after their end; the oldest go first"""
KEPT_SECONDS = 3600.0
"""Seconds for which the outcome of a job can be asked for"""


@dataclass(eq=False)
class Job:
    """Some work and how far it is."""

    kind: str
    """What it is, in a word: `events`, ..."""
    owner: str
    """Who began it, as the door names clients; who else may read has leave to ask, too"""
    number: str = field(default_factory=lambda: secrets.token_hex(8))
    begun: float = field(default_factory=time.time)
    """Wall clock, seconds"""
    ended: float | None = None
    progress: Progress | None = None
    result: dict[str, Any] | None = None
    problem: Problem | None = None

    @property
    def state(self) -> str:
        """`running`, `done` or `failed`."""
        if self.ended is None:
            return "running"
        return "done" if self.problem is None else "failed"

    def heard(self, progress: Progress) -> None:
        """Note how far it is."""
        self.progress = progress


class Jobs:
    """The jobs of a server: those that run, and for a while those that have ended.

    problem_of: what a client is told of an error.
    """

    def __init__(self, problem_of: Callable[[BaseException], Problem]) -> None:
        self._problem_of = problem_of
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, kind: str, owner: str, work: Callable[[Job], Coroutine[Any, Any, dict[str, Any]]]
    ) -> Job:
        """Begin some work, which tells the job its progress and gives what is answered when it is done."""
        self._forget()
        job = Job(kind, owner)
        self._jobs[job.number] = job
        task = asyncio.create_task(self._run(job, work(job)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def find(self, number: str) -> Job:
        """A job by its number; raises `Problem`."""
        if (job := self._jobs.get(number)) is None:
            message = "there is no such job: it ended long ago, or the server was started anew."
            raise Problem(404, "job_unknown", message, field="job")
        return job

    def listed(self) -> list[Job]:
        """All jobs that are remembered, newest first."""
        return list(reversed(self._jobs.values()))

    async def close(self) -> None:
        """Stop those that run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Job, work: Coroutine[Any, Any, dict[str, Any]]) -> None:
        try:
            job.result = await work
        except asyncio.CancelledError:
            job.problem = Problem(503, "closing", "the server is going down.", retry_after=5)
            raise
        except Exception as error:
            job.problem = self._problem_of(error)
        finally:
            job.ended = time.time()

    def _forget(self) -> None:
        old = time.time() - KEPT_SECONDS
        ended = [job for job in self._jobs.values() if job.ended is not None]
        for place, job in enumerate(ended):
            if job.ended is not None and (job.ended < old or len(ended) - place > KEPT):
                del self._jobs[job.number]
