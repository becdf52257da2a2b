"""The tables of a report, each a list of columns: a head, and what stands beneath it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onlinecde.evaluation.alarms import AlarmScore
from onlinecde.evaluation.bootstrap import Difference, Estimate, shown
from onlinecde.evaluation.metrics import METRICS, metric_title
from onlinecde.evaluation.results import Evaluation, compare
from onlinecde.models.readout import RULES
from onlinecde.plots.evaluation_curves import KNOWN

_MINUS = "\u2212"

Cell = tuple[str, str]
"""A value, and beneath it its interval; empty where there is none."""


@dataclass(frozen=True)
class Line:
    """A line of a table; `reason`: why it has no values."""

    cells: tuple[Cell, ...]
    main: bool = False
    reason: str | None = None


@dataclass(frozen=True)
class ReportTable:
    """A table as a page shows it."""

    heads: tuple[str, ...]
    lines: tuple[Line, ...]


def metric_columns(
    names: Sequence[str],
    metrics: Sequence[Mapping[str, Estimate]],
    differences: Sequence[Mapping[str, Difference]],
    known: Mapping[str, Estimate] | None,
) -> list[tuple[str, Callable[[str], Estimate | Difference]]]:
    """Columns of the table of metrics, each with what it has of a metric by name.

    Each model, from the second on with by how much the first exceeds it, and the best possible where it is
    known. `metrics` and `names` are of all models, `differences` of all but the first.
    """

    def of(found: Mapping[str, Any], none: Any) -> Callable[[str], Any]:
        return lambda name: found.get(name, none)

    columns = []
    for place, (name, values) in enumerate(zip(names, metrics, strict=True)):
        columns.append((name, of(values, Estimate(None))))
        if place:
            columns.append(("difference", of(differences[place - 1], Difference(None))))
    if known is not None:
        columns.append((KNOWN, of(known, Estimate(None))))
    return columns


def metric_table(evaluation: Evaluation, against: Sequence[Evaluation]) -> ReportTable:
    """Each metric of a model beside those of others."""
    every = (evaluation, *against)
    known = None if evaluation.reference is None else evaluation.reference.metrics
    columns = metric_columns(
        [one.model for one in every],
        [one.metrics for one in every],
        [compare(evaluation, other) for other in against],
        known,
    )
    lines = []
    for name, found in evaluation.metrics.items():
        size = max(abs(one.metrics.get(name, found).value or 0.0) for one in every)
        cells = tuple(cell(of(name), size=size) for _, of in columns)
        reason = found.reason if found.value is None else None
        lines.append(
            Line(((evaluation.title_of(name), ""), *cells), name == evaluation.metric, reason)
        )
    return ReportTable(("Metric", *(head for head, _ in columns)), tuple(lines))


def fold_table(evaluation: Evaluation, against: Sequence[Evaluation]) -> ReportTable:
    """The metric the task is judged by, of each model on each fold."""
    title = evaluation.title_of(evaluation.metric)

    def of(model: Evaluation) -> Callable[[int], str]:
        return lambda place: number(model.folds[place].metrics.get(evaluation.metric))

    columns: list[tuple[str, Callable[[int], str]]] = [
        ("Fold", lambda place: evaluation.folds[place].fold.capitalize()),
        ("Streams", lambda place: f"{evaluation.folds[place].streams:,}"),
        *((f"{title}, {one.model}", of(one)) for one in (evaluation, *against)),
    ]
    return _table(columns, range(len(evaluation.folds)))


def since_row_table(evaluation: Evaluation, against: Sequence[Evaluation]) -> ReportTable:
    """The loss of each model by how long before it was asked a stream had its last row, beside the best possible."""
    every = [*(evaluation, *against), *filter(None, [evaluation.reference])]
    names = [one.model for one in (evaluation, *against)]
    names += [KNOWN] * (evaluation.reference is not None)
    of = [{bin_.start: bin_.loss for bin_ in one.since_row} for one in every]

    def loss(place: int) -> Callable[[Any], Cell]:
        return lambda one: cell(of[place].get(one.start, Estimate(None)))

    title = f"{evaluation.time_unit.capitalize()} since the last row"
    metric = "RMSE" if RULES[evaluation.kind].numbers else "Log loss"
    return _table(
        [
            (
                title,
                lambda one: f"{one.start:g} {'and more' if one.end is None else f'to {one.end:g}'}",
            ),
            ("Labels", lambda one: f"{one.labels:,}"),
            *((f"{metric}, {name}", loss(place)) for place, name in enumerate(names)),
        ],
        evaluation.since_row,
    )


def before_event_table(evaluation: Evaluation) -> ReportTable:
    """How well rows are told from those of event-free streams, by their time before the event."""
    return _table(
        [
            (
                f"{evaluation.time_unit.capitalize()} before",
                lambda one: f"{one.start:g} to {one.end:g}",
            ),
            ("Streams", lambda one: f"{one.streams:,}"),
            ("Rows", lambda one: f"{one.rows:,}"),
            (METRICS["auc"].title, lambda one: cell(one.auc)),
            (METRICS["sensitivity"].title, lambda one: cell(one.sensitivity)),
        ],
        evaluation.before_event,
    )


def alarm_table(evaluation: Evaluation) -> ReportTable:
    """What alarms at some thresholds are worth: false ones, events caught, and how early."""
    curve = evaluation.alarm_curve

    def lead(one: AlarmScore) -> Cell:
        if one.lead is None:
            return "\u2013", ""
        return number(one.lead[1]), f"{number(one.lead[0])} to {number(one.lead[2])}"

    return _table(
        [
            ("Threshold", lambda one: number(one.threshold)),
            ("False alarms a stream and day", lambda one: cell(one.false_a_day)),
            (
                "Events caught",
                lambda one: (f"{one.caught:,} of {one.events:,}", percent(one.share_caught)),
            ),
            (f"{evaluation.time_unit.capitalize()} ahead, quartiles", lead),
        ],
        () if curve is None else curve.scores,
    )


def interval_table(evaluation: Evaluation) -> ReportTable:
    """Coverage and width of a regression's intervals."""
    several = len({one.output for one in evaluation.intervals}) > 1
    return _table(
        [
            *([("Output", lambda one: one.output)] if several else []),
            ("Intervals for", lambda one: f"{100 * one.level:g} % of labels"),
            ("Labels inside", lambda one: cell(one.share)),
            ("Width", lambda one: cell(one.width)),
            ("Labels", lambda one: f"{one.labels:,}"),
            ("Subjects", lambda one: f"{one.subjects:,}"),
        ],
        evaluation.intervals,
    )


def output_table(evaluation: Evaluation) -> ReportTable:
    """Each of several numbers in its own unit."""
    quantiles = any(one.crps is not None for one in evaluation.per_output)
    return _table(
        [
            ("Output", lambda one: one.name),
            ("Labels", lambda one: str(one.labels)),
            (METRICS["rmse"].title, lambda one: number(one.rmse)),
            (METRICS["mae"].title, lambda one: number(one.mae)),
            (METRICS["r2"].title, lambda one: number(one.r2)),
            *([(METRICS["crps"].title, lambda one: number(one.crps))] if quantiles else []),
        ],
        evaluation.per_output,
    )


def naive_table(evaluation: Evaluation) -> ReportTable:
    """The model beside what needs no model."""

    def size(one: Any) -> float:
        return max(abs(one.naive), abs(one.model))

    return _table(
        [
            ("Naive prediction", lambda one: one.name.capitalize()),
            (
                "Judged by",
                lambda one: metric_title(one.metric) + (f" of {one.output}" if one.output else ""),
            ),
            (evaluation.model, lambda one: number(one.model, size(one))),
            ("Naive", lambda one: number(one.naive, size(one))),
        ],
        evaluation.naive,
    )


def importance_table(evaluation: Evaluation) -> ReportTable:
    """What the model goes by."""
    return _table(
        [
            ("Channel", lambda one: one.channel),
            ("Moves the output in a stream by", lambda one: cell(one.moved)),
            ("Events in a stream", lambda one: number(one.events)),
        ],
        evaluation.importance,
    )


def group_table(evaluation: Evaluation, against: Sequence[Evaluation] = ()) -> ReportTable:
    """Some streams beside others; other models beside the first, where they were judged by the same groups."""
    every = [one for one in (evaluation, *against) if len(one.groups) == len(evaluation.groups)]
    names = evaluation.groups[0].metrics if evaluation.groups else ()
    columns: list[tuple[str, Callable[[int], str | Cell]]] = [
        (
            "Group",
            lambda place: f"{evaluation.groups[place].column}: {evaluation.groups[place].group}",
        ),
        ("Streams", lambda place: f"{evaluation.groups[place].streams:,}"),
        ("Labels", lambda place: f"{evaluation.groups[place].labels:,}"),
    ]
    for one in every:
        for name in names:
            head = one.title_of(name) + (f", {one.model}" if len(every) > 1 else "")
            columns.append(
                (head, lambda place, one=one, name=name: cell(one.groups[place].metrics[name]))
            )
    return _table(columns, range(len(evaluation.groups)))


def class_table(evaluation: Evaluation) -> ReportTable:
    """Each class against the rest."""
    return _table(
        [
            ("Class", lambda one: one.name),
            ("Labels", lambda one: str(one.labels)),
            ("Precision", lambda one: number(one.precision)),
            ("Recall", lambda one: number(one.recall)),
            (f"{METRICS['auc'].title} against the rest", lambda one: number(one.auc)),
        ],
        evaluation.per_class,
    )


def _table(
    columns: Sequence[tuple[str, Callable[[Any], str | Cell]]], items: Iterable[Any]
) -> ReportTable:
    def whole(found: str | Cell) -> Cell:
        return (found, "") if isinstance(found, str) else found

    lines = tuple(Line(tuple(whole(of(item)) for _, of in columns)) for item in items)
    return ReportTable(tuple(head for head, _ in columns), lines)


def number(value: float | None, size: float | None = None) -> str:
    """As `shown`, with three figures after the point; a dash for none."""
    return "\u2013" if value is None else shown(value, size=size, digits=3).replace("-", _MINUS)


def percent(share: Estimate) -> str:
    """The interval of a share, or the share where it has none."""
    if share.value is None:
        return "\u2013"
    if share.low is None or share.high is None:
        return f"{100 * share.value:.0f} %"
    return f"{100 * share.low:.0f} to {100 * share.high:.0f} %"


def cell(found: Estimate | Difference, *, size: float | None = None) -> Cell:
    """A value and its interval; a difference has its sign.

    `size`: the largest of what it stands beside, its own by default.
    """
    size = abs(found.value) if size is None and found.value is not None else size
    value = number(found.value, size)
    if isinstance(found, Difference) and found.value is not None and found.value > 0:
        value = "+" + value
    if found.low is None or found.high is None:
        return value, ""
    return value, f"{number(found.low, size)} to {number(found.high, size)}"
