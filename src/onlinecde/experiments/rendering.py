"""A summary as Markdown, CSV, LaTeX and a picture, ours beside the published."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from onlinecde.evaluation.metrics import better
from onlinecde.experiments.summary import Entry, Summary
from onlinecde.files import replace_file
from onlinecde.plots.accuracy_cost import CostPanel, CostPoint

_CSV = (
    *("table", "protocol", "budget", "row", "column", "metric", "runs", "state", "test_mean"),
    *("test_std", "published_mean", "published_std", "validation_mean", "nfe_thousands"),
    *("published_nfe_thousands", "seconds_per_epoch", "peak_memory_mib", "epochs"),
)

TITLES = {"auc": "AUC", "rmse": "RMSE", "accuracy": "accuracy, %"}


def write_tables(summary: Summary, figure: str | None = None) -> list[Path]:
    """Write NAME.md, NAME.csv, NAME.tex and, where anything was run, NAME-cost.png and .svg.

    `figure` names the picture otherwise.
    """
    from onlinecde.plots import save_figure
    from onlinecde.plots.accuracy_cost import accuracy_cost_figure

    folder, name = summary.folder, summary.table.name
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for ending, text in (
        ("md", as_markdown(summary)),
        ("csv", as_csv(summary)),
        ("tex", as_latex(summary)),
    ):
        file = folder / f"{name}.{ending}"
        replace_file(file, text)
        files.append(file)
    panels, axis = cost_panels(summary)
    if panels:
        files += save_figure(accuracy_cost_figure(panels, axis), folder, figure or f"{name}-cost")
    return files


def measured(entry: Entry) -> str:
    """Our mean and deviation, or why there is none."""
    mean = entry.mean()
    return entry.state if mean is None else pair(mean, entry.deviation(), entry)


def published(entry: Entry) -> str:
    """The paper's mean and deviation; empty where it has none."""
    paper = entry.published
    return "" if paper is None else pair(paper.mean, paper.std, entry)


def beside(entry: Entry) -> str:
    """Ours, and in brackets the paper's."""
    theirs = published(entry)
    return f"{measured(entry)} ({theirs})" if theirs else measured(entry)


def cost(entry: Entry) -> str:
    """Seconds an epoch, peak memory and where; of runs on a GPU and on a CPU, those on the GPU."""
    on_gpu = [run for run in entry.results if run["hardware"].get("gpu")]
    runs = replace(entry, results=tuple(on_gpu)) if on_gpu else entry
    seconds, memory = runs.mean("seconds_per_epoch"), runs.mean("peak_memory_bytes")
    if seconds is None:
        return ""
    text = f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    text += " on a GPU" if on_gpu else " on a CPU"
    return text if memory is None else f"{text}, {_bytes(memory)}"


def evaluations(entry: Entry) -> str:
    """Thousands of evaluations an epoch, ours (published)."""
    theirs = entry.published.nfe if entry.published else None
    if entry.nfe is None and theirs is None:
        return ""
    ours = "-" if entry.nfe is None else f"{entry.nfe:.3g}"
    return ours if theirs is None else f"{ours} ({theirs:g})"


def as_markdown(summary: Summary) -> str:
    """Accuracies, then costs, then notes."""
    table = summary.table

    lines = [f"# {table.title}", "", table.about.strip(), ""]
    lines += [f"Protocol `{summary.protocol}`, budget `{summary.budget}`.", ""]
    lines += grid_markdown(summary, beside)
    if any(evaluations(entry) for entry in summary.entries.values()):
        lines += ["", "## Evaluations of the vector field an epoch, in thousands", ""]
        lines += grid_markdown(summary, lambda entry: evaluations(entry) or "-", metrics=False)
    if any(cost(entry) for entry in summary.entries.values()):
        lines += ["", "## Time and peak memory", ""]
        lines += grid_markdown(summary, lambda entry: cost(entry) or "-", metrics=False)
    lines += ["", *[f"- {note}" for note in summary.notes]]
    lines += [f"- {made_on(summary)}"] if summary.results else []
    return "\n".join(lines) + "\n"


def as_csv(summary: Summary) -> str:
    """One line for each place of the table; accuracies in per cent, NFE in thousands."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)
    for (row, column), entry in summary.entries.items():
        paper, memory = entry.published, entry.mean("peak_memory_bytes")
        numbers = (
            entry.mean(),
            entry.deviation(),
            paper.mean if paper else None,
            paper.std if paper else None,
            entry.mean("validation"),
            entry.nfe,
            paper.nfe if paper else None,
            entry.mean("seconds_per_epoch"),
            None if memory is None else memory / 2**20,
            entry.mean("epochs"),
        )
        start = (summary.table.name, summary.protocol, summary.budget, row, column)
        state = entry.state or "done"
        writer.writerow(
            [*start, entry.row.metric, len(entry.results), state]
            + ["" if number is None else f"{number:.6g}" for number in numbers]
        )
    return text.getvalue()


def as_latex(summary: Summary) -> str:
    """A booktabs table: ours, and the published number below it in small grey."""
    table = summary.table

    def cell(entry: Entry) -> str:
        theirs = published(entry)
        ours = _maths(measured(entry))
        return f"\\shortstack{{{ours}\\\\\\scriptsize ({_maths(theirs)})}}" if theirs else ours

    down, across, place = places(summary)
    lines = [
        f"% {table.title}; protocol {summary.protocol}, budget {summary.budget}",
        f"\\begin{{tabular}}{{l{'c' * len(across)}}}",
        "\\toprule",
        " & ".join([table.down, *map(_escape, across.values())]) + r" \\",
        "\\midrule",
    ]
    for one, title in down.items():
        cells = [cell(place(one, other)) for other in across]
        lines.append(" & ".join([_escape(title), *cells]) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def places(
    summary: Summary, *, metrics: bool = True
) -> tuple[dict[str, str], dict[str, str], Callable[[str, str], Entry]]:
    """What stands down and across, by name with titles, and the entry at a place."""
    rows = {
        row.name: f"{row.name} ({TITLES.get(row.metric, row.metric)})" if metrics else row.name
        for row in summary.table.rows
    }
    columns = {column.name: column.name for column in summary.table.columns}
    if summary.table.transposed:
        return columns, rows, lambda column, row: summary.entry(row, column)
    return rows, columns, summary.entry


def cost_panels(summary: Summary) -> tuple[list[CostPanel], str]:
    """For each row with results, its columns against their cost; and what the cost is."""
    counted = any(entry.nfe for entry in summary.entries.values())
    every = all(entry.nfe for entry in summary.entries.values() if entry.results)
    axis = "evaluations an epoch, thousands" if counted and every else "seconds an epoch"
    panels = []
    for row in summary.table.rows:
        points = []
        for column in summary.table.columns:
            entry = summary.entry(row.name, column.name)
            paper = entry.published
            x = entry.nfe if axis.startswith("eval") else entry.mean("seconds_per_epoch")
            theirs = None
            if paper is not None and paper.nfe is not None and axis.startswith("eval"):
                theirs = paper.nfe, paper.mean
            mean = entry.mean()
            if mean is not None and x is not None:
                points.append(
                    CostPoint(column.name, (x, mean), entry.deviation() or 0.0, published=theirs)
                )
        if points:
            direction = "lower" if better(row.metric) == "min" else "higher"
            title = TITLES.get(row.metric, row.metric)
            panels.append(CostPanel(row.name, title, direction, points))
    return panels, axis


def grid_markdown(
    summary: Summary, cell: Callable[[Entry], str], *, metrics: bool = True
) -> list[str]:
    """The lines of a Markdown table with `cell` at each place."""
    down, across, place = places(summary, metrics=metrics)
    lines = [f"| {summary.table.down} | " + " | ".join(across.values()) + " |"]
    lines.append("|---" + "|---:" * len(across) + "|")
    for one, title in down.items():
        cells = [cell(place(one, other)) for other in across]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines


def pair(mean: float, deviation: float | None, entry: Entry) -> str:
    """Mean and deviation with the digits that count for the row's metric."""
    digits = 1 if entry.row.percent or (entry.row.metric == "rmse" and abs(mean) >= 1) else 3
    text = f"{mean:.{digits}f}"
    return text if deviation is None else f"{text} ± {deviation:.{digits}f}"


def made_on(summary: Summary) -> str:
    """Commits, versions and machines of the results."""

    def each(part: Callable[[dict], object]) -> str:
        return " and ".join(sorted({str(part(dict(result))) for result in summary.results}))

    where = each(
        lambda r: (
            r["hardware"].get("gpu")
            or f"{r['hardware']['processor']}, {r['hardware']['threads']} threads"
        )
    )
    return (
        f"Commit {each(lambda r: short_commit(r['commit']))}, onlinecde "
        f"{each(lambda r: r['versions']['onlinecde'])}, torch "
        f"{each(lambda r: r['versions']['torch'])}, on {where}."
    )


def short_commit(commit: str | None) -> str:
    """Twelve digits, and the "+" of a checkout with changes.

    >>> short_commit("0123456789abcdef+")
    '0123456789ab+'
    """
    return "unknown" if commit is None else commit[:12] + "+" * commit.endswith("+")


def _bytes(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _escape(text: str) -> str:
    for sign in "%&_#":
        text = text.replace(sign, f"\\{sign}")
    return text


def _maths(text: str) -> str:
    return f"${text.replace('±', chr(92) + 'pm')}$" if "±" in text else _escape(text)
