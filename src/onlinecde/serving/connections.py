"""Connections under limits: how many, how long a header may be, and how long the server waits for whom.

Every connection is in one of a few states, each with a queue in order of entry. A sweep closes those that have
been in a state for too long; where there are too many connections, whoever holds up others the longest goes first.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from onlinecde.serving.problems import ServingError
from onlinecde.serving.request_log import note
from onlinecde.serving.settings import Limits

LINGER = 12.0
"""Seconds without progress that a connection which is being closed has to take what was sent to it"""
GRACE = 5.0
"""Seconds that a body may take beyond `Limits.body_seconds`, after which its route has answered 408"""
RESERVED_FILES = 64
"""File descriptors left for the store, the log and libraries"""
MOST_CONNECTIONS = 4096
"""Default limit where the system allows more"""
LOG_INTERVAL = 60.0
"""Seconds between two log lines about closed connections for the same reason"""


class State(enum.IntEnum):
    """What a connection waits for."""

    HEADER = 0
    BODY = 1
    BUSY = 2
    """For the server's answer, or an open socket"""
    UNREAD = 3
    """For the client to read an answer"""
    IDLE = 4
    """For the next request; uvicorn's keep-alive timer ends it"""
    CLOSING = 5


_EVICTED = (State.HEADER, State.IDLE, State.CLOSING, State.BODY)
"""States whose oldest connection makes room for a new one, in this order"""


class Connection(Protocol):
    """What `Connections` asks of a connection."""

    state: State | None
    transport: asyncio.Transport
    client: tuple[str, int] | None

    def expire(self) -> str | None:
        """End a state that took too long; the reason for the log, or None where the connection may go on."""
        ...

    def evict(self) -> None:
        """Make room for another connection."""
        ...


class Connections:
    """All open connections, by state."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self.most = limits, connection_limit(limits)
        self._clock = clock
        self._seconds = {
            State.HEADER: limits.header_seconds,
            State.BODY: limits.body_seconds + GRACE,
            State.UNREAD: limits.idle_seconds,
            State.CLOSING: LINGER,
        }
        self._queues: list[OrderedDict[Connection, float]] = [OrderedDict() for _ in State]
        """By state: connections in order of entry, with its time"""
        self._sweep_interval = min(1.0, limits.header_seconds / 4, limits.idle_seconds / 4)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._unlogged: dict[str, tuple[int, str]] = {}
        self._logged: dict[str, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def admit(self, connection: Connection, state: State) -> bool:
        """Take in a new connection, in place of another if need be; False where there is no room for it."""
        if len(self) >= self.most:
            self.report("too_many_connections", connection)
            queue = next((self._queues[one] for one in _EVICTED if self._queues[one]), None)
            if queue is None:
                return False
            oldest = next(iter(queue))
            self.remove(oldest)
            oldest.evict()
        self.move(connection, state)
        if self._sweep_timer is None:
            loop = asyncio.get_running_loop()
            self._sweep_timer = loop.call_later(self._sweep_interval, self._sweep)
        return True

    def move(self, connection: Connection, state: State) -> None:
        """Note what a connection waits for now; one that waits on for the same keeps its place."""
        if connection.state is not state:
            self.remove(connection)
            self._queues[state][connection] = self._clock()
            connection.state = state

    def remove(self, connection: Connection) -> None:
        """Forget a connection."""
        if connection.state is not None:
            del self._queues[connection.state][connection]
            connection.state = None

    def report(self, reason: str, connection: Connection) -> None:
        """Log, at most once a minute for each reason, how many connections were closed."""
        count = self._unlogged.get(reason, (0, ""))[0]
        self._unlogged[reason] = count + 1, connection.client[0] if connection.client else "unknown"
        self._log(reason)

    def _log(self, reason: str) -> None:
        now = self._clock()
        if now - self._logged.get(reason, -math.inf) >= LOG_INTERVAL:
            count, address = self._unlogged.pop(reason)
            self._logged[reason] = now
            note(
                "connections closed",
                logging.WARNING,
                reason=reason,
                count=count,
                last_address=address,
            )

    def _sweep(self) -> None:
        now = self._clock()
        for state, seconds in self._seconds.items():
            queue = self._queues[state]
            while queue and now - next(iter(queue.values())) >= seconds:
                connection = next(iter(queue))
                reason = connection.expire()
                if reason is not None:
                    self.report(reason, connection)
                elif connection.state is state:
                    queue.move_to_end(connection)
                    queue[connection] = now
        for reason in list(self._unlogged):
            self._log(reason)
        self._sweep_timer = None
        if len(self) or self._unlogged:
            loop = asyncio.get_running_loop()
            self._sweep_timer = loop.call_later(self._sweep_interval, self._sweep)


def connection_limit(limits: Limits) -> int:
    """How many connections may be open: as set, or what the process's limit on open files leaves room for."""
    room = _file_limits()[0] - RESERVED_FILES
    if limits.connections is None:
        return int(max(8, min(MOST_CONNECTIONS, room)))
    if limits.connections > room:
        raise ServingError(
            f"{limits.connections} connections need {limits.connections + RESERVED_FILES} open files, and this "
            f"process may have {room + RESERVED_FILES}: raise the limit (ulimit -n), or allow fewer connections."
        )
    return limits.connections


def raise_file_limit(limits: Limits) -> None:
    """Let this process open as many files as its connections need, where the system allows it to."""
    soft, hard = _file_limits()
    wanted = min((limits.connections or MOST_CONNECTIONS) + RESERVED_FILES, hard)
    if wanted > soft:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(wanted), hard))


def _file_limits() -> tuple[float, float]:
    """How many files this process may open, and how many it may allow itself."""
    try:
        import resource
    except ImportError:  # not on this system
        return 512, 512
    soft, hard = (
        math.inf if one == resource.RLIM_INFINITY else one
        for one in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return soft, hard
