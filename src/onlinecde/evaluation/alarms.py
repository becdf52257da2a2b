"""Alarms of a model on streams whose truth is known: which are false, which events they catch, and how early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.data import EndLabels, EventTruth, Task, Truth
from onlinecde.evaluation.bootstrap import Cohort, Estimate, Means, interval
from onlinecde.evaluation.predictions import MetricError, as_probabilities, predict_task
from onlinecde.models import AlarmPolicy, OnlineModel
from onlinecde.models.readout import RULES
from onlinecde.series import TIME_UNITS

NO_EVENT = -1
_CELLS = 4_000_000
"""Looks that are worked on at once."""
_EDGE = 30.0
"""Log-odds beyond which probabilities are taken for it."""


@dataclass(frozen=True, eq=False)
class Looks:
    """What a model answered each time it was looked at, and what was true then.

    An alarm is *true* where the label of its time is 1, which says that the event comes within the label's horizon
    (or that what it names is there). Every other alarm is *false*, those at times whose label nobody knows too. An
    event is *caught* by a true alarm; a run of labels 1 is one event. Labels that are listed at times stand until the
    next one.
    """

    times: np.ndarray
    """(stream, look) float64, in order"""
    real: np.ndarray
    """(stream, look), False for padding"""
    answers: np.ndarray
    """(stream, look) float64: the probability watched"""
    labels: np.ndarray
    """(stream, look): 0, 1, or NaN where it is not known"""
    ahead: np.ndarray
    """(stream, look): time to the event, where the label is 1"""
    events: np.ndarray
    """(stream, look) int64: the number of the event that a label 1 is about, else -1"""
    spans: np.ndarray
    """(stream,): how long each stream is looked at, in the task's unit"""
    owners: np.ndarray
    """(stream,): whose it is, numbers from 0"""
    unit: str
    """of times"""

    @property
    def days(self) -> np.ndarray:
        """(stream,): how long each stream is looked at, in days."""
        return self.spans * (TIME_UNITS[self.unit] / TIME_UNITS["days"])

    @property
    def subjects(self) -> int:
        return int(self.owners.max()) + 1

    @property
    def event_count(self) -> int:
        """Events that an alarm could catch."""
        return int(self.events.max(initial=NO_EVENT)) + 1

    @property
    def log_odds(self) -> np.ndarray:
        """(stream, look): answers as log-odds."""
        with np.errstate(divide="ignore"):
            odds = np.log(self.answers) - np.log1p(-self.answers)
        return odds.clip(-_EDGE, _EDGE)

    def select(self, streams: np.ndarray) -> Looks:
        """Only these streams, by position."""
        tables = {n: x[streams] for n, x in vars(self).items() if isinstance(x, np.ndarray)}
        tables["owners"] = np.unique(tables["owners"], return_inverse=True)[1]
        numbers, events = np.unique(tables["events"], return_inverse=True)
        tables["events"] = events.reshape(tables["events"].shape) - int(NO_EVENT in numbers)
        return replace(self, **tables)

    def by_subject(self, values: np.ndarray) -> np.ndarray:
        """Sums (subject, ...) of values (stream, ...)."""
        total = np.zeros((self.subjects, *values.shape[1:]))
        np.add.at(total, self.owners, values)
        return total


@dataclass(frozen=True)
class AlarmScore:
    """What the alarms of a policy were worth on some streams."""

    threshold: float
    rearm: float
    quiet: float
    false_a_day: Estimate
    """False alarms per stream and day: all of them over all stream-days"""
    false: int
    unknown: int
    """Of the false ones, those at times whose label is not known"""
    days: float
    streams: int
    subjects: int
    events: int
    caught: int
    share_caught: Estimate
    lead: tuple[float, float, float] | None
    """Quartiles of the time from an event's first true alarm to the event, over those caught"""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def check_alarms(task: Task) -> None:
    """Refuse a task that has no labels of yes or no, and one whose unit of time no day is known in."""
    if RULES[task.kind].numbers:
        raise MetricError(
            f"'{task.name}' is a {task.kind}: which of its alarms are false is not known. Give a task of yes or no."
        )
    if task.time_unit not in TIME_UNITS:
        raise MetricError(
            f"false alarms are counted by the day, and '{task.name}' counts {task.time_unit!r}: prepare it in one of "
            f"{', '.join(TIME_UNITS)}."
        )


def within(
    model: OnlineModel, task: Task, horizon: float | None = None
) -> tuple[OnlineModel, Task]:
    """Of time to an event, model and task of whether it comes within a horizon (default: the task's); others as are.

    Raises:
        MetricError: a horizon of any other kind of task.
    """
    if task.kind != "time-to-event":
        if horizon is not None:
            raise MetricError(
                f"horizons are for time-to-event tasks, and '{task.name}' is {task.kind}: leave it out."
            )
        return model, task
    return model.within(horizon), task.within(horizon)


def look(
    model: OnlineModel,
    task: Task,
    split: str,
    policy: AlarmPolicy,
    *,
    batch_size: int = 256,
) -> Looks:
    """Ask a model whenever a policy looks at the streams of a split: at rows, and on its grid between and after."""
    series, _ = task.split(split)
    truth, until = alarm_truth(task)
    at = task.splits[split]
    truth, until = truth.select(at), until[at]
    rows, real = series.times.cpu().numpy(), series.real.cpu().numpy()
    times, real = policy.looks(rows, until.numpy(), real=real & (rows <= until.numpy()[:, None]))
    asked = torch.from_numpy(np.where(real, times, np.nan))
    # As live, where a model that is online at rows alone holds its last answer.
    outputs = predict_task(model, series, "time", times=asked, batch_size=batch_size, asking="hold")
    answers = as_probabilities(model.readout, outputs)[..., policy.output].numpy()
    return looks_of(task, split, times, real, answers, policy.output, truth, until)


def looks_of(
    task: Task,
    split: str,
    times: np.ndarray,
    real: np.ndarray,
    answers: np.ndarray,
    output: int,
    truth: Truth,
    until: Tensor,
) -> Looks:
    """Looks at times (stream, look) with answers (stream, look); truth and until (stream,) of the split."""
    check_alarms(task)
    labels = truth.at(torch.from_numpy(times)).cpu()
    if task.kind == "multiclass":
        labels = torch.where(labels < 0, torch.nan, (labels == output).double())
    labels = (labels[:, :, output] if labels.ndim == 3 else labels).double().numpy()
    labels = np.where(real, labels, np.nan)
    if not truth.continuous:
        labels = np.where(real, _standing(labels), np.nan)
    first = np.where(real.any(1), times[:, 0], 0.0)
    events, ahead = _events(times, labels, truth, until.numpy(), task.label_lead)
    numbers: dict[Any, int] = {}
    mine = (task.subjects[stream] for stream in task.splits[split].tolist())
    return Looks(
        times=times,
        real=real,
        answers=np.where(real, answers, np.nan),
        labels=labels,
        ahead=ahead,
        events=events,
        spans=np.where(real.any(1), until.numpy() - first, 0.0).clip(min=0.0),
        owners=np.array([numbers.setdefault(one, len(numbers)) for one in mine]),
        unit=task.time_unit,
    )


def alarm_truth(task: Task) -> tuple[Truth, Tensor]:
    """What is true at any time, and until when each stream is looked at, (stream,): not from its event on."""
    truth = task.label_truth.to("cpu")
    until = truth.until.double()
    if isinstance(truth, EventTruth):
        until = torch.minimum(until, truth.event.nextafter(truth.event - 1))
    return truth, until


def score_alarms(looks: Looks, policy: AlarmPolicy, cohort: Cohort | None = None) -> AlarmScore:
    """What a policy's alarms are worth; with a cohort of the streams, intervals by subject.

    >>> import onlinecde as oc
    >>> task = oc.data.simulate_ward(40, seed=0).task
    >>> model = oc.GRU(channels=12, hidden=4, outputs=1, static=2, kind="binary")
    >>> policy = AlarmPolicy(0.0, quiet=4.0, every=1.0)
    >>> looks = look(model, task, "train", policy)
    >>> score = score_alarms(looks, policy)
    >>> score.streams, score.caught <= score.events, score.lead is None
    (28, True, False)
    """
    alarms = policy.alarm_times(looks.answers, looks.times, looks.real)
    true = alarms & (looks.labels == 1)
    false, unknown = alarms & ~true, alarms & np.isnan(looks.labels)
    stream, place = np.nonzero(true)
    caught, first = np.unique(looks.events[stream, place], return_index=True)
    lead = looks.ahead[stream, place][first]
    firsts = np.zeros(true.shape, bool)
    firsts[stream[first], place[first]] = True
    began = _beginnings(looks.events)
    sums = looks.by_subject(
        np.stack([false.sum(1), looks.days, firsts.sum(1), began.sum(1)], 1).astype(np.float64)
    )
    rate = Means(sums, lambda total: total[:, 0] / total[:, 1])
    share = Means(sums, lambda total: total[:, 2] / total[:, 3])
    drawn = {"rate": np.empty(0), "share": np.empty(0)}
    if cohort is not None:
        drawn = cohort.resample({"rate": rate, "share": share})
    days, total = float(sums[:, 1].sum()), int(false.sum())
    found = interval(total / days, drawn["rate"]) if days else Estimate(None, reason="no time.")
    if not total and found.low is not None:
        # Nothing that was never seen can be drawn again: what a Poisson number would allow.
        found = replace(found, high=-np.log(0.025) / days)
    count = looks.event_count
    none = Estimate(None, reason="no stream has the event while it is looked at.")
    quartiles = tuple(float(q) for q in np.quantile(lead, [0.25, 0.5, 0.75])) if len(lead) else None
    return AlarmScore(
        threshold=policy.threshold,
        rearm=policy.rearm,
        quiet=policy.quiet,
        false_a_day=found,
        false=total,
        unknown=int(unknown.sum()),
        days=days,
        streams=len(looks.times),
        subjects=looks.subjects,
        events=count,
        caught=len(caught),
        share_caught=interval(len(caught) / count, drawn["share"]) if count else none,
        lead=quartiles,  # pyright: ignore[reportArgumentType]
    )


@dataclass(frozen=True, eq=False)
class Sweep:
    """The alarms of one rule at several thresholds."""

    levels: np.ndarray
    """(level,): thresholds in log-odds, rising"""
    false: np.ndarray
    """(subject, level): false alarms"""
    caught: np.ndarray
    """(level,): events caught"""


def sweep(looks: Looks, levels: np.ndarray, *, gap: float = 0.0, quiet: float = 0.0) -> Sweep:
    """Count alarms at thresholds `levels` (log-odds, rising), re-armed `gap` below each; at once where it is -inf.

    All thresholds go through `AlarmPolicy.alarm_times` at once, as so many streams with a threshold at 0.
    """
    rule = AlarmPolicy(0.0, rearm=min(-gap, 4 * _EDGE), quiet=quiet)
    odds, count = looks.log_odds, len(levels)
    false = np.zeros((len(odds), count))
    caught = np.zeros((count, max(looks.event_count, 1)), bool)
    for streams, width in _alike(looks.real.sum(1), count):
        shape = (len(streams) * count, width)
        own = odds[streams, :width]
        shifted = (own[:, None] - levels[:, None]).reshape(shape)
        times, real = (
            np.repeat(table[streams, :width], count, 0) for table in (looks.times, looks.real)
        )
        alarms = rule.alarm_times(shifted, times, real).reshape(len(streams), count, width)
        true = alarms & (looks.labels[streams, :width] == 1)[:, None]
        false[streams] = alarms.sum(2) - true.sum(2)
        stream, level, place = np.nonzero(true)
        caught[level, looks.events[streams[stream], place]] = True
    return Sweep(levels, looks.by_subject(false), caught.sum(1))


def _alike(lengths: np.ndarray, levels: int) -> Iterator[tuple[np.ndarray, int]]:
    """Streams of like length, as many as can be worked on at once, and how many looks the longest has."""
    order, start = np.argsort(-lengths, kind="stable"), 0
    while start < len(order):
        width = max(int(lengths[order[start]]), 1)
        chosen = order[start : start + max(1, _CELLS // (levels * width))]
        yield chosen, width
        start += len(chosen)


def _standing(labels: np.ndarray) -> np.ndarray:
    """Labels (stream, look) with those that are not known as the last one known was."""
    place = np.where(np.isnan(labels), 0, np.arange(labels.shape[1]))
    return np.take_along_axis(labels, np.maximum.accumulate(place, 1), 1)


def _beginnings(events: np.ndarray) -> np.ndarray:
    """(stream, look): where an event's labels begin."""
    before = np.pad(events, ((0, 0), (1, 0)), constant_values=NO_EVENT)[:, :-1]
    return (events != NO_EVENT) & (events != before)


def _events(
    times: np.ndarray, labels: np.ndarray, truth: Truth, until: np.ndarray, lead: float
) -> tuple[np.ndarray, np.ndarray]:
    """The number of the event each label 1 is about (else -1), and the time until it (else NaN)."""
    one = labels == 1
    begins = one & ~np.pad(one, ((0, 0), (1, 0)))[:, :-1]
    number = begins.ravel().cumsum().reshape(one.shape) - 1
    onset = times[begins]
    at = onset[number.clip(0)] + lead if len(onset) else np.full(one.shape, np.nan)
    if isinstance(truth, EventTruth):
        at = np.broadcast_to(truth.event.numpy()[:, None], one.shape)
    elif isinstance(truth, EndLabels):
        at = np.broadcast_to(until[:, None], one.shape)
    return np.where(one, number, NO_EVENT), np.where(one, at - times, np.nan)
