"""What a Neural CDE goes by: how much the events of each channel moved its outputs, on average over streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from onlinecde.data import Task
from onlinecde.evaluation.bootstrap import Cohort, Estimate, Means, interval
from onlinecde.models import NeuralCDE, OnlineModel

STREAMS = 200
"""Streams at most, evenly spaced, that are explained"""
AT_ONCE = 32
TIME = "the passing of time"


@dataclass(frozen=True)
class Importance:
    """How far a channel's events move the outputs in one stream, all of them together."""

    channel: str
    moved: Estimate
    """The sum of absolute contributions in a stream, the mean over streams: log-odds, or numbers in the label's unit"""
    events: float
    """Of the channel in a stream, on average"""


def importance(
    model: OnlineModel, task: Task, split: str, *, bootstrap: int = 1000, seed: int = 0
) -> tuple[Importance, ...]:
    """Channels by how much they move the outputs, most first, by exact contributions; empty where there are none.

    Contributions are those of `model.explain`, from a stream's first row on; of several outputs their mean.

    >>> import onlinecde as oc
    >>> task = oc.data.simulate_ward(40, seed=0).task
    >>> model = oc.NeuralCDE(channels=12, hidden=4, static=2, readout={"kind": "binary"})
    >>> len(importance(model, task, "test", bootstrap=20))
    13
    """
    if not isinstance(model, NeuralCDE) or model.solver.tolerance is not None:
        return ()
    if getattr(model.readout, "forecasts", None) is not None:
        return ()
    if task.horizon is not None:
        model = model.within(task.horizon)
    series, _ = task.split(split)
    places = torch.arange(0, len(series), -(-len(series) // STREAMS))
    sums, events = [], []
    for at in places.split(AT_ONCE):
        batch = model.prepare(series[at].to(model.device))
        parts = model.explain(batch)
        of_time = parts.time.abs().sum(1).mean(-1)
        of_events = parts.events.abs().sum(1).mean(-1)
        sums.append(torch.cat([of_events, of_time[:, None]], 1).cpu().double())
        counts = batch.observed.sum(1)
        events.append(torch.cat([counts, batch.rows[:, None]], 1).cpu().double())
    moved, counted = torch.cat(sums).numpy(), torch.cat(events).numpy()
    owners = [task.subjects[task.splits[split][at]] for at in places.tolist()]
    cohort = Cohort.of(owners, resamples=bootstrap, seed=seed)
    ones = np.ones((len(moved), 1))
    totals = cohort.sums(np.concatenate([moved, ones], 1), cohort.codes)
    names = [*map(str, model.schema.channels if model.schema else series.channels), TIME]
    statistics = {
        str(place): Means(totals[:, [place, -1]], lambda total: total[:, 0] / total[:, 1])
        for place in range(len(names))
    }
    drawn = cohort.resample(statistics)
    found = [
        Importance(
            name,
            interval(float(moved[:, place].mean()), drawn[str(place)]),
            float(counted[:, place].mean()),
        )
        for place, name in enumerate(names)
    ]
    return tuple(sorted(found, key=lambda one: -(one.moved.value or 0.0)))
