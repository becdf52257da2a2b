"""Answers as plain values for JSON, in the words of the API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onlinecde.serving.board import Snapshot
from onlinecde.streaming import Alarm, Answers, Curve, HistoryRow, RowExplanation, StreamInfo


@dataclass(frozen=True)
class Shapes:
    """Answers of one model: a classifier's have `probabilities`, those of a regression `predicted` by name.

    >>> Shapes.of("regression", ["SOFA"], 1).said([1.5]), Shapes.of("binary", [], 1).said([0.5])
    ({'predicted': {'SOFA': 1.5}}, {'probabilities': [0.5]})
    """

    names: tuple[str, ...] | None
    """Of the numbers of a regression; None for a classifier"""

    @classmethod
    def of(cls, kind: str, classes: Sequence[str], outputs: int) -> Shapes:
        """For a model of this kind; numbers without names of their own are "output 1" and so on."""
        if kind != "regression":
            return cls(None)
        numbered = tuple(f"output {number}" for number in range(1, outputs + 1))
        return cls(tuple(classes) if len(classes) == outputs else numbered)

    def said(self, numbers: Sequence[float] | None, prefix: str = "") -> dict[str, Any]:
        """What a model says, (output,), under its key."""
        if self.names is None:
            return {f"{prefix}probabilities": numbers}
        named = None if numbers is None else dict(zip(self.names, numbers, strict=True))
        return {f"{prefix}predicted": named}

    def followed(self, numbers: np.ndarray, prefix: str = "") -> dict[str, Any]:
        """What a model says as time goes, (time, output), under its key."""
        if self.names is None:
            return {f"{prefix}probabilities": numbers.tolist()}
        return {f"{prefix}predicted": dict(zip(self.names, numbers.T.tolist(), strict=True))}

    def predictions(self, answers: Answers) -> list[dict[str, Any]]:
        """One entry a stream."""
        columns = (answers.times.tolist(), answers.outputs.tolist(), answers.probabilities.tolist())
        return [
            {"stream": stream, "time": time, "outputs": outputs, **self.said(said)}
            for stream, time, outputs, said in zip(answers.streams, *columns, strict=True)
        ]

    def alarm(self, one: Alarm) -> dict[str, Any]:
        """An alarm; times of the wall clock are seconds since 1970."""
        return {
            "number": one.number,
            "stream": one.stream,
            "time": one.time,
            ("probability" if self.names is None else "value"): one.probability,
            "threshold": one.threshold,
            "raised": one.raised,
            "acknowledged": one.acknowledged,
            "by": one.by,
        }

    def board_rows(
        self, snapshot: Snapshot, places: Iterable[int], output: int
    ) -> list[dict[str, Any]]:
        """Streams for the overview."""
        overview = snapshot.overview
        found = []
        for place in places:
            name = overview.streams[place]
            previous = float(overview.previous[place])
            now = float(snapshot.probabilities[place, output])
            opened = snapshot.alarms.get(name)
            found.append(
                {
                    "stream": name,
                    "rows": int(overview.rows[place]),
                    "last_time": float(overview.last_times[place]),
                    "now": float(snapshot.now[place]),
                    **self.said(snapshot.probabilities[place].tolist()),
                    "trend": None if np.isnan(previous) else now - previous,
                    "received": float(overview.received[place]),
                    "alarm": None if opened is None else self.alarm(opened),
                }
            )
        return found

    def stream_info(
        self, info: StreamInfo, now: Answers | None, alarms: Sequence[Alarm]
    ) -> dict[str, Any]:
        """One stream, and what the model says of it now."""
        return {
            "stream": info.stream,
            "rows": info.rows,
            "first_time": info.first_time,
            "last_time": info.last_time,
            "outputs": info.outputs,
            **self.said(info.probabilities),
            "static": info.static,
            "origin": info.origin,
            "received": info.received,
            "now": None if now is None else self.predictions(now)[0],
            "alarms": [self.alarm(one) for one in alarms],
            **({"notes": list(info.notes)} if info.notes else {}),
        }

    def history_row(self, row: HistoryRow) -> dict[str, Any]:
        """A row as received, and what was answered after it."""
        return {
            "time": row.time,
            "values": row.events,
            "superseded": [{"channel": c, "value": v} for c, v in row.superseded],
            "outputs": row.outputs,
            **self.said(row.probabilities),
            "sequence": row.sequence,
            "received": row.received,
            "revised": [{"outputs": one.outputs, "sequence": one.sequence} for one in row.revised],
        }

    def curve(self, found: Curve) -> dict[str, Any]:
        """The answer in continuous time."""
        return {
            "times": found.times.tolist(),
            **self.followed(found.probabilities),
            "outputs": found.outputs.tolist(),
            "row_times": found.row_times.tolist(),
            **self.followed(found.row_probabilities, "row_"),
            "row_before": found.row_before.tolist(),
        }


def explanation(row: RowExplanation) -> dict[str, Any]:
    """What moved the outputs at one row: `start + time + sum of channels` is the output after it."""
    return {
        "time": row.row_time,
        "start": row.start.tolist(),
        "passing_of_time": row.time.tolist(),
        "channels": {name: part.tolist() for name, part in row.events.items()},
        "values": row.values,
    }
