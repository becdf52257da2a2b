"""The alarms of a replay beside the offline model on the grid: the same looks, each with what was known of it then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from onlinecde.models import AlarmPolicy
from onlinecde.models.forecasts import points
from onlinecde.streaming.alarms import BETWEEN_ROWS
from onlinecde.streaming.stream_clock import StreamClock

if TYPE_CHECKING:
    from onlinecde.models import OnlineModel
    from onlinecde.series import SeriesBatch


@dataclass(frozen=True, eq=False)
class ServedPolicy:
    """The policy of a server and the clock it looks by."""

    policy: AlarmPolicy
    clock: StreamClock

    @classmethod
    def of(cls, about: dict[str, Any]) -> ServedPolicy | None:
        """Out of `GET /v1/model`; None where the server raises no alarms."""
        content = about["alarm_policy"]
        if content is None:
            return None
        rate = about["clock_speed"] / about["unit_seconds"]
        policy = AlarmPolicy.from_json({n: v for n, v in content.items() if n != "words"})
        return cls(policy, StreamClock(rate, about["silent_after"]))

    def schedule(
        self, rows: list[dict[str, Any]], origin: float | None, looked: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """The looks at a stream in the order in which they were due: their times, and how many rows were known.

        Args:
            rows: of its history, in order of time, which must be the order in which they came.
            origin: wall clock at its time 0, where it was given.
            looked: how far it was looked at after the newest row.
        """
        times, walls, sequences = (
            np.array([row[name] for row in rows]) for name in ("time", "received", "sequence")
        )
        until = np.minimum(np.nextafter(times[1:], -np.inf), times[:-1] + self.clock.silent_after)
        # Whoever came with a later commit met the looks that were due by then.
        origins = np.full(len(rows) - 1, np.nan if origin is None else origin)
        now = self.clock.now(times[:-1], walls[:-1], origins, walls[1:])
        until = np.where(np.diff(sequences) > 0, np.maximum(until, now), until)
        first, count = self.policy.grid(times, np.append(until, looked))
        looks, known = [], []
        for row, time in enumerate(times.tolist()):
            between = (first[row] + np.arange(count[row])) * (self.policy.every or 0.0)
            looks += [time, *between.tolist()]
            known += [row + 1] * (1 + len(between))
        return np.array(looks), np.array(known)

    def watched(
        self, model: OnlineModel, series: SeriesBatch, times: np.ndarray, known: np.ndarray
    ) -> np.ndarray:
        """(look,): the number watched of a stream at each look, by the offline model.

        Args:
            model: the model.
            series: the stream.
            times: (look,)
            known: (look,): how many of its rows were known.
        """
        real = series.times[0, : int(series.rows[0])].double().numpy()
        outputs = np.empty((len(times), model.outputs))
        # Most looks know all rows up to their time; few were made before a row that came too late for them.
        usual = known == np.searchsorted(real, times, side="right")
        parts = [(len(real), np.flatnonzero(usual))]
        parts += [(n, np.flatnonzero(~usual & (known == n))) for n in np.unique(known[~usual])]
        for rows, which in parts:
            if len(which):
                which = which[np.argsort(times[which], kind="stable")]
                at = torch.from_numpy(times[which])[None]
                with torch.no_grad():
                    said = model(model.prepare(series.first_rows(int(rows))), at=at)[0]
                outputs[which] = said.double().numpy()
        readout = getattr(model, "readout", None)
        if readout is not None:
            said = torch.from_numpy(outputs)
            if readout.bins is not None:
                return readout.bins.risk_within(said, self.policy.horizon).detach().numpy()
            outputs = readout.probabilities(said).detach().numpy()
            outputs = outputs if readout.forecasts is None else points(outputs)
        return outputs[:, self.policy.output]


@dataclass(frozen=True)
class AlarmDifference:
    """How the alarms of a stream differ from those of the offline model."""

    at_rows: int
    """Alarms that both have, which rose at rows"""
    between: int
    """Likewise, between rows"""
    gap: float
    """Largest difference of the numbers at which they rose"""
    first: str | None
    """The first alarm that only one of both has; None where they are the same"""
    tie: bool
    """Whether a number before that lies so near a bound of the policy that rounding decides"""


def alarm_difference(
    policy: AlarmPolicy,
    times: np.ndarray,
    watched: np.ndarray,
    alarms: list[dict[str, Any]],
    *,
    certain: float,
    tolerance: float,
) -> AlarmDifference:
    """Compare the alarms of a stream with those that the policy raises at its looks.

    Args:
        policy: the rule.
        times: (look,) of the looks in order.
        watched: (look,) the number at each.
        alarms: as the server has them.
        certain: the server was asked for how far it had looked, and then for its alarms: those after this time may
            be missing here.
        tolerance: what numbers may differ by.
    """
    raised = policy.alarm_times(watched[None], times[None], np.ones((1, len(times)), bool))[0]
    wanted = {float(times[look]): float(watched[look]) for look in np.flatnonzero(raised)}
    numbers = (one["probability"] if "probability" in one else one["value"] for one in alarms)
    found = dict(zip((one["time"] for one in alarms), numbers, strict=True))
    both = wanted.keys() & found.keys()
    alone = [time for time in wanted.keys() ^ found.keys() if time in found or time <= certain]
    between = sum(one["time"] in both and one["rose"] == BETWEEN_ROWS for one in alarms)
    gap = max((abs(found[time] - wanted[time]) for time in both), default=0.0)
    counts = len(both) - between, between, gap
    if not alone:
        return AlarmDifference(*counts, None, False)
    first = min(alone)
    near = np.minimum(abs(watched - policy.threshold), abs(watched - policy.rearm)) <= tolerance
    whose = "the server's" if first in found else "the model's"
    return AlarmDifference(*counts, f"{whose} alarm at {first!r}", bool(near[times <= first].any()))
