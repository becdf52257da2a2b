"""Events caught against false alarms per stream and day at all thresholds, and the worth of a model's own policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onlinecde.data import Task
from onlinecde.evaluation.alarm_budget import (
    REPEATED,
    label_lead,
    levels_of,
    probability,
)
from onlinecde.evaluation.alarms import (
    AlarmScore,
    alarm_truth,
    look,
    looks_of,
    score_alarms,
    sweep,
    within,
)
from onlinecde.evaluation.bootstrap import Cohort
from onlinecde.models import AlarmPolicy, OnlineModel
from onlinecde.models.readout import RULES
from onlinecde.series import TIME_UNITS

RATES = (0.2, 0.5, 1.0, 2.0)
"""False alarms per stream and day at which a table says what is caught."""


@dataclass(frozen=True)
class AlarmCurve:
    """What alarms at every threshold would have been worth on a split; of one rule, at the times of its labels."""

    quiet: float
    """An alarm is repeated after this time as long as the risk is at the threshold"""
    thresholds: tuple[float, ...]
    false_a_day: tuple[float, ...]
    caught: tuple[float, ...]
    """Share of the events"""
    scores: tuple[AlarmScore, ...]
    """At the lowest thresholds with at most so many false alarms as `RATES`"""


@dataclass(frozen=True)
class OwnPolicy:
    """The policy that a model carries, by its own looks at a split."""

    words: str
    budget: float | None
    guarantee: str | None
    score: AlarmScore

    @property
    def warning(self) -> str | None:
        """That its budget does not hold here, in words; None where it may."""
        found = self.score.false_a_day
        if self.budget is None or found.low is None or found.low <= self.budget:
            return None
        return (
            f"the alarm policy is for {self.budget:g} false alarms a stream and day, and here there are {found}: "
            "choose one on streams from here (`onlinecde alarms`)"
        )

    @property
    def in_words(self) -> str:
        """What it was worth."""
        one = self.score
        text = f"{self.words}: {one.false_a_day} false alarms a stream and day"
        if self.budget is not None:
            text += f" of {self.budget:g} allowed"
        text += f"; {one.caught:,} of {one.events:,} events caught"
        return text if one.lead is None else f"{text}, half of them {one.lead[1]:.3g} ahead or more"


def alarm_curve(task: Task, split: str, scores: np.ndarray, cohort: Cohort) -> AlarmCurve | None:
    """The curve of probabilities `scores` (stream, row) or (stream, query) of a split, where its labels are.

    None where there is no event, or no unit in which days are known.
    """
    times = task.split_times(split)
    if task.time_unit not in TIME_UNITS or times is None:
        return None
    truth, until = alarm_truth(task)
    at = task.splits[split]
    truth, until = truth.select(at), until[at]
    asked = times.cpu().double().numpy()
    real = ~np.isnan(asked)
    if task.per == "row":
        real &= task.split(split)[0].real.cpu().numpy()[:, : asked.shape[1]]
    real &= asked <= until.numpy()[:, None]
    asked = np.where(np.isnan(asked), until.numpy()[:, None], asked)
    looks = looks_of(task, split, asked, real, scores, 0, truth, until)
    if not looks.event_count or not looks.days.sum():
        return None
    quiet = label_lead(task)
    counted = sweep(looks, levels_of(looks)[::4], gap=REPEATED, quiet=quiet)
    rate = counted.false.sum(0) / looks.days.sum()
    places = {int(np.argmax(rate <= most)) for most in RATES if (rate <= most).any()}
    return AlarmCurve(
        quiet=quiet,
        thresholds=tuple(probability(level) for level in counted.levels.tolist()),
        false_a_day=tuple(rate.tolist()),
        caught=tuple((counted.caught / looks.event_count).tolist()),
        scores=tuple(
            score_alarms(looks, AlarmPolicy(probability(counted.levels[place]), 1.0, quiet), cohort)
            for place in sorted(places, reverse=True)
        ),
    )


def own_policy(model: OnlineModel, task: Task, split: str, cohort: Cohort) -> OwnPolicy | None:
    """What the policy that a model carries is worth on a split; None where it has none, or none can be judged."""
    policy = model.alarm_policy
    if policy is None or RULES[task.kind].numbers or task.time_unit not in TIME_UNITS:
        return None
    model, task = within(model, task, policy.horizon)
    looks = look(model, task, split, policy)
    if not looks.days.sum():
        return None
    budget, guarantee = (policy.chosen.get(name) for name in ("budget", "guarantee"))
    return OwnPolicy(
        policy.words(task.time_unit),
        budget if isinstance(budget, int | float) else None,
        guarantee if isinstance(guarantee, str) else None,
        score_alarms(looks, policy, cohort),
    )
