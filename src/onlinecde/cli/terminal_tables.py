"""Evaluations, trials of a search and tables of the paper on a terminal."""

from __future__ import annotations

from textwrap import fill
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from onlinecde.cli.displays import STYLES, as_text
from onlinecde.evaluation.alarm_budget import Chosen
from onlinecde.evaluation.alarms import AlarmScore
from onlinecde.evaluation.bootstrap import Difference, Estimate, shown
from onlinecde.evaluation.report_tables import (
    group_table,
    importance_table,
    metric_columns,
    number,
    percent,
)
from onlinecde.evaluation.results import Evaluation, compare
from onlinecde.evaluation.runs import JudgedRuns
from onlinecde.experiments import Summary
from onlinecde.experiments.rendering import cost, evaluations, measured, places, published
from onlinecde.experiments.summary import Entry
from onlinecde.tuning.study import Tuned

SHOWN = 20
"""Lines of a table that a terminal shows; a report has all"""


def trials_table(found: Tuned) -> Table:
    """All trials; the best one is marked."""
    best = None if found.best is None else found.best["trial"]
    names = list(dict.fromkeys(name for trial in found.trials for name in trial.settings))
    table = Table(title=f"{len(found.trials)} trials in {found.folder}", title_style="bold")
    table.add_column("trial", justify="right")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column(f"validation {found.metric}", justify="right")
    table.add_column("epochs", justify="right")
    table.add_column("seconds", justify="right")
    table.add_column("")
    for trial in found.trials:
        is_best = trial.number == best
        table.add_row(
            str(trial.number),
            *[as_text(trial.settings.get(name)) for name in names],
            "-" if trial.value is None else shown(trial.value),
            str(trial.epochs),
            "-" if trial.seconds is None else f"{trial.seconds:.1f}",
            "best" if is_best else "" if trial.state == "complete" else trial.state,
            style="bold green" if is_best else STYLES[trial.state],
        )
    return table


def failures(found: Tuned) -> list[str]:
    """Why trials failed, a line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for trial in found.trials:
        if trial.state == "failed":
            by_reason.setdefault(trial.reason or "it does not say why", []).append(
                str(trial.number)
            )
    return [
        f"trial{'s' * (len(numbers) > 1)} {', '.join(numbers)} failed: {reason}"
        for reason, numbers in by_reason.items()
    ]


def results_table(summary: Summary) -> Table:
    """The table: ours, below it the published numbers, then what it cost."""
    down, across, place = places(summary)
    table = Table(
        title=f"{summary.table.title}\nprotocol {summary.protocol}, budget {summary.budget}",
        title_style="bold",
        show_lines=True,
    )
    table.add_column(summary.table.down, style="bold")
    for title in across.values():
        table.add_column(title, justify="right", min_width=9)
    for one, title in down.items():
        table.add_row(title, *[_cell(place(one, other)) for other in across])
    return table


def _cell(entry: Entry) -> Text:
    bad = entry.state == "failed"
    parts: list[tuple[str, str]] = [(measured(entry), "bold red" if bad else "bold")]
    if theirs := published(entry):
        parts.append((f"\n({theirs})", "dim"))
    if counted := evaluations(entry):
        parts.append((f"\nNFE {counted}", "dim"))
    if spent := cost(entry):
        parts.append((f"\n{spent}", "dim"))
    return Text.assemble(*parts)


def show_evaluations(found: list[JudgedRuns]) -> None:
    """Print what was found of each model, the first beside the others."""
    console = Console()
    first, others = found[0].together, [one.together for one in found[1:]]
    console.print(
        f"{first.judged_on}: {first.streams} streams of {first.subjects} subjects, "
        f"{first.labels_given} labels, {first.asked_when}",
        highlight=False,
    )
    if any(len(one.runs) > 1 for one in found):
        differences = [compare(found[0].runs, one.runs) for one in found[1:]]
        means = [one.mean for one in found]
        for table in _tables(console, found, means, differences, None):
            console.print(table)
        console.print("Above: the mean over the runs of each model. Below: their mean probability.")
    if first.folds:
        console.print("Each value is a mean over folds; subjects are drawn again within each fold.")
    known = first.reference.metrics if first.reference else None
    differences = [compare(first, other) for other in others]
    metrics = [one.together.metrics for one in found]
    for table in _tables(console, found, metrics, differences, known):
        console.print(table)
    for name, estimate in first.metrics.items():
        if estimate.reason and estimate.value is None:
            title = first.title_of(name)
            console.print(f"{title} has no value: {estimate.reason}", highlight=False)
    for each in found:
        _show_naive(console, each.together)


def alarms_table(chosen: list[Chosen], scores: list[AlarmScore], unit: str) -> Table:
    """A line a budget: the policy, and what its alarms are worth on validation and on unseen streams."""
    table = Table("budget", box=None, padding=(0, 1, 0, 0))
    heads = (
        "threshold\nre-armed",
        f"quiet\n{unit}",
        "validation:\nfalse a day\ncaught",
        "unseen:\nfalse a day",
        "unseen:\ncaught",
        f"unseen:\nlead, {unit}",
    )
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for one, score in zip(chosen, scores, strict=True):
        policy, before = one.policy, one.validation
        lead = score.lead
        table.add_row(
            f"{one.budget:g}",
            f"{policy.threshold:.3g}\n{'at once' if policy.repeated else f'{policy.rearm:.3g}'}",
            f"{policy.quiet:.3g}",
            f"{number(before.false_a_day.value)}\n{before.caught} of {before.events}",
            estimate_cell(score.false_a_day, 1.0),
            f"{score.caught} of {score.events}\n[dim]{percent(score.share_caught)}[/dim]",
            f"{lead[1]:.3g}\n[dim]{lead[0]:.3g} to {lead[2]:.3g}[/dim]" if lead else "none",
        )
    return table


def _show_naive(console: Console, found: Evaluation) -> None:
    """Output by output where there are several numbers, and beside what needs no model."""
    for one in found.per_output:
        console.print(f"{one.name}: {one.in_words}", highlight=False, markup=False)
    for one in found.naive:
        console.print(f"{found.model}: {one.in_words}", highlight=False, markup=False)
    if found.policy is not None:
        console.print(f"{found.model}: {found.policy.in_words}", highlight=False, markup=False)
    for one in found.intervals:
        console.print(f"{found.model}: {one.in_words}", highlight=False, markup=False)
    heads = group_table(found), importance_table(found)
    for table in (one for one in heads if one.lines):
        shown_table = Table(*table.heads, box=None, padding=(0, 2, 0, 0))
        for line in table.lines[:SHOWN]:
            shown_table.add_row(*(f"{value} [dim]{spread}[/dim]" for value, spread in line.cells))
        console.print(shown_table)
    for text in found.warnings:
        console.print(f"[bold red]warning:[/bold red] {escape(text)}", highlight=False)


def _tables(
    console: Console,
    found: list[JudgedRuns],
    metrics: list[dict[str, Estimate]],
    differences: list[dict[str, Difference]],
    known: dict[str, Estimate] | None,
) -> list[Table]:
    """One table, or several with the first model in each where one would be wider than the console."""
    others = list(range(1, len(found)))
    tables: list[Table] = []
    for many in range(max(1, len(others)), 0, -1):
        tables = []
        for start in range(0, max(1, len(others)), many):
            chosen = others[start : start + many]
            tables.append(
                evaluation_table(
                    [found[at] for at in (0, *chosen)],
                    [metrics[at] for at in (0, *chosen)],
                    [differences[at - 1] for at in chosen],
                    None if start else known,
                )
            )
        room = console.options.update(max_width=10_000)
        if all(console.measure(table, options=room).maximum <= console.width for table in tables):
            break
    return tables


def evaluation_table(
    found: list[JudgedRuns],
    metrics: list[dict[str, Estimate]],
    differences: list[dict[str, Difference]],
    known: dict[str, Estimate] | None,
) -> Table:
    """A line a metric: each model, and by how much the first exceeds it."""
    names = [one.name + (f", {len(one.runs)} runs" if len(one.runs) > 1 else "") for one in found]
    columns = metric_columns(names, metrics, differences, known)
    table = Table("metric", box=None, padding=(0, 2, 0, 0))
    for head, _ in columns:
        # A cell has two lines, and so may its head.
        table.add_column(escape(head).replace(" (", "\n("), justify="right", overflow="fold")
    for name in metrics[0]:
        size = max(abs(one[name].value or 0.0) for one in metrics)
        title = fill(found[0].together.title_of(name), 16)
        table.add_row(title, *(estimate_cell(of(name), size) for _, of in columns))
    return table


def estimate_cell(found: Any, size: float) -> str:
    """A value, and beneath it the interval; `size`: the largest value in its line."""
    if found.value is None:
        return "none"
    value = shown(found.value, size=size)
    if found.low is None:
        return value
    low, high = (shown(end, size=size, digits=3) for end in (found.low, found.high))
    return f"{value}\n[dim]{low} to {high}[/dim]"
