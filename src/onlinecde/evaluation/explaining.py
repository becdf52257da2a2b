"""Streams explained: the risk a Neural CDE gives as time goes, and what each event added to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from onlinecde.data import Task
from onlinecde.evaluation.following import follow
from onlinecde.models import NeuralCDE, OnlineModel
from onlinecde.plots.contributions import ExplainedStream
from onlinecde.plots.evaluation_curves import KNOWN
from onlinecde.plots.trajectories import Trajectory
from onlinecde.series import SeriesBatch

TIME, OTHERS = "time", "others"
"""Contributions that are no one channel's; in brackets where a channel has that name."""


def explain_streams(
    model: OnlineModel,
    task: Task,
    split: str = "test",
    *,
    streams: Sequence[str] | int = 3,
    channels: int = 8,
    seed: int = 0,
    events: np.ndarray | None = None,
) -> tuple[ExplainedStream, ...]:
    """The risk of some streams of a split, and the contributions that add up to it.

    `streams`: their names, or how many are drawn by lot as in `follow`. Named are the channels that
    added most; what is left is "others", the passing of time "time". `events` (stream of the split,): when
    the event came.
    """
    if task.kind not in ("binary", "time-to-event"):
        raise ValueError(
            f"task '{task.name}' is {task.kind}: contributions are drawn to the risk of an event."
        )
    if not isinstance(model, NeuralCDE):
        raise ValueError(
            f"{type(model).__name__} has no exact contributions: give a Neural CDE with fixed steps."
        )
    if task.horizon is not None:
        model = model.within(task.horizon)
    found = follow({"": model}, task, split, streams=streams, seed=seed, events=events)
    if not found:
        raise ValueError(
            "the model needs the whole series: a risk as time goes would be hindsight."
        )
    series, _ = task.split(split)
    at = {str(name): place for place, name in enumerate(series.streams)}
    return tuple(_explained(model, series[at[one.stream]], one, channels) for one in found)


def _explained(
    model: NeuralCDE, stream: SeriesBatch, drawn: Trajectory, channels: int
) -> ExplainedStream:
    stream = model.aligned(stream)
    with torch.no_grad():
        parts = model.explain(stream.to(model.device))
    rows = stream.times[0].cpu().numpy()
    events, time = parts.events[0, :, :, 0].cpu().numpy(), parts.time[0, :, 0].cpu().numpy()
    order = np.argsort(-np.abs(events).sum(0), kind="stable")
    named, rest = order[:channels], order[channels:]
    lines = {str(stream.channels[c]): events[:, c] for c in named if np.any(events[:, c])}
    if np.any(events[:, rest]):
        lines[_beside(OTHERS, stream)] = events[:, rest].sum(1)
    lines[_beside(TIME, stream)] = time
    times, risk, _ = drawn.curves[""]
    best_times, best, _ = drawn.curves.get(KNOWN, ((), (), False))
    return ExplainedStream(
        stream=drawn.stream,
        title=drawn.title,
        unit=drawn.unit,
        times=_short(times, 3),
        risk=_short(risk, 4),
        start=float(parts.start[0, 0]),
        added={
            name: [
                (round(float(t), 3), round(float(v), 4))
                for t, v in zip(rows, line, strict=True)
                if v != 0.0
            ]
            for name, line in lines.items()
        },
        positive=[(float(start), float(end)) for start, end in drawn.positive],
        event=drawn.event,
        best_times=_short(best_times, 3),
        best=_short(best, 4),
    )


def _beside(name: str, stream: SeriesBatch) -> str:
    """A name for what is no channel of the stream, which no channel has."""
    taken = {str(channel) for channel in stream.channels}
    while name in taken:
        name = f"[{name}]"
    return name


def _short(values: Iterable[float], digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
