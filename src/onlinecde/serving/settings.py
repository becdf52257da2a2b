"""How a server runs: its limits, its clock, what it watches."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from onlinecde.series import TIME_UNITS
from onlinecde.serving.problems import ServingError
from onlinecde.streaming.retention import Retention

if TYPE_CHECKING:
    from onlinecde.models import AlarmPolicy
    from onlinecde.serving.webhooks import Target

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Limits:
    """What one client, and all of them together, may ask for at once."""

    body_bytes: int = 8 * 2**20
    """Largest body of a request and largest message on a socket"""
    bodies_bytes: int = 64 * 2**20
    """Bodies being read at the same time, all together"""
    events_per_request: int = 50_000
    queued_events: int = 200_000
    """Events that wait for their commit; what would be more is answered 429"""
    batch_events: int = 24_000
    """Events in one micro-batch"""
    requests_per_second: float = 2_000.0
    """For each token, or each address where there are no tokens; messages on sockets count too"""
    burst: int = 4_000
    knocks_per_second: float = 2.0
    """Answers to requests without a token that is known, and to signing in, for each address"""
    knock_burst: int = 60
    sockets: int = 256
    socket_messages: int = 64
    """Frames that may wait for a slow client before it is let go"""
    unanswered: int = 16
    """Messages of one socket that may wait for their commit; reading stops there"""
    listed_streams: int = 1_000
    history_rows: int = 5_000
    curve_points: int = 2_000
    job_seconds: float = 2.0
    """After so long, events that need long work are answered 202 with a job; their receipt is the job's result"""
    body_seconds: float = 30.0
    """How long a client may take to send a body"""
    header_bytes: int = 32 * 1024
    """Largest header of a request, its first line included"""
    header_seconds: float = 10.0
    """How long a client may take to send a header"""
    idle_seconds: float = 30.0
    """How long a connection may wait for its next request, or an answer to be read"""
    connections: int | None = None
    """Open connections, sockets among them; None: 4,096, or as many as the limit on open files leaves room for"""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not (isfinite(value) and value > 0):
                raise ServingError(f"the limit {name} is {value!r}: give a number above 0.")


@dataclass(frozen=True)
class ServeSettings:
    """Everything about a server that is not the engine's.

    >>> ServeSettings(time_unit="hours", clock_speed=60).units_per_second * 3600
    60.0
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allow_hosts: tuple[str, ...] = ()
    """Names clients may ask for it by, beside those it is bound to; for a reverse proxy"""
    time_unit: str = "hours"
    """What one unit of the streams' own time is"""
    clock_speed: float = 1.0
    """How many seconds pass on the streams in one second; other than 1 for a replay"""
    tick: float = 1.0
    """Seconds between two ticks of the clock"""
    look_every: float | None = None
    """Seconds between two rounds of looks between rows, where the alarm policy has such; None: a quarter of the time
    between looks at a stream, at least 1 and at most 15"""
    silent_after: float | None = None
    """Units of time after a stream's newest row from which on its answer no longer moves; None: 24 hours or, if that is
    longer, 24 units"""
    title: str = "onlinecde"
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    """Names of the static features, in the model's order"""
    units: tuple[str, ...] | None = None
    """Units of the channels, for people"""
    page: bool = True
    keep: float | None = None
    """Rows more than this before their stream's newest are deleted; None: all are kept"""
    keep_days: float | None = None
    """Rows received, alarms raised and events refused more than so many days ago are deleted; None: all are kept"""
    forget_ended: float | None = None
    """Streams whose end was told more than so many days ago are deleted"""
    forget_idle: float | None = None
    """Streams that no event has changed for so many days are deleted"""
    background_share: float = 0.2
    """Part of the engine's time that deleting, and building another model, may take"""
    evict_after: float | None = 3600.0
    """Seconds after which an idle stream leaves memory; it comes back when it is needed"""
    housekeeping: float = 60.0
    """Seconds between two rounds of deleting and evicting"""
    log_requests: bool = False
    audit: Path | None = None
    """File of the audit log; None: there is none"""
    webhooks: tuple[Target, ...] = ()
    """Where alarms are sent"""
    session_seconds: float = 12 * 3600.0
    """How long a browser stays signed in"""
    tls_cert: Path | None = None
    """Certificate chain as PEM; with it, everything is HTTPS"""
    tls_key: Path | None = None
    insecure_http: bool = False
    """Whether others than this machine may be answered without TLS"""
    forwarded_by: str | None = None
    """Addresses of reverse proxies whose X-Forwarded-For and -Proto are believed"""
    limits: Limits = field(default_factory=Limits)

    @property
    def retention(self) -> Retention:
        """What is deleted in time."""
        days = (self.keep_days, self.forget_ended, self.forget_idle)
        return Retention(self.keep, *(None if one is None else 86_400.0 * one for one in days))

    def __post_init__(self) -> None:
        if self.time_unit not in TIME_UNITS:
            raise ServingError(
                f"the unit of time is {self.time_unit!r}: give one of {', '.join(TIME_UNITS)}, so that the "
                "clock knows how fast the streams' time passes."
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ServingError("TLS needs both: give --tls-cert FILE and --tls-key FILE.")
        for name in (
            "clock_speed", "tick", "look_every", "silent_after", "housekeeping", "session_seconds",
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value > 0):
                raise ServingError(f"{name} is {value!r}: give a number above 0.")

    @property
    def scheme(self) -> str:
        """How its addresses begin."""
        return "http" if self.tls_cert is None else "https"

    @property
    def units_per_second(self) -> float:
        """How much of the streams' time passes in one second of the wall clock."""
        return self.clock_speed / TIME_UNITS[self.time_unit]

    @property
    def silence(self) -> float:
        """Units of time after which a stream is silent.

        >>> ServeSettings(time_unit="seconds").silence, ServeSettings(time_unit="days").silence
        (86400.0, 24.0)
        """
        if self.silent_after is not None:
            return self.silent_after
        return 24.0 * max(1.0, TIME_UNITS["hours"] / TIME_UNITS[self.time_unit])

    def looks_every(self, policy: AlarmPolicy | None) -> float | None:
        """Seconds between two rounds of looks between rows; None where the policy has no such looks.

        >>> from onlinecde.models import AlarmPolicy
        >>> ServeSettings().looks_every(AlarmPolicy(0.5, every=1 / 60))
        15.0
        """
        if policy is None or policy.every is None:
            return None
        if self.look_every is not None:
            return self.look_every
        return min(15.0, max(1.0, 0.25 * policy.every / self.units_per_second))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK

    def hosts(self) -> frozenset[str] | None:
        """Allowed host names of requests; None: any. A loopback server has no other name, unless a foreign page had
        its own name point here (DNS rebinding).
        """
        if self.loopback or self.allow_hosts:
            return frozenset((*LOOPBACK, *(host.lower() for host in self.allow_hosts)))
        return None
