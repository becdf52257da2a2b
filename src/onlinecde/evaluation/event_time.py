"""How early is it seen: metrics by hours before the event, and the lead of the first alarm."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from onlinecde.data import Task
from onlinecde.evaluation.bootstrap import Cohort, Estimate, Ranking, interval

HOURS = (0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
"""Edges of the bins, hours before the event, unless others are given."""
ALARMED = 0.1
"""The share of event-free streams that may raise an alarm at all, where lead times are read off."""


@dataclass(frozen=True)
class BeforeEvent:
    """Rows `start` to `end` hours before the event, against all rows of event-free streams."""

    start: float
    end: float
    streams: int
    rows: int
    auc: Estimate
    sensitivity: Estimate
    """Share of these rows above the threshold that 10 % of event-free rows exceed."""


@dataclass(frozen=True)
class Alarms:
    """The first alarm of each stream, at the threshold at most 10 % of event-free streams exceed."""

    threshold: float
    alarmed: float
    """Share of event-free streams with an alarm."""
    events: int
    caught: int
    """Event streams with an alarm before the event."""
    lead: tuple[float, float, float] | None
    """Quartiles of the time from the first alarm to the event, over those caught."""


def event_times(task: Task, lead: float | None = None) -> np.ndarray:
    """When the event comes (stream,), as far as labels tell: infinite where no label is 1.

    It is the time of the first label of 1, at a row or a query, plus `lead` (default: the task's). A stream whose
    first label is 1 already tells only that the event came by then, and is NaN: it counts neither
    with the events nor with the event-free.
    """
    lead = task.label_lead if lead is None else lead
    positive = (task.labels == 1).cpu().numpy()
    along = task.series.times if task.times is None else task.times
    times, rows = along.cpu().numpy(), np.arange(len(positive))
    first = positive.argmax(1)
    known = np.where(first > 0, times[rows, first] + lead, np.nan)
    return np.where(positive.any(1), known, np.inf)


def usual_edges(times: np.ndarray, events: np.ndarray, unit: str) -> tuple[float, ...]:
    """Edges of the bins where none are given: `HOURS`, or six of a plain width in any other unit.

    times (stream, row), events (stream,). Half of the events came at least that long after the first row of their
    stream. Empty where no event came after it.

    >>> usual_edges(np.zeros((3, 1)), np.array([80.0, 100.0, np.inf]), "seconds")
    (0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0)
    """
    if unit == "hours":
        return HOURS
    waited = (events - times[:, 0])[np.isfinite(events)]
    waited = waited[waited > 0]
    if not len(waited):
        return ()
    size = float(np.median(waited)) / (len(HOURS) - 1)
    tens = 10.0 ** np.floor(np.log10(size))
    step = max(times * tens for times in (1, 2, 5) if times * tens <= size)
    return tuple(float(f"{number * step:.12g}") for number in range(len(HOURS)))


def before_event(
    scores: np.ndarray,
    labelled: np.ndarray,
    times: np.ndarray,
    events: np.ndarray,
    cohort: Cohort,
    *,
    edges: tuple[float, ...] = HOURS,
) -> tuple[BeforeEvent, ...]:
    """The table by time before the event.

    scores, labelled (bool) and times (stream, row); events (stream,), infinite where none came, NaN
    where it is not known. A row counts once, in the bin `start <= event - time < end`; streams
    without an event are the other class in every bin.
    """
    free = np.isinf(events)[:, None] & labelled
    with np.errstate(invalid="ignore"):
        ahead = np.where(labelled & np.isfinite(events)[:, None], events[:, None] - times, np.nan)
    table = []
    for start, end in pairwise(edges):
        here = (ahead >= start) & (ahead < end)
        entry: dict[str, Any] = {"start": start, "end": end}
        entry |= {"streams": int(here.any(1).sum()), "rows": int(here.sum())}
        if not here.any() or not free.any():
            reason = "no row so long before an event." if free.any() else "no event-free stream."
            none = Estimate(None, reason=reason)
            table.append(BeforeEvent(**entry, auc=none, sensitivity=none))
            continue
        chosen = here | free
        ranking = Ranking(scores[chosen], here[chosen].astype(np.int8), cohort.owners(chosen))
        statistics = {"auc": ranking.auc, "sensitivity": ranking.sensitivity}
        drawn = cohort.resample(statistics)
        entry |= {n: interval(cohort.value(s), drawn[n]) for n, s in statistics.items()}
        table.append(BeforeEvent(**entry))
    return tuple(table)


def first_alarms(
    scores: np.ndarray, labelled: np.ndarray, times: np.ndarray, events: np.ndarray
) -> Alarms | None:
    """Lead of the first alarm; None where there is no event, or no event-free stream.

    An alarm is a row with a score above the threshold, at or before the event. The threshold is
    the lowest score that at most 10 % of event-free streams ever exceed.
    """
    free = np.isinf(events) & labelled.any(1)
    with np.errstate(invalid="ignore"):
        before = labelled & (times <= events[:, None])
    coming = np.isfinite(events) & before.any(1)
    if not free.any() or not coming.any():
        return None
    highest = np.sort(np.where(labelled, scores, -np.inf)[free].max(1))
    allowed = int(ALARMED * len(highest))
    threshold = float(highest[len(highest) - allowed - 1])
    alarm = before & (scores > threshold)
    caught = alarm.any(1) & coming
    lead = (events - np.take_along_axis(times, alarm.argmax(1)[:, None], 1)[:, 0])[caught]
    quartiles = tuple(float(q) for q in np.quantile(lead, [0.25, 0.5, 0.75])) if len(lead) else None
    return Alarms(
        threshold=threshold,
        alarmed=float((highest > threshold).mean()),
        events=int(coming.sum()),
        caught=int(caught.sum()),
        lead=quartiles,  # pyright: ignore[reportArgumentType]
    )


def as_event_times(given: Tensor | np.ndarray, streams: int) -> np.ndarray:
    """Event times (stream,) float64 as given by the user, checked."""
    found = np.asarray(given, np.float64)
    if found.shape != (streams,):
        raise ValueError(
            f"event_times has shape {found.shape}: give one for each of the {streams} streams of "
            "the task, infinite where no event came, NaN where it is not known."
        )
    return found
