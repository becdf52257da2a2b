"""Answers as plain values for JSON, in the words of the API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from onlinecde.serving.board import Snapshot
from onlinecde.streaming import Alarm, Answers, Curve, HistoryRow, RowExplanation, StreamInfo


def predictions(answers: Answers) -> list[dict[str, Any]]:
    """One entry a stream."""
    columns = (answers.times.tolist(), answers.outputs.tolist(), answers.probabilities.tolist())
    return [
        {"stream": stream, "time": time, "outputs": outputs, "probabilities": probabilities}
        for stream, time, outputs, probabilities in zip(answers.streams, *columns, strict=True)
    ]


def alarm(one: Alarm) -> dict[str, Any]:
    """An alarm; times of the wall clock are seconds since 1970."""
    return {
        "number": one.number,
        "stream": one.stream,
        "time": one.time,
        "probability": one.probability,
        "threshold": one.threshold,
        "raised": one.raised,
        "acknowledged": one.acknowledged,
        "by": one.by,
    }


def board_rows(snapshot: Snapshot, places: Iterable[int], output: int) -> list[dict[str, Any]]:
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
                "probabilities": snapshot.probabilities[place].tolist(),
                "trend": None if np.isnan(previous) else now - previous,
                "received": float(overview.received[place]),
                "alarm": None if opened is None else alarm(opened),
            }
        )
    return found


def stream_info(info: StreamInfo, now: Answers | None, alarms: Sequence[Alarm]) -> dict[str, Any]:
    """One stream, and what the model says of it now."""
    return {
        "stream": info.stream,
        "rows": info.rows,
        "first_time": info.first_time,
        "last_time": info.last_time,
        "outputs": info.outputs,
        "probabilities": info.probabilities,
        "static": info.static,
        "origin": info.origin,
        "received": info.received,
        "now": None if now is None else predictions(now)[0],
        "alarms": [alarm(one) for one in alarms],
    }


def history_row(row: HistoryRow) -> dict[str, Any]:
    """A row as received, and what was answered after it."""
    return {
        "time": row.time,
        "values": row.events,
        "superseded": [{"channel": c, "value": v} for c, v in row.superseded],
        "outputs": row.outputs,
        "probabilities": row.probabilities,
        "sequence": row.sequence,
        "received": row.received,
        "revised": [{"outputs": one.outputs, "sequence": one.sequence} for one in row.revised],
    }


def curve(found: Curve) -> dict[str, Any]:
    """The answer in continuous time."""
    return {
        "times": found.times.tolist(),
        "probabilities": found.probabilities.tolist(),
        "outputs": found.outputs.tolist(),
        "row_times": found.row_times.tolist(),
        "row_probabilities": found.row_probabilities.tolist(),
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
