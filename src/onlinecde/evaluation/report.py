"""One page for one evaluation: a single HTML file that needs nothing else, light or dark."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onlinecde.evaluation import report_tables as tables
from onlinecde.evaluation.questions import questions
from onlinecde.evaluation.report_tables import cell
from onlinecde.evaluation.results import Evaluation
from onlinecde.files import replace_file
from onlinecde.models.forecasts import MIDDLE
from onlinecde.models.readout import RULES
from onlinecde.plots import evaluation_curves as curves
from onlinecde.plots.inline_svg import inline_svg
from onlinecde.plots.trajectories import Trajectory, trajectory_figure


def report(
    evaluation: Evaluation,
    *,
    against: Sequence[Evaluation] = (),
    at_rows: Sequence[Evaluation] = (),
    log: Sequence[Mapping[str, Any]] = (),
    trajectories: Sequence[Trajectory] = (),
) -> str:
    """The page as text: metrics with intervals, curves, streams as time goes.

    `against` are evaluations of other models on the same split; `at_rows` those of all models where the task has its
    labels, where the others are by the clock; `log` holds the epochs of the run (`read_log`), `trajectories` what
    `follow` gives.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("onlinecde.evaluation"), autoescape=True, undefined=StrictUndefined
    )
    figures = [(Markup(svg), caption) for svg, caption in _figures(evaluation, against, log)]
    return environment.get_template("evaluation.html").render(
        evaluation=evaluation,
        subtitle=_subtitle(evaluation),
        lead=_lead(evaluation),
        metrics=tables.metric_table(evaluation, against),
        folds=tables.fold_table(evaluation, against),
        how=_how(evaluation, against),
        since_row=tables.since_row_table(evaluation, against),
        at_rows=tables.metric_table(at_rows[0], at_rows[1:]) if at_rows else None,
        at_rows_note=_subtitle(at_rows[0]) if at_rows else "",
        figures=figures,
        naive=tables.naive_table(evaluation),
        groups=tables.group_table(evaluation, against),
        importance=tables.importance_table(evaluation),
        importance_note=_importance_note(evaluation),
        before_event=tables.before_event_table(evaluation),
        before_event_note=_before_event_note(evaluation),
        alarms=_alarms(evaluation),
        intervals=tables.interval_table(evaluation),
        alarm_table=tables.alarm_table(evaluation),
        alarm_note=_alarm_note(evaluation),
        policy=evaluation.policy,
        trajectories=[
            Markup(inline_svg(trajectory_figure(one), f"{one.title}: {one.says} as time goes"))
            for one in trajectories
        ],
        trajectories_note=_reading(trajectories, evaluation),
        outputs=tables.output_table(evaluation),
        classes=tables.class_table(evaluation),
        footer=", ".join(f"{name} {version}" for name, version in evaluation.versions.items()),
    )


def write_report(path: str | os.PathLike[str], page: str) -> Path:
    """Write a page; whoever looks finds the old one or the new one, never half of it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, page)
    return target


def _subtitle(evaluation: Evaluation) -> str:
    split = f"{evaluation.split.capitalize()} split"
    if evaluation.fold is not None:
        split += f" of {evaluation.fold}"
    text = (
        f"{split}: {evaluation.streams:,} streams of "
        f"{evaluation.subjects:,} subjects, {evaluation.labels_given:,} labels"
    )
    if evaluation.positive is not None and evaluation.labels_given:
        share = 100 * evaluation.positive / evaluation.labels_given
        text += f" ({share:.1f} % positive)"
    return f"{text}. {evaluation.kind.capitalize()}, {evaluation.asked_when}."


def _lead(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """The metric the task is judged by, and beside it the best possible where that is known."""
    if evaluation.metric not in evaluation.metrics:
        return []
    title = evaluation.title_of(evaluation.metric)
    found = [(*cell(evaluation.metrics[evaluation.metric]), title)]
    known = evaluation.reference
    if known is not None and evaluation.metric in known.metrics:
        value, _ = cell(known.metrics[evaluation.metric])
        found.append((value, "", f"best possible {title}"))
    return found


def _how(evaluation: Evaluation, against: Sequence[Evaluation]) -> str:
    parts = []
    if evaluation.folds:
        parts.append(
            f"Each value is the mean over {len(evaluation.folds)} folds: every stream of theirs is tested once, by a "
            "model that was trained on the other folds. Subjects are drawn again within each fold."
        )
    if evaluation.bootstrap and evaluation.subjects > 1:
        parts.append(
            f"Beneath each value: the interval that holds 95 % of {evaluation.bootstrap:,} resamples "
            f"of whole subjects (seed {evaluation.seed})"
            + ("; differences on the same resamples." if against else ".")
        )
    if evaluation.calibration is not None and evaluation.calibration.slope.value is not None:
        slope, spread = cell(evaluation.calibration.slope)
        intercept, _ = cell(evaluation.calibration.intercept)
        parts.append(
            f"Calibration slope{_ahead(evaluation)} {slope}{f' ({spread})' if spread else ''}, intercept {intercept}; "
            "a perfect model has 1 and 0."
        )
    if evaluation.utility_threshold is not None:
        parts.append(
            "Utility: the data set's own score of alarms, at the threshold that was best on the "
            f"validation split, {evaluation.utility_threshold:.4g}."
        )
    return " ".join(parts)


def _reading(trajectories: Sequence[Trajectory], evaluation: Evaluation) -> str:
    """How to read the pictures of single streams."""
    text = "Drawn by lot from the longer streams of the split."
    if any(one.positive for one in trajectories):
        several = evaluation.kind == "multiclass"
        text += f" Shaded: the label is {evaluation.classes[0] if several else 1}."
    if any(one.event is not None for one in trajectories):
        text += " Upright line: the event."
    if any(one.truth is not None for one in trajectories):
        text += " Dotted: the truth."
    return f"{text} Beneath: the channels observed most often."


def _before_event_note(evaluation: Evaluation) -> str:
    """How to read the table by time before the event, or why there is none; empty where it has no meaning."""
    if evaluation.event_source is None:
        return ""
    came = (
        "Rows this long before the event, against all rows of streams without one."
        if evaluation.before_event
        else "No stream of the split has an event after its first row."
    )
    return f"{came} Event time: {evaluation.event_source}."


def _alarms(evaluation: Evaluation) -> str:
    found = evaluation.alarms
    if found is None:
        return ""
    text = (
        f"First alarms, at the threshold that {100 * found.alarmed:.0f} % of streams without an event "
        f"ever exceed: {found.caught:,} of {found.events:,} events were seen before they came"
    )
    if found.lead is None:
        return text + "."
    low, middle, high = found.lead
    return (
        f"{text}, half of them {middle:.1f} {evaluation.time_unit} ahead or more "
        f"(quartiles {low:.1f} and {high:.1f})."
    )


def _alarm_note(evaluation: Evaluation) -> str:
    """What counts as a false alarm and as an event caught; empty where nothing is counted."""
    curve = evaluation.alarm_curve
    if curve is None:
        return ""
    return (
        "An alarm is false where its label is 0 or not known, and catches an event where it is 1. Repeated "
        f"every {curve.quiet:g} {evaluation.time_unit} while the risk stays at the threshold; at the times of the "
        "labels. Thresholds are read off this split: to choose one that holds on new streams, onlinecde alarms."
    )


def _figures(
    evaluation: Evaluation, against: Sequence[Evaluation], log: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    shown = {one.model: one for one in (evaluation, *against)}
    if evaluation.reference is not None:
        shown[curves.KNOWN] = evaluation.reference
    found: list[tuple[str, str]] = []

    def add(figure: Any, label: str, caption: str = "") -> None:
        found.append((inline_svg(figure, label), caption))

    if evaluation.kind in ("binary", "time-to-event") and not evaluation.folds:
        _binary_figures(shown, evaluation, add)
    if evaluation.confusion:
        add(
            curves.confusion_figure(evaluation.confusion, evaluation.classes),
            "Confusion matrix",
            "Share of each true class, by colour: right in blue, wrong in orange.",
        )
    if RULES[evaluation.kind].numbers and not evaluation.folds:
        asked = questions(evaluation.kind, evaluation.probabilities, evaluation.labels)
        names = [one.name for one in evaluation.per_output] or [""]
        for name, (said, true, _) in zip(names, asked, strict=True):
            if len(true):
                label = "Predicted and true numbers" + f" of {name}" * bool(name)
                point = said if said.ndim == 1 else said[:, MIDDLE]
                add(curves.predicted_figure(true.numpy(), point.numpy()), label, name)
    if log:
        metric = evaluation.metric
        add(curves.training_figure(log, metric, evaluation.title_of(metric)), "Losses by epoch")
    return found


def _binary_figures(shown: Mapping[str, Evaluation], evaluation: Evaluation, add: Any) -> None:
    roc, precision, bins, hours, alarms = {}, {}, {}, {}, {}
    models = list(shown)
    for name, one in shown.items():
        auc = one.metrics.get("auc")
        if one.kind == "binary" and (auc is None or auc.value is not None):
            curve = _rank_curves(one)
            if curve is not None:
                roc[name], precision[name] = curve
        if one.calibration is not None:
            bins[name] = [
                (b.predicted, b.observed, _nan(b.low), _nan(b.high)) for b in one.calibration.bins
            ]
        table = [
            (b.start, b.end, b.auc.value, _nan(b.auc.low), _nan(b.auc.high))
            for b in one.before_event
            if b.auc.value is not None
        ]
        if table:
            hours[name] = table
        if one.alarm_curve is not None:
            alarms[name] = (
                np.array(one.alarm_curve.false_a_day),
                np.array(one.alarm_curve.caught),
            )
    if roc:
        add(curves.roc_figure(roc, models), "ROC curve")
        rate = (evaluation.positive or 0) / max(evaluation.labels_given, 1)
        add(curves.precision_recall_figure(precision, rate, models), "Precision and recall")
    if bins:
        add(
            curves.calibration_figure(bins, models),
            f"Observed share against predicted risk{_ahead(evaluation)}",
            f"Labels in ten bins of like risk{_ahead(evaluation)}; on the line, a risk is what it says.",
        )
    if hours:
        add(
            curves.before_event_figure(hours, evaluation.time_unit, models=models),
            "AUROC by time before the event",
        )
    if alarms:
        add(
            curves.alarms_figure(alarms, models),
            "Events caught against false alarms",
            "Of all thresholds, from the highest on the left; at the times of the labels.",
        )


def _importance_note(evaluation: Evaluation) -> str:
    unit = "in the label's unit" if evaluation.kind == "regression" else "in log-odds"
    return (
        f"Exact contributions, {unit}: the sizes of all that a channel's events added or took away in a stream, from "
        "its first row on, averaged over streams; beneath, the interval by subject. What a model goes by need not be a "
        "cause."
    )


def _ahead(evaluation: Evaluation) -> str:
    """Within which time the risk is meant, of time to an event."""
    if evaluation.horizon is None:
        return ""
    return f" within {evaluation.horizon:g} {evaluation.time_unit}"


def _rank_curves(evaluation: Evaluation) -> tuple[Any, Any] | None:
    """The ROC curve (false positive rate, recall) and the curve (recall, precision)."""
    predicted, true, _ = questions("binary", evaluation.probabilities, evaluation.labels)[0]
    if not len(true) or bool((true == true[0]).all()) or not bool(predicted.isfinite().all()):
        return None
    scores, labels = predicted.numpy(), true.numpy()
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    hits = np.cumsum(labels[order])[ends]
    alarms = ends + 1.0
    recall, false = hits / hits[-1], (alarms - hits) / (alarms[-1] - hits[-1])
    return (np.append(0.0, false), np.append(0.0, recall)), (
        np.append(recall[::-1], 0.0),
        np.append((hits / alarms)[::-1], 1.0),
    )


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value
