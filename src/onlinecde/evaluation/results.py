"""`Evaluation`: what was found of one model on one split, and `compare`: of two on the same one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.evaluation.alarm_curve import AlarmCurve, OwnPolicy
from onlinecde.evaluation.bootstrap import Difference, Estimate, difference, interval
from onlinecde.evaluation.breakdown import ClassScore, OutputScore
from onlinecde.evaluation.calibration import Calibration
from onlinecde.evaluation.coverage import Coverage
from onlinecde.evaluation.event_time import Alarms, BeforeEvent
from onlinecde.evaluation.importance import Importance
from onlinecde.evaluation.metrics import METRICS, metric_title
from onlinecde.evaluation.naive import NaiveScore, mean_naive
from onlinecde.evaluation.since_row import SinceRow
from onlinecde.evaluation.subgroups import GroupScore


@dataclass(frozen=True)
class FoldScore:
    """What was found on the test streams of one fold."""

    fold: str
    streams: int
    subjects: int
    labels_given: int
    positive: int | None
    utility_threshold: float | None
    metrics: dict[str, float | None]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics of one model on one split, with intervals by subject.

    `probabilities`, `labels`, `events` and `drawn` are kept for plots and comparisons, and are not
    part of `to_json`.
    """

    model: str
    task: str
    kind: str
    per: str
    split: str
    metric: str
    """The one the task is judged by."""
    time_unit: str
    classes: tuple[str, ...]
    streams: int
    subjects: int
    labels_given: int
    positive: int | None
    """Labels that are 1, for binary tasks."""
    bootstrap: int
    seed: int
    metrics: dict[str, Estimate]
    asked_when: str = ""
    """When the labels are, in words."""
    horizon: float | None = None
    """Of time to an event: that of `calibration`, and of a known risk."""
    fold: str | None = None
    """What the split was: "fold 3 of 6", "all 6 folds"; None: the task's own."""
    folds: tuple[FoldScore, ...] = ()
    """Of all folds: each by itself. `metrics` are means over them."""
    calibration: Calibration | None = None
    before_event: tuple[BeforeEvent, ...] = ()
    since_row: tuple[SinceRow, ...] = ()
    """By how long before it was asked a stream had its last row."""
    event_source: str | None = None
    """Where the event times came from, in words."""
    alarms: Alarms | None = None
    alarm_curve: AlarmCurve | None = None
    """Events caught against false alarms, at the times of the labels."""
    policy: OwnPolicy | None = None
    """What the alarm policy that the model carries is worth, by its own looks."""
    utility_threshold: float | None = None
    """The threshold of the data set's utility, chosen on the validation split."""
    intervals: tuple[Coverage, ...] = ()
    """Coverage and width of the intervals that a regression carries."""
    per_class: tuple[ClassScore, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    """[true class][predicted class]"""
    naive: tuple[NaiveScore, ...] = ()
    """What needs no model, and how the model does beside it."""
    per_output: tuple[OutputScore, ...] = ()
    """Of several numbers: each by itself, in its own unit."""
    groups: tuple[GroupScore, ...] = ()
    """By the columns that were asked for."""
    importance: tuple[Importance, ...] = ()
    """What a Neural CDE goes by, where that was asked for: channels, most important first."""
    versions: dict[str, str] = field(default_factory=dict)
    reference: Evaluation | None = None
    """The same of a known risk: the best any model could do."""
    probabilities: Tensor = field(default_factory=lambda: torch.empty(0))
    """(stream, output) or (stream, row, output) float64; numbers, for regression."""
    labels: Tensor = field(default_factory=lambda: torch.empty(0))
    events: np.ndarray | None = None
    """(stream,): when the event came, as in `event_times`; None where there is no such time."""
    drawn: dict[str, np.ndarray] = field(default_factory=dict)
    """Each metric on the same resamples of subjects, (resample,)."""

    @property
    def value(self) -> float | None:
        """The metric the task is judged by."""
        return self.metrics[self.metric].value if self.metric in self.metrics else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Where the model is not better than a naive prediction, or what it carries does not hold here."""
        carried = [one.warning for one in (self.policy, *self.intervals) if one is not None]
        naive = [one.warning for one in self.naive if not one.beaten]
        return (*naive, *(text for text in carried if text))

    def title_of(self, metric: str) -> str:
        """A metric's name for readers, with its unit where that is not the labels'."""
        title = metric_title(metric, self.time_unit)
        scaled = self.per_output and metric in METRICS and METRICS[metric].in_units
        return f"{title} in deviations" if scaled else title

    @property
    def judged_on(self) -> str:
        """Task, fold and split, for people."""
        return ", ".join(part for part in (self.task, self.fold, self.split) if part)

    def to_json(self) -> dict[str, Any]:
        """Everything but the arrays, as plain values for `json.dumps`."""
        told = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("probabilities", "labels", "events", "drawn", "reference")
        }
        plain = {name: _plain(value) for name, value in told.items()}
        plain["reference"] = None if self.reference is None else self.reference.to_json()
        return plain

    def __str__(self) -> str:
        lines = [
            f"{self.model} on {self.judged_on}: {self.streams} streams of {self.subjects} "
            f"subjects, {self.labels_given} labels, {self.asked_when}"
        ]
        for name, estimate in self.metrics.items():
            lines.append(f"  {self.title_of(name):32} {estimate}")
            if estimate.reason:
                lines[-1] += f": {estimate.reason}"
        lines += [f"  {one.name}: {one.in_words}" for one in self.per_output]
        lines += [f"  {one.in_words}" for one in self.naive]
        lines += [] if self.policy is None else [f"  {self.policy.in_words}"]
        lines += [f"  {one.in_words}" for one in self.intervals]
        lines += [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None  # JSON has no infinity
    return _plain(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else value


def mean_metrics(several: Sequence[Evaluation]) -> dict[str, Estimate]:
    """The mean of each metric over runs of one model, each judged by itself on the same resamples.

    The interval is that of subjects drawn again; the runs are those that there are.
    """
    for other in several[1:]:
        _check_alike(several[0], other)
    return _means(several)


def over_folds(several: Sequence[Evaluation], *, seed: int = 0) -> Evaluation:
    """All folds of a task as one evaluation: the mean over folds of what was found on each.

    A resample draws the subjects of every fold again, each fold by itself, so that `several` must have been made
    with resamples of their own. `seed` is the one those came from. Refuses what is not every fold once.
    """
    first = several[0]
    wanted = [f"fold {number} of {len(several)}" for number in range(1, len(several) + 1)]
    if [one.fold for one in several] != wanted:
        told = ", ".join(one.fold or "the task's own split" for one in several)
        raise ValueError(f"these are {told}: give every fold of a task once, in order.")
    for one in several[1:]:
        _check_made_alike(first, one, ("model", "task", "split", "kind", "bootstrap"))
    if first.split != "test":
        raise ValueError(
            f"split is '{first.split}': folds share all other streams than those of test. Judge one fold by itself."
        )
    if len({one.seed for one in several}) < len(several) and first.bootstrap:
        raise ValueError("two folds were drawn again with one seed: give each fold its own.")
    counted = [one.positive for one in several if one.positive is not None]
    return Evaluation(
        model=first.model,
        task=first.task,
        kind=first.kind,
        per=first.per,
        asked_when=first.asked_when,
        split=first.split,
        metric=first.metric,
        horizon=first.horizon,
        time_unit=first.time_unit,
        classes=first.classes,
        streams=sum(one.streams for one in several),
        subjects=sum(one.subjects for one in several),
        labels_given=sum(one.labels_given for one in several),
        positive=sum(counted) if len(counted) == len(several) else None,
        bootstrap=first.bootstrap,
        seed=seed,
        metrics=_means(several),
        fold=f"all {len(several)} folds",
        folds=tuple(
            FoldScore(
                fold=one.fold or "",
                streams=one.streams,
                subjects=one.subjects,
                labels_given=one.labels_given,
                positive=one.positive,
                utility_threshold=one.utility_threshold,
                metrics={name: found.value for name, found in one.metrics.items()},
            )
            for one in several
        ),
        naive=mean_naive([one.naive for one in several]),
        versions=first.versions,
        labels=torch.cat([one.labels.reshape(-1) for one in several]),
        drawn={name: _drawn(several, name) for name in first.drawn},
    )


def _means(several: Sequence[Evaluation]) -> dict[str, Estimate]:
    found = {}
    for name in several[0].metrics:
        values = [one.metrics[name].value for one in several]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            reasons = (one.metrics[name].reason for one in several)
            found[name] = Estimate(None, reason=next(filter(None, reasons), None))
        else:
            found[name] = interval(float(np.mean(known)), _drawn(several, name))
    return found


def compare(
    first: Evaluation | Sequence[Evaluation], second: Evaluation | Sequence[Evaluation]
) -> dict[str, Difference]:
    """By how much the first exceeds the second, each metric on the same resamples of subjects.

    For metrics of which less is better, less than zero is the better here too. All must be
    evaluations of the same split with the same `bootstrap` and `seed`. Several evaluations, one
    for each run of a model, stand for the mean of what each says.
    """
    mine = [first] if isinstance(first, Evaluation) else list(first)
    others = [second] if isinstance(second, Evaluation) else list(second)
    for other in [*mine[1:], *others]:
        _check_alike(mine[0], other)
    ours, theirs = mean_metrics(mine), mean_metrics(others)
    found = {}
    for name in ours:
        if name not in theirs:
            continue
        one, two = ours[name], theirs[name]
        if one.value is None or two.value is None:
            found[name] = Difference(None, reason=one.reason or two.reason)
        else:
            drawn = _drawn(mine, name) - _drawn(others, name)
            found[name] = difference(one.value - two.value, drawn)
    return found


def _drawn(several: Sequence[Evaluation], name: str) -> np.ndarray:
    """The mean of a metric on each resample, (resample,); empty where one of them was not drawn again."""
    drawn = [one.drawn.get(name, np.empty(0)) for one in several]
    return np.mean(drawn, axis=0) if len({len(each) for each in drawn}) == 1 else np.empty(0)


def _check_made_alike(first: Evaluation, second: Evaluation, parts: Sequence[str]) -> None:
    for what in parts:
        mine, other = getattr(first, what), getattr(second, what)
        if mine != other:
            raise ValueError(
                f"{what} is {mine!r} in the first evaluation, {other!r} in the second: only "
                "evaluations made alike can be compared."
            )


def _check_alike(first: Evaluation, second: Evaluation) -> None:
    _check_made_alike(first, second, ("task", "fold", "split", "kind", "bootstrap", "seed"))
    same = first.labels.shape == second.labels.shape and torch.equal(
        first.labels.nan_to_num(-1), second.labels.nan_to_num(-1)
    )
    if not same or first.subjects != second.subjects:
        raise ValueError("the two evaluations have other labels: evaluate both on the same task.")
