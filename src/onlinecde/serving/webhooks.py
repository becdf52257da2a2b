"""Webhooks: each alarm is sent to other servers, at least once, whatever is killed in between.

The alarms in the store are the queue. For each target the store also has up to which number alarms were sent, which of
them failed and are due again, and which were given up. Requests are signed as standardwebhooks.com has it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import logging
import os
import random
import secrets
import ssl
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from onlinecde.serving.problems import Problem, ServingError
from onlinecde.serving.request_log import note
from onlinecde.streaming import Alarm, Engine
from onlinecde.streaming.errors import StoreDamaged

AT_ONCE = 8
"""Requests to one target at the same time: one that is answered slowly holds up few others"""
MOST_FAILING = 500
"""Alarms that wait for another attempt; with so many, no further ones are tried until some get through"""
MOST_DEAD = 1_000
"""Alarms that were given up and are remembered; the oldest go first"""


@dataclass(frozen=True)
class Target:
    """Where alarms are sent."""

    name: str
    url: str
    secret: str
    """`whsec_` and at least 24 bytes as base64: what requests are signed with"""
    streams: tuple[str, ...] = ()
    """What the names of streams begin with whose alarms are sent; none: all"""
    ca: str | None = None
    """File of certificates to trust in the place of the system's"""
    timeout_seconds: float = 10.0
    retry_seconds: float = 1.0
    """Before the second attempt; doubled with each further one"""
    retry_most_seconds: float = 300.0
    give_up_seconds: float = 86_400.0
    """After the first attempt"""

    @property
    def key(self) -> bytes:
        """What requests are signed with."""
        return base64.b64decode(self.secret.removeprefix("whsec_"), validate=True)

    def sign(self, name: str, seconds: int, body: bytes) -> str:
        """The signature of a request: of its id, its time and its body."""
        content = b"%s.%d.%s" % (name.encode(), seconds, body)
        return "v1," + base64.b64encode(hmac.digest(self.key, content, hashlib.sha256)).decode()


def read_targets(file: str | os.PathLike[str]) -> tuple[Target, ...]:
    """The targets in a file: `{"targets": [{"name", "url", "secret", ...}]}`, which only its owner may read."""
    try:
        if Path(file).stat().st_mode & 0o077:
            raise ServingError(f"{file} holds secrets and others may read it: chmod 600 {file}.")
        entries = json.loads(Path(file).read_text())["targets"]
        targets = tuple(_target(file, entry) for entry in entries)
    except OSError as error:
        raise ServingError(f"{file} cannot be read ({error.strerror}).") from error
    except ServingError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServingError(
            f"{file} is not a file of webhooks ({error!r}): see docs/live.md."
        ) from error
    if len({one.name for one in targets}) != len(targets):
        raise ServingError(f"{file}: two targets have one name; deliveries are kept by name.")
    return targets


def _target(file: Any, entry: dict[str, Any]) -> Target:
    where = f"{file}, target {entry.get('name')!r}"
    if strange := entry.keys() - {one.name for one in fields(Target)}:
        raise ServingError(f"{where}: there is no setting {min(strange)!r}.")
    target = Target(**{**entry, "streams": tuple(entry.get("streams", ()))})
    address = urlsplit(target.url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ServingError(f"{where}: the url is no http:// or https:// address.")
    if not (target.name and target.name.isprintable() and len(target.name) <= 80):
        raise ServingError(f"{where}: give a name of 1 to 80 printable characters.")
    try:
        enough = target.secret.startswith("whsec_") and len(target.key) >= 24
    except ValueError:
        enough = False
    if not enough:
        raise ServingError(
            f"{where}: the secret is `whsec_` and at least 24 bytes in base64: whsec_$(openssl rand -base64 32)."
        )
    for name in ("timeout_seconds", "retry_seconds", "retry_most_seconds", "give_up_seconds"):
        if not 0 < float(getattr(target, name)) < 1e9:
            raise ServingError(f"{where}: {name} is not a number above 0.")
    return target


@dataclass
class Failing:
    """An alarm that has not been delivered yet."""

    attempts: int
    first: float
    """Wall clock of the first attempt"""
    due: float
    error: str
    """Why the last attempt failed"""


@dataclass
class Deliveries:
    """How far deliveries to a target are, as it is kept in the store."""

    next: int
    """The first alarm that was never tried"""
    failing: dict[int, Failing] = field(default_factory=dict)
    dead: dict[int, Failing] = field(default_factory=dict)
    """Given up"""

    def text(self) -> str:
        """For the store, with a checksum."""
        content = json.dumps(asdict(self))
        return f"{zlib.crc32(content.encode()):08x}{content}"

    @classmethod
    def read(cls, text: str) -> Deliveries:
        """What `text` wrote; where that is damaged, everything is to be sent again."""
        if not text.startswith(f"{zlib.crc32(text[8:].encode()):08x}"):
            note("webhook deliveries damaged", logging.ERROR)
            return cls(1)
        content = json.loads(text[8:])
        tables = (
            {int(number): Failing(**one) for number, one in content[name].items()}
            for name in ("failing", "dead")
        )
        return cls(content["next"], *tables)


class Webhooks:
    """Sends alarms to targets until each was taken, or given up.

    do: runs work on the engine in its thread. payload: an alarm as JSON.
    """

    def __init__(
        self,
        engine: Engine,
        targets: Sequence[Target],
        do: Callable[[Callable[[], Any]], Awaitable[Any]],
        payload: Callable[[Alarm[str]], dict[str, Any]],
    ) -> None:
        self.targets = {one.name: one for one in targets}
        self.deliveries: dict[str, Deliveries] = {}
        self.counts = {
            (one.name, result): 0 for one in targets for result in ("delivered", "failed")
        }
        self.raised = 0
        """Number of the newest alarm"""
        self._engine, self._do, self._payload = engine, do, payload
        self._wake: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._origin = ""
        self._troubled: set[str] = set()
        """Targets that fail, of which that was logged"""

    async def start(self) -> None:
        """Find where deliveries were, and go on. A target that is new gets the alarms from now on."""
        if self.targets:
            await self._do(self._open)
        for name, target in self.targets.items():
            self._wake[name] = asyncio.Event()
            self._tasks.append(asyncio.create_task(self._serve(target)))

    def _open(self) -> None:
        self._origin = self._engine.kept("origin") or secrets.token_hex(8)
        self._engine.keep("origin", self._origin)
        self.raised = self._engine.counters["alarms"]
        for name in self.targets:
            text = self._engine.kept(f"webhook {name}")
            self.deliveries[name] = (
                Deliveries(self.raised + 1) if text is None else Deliveries.read(text)
            )
            if text is None:
                self._engine.keep(f"webhook {name}", self.deliveries[name].text())

    async def _save(self, name: str) -> None:
        text = self.deliveries[name].text()
        await self._do(lambda: self._engine.keep(f"webhook {name}", text))

    def alarmed(self, newest: int) -> None:
        """Note that there are alarms up to this number."""
        self.raised = max(self.raised, newest)
        for event in self._wake.values():
            event.set()

    async def close(self) -> None:
        """Stop sending; what was not taken is sent again after the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def waiting(self, name: str) -> int:
        """How many alarms a target has not taken yet, those given up not counted."""
        state = self.deliveries[name]
        return max(0, self.raised + 1 - state.next) + len(state.failing)

    async def retry(self, name: str) -> int:
        """Try again what was given up for a target; how many alarms."""
        if name not in self.targets:
            raise Problem(404, "webhook_unknown", "there is no such target.", field="target")
        state, now = self.deliveries[name], time.time()
        for number, one in state.dead.items():
            state.failing[number] = Failing(one.attempts, now, now, one.error)
        count = len(state.dead)
        state.dead.clear()
        await self._save(name)
        self._wake[name].set()
        return count

    async def _serve(self, target: Target) -> None:
        trust = ssl.create_default_context(cafile=target.ca)
        limits = httpx.Limits(max_connections=AT_ONCE)
        async with httpx.AsyncClient(
            verify=trust, timeout=target.timeout_seconds, limits=limits, trust_env=False
        ) as client:
            while True:
                self._wake[target.name].clear()
                wait = 1.0
                try:
                    wait = await self._round(target, client)
                except Exception as error:  # the store is away: what was sent may be sent again
                    note(
                        "webhook failed",
                        logging.ERROR,
                        target=target.name,
                        error=type(error).__name__,
                    )
                if wait > 0:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake[target.name].wait(), wait)

    async def _round(self, target: Target, client: httpx.AsyncClient) -> float:
        """Send what is due; seconds until there may be more."""
        state = self.deliveries[target.name]
        alarms, asked = await self._do(lambda: self._due(target, state))
        results = await asyncio.gather(*(self._send(target, client, alarm) for alarm in alarms))
        now = time.time()
        for alarm, error in zip(alarms, results, strict=True):
            before = state.failing.pop(alarm.number, None)
            self.counts[target.name, "failed" if error else "delivered"] += 1
            if error is None:
                continue
            attempts = 1 if before is None else before.attempts + 1
            first = now if before is None else before.first
            delay = min(
                target.retry_most_seconds, target.retry_seconds * 2 ** min(attempts - 1, 30)
            )
            due = now + delay * random.uniform(0.8, 1.2)
            over = now - first > target.give_up_seconds
            (state.dead if over else state.failing)[alarm.number] = Failing(
                attempts, first, due, error
            )
            if over:
                note(
                    "alarm given up",
                    logging.ERROR,
                    target=target.name,
                    alarm=alarm.number,
                    reason=error,
                )
            elif target.name not in self._troubled:
                self._troubled.add(target.name)
                note("webhook fails", logging.WARNING, target=target.name, reason=error)
        if not state.failing and target.name in self._troubled:
            self._troubled.remove(target.name)
            note("webhook delivers again", target=target.name)
        while len(state.dead) > MOST_DEAD:
            del state.dead[min(state.dead)]
        changed = asked > state.next or bool(alarms)
        state.next = max(state.next, asked)
        if changed:
            await self._save(target.name)
            return 0.0
        return max(0.01, min((one.due - now for one in state.failing.values()), default=60.0))

    def _due(self, target: Target, state: Deliveries) -> tuple[list[Alarm[str]], int]:
        """Alarms to send now, and the first number that none of them has come to."""
        now = time.time()
        due = sorted(number for number, one in state.failing.items() if one.due <= now)
        again = due[: AT_ONCE // 2]  # the others are for alarms that were never tried
        alarms = []
        for number in again:
            known = self._engine.alarms_from(number, 1)
            if known and known[0].number == number:
                alarms += known
            else:  # its stream was forgotten
                del state.failing[number]
        room = min(AT_ONCE - len(alarms), MOST_FAILING - len(state.failing))
        if room <= 0:
            return alarms, state.next
        try:
            new = self._engine.alarms_from(state.next, room)
        except StoreDamaged as error:
            try:
                new = self._engine.alarms_from(state.next, 1)
            except StoreDamaged:  # what cannot be read is not sent, nor does it hold up others
                state.dead[state.next] = Failing(0, now, now, str(error)[:200])
                return alarms, state.next + 1
        wanted = [one for one in new if not target.streams or one.stream.startswith(target.streams)]
        return alarms + wanted, new[-1].number + 1 if new else state.next

    async def _send(
        self, target: Target, client: httpx.AsyncClient, alarm: Alarm[str]
    ) -> str | None:
        """Why an alarm was not taken; None where it was."""
        name, seconds = f"{self._origin}-{alarm.number}", int(time.time())
        body = orjson.dumps({"id": name, "type": "alarm.raised", "data": self._payload(alarm)})
        headers = {
            "content-type": "application/json",
            "user-agent": "onlinecde",
            "webhook-id": name,
            "webhook-timestamp": str(seconds),
            "webhook-signature": target.sign(name, seconds, body),
        }
        try:
            async with (
                asyncio.timeout(target.timeout_seconds),
                client.stream("POST", target.url, content=body, headers=headers) as answer,
            ):
                return None if answer.is_success else f"answered {answer.status_code}"
        except TimeoutError:
            return f"no answer within {target.timeout_seconds:g} s"
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"[:200]
