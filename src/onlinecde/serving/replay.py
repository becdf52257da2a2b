"""Replay: held-out streams sent to a server as if they were live."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import numpy as np

from onlinecde.series import TIME_UNITS
from onlinecde.series.static_columns import is_missing
from onlinecde.serving.problems import ServingError

if TYPE_CHECKING:
    from onlinecde.series import SeriesBatch

BEAT = 0.2
"""Seconds between two requests: what fell due since the last goes together"""
MOST_ROWS = 2_000
"""Rows in one request"""


@dataclass
class Answered:
    """What came back: one entry for each answer of the server."""

    streams: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    outputs: list[list[float]] = field(default_factory=list)
    risks: list[tuple[float, float]] = field(default_factory=list)
    """Of time to an event: the horizon asked for, and the probability answered; empty otherwise"""

    def add(self, stream: int, time: float, outputs: list[float]) -> None:
        """One answer."""
        self.streams.append(stream)
        self.times.append(time)
        self.outputs.append(outputs)

    def __len__(self) -> int:
        return len(self.streams)


@dataclass
class Replayed:
    """How a replay went."""

    streams: int
    rows: int = 0
    events: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    requests: list[float] = field(default_factory=list)
    """Seconds each took to its durable answer"""
    behind: float = 0.0
    """Seconds the replay was late at worst"""
    retried: int = 0
    answered: Answered = field(default_factory=Answered)
    """The answers after rows, as they came back with the receipts"""
    sent_until: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """(stream,): time of the last row sent"""

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
        spent = 1e3 * np.array(self.requests or [0.0])
        lines = [
            f"{self.streams} streams, {self.rows} rows, {self.events} events in {self.seconds:.1f} s: "
            f"{outcomes or 'none'}",
            f"{len(self.requests)} requests, {np.percentile(spent, 50):.1f} ms in the middle, "
            f"{np.percentile(spent, 99):.1f} ms at the 99th of 100; at worst {self.behind:.2f} s behind",
        ]
        if self.refusals:
            lines.append(f"refused: {', '.join(f'{n} {c}' for c, n in self.refusals.items())}")
        return "\n".join(lines)


class Server:
    """A server's API, as much of it as a replay needs; waits where it is told to."""

    def __init__(self, url: str, token: str | None = None, *, patience: float = 60.0) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=30.0)
        self.retried, self._patience = 0, patience

    def ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The answer as JSON; raises `ServingError` with the server's own words."""
        until = time.monotonic() + self._patience
        while True:
            try:
                answer = self._client.request(method, path, **options)
            except httpx.TransportError as error:
                raise ServingError(f"{self._client.base_url} does not answer ({error}).") from error
            if answer.status_code not in (429, 503) or time.monotonic() > until:
                break
            self.retried += 1
            time.sleep(float(answer.headers.get("retry-after", 1)))
        if answer.status_code == 204:
            return {}
        if answer.is_success or (answer.status_code == 422 and "counts" in answer.json()):
            return answer.json()
        try:
            why = answer.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            why = "no reason given"
        raise ServingError(f"{method} {path}: {answer.status_code}, {why}")

    def knows(self, stream: str) -> bool:
        """Whether the server has heard of a stream."""
        try:
            self.ask("GET", f"/v1/streams/{quote(stream, safe='')}")
        except ServingError as error:
            if ": 404, " in str(error):
                return False
            raise
        return True

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def replay(
    series: SeriesBatch,
    server: Server,
    *,
    speed: float,
    prefix: str = "stream ",
    spread: float = 0.0,
    seconds: float | None = None,
    seed: int = 0,
    between: Callable[[dict[int, float]], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Replayed:
    """Send series to a server at `speed` times their own pace.

    spread: the part of its length a stream may already have behind it when the replay begins, drawn
    for each; those rows are sent first. seconds: end after so long. `between` is called after each request
    with the newest time sent of every stream under way.
    """
    if not speed > 0:
        raise ServingError(f"speed is {speed}: give a number above 0.")
    about = server.ask("GET", "/v1/model")
    known = {one["name"] for one in about["channels"]}
    channels = [name if name in known else None for name in series.channels]
    if not any(channels):
        raise ServingError("the server's model has none of the task's channels.")
    rate = speed / TIME_UNITS[about["time_unit"]]
    own_clock = about["clock_speed"] == speed
    names = [f"{prefix}{name}" for name in series.streams]
    lengths = [int(count) for count in series.rows]
    times = [series.times[i, :count].double().numpy() for i, count in enumerate(lengths)]
    values = series.values.double().numpy()
    began = time.time()
    done = Replayed(len(names), sent_until=np.full(len(names), np.nan))
    offsets = _offsets(times, spread, seed)
    origins = (began - offsets / rate).tolist() if own_clock else None
    _open(server, series, names, origins, about)
    due = np.concatenate(
        [(clock - offset) / rate for clock, offset in zip(times, offsets, strict=True)]
    )
    stream_of, row_of = (
        np.repeat(np.arange(len(names)), lengths),
        np.concatenate([np.arange(n) for n in lengths]),
    )
    order = np.lexsort((row_of, np.maximum(due, 0.0)))
    clock_of, at = np.concatenate(times), 0
    latest: dict[int, float] = {}
    while at < len(order) and not stopped():
        passed = time.time() - began
        if seconds is not None and passed > seconds:
            break
        ready = int(np.searchsorted(np.maximum(due[order], 0.0), passed, side="right"))
        part = order[at : min(ready, at + MOST_ROWS)]
        if not len(part):
            time.sleep(BEAT if ready <= at else 0)
            continue
        done.behind = max(done.behind, passed - max(0.0, float(due[part[0]])))
        rows = [
            {
                "stream": names[stream_of[i]],
                "time": float(clock_of[i]),
                "values": _observed(values[stream_of[i], row_of[i]], channels),
            }
            for i in part
        ]
        _send(server, rows, {names[s]: s for s in set(stream_of[part].tolist())}, done)
        for i in part:
            latest[int(stream_of[i])] = float(clock_of[i])
        at += len(part)
        if between is not None:
            between(latest)
    for stream, newest in latest.items():
        done.sent_until[stream] = newest
    done.seconds, done.retried = time.time() - began, server.retried
    return done


def _offsets(times: list[np.ndarray], spread: float, seed: int) -> np.ndarray:
    share = spread * np.random.default_rng(seed).random(len(times))
    return np.array(
        [clock[0] + part * (clock[-1] - clock[0]) for clock, part in zip(times, share, strict=True)]
    )


def _open(
    server: Server,
    series: SeriesBatch,
    names: list[str],
    origins: list[float] | None,
    known: dict[str, Any],
) -> None:
    if server.knows(names[0]):
        raise ServingError(f"the server knows {names[0]!r} already: give another --prefix.")
    for place, name in enumerate(names):
        content: dict[str, Any] = {}
        if (facts := _facts(series, place, known)) is not None:
            content["static"] = facts
        if origins is not None:
            content["origin"] = origins[place]
        if content:
            server.ask("PUT", f"/v1/streams/{quote(name, safe='')}", json=content)


def _facts(series: SeriesBatch, place: int, about: dict[str, Any]) -> Any:
    """Static features of a stream: raw where they are, of those that the server knows; else by name."""
    if series.static is None or not about["static"]:
        return None
    numbers = series.static[place].double().tolist()
    if not about["static_features"]:
        return numbers
    raw, known = series.raw_static, {one["name"] for one in about["static_features"]}
    if raw is None:
        facts = dict(zip(series.features, numbers, strict=True))
        return {name: fact for name, fact in facts.items() if name in about["static"]}
    facts = {name: column[place] for name, column in raw.columns.items() if name in known}
    facts = {name: fact for name, fact in facts.items() if not is_missing(fact)}
    return {n: fact if isinstance(fact, str) else float(fact) for n, fact in facts.items()}


def _observed(row: np.ndarray, channels: list[str | None]) -> dict[str, float]:
    """What was observed in a row, (channel,), of the channels that the server knows: those with a name."""
    seen = np.flatnonzero(~np.isnan(row))
    return {name: float(row[i]) for i in seen if (name := channels[i]) is not None}


def _send(
    server: Server, rows: list[dict[str, Any]], places: dict[str, int], done: Replayed
) -> None:
    started = time.perf_counter()
    content = server.ask("POST", "/v1/events", params={"answers": "true"}, json=rows)
    done.requests.append(time.perf_counter() - started)
    done.rows += len(rows)
    done.events += content["events"]
    for name, count in content["counts"].items():
        done.counts[name] = done.counts.get(name, 0) + count
    for refusal in content["refusals"]:
        done.refusals[refusal["code"]] = done.refusals.get(refusal["code"], 0) + 1
    for one in content.get("answers", ()):
        done.answered.add(places[one["stream"]], one["time"], one["outputs"])
