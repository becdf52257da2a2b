"""Contract 1 through the whole stack: what the server answered is what the model says of the whole history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import numpy as np
import torch

from onlinecde.serving.problems import ServingError
from onlinecde.serving.replay import Answered, Replayed, Server
from onlinecde.serving.verify_alarms import AlarmDifference, ServedPolicy, alarm_difference

if TYPE_CHECKING:
    from onlinecde.models import OnlineModel
    from onlinecde.series import SeriesBatch

TOLERANCE = 1e-5
"""Largest difference, relative to the largest output, in float32; contract 1"""


@dataclass
class Verified:
    """How far the server's answers lie from the offline model's."""

    compared: dict[str, int] = field(default_factory=dict)
    """How many answers of each kind"""
    largest: float = 0.0
    """Largest difference, relative to the largest output"""
    worst: str = ""
    missing: int = 0
    """Rows that were sent and of which the server has no answer"""
    others: list[str] = field(default_factory=list)
    """Alarms that the server or the model alone raises"""
    ties: int = 0
    """Streams with such alarms where rounding decides, so near did their numbers come to the policy's bounds"""
    tolerance: float = TOLERANCE

    @property
    def holds(self) -> bool:
        """Whether every answer was there and within the tolerance."""
        fine = not self.missing and not self.others and self.largest <= self.tolerance
        return fine and sum(self.compared.values()) > 0

    def __str__(self) -> str:
        if not self.compared and not self.missing:
            return "compared with the offline model: nothing, for no row was sent"
        content = ", ".join(f"{count} {kind}" for kind, count in self.compared.items())
        if self.ties:
            content += f"; alarms of {self.ties} streams left to rounding"
        why = f"{self.missing} rows missing" if self.missing else self.worst
        if self.others:
            why = f"{len(self.others)} streams with other alarms: {self.others[0]}"
        kept = "holds" if self.holds else f"FAILS ({why})"
        return (
            f"compared with the offline model: {content}; largest difference {self.largest:.1e} of the largest "
            f"output (at most {self.tolerance:g}): {kept}"
        )


class Questions:
    """Asks for predictions between rows while a replay runs, of a few streams each time."""

    def __init__(
        self, server: Server, series: SeriesBatch, prefix: str, *, seed: int = 0, each: int = 2
    ) -> None:
        self._server, self._series, self._prefix, self._each = server, series, prefix, each
        self._random = np.random.default_rng(seed)
        self.answered = Answered()
        self._edges = server.ask("GET", "/v1/model").get("edges")

    def __call__(self, latest: dict[int, float]) -> None:
        """Ask at a time between the newest row sent and the next."""
        under_way = list(latest)
        for stream in self._random.permutation(under_way)[: self._each].tolist():
            count = int(self._series.rows[stream])
            later = self._series.times[stream, :count].double().numpy()
            following = later[later > latest[stream]]
            end = float(following[0]) if len(following) else latest[stream] + 1.0
            at = latest[stream] + float(self._random.random()) * (end - latest[stream])
            name = quote(f"{self._prefix}{self._series.streams[stream]}", safe="")
            asked = {"at": at}
            if self._edges:
                asked["horizon"] = float(1 - self._random.random()) * self._edges[-1]
            content = self._server.ask("GET", f"/v1/streams/{name}/prediction", params=asked)
            self.answered.add(stream, at, content["outputs"])
            if self._edges:
                self.answered.risks.append((asked["horizon"], content["probabilities"][0]))


def verify(
    model: OnlineModel,
    series: SeriesBatch,
    server: Server,
    done: Replayed,
    *,
    prefix: str,
    between: Answered | None = None,
    tolerance: float = TOLERANCE,
) -> Verified:
    """Compare every answer given with `model(series)`: those in the receipts, those stored, those between rows.

    Alarms are compared with those that the served policy raises on the offline model's answers.
    """
    with torch.no_grad():
        rows = model(model.prepare(series)).double().numpy()
    compare = _Comparison(float(np.abs(rows[~np.isnan(rows)]).max()), Verified(tolerance=tolerance))
    places = [_places(series, stream) for stream in range(len(series))]
    content = done.answered
    for stream, time, outputs in zip(content.streams, content.times, content.outputs, strict=True):
        where = f"{series.streams[stream]} at {time}"
        compare("receipts", outputs, rows[stream, places[stream][time]], where)
    served = ServedPolicy.of(server.ask("GET", "/v1/model"))
    for stream in np.flatnonzero(~np.isnan(done.sent_until)).tolist():
        name = quote(f"{prefix}{series.streams[stream]}", safe="")
        if served is not None:
            _compare_alarms(model, series[[stream]], served, server, name, compare)
        answer = server.ask("GET", f"/v1/streams/{name}/history", params={"most": 5000})
        stored = {row["time"]: row["outputs"] for row in answer["rows"]}
        for time, row in places[stream].items():
            if time > done.sent_until[stream]:
                break
            where = f"{series.streams[stream]} at {time}"
            compare("stored", stored.get(time), rows[stream, row], where)
    if between is not None:
        _compare_between(model, series, between, compare)
    return compare.found


def _compare_alarms(
    model: OnlineModel,
    series: SeriesBatch,
    served: ServedPolicy,
    server: Server,
    name: str,
    compare: _Comparison,
) -> None:
    """Compare the alarms of one stream; what was missing or corrected of its rows is said of the rows."""
    info = server.ask("GET", f"/v1/streams/{name}")
    alarms = server.ask("GET", "/v1/alarms", params={"stream": unquote(name)})["alarms"]
    rows = server.ask("GET", f"/v1/streams/{name}/history", params={"most": 5000})["rows"]
    sent = series.times[0, : len(rows)].double().tolist()
    if [row["time"] for row in rows] != sent:
        return
    certain = info["looked"]
    looked = max([certain, *(alarm["time"] for alarm in alarms)])
    times, known = served.schedule(rows, info["origin"], looked)
    watched = served.watched(model, series.first_rows(len(rows)), times, known)
    probability = "probabilities" in info
    scale = 1.0 if probability else compare.largest
    found = alarm_difference(
        served.policy, times, watched, alarms,
        certain=certain, tolerance=compare.found.tolerance * max(scale, compare.largest),
    )  # fmt: skip
    compare.alarms(str(series.streams[0]), found, scale)


class _Comparison:
    """Notes how far answers lie from what they should be."""

    def __init__(self, largest: float, found: Verified) -> None:
        self.largest, self.found = largest, found

    def __call__(
        self, kind: str, content: list[float] | None, true: np.ndarray, where: str
    ) -> None:
        """One answer; None: there is none."""
        if content is None:
            self.found.missing += 1
            return
        gap = float(np.abs(np.array(content) - true).max()) / self.largest
        self.found.compared[kind] = self.found.compared.get(kind, 0) + 1
        if not gap <= self.found.largest:
            self.found.largest = gap
            self.found.worst = f"{kind}, {where}: {content} for {true.tolist()}"

    def alarms(self, stream: str, found: AlarmDifference, scale: float) -> None:
        """The alarms of a stream, whose numbers are of this size."""
        for kind, count in (
            ("alarms at rows", found.at_rows),
            ("alarms between rows", found.between),
        ):
            if count:
                self.found.compared[kind] = self.found.compared.get(kind, 0) + count
        if not found.gap / scale <= self.found.largest:
            self.found.largest = found.gap / scale
            self.found.worst = f"alarms of {stream}"
        if found.tie:
            self.found.ties += 1
        elif found.first is not None:
            self.found.others.append(f"{stream}, {found.first}")


def _compare_between(
    model: OnlineModel, series: SeriesBatch, asked: Answered, compare: _Comparison
) -> None:
    of, times = np.array(asked.streams), np.array(asked.times)
    for stream in np.unique(of).tolist():
        which = np.flatnonzero(of == stream)
        which = which[np.argsort(times[which], kind="stable")]
        with torch.no_grad():
            at = torch.from_numpy(times[which])[None]
            true = model(model.prepare(series[[stream]]), at=at)[0].double().numpy()
        for place, i in enumerate(which.tolist()):
            where = f"{series.streams[stream]} at {asked.times[i]}"
            compare("between rows", asked.outputs[i], true[place], where)
            bins = model.readout.bins if asked.risks else None
            if bins is not None:
                horizon, said = asked.risks[i]
                risk = bins.risk_within(torch.from_numpy(true[place]), horizon)
                where = f"{where} within {horizon:g}"
                compare("within horizons", [said], risk.numpy()[None], where)


def _places(series: SeriesBatch, stream: int) -> dict[float, int]:
    count = int(series.rows[stream])
    return {float(t): row for row, t in enumerate(series.times[stream, :count].double())}


def same_model(folder: str, server: Server) -> None:
    """Refuse to compare with another model than the one that is served."""
    from onlinecde.streaming import Engine

    with Engine(folder) as engine:
        own = engine.model_hash
    served = server.ask("GET", "/v1/model")["model"]
    if own != served:
        raise ServingError(
            f"the server follows model {served[:12]}, {folder} is {own[:12]}: give the folder it serves."
        )
