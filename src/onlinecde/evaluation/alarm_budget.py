"""An alarm policy for a budget of false alarms per stream and day, so chosen that it holds on new streams.

With F false alarms of a subject's streams and D their days, the excess F - budget * D is what conformal risk control
(Angelopoulos, Bates, Fisch, Lei, Schuster 2024) holds at or below 0 on average: it is bounded above, as a subject
counts at most C false alarms, and made monotone in the threshold, as the most that any higher one gives. Of n subjects
of validation, thresholds are allowed whose excesses and C together are at most 0:

    (F_1 - budget D_1) + ... + (F_n - budget D_n) + C <= 0

Then, over draws of the n subjects and of a new one from the same source, E[F] <= budget E[D], whatever the model.
`CONFIDENCE` asks for more: that the mean excess, plus so many of its standard errors, is at most 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import torch

from onlinecde.data import EventTruth, Task, split_streams
from onlinecde.data.task import strata_of
from onlinecde.evaluation.alarms import (
    AlarmScore,
    Looks,
    Sweep,
    check_alarms,
    look,
    score_alarms,
    sweep,
    within,
)
from onlinecde.evaluation.bootstrap import shown
from onlinecde.models import AlarmPolicy, OnlineModel

LEVELS = np.arange(-640, 641) / 40
"""Thresholds that are tried, in log-odds: chosen before anything is looked at."""
REPEATED = -np.inf
GAPS = (REPEATED, 0.0, 0.5)
"""How far below the threshold a stream is re-armed, in log-odds; `REPEATED`: at once."""
WORTH = 0.02
"""The share of events that a rule must catch beyond a simpler one to be taken in its place."""
QUIET_SHARES = (1.0, 2 / 3, 4 / 3, 1 / 3)
"""Quiet periods that are tried, as shares of how long before an event its label turns to 1."""
CONFIDENCE = 0.9
TRAINING = 1
"""Training streams that a rule is chosen on, for each of validation."""


class BudgetError(ValueError):
    """A budget that cannot be met, or cannot be known to be; the message says what to do."""


@dataclass(frozen=True)
class Chosen:
    """A policy for a budget, and what its alarms are worth on the streams it was chosen on."""

    budget: float
    policy: AlarmPolicy
    validation: AlarmScore


@dataclass(frozen=True)
class Shape:
    """Everything of a rule but its threshold."""

    gap: float
    quiet: float


class Sweeps:
    """Every so many-th threshold of all rules on the same looks, each rule counted once however many budgets ask."""

    def __init__(self, looks: Looks, step: int = 8) -> None:
        self.looks, self.levels = looks, levels_of(looks)[::step]
        self.days = looks.by_subject(looks.days)
        self._counted: dict[Shape, Sweep] = {}

    def __call__(self, shape: Shape) -> Sweep:
        if shape not in self._counted:
            counted = sweep(self.looks, self.levels, gap=shape.gap, quiet=shape.quiet)
            self._counted[shape] = counted
        return self._counted[shape]


def shapes(lead: float, quiet: float | None = None) -> list[Shape]:
    """The rules that are tried, simplest first: with a quiet period that is given, or several by the label's lead."""
    spans = [quiet] if quiet is not None else [share * lead for share in QUIET_SHARES]
    return [Shape(gap, span) for gap in GAPS for span in spans if span or gap != REPEATED]


def most_alarms(looks: Looks, quiet: float) -> int:
    """The most alarms that a quiet period allows a subject: C."""
    count = looks.real.sum(1)
    if quiet > 0:
        count = np.minimum(count, np.floor(looks.spans / quiet * (1 + 1e-9)) + 1)
    return int(looks.by_subject(count.astype(np.float64)).max())


def subjects_needed(looks: Looks, budget: float, most: int) -> int:
    """How many subjects like these it takes before any threshold could be allowed."""
    return int(np.ceil(most / (budget * looks.days.sum() / looks.subjects)))


def allowed(
    counted: Sweep,
    days: np.ndarray,
    budget: float,
    most: int,
    confidence: float,
    subjects: int | None = None,
) -> np.ndarray:
    """Which thresholds (level,) hold the budget on new subjects, as the module says: some from the highest down.

    days (subject,); `subjects`: how many these stand for, where they are not the ones that are counted.
    """
    worst = np.maximum.accumulate(counted.false[:, ::-1], 1)[:, ::-1]
    excess = np.minimum(worst, most) - budget * days[:, None]
    n = len(excess) if subjects is None else subjects
    bound = excess.mean(0) + most / n
    if confidence:
        error = excess.std(0) / np.sqrt(n)
        bound = np.maximum(bound, excess.mean(0) + NormalDist().inv_cdf(confidence) * error)
    return np.logical_and.accumulate((bound <= 0)[::-1])[::-1]


def choose_policy(
    validation: Looks,
    training: Sweeps,
    budget: float,
    *,
    lead: float,
    every: float | None = None,
    output: int = 0,
    quiet: float | None = None,
    confidence: float = CONFIDENCE,
) -> Chosen:
    """The policy that catches most events within a budget.

    Re-arming and quiet period are chosen on training streams, the threshold on validation streams, so that only
    one rule is tried on these.

    Args:
        validation: looks at streams that were not trained on.
        training: looks at some streams that were, as `Sweeps`.
        budget: false alarms per stream and day.
        lead: how long before an event its label turns to 1; quiet periods are shares of it.
        every: of the looks.
        output: of the looks.
        quiet: the quiet period; default: one of several.
        confidence: the share of choices of validation subjects after which the rate over all new ones is within
            the budget, about; 0: on average alone.

    Raises:
        BudgetError: the streams are too few for the budget, have no event, or do not allow it.
    """
    if not (np.isfinite(budget) and budget > 0):
        raise BudgetError(
            f"the budget is {budget}: give a number of false alarms per stream and day, above 0."
        )
    if confidence and not 0.5 <= confidence < 1:
        raise BudgetError(f"confidence is {confidence}: give one from 0.5 to below 1, or 0.")
    if not validation.event_count:
        raise BudgetError(
            "no validation stream has the event while it is looked at: there is nothing an alarm could catch. Use a "
            "split with events."
        )
    shape, most = _shape(validation, training, budget, shapes(lead, quiet), confidence)
    levels = levels_of(validation)
    counted = sweep(validation, levels, gap=shape.gap, quiet=shape.quiet)
    days = validation.by_subject(validation.days)
    fine = allowed(counted, days, budget, most, confidence)
    if not fine.any() or not counted.caught[fine].any():
        raise BudgetError(_unmet(validation, counted, days, budget))
    # Events caught in training too: those of validation are few. Of thresholds that catch as many, the highest.
    caught = counted.caught + np.interp(levels, training.levels, training(shape).caught)
    place = len(levels) - 1 - int(np.argmax(np.where(fine, caught, -1)[::-1]))
    policy = AlarmPolicy(
        probability(levels[place]),
        rearm=probability(levels[place] - shape.gap),
        quiet=shape.quiet,
        every=every,
        output=output,
    )
    score = score_alarms(validation, policy)
    reasons = {
        "budget": budget,
        "per": "stream and day",
        "confidence": confidence,
        "guarantee": guarantee(budget, most, confidence),
        "validation": score.as_json(),
    }
    return Chosen(budget, replace(policy, chosen=reasons), score)


def choose_policies(
    model: OnlineModel,
    task: Task,
    budgets: Sequence[float],
    *,
    every: float | None = None,
    output: int = 0,
    horizon: float | None = None,
    quiet: float | None = None,
    confidence: float = CONFIDENCE,
    validation: Looks | None = None,
    seed: int = 0,
) -> list[Chosen]:
    """A policy for each budget, chosen on a task's validation streams, and on training streams drawn by lot.

    Args:
        model: what answers.
        task: one the model fits.
        budgets: false alarms per stream and day.
        every: time between looks between rows; default: `usual_every`.
        output: the one that is watched.
        horizon: of time to an event, how far ahead the risk looks that is watched; default: the task's.
        quiet: as in `choose_policy`.
        confidence: as in `choose_policy`.
        validation: looks at other streams in place of those of validation.
        seed: of the lot.

    >>> import onlinecde as oc
    >>> task = oc.data.simulate_ward(400, seed=0).task
    >>> model = oc.training.fit(task, "gru", epochs=1, lr=0.01, model_settings={"hidden": 8}).model
    >>> chosen = choose_policies(model, task, [1.0, 2.0])
    >>> [one.validation.false_a_day.value <= one.budget for one in chosen]
    [True, True]
    """
    waiting = task.kind == "time-to-event"
    horizon = task.horizon if waiting and horizon is None else horizon
    model, task = within(model, task, horizon)
    check_alarms(task)
    grid = AlarmPolicy(0.5, every=usual_every(task) if every is None else every, output=output)
    if validation is None:
        validation = look(model, task, "validation", grid)
    train = task.splits["train"]
    some = np.random.default_rng(seed).permutation(len(train))[: TRAINING * validation.subjects]
    sample = {"train": train[torch.from_numpy(np.sort(some))]}
    training = Sweeps(look(model, replace(task, splits=sample), "train", grid))
    chosen = [
        choose_policy(
            validation,
            training,
            budget,
            lead=label_lead(task),
            every=grid.every,
            output=output,
            quiet=quiet,
            confidence=confidence,
        )
        for budget in budgets
    ]
    return [replace(one, policy=replace(one.policy, horizon=horizon)) for one in chosen]


def halves(task: Task, seed: int) -> Task:
    """A task with all its streams dealt out to "validation" and "test", half of the subjects each."""
    dealt = split_streams(
        task.subjects,
        strata_of(task.labels, task.kind),
        seed=seed,
        fractions={"validation": 0.5, "test": 0.5},
    )
    return replace(task, splits=dealt)


def label_lead(task: Task) -> float:
    """How long before an event its label turns to 1; half of how long the median stream is followed, where unknown."""
    if isinstance(task.truth, EventTruth) and task.truth.horizon is not None:
        return task.truth.horizon
    if task.label_lead > 0:
        return task.label_lead
    spans = task.label_truth.until.double().cpu() - task.series.times[:, 0].cpu()
    return max(float(spans.median()) / 2, float(spans.max()) / 100) or 1.0


def usual_every(task: Task) -> float:
    """How often streams are looked at between rows where nobody says: a twelfth of how early labels turn to 1."""
    return label_lead(task) / 12


def guarantee(budget: float, most: int, confidence: float) -> str:
    """What holds of a chosen policy, in words."""
    text = (
        f"On new streams from where the validation streams came from, the expected number of false alarms is at most "
        f"{budget:g} a stream and day, on average over which streams were for validation (conformal risk control; a "
        f"subject counts at most {most} false alarms)."
    )
    if confidence:
        text += (
            f" In about {100 * confidence:g} % of such choices the rate over all new streams is itself within the "
            "budget (normal approximation)."
        )
    return text + " Nothing is guaranteed of a single stream, of later years, or of another place."


def _shape(
    validation: Looks, training: Sweeps, budget: float, tried: Sequence[Shape], confidence: float
) -> tuple[Shape, int]:
    """The rule that catches most events of training streams within the budget, and C on the validation streams."""
    subjects = validation.subjects
    most = {shape: most_alarms(validation, shape.quiet) for shape in tried}
    needed = {shape: subjects_needed(validation, budget, most[shape]) for shape in tried}
    open_to = [shape for shape in tried if needed[shape] <= subjects]
    if not open_to:
        raise BudgetError(
            f"{subjects:,} validation subjects are too few for a budget of {budget:g} false alarms a stream and day: "
            f"it takes about {min(needed.values()):,}, or a budget of {_least(validation, min(most.values()))}."
        )
    if len(open_to) == 1:
        return open_to[0], most[open_to[0]]
    best, caught = open_to[0], -np.inf
    for shape in open_to:
        counted = training(shape)
        fine = allowed(counted, training.days, budget, most[shape], confidence, subjects)
        here = int(np.where(fine, counted.caught, -1).max())
        if here > caught + WORTH * training.looks.event_count:
            best, caught = shape, here
    return best, most[best]


def _least(looks: Looks, most: int) -> str:
    """The least budget, rounded up, that so many subjects allow."""
    least = most / looks.days.sum()
    step = 10.0 ** np.floor(np.log10(least))
    return f"{np.ceil(least / step * 10) * step / 10:.2g}"


def levels_of(looks: Looks) -> np.ndarray:
    """The levels that some answer lies between, and one on either side: beyond them nothing changes."""
    odds = looks.log_odds[looks.real]
    first = np.searchsorted(LEVELS, odds.min(), side="right") - 1
    last = np.searchsorted(LEVELS, odds.max(), side="right")
    return LEVELS[max(first, 0) : last + 1]


def _unmet(looks: Looks, counted: Sweep, days: np.ndarray, budget: float) -> str:
    rate = counted.false.sum(0) / days.sum()
    catching = counted.caught > 0
    if not catching.any():
        return f"no alarm of any threshold comes before one of the {looks.event_count} events of validation."
    return (
        f"a budget of {budget:g} false alarms a stream and day cannot be met on validation: where a threshold begins "
        f"to catch events, {shown(float(rate[catching].min()))} false alarms come, and {looks.subjects:,} subjects "
        "leave room for error. Give a larger budget, more validation streams, or a better model."
    )


def probability(odds: float) -> float:
    """The probability of log-odds."""
    return float(1 / (1 + np.exp(-odds)))
