"""`evaluate`: a model on a split of a task, every metric of its kind with an interval by subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from onlinecde.data import Queries, Task, Utility
from onlinecde.evaluation.alarm_curve import alarm_curve, own_policy
from onlinecde.evaluation.bootstrap import Cohort, Estimate, Means, Statistic, interval
from onlinecde.evaluation.breakdown import by_class, by_output
from onlinecde.evaluation.calibration import calibration
from onlinecde.evaluation.coverage import coverage
from onlinecde.evaluation.event_time import (
    as_event_times,
    before_event,
    event_times,
    first_alarms,
    usual_edges,
)
from onlinecde.evaluation.importance import importance
from onlinecde.evaluation.metrics import (
    EXCESS,
    METRICS,
    OWN_UTILITY,
    Metric,
    MetricError,
    UndefinedMetric,
    chosen_score,
    metric_for,
    metric_named,
    resampled_metrics,
)
from onlinecde.evaluation.naive import beside_naive, output_names
from onlinecde.evaluation.predictions import Predictions
from onlinecde.evaluation.questions import Question, questions
from onlinecde.evaluation.results import Evaluation
from onlinecde.evaluation.since_row import by_time_since_row, loss_of
from onlinecde.evaluation.subgroups import by_group
from onlinecde.evaluation.trees import Trees
from onlinecde.evaluation.utility import best_threshold, normalised, utility_of
from onlinecde.models import OnlineModel
from onlinecde.models.asking import called, check_asking
from onlinecde.models.base import Asking
from onlinecde.models.forecasts import QuantileIntervals
from onlinecde.models.readout import Readout, known_labels
from onlinecde.models.time_bins import risk_at, usual_horizons
from onlinecde.version import __version__

CLOCK = "clock"
"""The name of a task's own grid among query times."""
WITHIN = ("auc", "brier", "log_loss")
"""By what each horizon of time to an event is judged."""


def evaluate(
    model: OnlineModel | Trees | Sequence[OnlineModel | Trees],
    task: Task,
    split: str = "test",
    *,
    name: str | None = None,
    metrics: Sequence[str] | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    at: Queries | str | Tensor | None = None,
    asking: Asking | None = None,
    reference: Tensor | Evaluation | None = None,
    event_at: Tensor | np.ndarray | None = None,
    hours: Sequence[float] | None = None,
    horizons: Sequence[float] | None = None,
    groups: Mapping[str, Sequence[Any]] | None = None,
    explained: bool = False,
    batch_size: int = 256,
    predictions: Predictions | None = None,
) -> Evaluation:
    """Predict a split and measure: every metric of the task's kind, or those named in `metrics`.

    `at`: the times at which the streams are asked, as `Task.asked` takes them, or "clock", the task's own grid
    (`Task.clock`); default: where the task has its labels. `asking`: what models that are online at rows alone do
    between them, "hold" or "empty-rows" (`models.asking.ask`); default: as each was taught.

    Several models, such as one for each seed, are judged as one that says the mean of their
    probabilities (of their numbers, for regression). Boosted trees (`fit_trees`) are judged as a model is.

    The "utility" of a task whose data set defines one is taken at the threshold that is best on the
    validation split, and, of a model that learned it, at the model's own boundary too ("utility_own").

    Intervals hold 95 % of `bootstrap` resamples of subjects (0: none). `reference` is a known risk,
    of the shape of the labels, evaluated beside the model, or what came of that before; default, with `at`: what the
    task knows (`task.known_risk`). By how much the log loss exceeds the best possible is then a metric, "excess".
    For binary tasks along time,
    `event_at` (stream of the task,) says when the event came (default: `event_times` from the
    labels) and `hours` gives the edges of the table of metrics by time before it, in the task's unit
    (default: `usual_edges`). Time to an event is judged within each of `horizons` besides (default: half, one,
    two and four times the task's), as metrics such as "auc@12"; a known risk is that within the task's horizon.
    `groups`: by the name of a column its values (stream of the task,): the task's metric and loss for the streams of
    each. `explained`: how much each channel moves the outputs of a Neural CDE (`importance`).
    `predictions` of the task spare models that are judged several times to predict again.

    A metric without a value here (one class only) is None and says why.

    >>> import onlinecde as oc
    >>> task = oc.data.simulate_ward(60, seed=1).task
    >>> model = oc.GRU(channels=12, hidden=4, outputs=1, static=2, kind="binary")
    >>> found = evaluate(model, task, bootstrap=20)
    >>> sorted(found.metrics)
    ['accuracy', 'auc', 'auprc', 'brier', 'ece', 'log_loss', 'sensitivity']
    """
    models: list[Any] = [model] if isinstance(model, OnlineModel | Trees) else list(model)
    if not models:
        raise ValueError("there is no model to evaluate: give at least one.")
    if at is not None:
        task = task_at(task, at)
        if reference is None and task.known_risk is not None:
            reference = task.known_risk.risk
    for each in models:
        check_fit(each, task)
        check_asking(each, asking or each.asking)
    chosen = _chosen_metrics(task, metrics, horizons)
    if bootstrap < 0:
        raise ValueError(f"bootstrap is {bootstrap}: give 0 (no intervals) or more.")
    task.split(split)  # refuses an empty or unknown split before anything is computed
    known_before = predictions or Predictions(task, batch_size, asking)

    def probabilities(of: str) -> Tensor:
        said = [known_before(each, of) for each in models]
        return said[0] if len(said) == 1 else torch.stack(said).mean(0)

    def judged(
        called: str,
        risk: dict[str, Tensor],
        by: Sequence[Metric] = chosen,
        boundary: float | None = None,
    ) -> Evaluation:
        return judge(
            called,
            risk,
            task,
            split,
            by,
            bootstrap=bootstrap,
            seed=seed,
            event_at=event_at,
            hours=hours,
            boundary=boundary,
        )

    needed = [split]
    if metrics is None or "utility" in metrics:
        # Its threshold must not be chosen on what it is judged by.
        needed += ["validation"] * (task.utility is not None and len(task.splits["validation"]) > 0)
    known = reference if isinstance(reference, Evaluation) else None
    if isinstance(reference, Tensor):
        risks = {of: _reference(reference, task, of) for of in needed}
        known = judged("known risk", risks, [m for m in chosen if _known_too(m, task)])
    kinds = " and ".join(dict.fromkeys(type(each).__name__ for each in models))
    usual = kinds if len(models) == 1 else f"mean of {len(models)} {kinds}"
    if task.per == "time":
        usual = called(usual, models[0], asking)
    risks = {of: probabilities(of) for of in needed}
    found = judged(name or usual, risks, boundary=_boundary(models))
    subjects = [task.subjects[i] for i in task.splits[split].tolist()]
    cohort = Cohort.of(subjects, resamples=bootstrap, seed=seed)
    found = replace(
        found,
        reference=known,
        naive=beside_naive(task, split, found.probabilities),
        groups=by_group(task, split, found.probabilities, found.labels, cohort, groups or {}),
        importance=importance(models[0], task, split, bootstrap=bootstrap, seed=seed)
        if explained and len(models) == 1
        else (),
        **_carried(models, task, split, found, cohort),
    )
    if known is None or task.per != "time":
        return found
    return with_excess(found, known, loss_of(task))


def task_at(task: Task, at: Queries | str | Tensor) -> Task:
    """The task asked at times as `evaluate` takes them."""
    if isinstance(at, str) and at == CLOCK:
        return task if task.clock is None else task.asked(task.clock)
    return task.asked(at)


def with_excess(found: Evaluation, known: Evaluation, loss: str) -> Evaluation:
    """An evaluation with the metric "excess": a log loss above that of what is known, on the same resamples."""
    mine, best = (one.metrics.get(loss, Estimate(None)) for one in (found, known))
    if mine.value is None or best.value is None or not loss.startswith("log_loss"):
        return found
    drawn = found.drawn[loss] - known.drawn[loss]
    excess = interval(mine.value - best.value, drawn)
    metrics = {}
    for name, estimate in found.metrics.items():
        metrics |= {name: estimate} | ({EXCESS: excess} if name == loss else {})
    return replace(found, metrics=metrics, drawn={**found.drawn, EXCESS: drawn})


def _boundary(models: Sequence[Any]) -> float | None:
    """The mean of the models' boundaries of utility; None where one has none."""
    own = [getattr(model, "boundary", None) for model in models]
    known = [one for one in own if one is not None]
    return sum(known) / len(known) if len(known) == len(own) else None


def _carried(
    models: Sequence[Any], task: Task, split: str, found: Evaluation, cohort: Cohort
) -> dict[str, Any]:
    """What the alarm policy and the intervals that a model carries are worth on a split; trees carry none."""
    if len(models) > 1 or not isinstance(model := models[0], OnlineModel):
        return {}
    carried: dict[str, Any] = {"policy": own_policy(model, task, split, cohort)}
    if model.intervals is not None and task.kind == "regression":
        args = task, found.probabilities, found.labels, cohort
        carried["intervals"] = coverage(model.intervals, *args)
    return carried


def check_fit(model: OnlineModel | Trees, task: Task) -> None:
    """Refuse a model that shares no channel with the task, or was made for other questions or another unit."""
    if isinstance(model, Trees):
        model.check(task)
        return
    one = replace(task, series=task.series[0])
    model.prepare((one if model.schema is None else one.under(model.schema)).series)
    head = getattr(model, "readout", None)
    if not isinstance(head, Readout):
        raise ValueError(
            f"{type(model).__name__} has no `Readout` as `readout`: give it one, which knows probabilities."
        )
    other = model.outputs != task.outputs and head.bins is None
    if head.kind != task.kind or other:
        raise ValueError(
            f"task '{task.name}' is {task.kind} with {task.outputs} outputs, the model was made for "
            f"{head.kind} with {model.outputs}: evaluate it on a task of its own kind."
        )
    if task.forecast is not None and model.schema is not None:
        own = forecast_pairs(model)
        if own != task.forecast.pairs:
            raise ValueError(
                f"task '{task.name}' forecasts {_pairs(task.forecast.pairs)}, the model {_pairs(own)}: evaluate it on "
                "its own channels and horizons."
            )


def forecast_pairs(model: OnlineModel) -> list[tuple[str, float]]:
    """Channel and horizon of each forecast of a model that has names."""
    forecasts: Any = model.readout.forecasts
    channels = model.schema.channels if model.schema is not None else ()
    each = zip(forecasts.channel.tolist(), forecasts.horizon.tolist(), strict=True)
    return [(str(channels[place]), horizon) for place, horizon in each]


def _pairs(pairs: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{channel} at {horizon:g}" for channel, horizon in pairs[:6])


def judge(
    name: str,
    risks: dict[str, Tensor],
    task: Task,
    split: str,
    metrics: Sequence[Metric],
    *,
    bootstrap: int = 1000,
    seed: int = 0,
    event_at: Tensor | np.ndarray | None = None,
    hours: Sequence[float] | None = None,
    boundary: float | None = None,
) -> Evaluation:
    """Measure probabilities (stream, output) or (stream, row, output) of a split, whoever made them.

    `risks` holds those of `split`; with "validation" among them, the task's utility is
    computed too, at the threshold that is best there, and at a model's own boundary where it has one.
    """
    labels, risk = task.split(split)[1].cpu(), risks[split]
    subjects = [task.subjects[i] for i in task.splits[split].tolist()]
    cohort = Cohort.of(subjects, resamples=bootstrap, seed=seed)
    values = _values(metrics, task, risk, labels)
    defined = [name for name, estimate in values.items() if estimate.value is not None]
    statistics = resampled_metrics(defined, task.kind, risk, labels, cohort, task.edges)
    held: dict[str, Any] = {}
    if task.utility is not None and "validation" in risks:
        threshold = best_threshold(*_worth(task, "validation", risks))
        held["utility_threshold"] = threshold
        places = {"utility": threshold} | ({} if boundary is None else {OWN_UTILITY: boundary})
        for name_of, place in places.items():
            values[name_of], worth = _utility(task, split, risks, place, cohort)
            statistics |= {name_of: worth} if worth is not None else {}
    drawn = cohort.resample(statistics)
    for metric, several in drawn.items():
        values[metric] = interval(cast(float, values[metric].value), several)
    if task.kind in ("binary", "time-to-event"):
        held |= _calibration(task, risk, labels, cohort)
    near, ahead, known = task, risk, labels
    if task.horizon is not None:
        near = task.within()
        ends = torch.tensor(task.edges, dtype=torch.float64)
        ahead = risk_at(risk, ends, torch.tensor([task.horizon], dtype=torch.float64))
        known = near.split(split)[1].cpu()
    if near.kind == "binary" and near.per != "stream":
        held |= _along_time(near, split, ahead, known, cohort, event_at, hours)
    if task.per == "time":
        held["since_row"] = by_time_since_row(task, split, risk, labels, cohort)
    if task.kind == "multiclass":
        held |= by_class(risk, labels, task.classes)
    if task.kind == "regression" and task.outputs > 1:
        held["per_output"] = by_output(risk, labels, output_names(task))
    if task.forecast is not None:
        held["per_output"] = by_output(risk, labels, task.classes, task.kind)
        held["intervals"] = coverage(QuantileIntervals(), task, risk, labels, cohort)
    known = known_labels(task.kind, labels)
    return Evaluation(
        model=name,
        task=task.name,
        kind=task.kind,
        per=task.per,
        asked_when=task.asked_when,
        split=split,
        metric=task.metric,
        time_unit=task.time_unit,
        classes=task.classes,
        streams=len(labels),
        subjects=cohort.count,
        labels_given=int(known.sum()),
        positive=int((labels == 1).sum()) if task.kind == "binary" else None,
        bootstrap=bootstrap,
        seed=seed,
        metrics=values,
        fold=_fold(task),
        versions={"onlinecde": __version__, "torch": torch.__version__},
        probabilities=risk,
        labels=labels,
        drawn=drawn,
        horizon=task.horizon,
        **held,
    )


def _chosen_metrics(
    task: Task, names: Sequence[str] | None, horizons: Sequence[float] | None
) -> list[Metric]:
    if horizons is not None and task.horizon is None:
        raise MetricError(
            f"horizons are for time-to-event tasks, and '{task.name}' is {task.kind}."
        )
    if names is None:
        found = [metric for metric in METRICS.values() if task.kind in metric.kinds]
        if task.horizon is None:
            return found
        ahead = horizons or usual_horizons(task.horizon, task.edges[-1])
        return found + [metric_named(f"{one}@{h:.6g}") for h in ahead for one in WITHIN]
    if not names:
        raise MetricError("no metric is named: name at least one, or leave them out for all.")
    return [
        metric_for(task.kind, name)
        for name in names
        if not (name == "utility" and task.utility is not None)
    ]


def _values(
    metrics: Sequence[Metric], task: Task, risk: Tensor, labels: Tensor
) -> dict[str, Estimate]:
    found = {}
    for metric in metrics:
        try:
            value = chosen_score(metric, task.kind, risk, labels, task.edges)
            found[metric.name] = Estimate(value)
        except UndefinedMetric as error:
            found[metric.name] = Estimate(None, reason=str(error))
    return found


def _known_too(metric: Metric, task: Task) -> bool:
    """Whether a metric can be that of a known risk: of time to an event, within the task's horizon alone."""
    return task.horizon is None or metric.name.endswith(f"@{task.horizon:.6g}")


def _reference(reference: Tensor, task: Task, split: str) -> Tensor:
    """The known risk of a split, (stream, output) or (stream, row, output)."""
    if task.horizon is not None:
        # One hazard all along, of which only the risk within the horizon is looked at.
        labels = task.labels[..., 0]
        ahead = torch.tensor(task.edges, dtype=torch.float64) / task.horizon
        one = replace(task, kind="binary", labels=labels, edges=(), horizon=None)
        return 1 - (1 - _reference(reference, one, split)) ** ahead
    if reference.shape != task.labels.shape or task.kind not in ("binary", "regression"):
        raise ValueError(
            f"the reference has shape {tuple(reference.shape)}: give what is known of each label of "
            f"a binary or regression task, {tuple(task.labels.shape)}."
        )
    rows = task.split(split)[1].shape[1:]
    found = reference[task.splits[split]].double()
    if rows and task.per != "stream":
        # NaN in the padding, where no label is: any number will do.
        found = found[:, : rows[0]].nan_to_num(0.0)
    return found.unsqueeze(-1) if task.outputs == 1 and found.ndim == len(rows) + 1 else found


def _worth(
    task: Task, split: str, risks: dict[str, Tensor]
) -> tuple[np.ndarray, np.ndarray, Utility]:
    """Risks of a split, where there is a label, and what alarms are worth there."""
    assert task.utility is not None
    labels = task.split(split)[1].cpu().numpy()
    worth = task.utility.select(task.splits[split], labels.shape[1])
    return risks[split][..., 0].numpy(), ~np.isnan(labels), worth


def _utility(
    task: Task, split: str, risks: dict[str, Tensor], threshold: float, cohort: Cohort
) -> tuple[Estimate, Statistic | None]:
    """The data set's utility of alarms from a threshold on."""
    scores, _, worth = _worth(task, split, risks)
    if worth.best.sum() == worth.silence.sum():
        reason = "no alarm is worth anything: no stream of the split has the event."
        return Estimate(None, reason=reason), None
    alarms = scores >= threshold
    observed = np.where(alarms, worth.alarm, worth.silence)
    sums = np.stack([part.sum(1) for part in (observed, worth.silence, worth.best)], 1)
    statistic = Means(cohort.sums(sums, cohort.codes), lambda total: normalised(*total.T))
    return Estimate(utility_of(alarms, worth)), statistic


def _calibration(task: Task, risk: Tensor, labels: Tensor, cohort: Cohort) -> dict[str, Any]:
    """That of the risk, of time to an event within the task's horizon."""
    found, wanted, known = questions(task.kind, risk, labels)[0]
    if not len(wanted) or not bool(found.isfinite().all()):
        return {}
    owners = cohort.owners(known.numpy())
    asked = Question(found, wanted, owners, cohort.count, edges=task.edges)
    asked = asked if task.horizon is None else asked.within(task.horizon)
    told = asked.predicted, asked.labels, asked.owners
    return {"calibration": calibration(*told, cohort, counts=asked.counts)}


def _along_time(
    task: Task,
    split: str,
    risk: Tensor,
    labels: Tensor,
    cohort: Cohort,
    event_at: Tensor | np.ndarray | None,
    hours: Sequence[float] | None,
) -> dict[str, Any]:
    """Metrics by time before the event, and the lead of first alarms."""
    if event_at is None:
        lead = task.label_lead
        first = "row" if task.per == "row" else "time"
        source = f"time of the first {first} with label 1" + f" + {lead:g} {task.time_unit}" * (
            lead > 0
        )
        events = event_times(task)
    else:
        source, events = "known, given with the task", as_event_times(event_at, len(task.series))
    events = events[task.splits[split].numpy()]
    scores, known = risk[..., 0].numpy(), ~labels.isnan().numpy()
    along = task.split_times(split)
    assert along is not None
    times = along.cpu().numpy()
    if hours is None:
        edges = usual_edges(times, events, task.time_unit)
    else:
        edges = tuple(float(edge) for edge in hours)
        if len(edges) < 2 or any(a >= b for a, b in pairwise(edges)):
            raise ValueError(
                f"hours is {list(edges)}: give two edges or more, each above the last."
            )
    return {
        "events": events,
        "event_source": source,
        "before_event": before_event(scores, known, times, events, cohort, edges=edges),
        "alarms": first_alarms(scores, known, times, events),
        "alarm_curve": alarm_curve(task, split, scores, cohort),
    }


def _fold(task: Task) -> str | None:
    told = task.settings
    return f"fold {told['fold']} of {told['folds']}" if "fold" in told else None
