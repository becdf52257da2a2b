"""Published results as Markdown: the tables of docs/results.md and docs/index.md."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from onlinecde.evaluation.metrics import better, metric_title
from onlinecde.experiments import Summary
from onlinecde.experiments.publishing import read_published, read_results
from onlinecde.experiments.rendering import (
    beside,
    cost,
    evaluations,
    grid_markdown,
    made_on,
    measured,
    short_commit,
)
from onlinecde.experiments.summary import Entry

MORE = {"auc": ("auprc", "utility")}
"""Metrics shown beside the one a row is judged by, where the runs have them."""


@dataclass(frozen=True)
class PublishedTable:
    """One file of results/."""

    file: Path

    @cached_property
    def summary(self) -> Summary:
        return read_published(self.file)

    @cached_property
    def told(self) -> dict[str, Any]:
        return read_results(self.file)

    @property
    def command(self) -> str:
        return self.told["command"]

    @property
    def accuracy(self) -> str:
        """Ours beside the published, the best of ours in each row in bold."""
        return self._grid(lambda entry: _bold(beside(entry), measured(entry), self._best(entry)))

    @property
    def ours(self) -> str:
        """Ours alone."""
        return self._grid(lambda entry: _bold(measured(entry), measured(entry), self._best(entry)))

    @property
    def evaluations(self) -> str:
        return self._grid(evaluations, metrics=False)

    @property
    def cost(self) -> str:
        return self._grid(cost, metrics=False)

    def models(self, row: str) -> str:
        """A line a model: metrics, seconds an epoch, memory."""
        entries = [self.summary.entry(row, column.name) for column in self.summary.table.columns]
        entries = [entry for entry in entries if entry.results]
        metric = entries[0].row.metric
        more = [
            name
            for name in MORE.get(metric, ())
            if all(_metric(run, name) is not None for entry in entries for run in entry.results)
        ]
        titles = [metric_title(metric), *map(metric_title, more)]
        lines = [f"| model | {' | '.join(titles)} | an epoch | weights |"]
        lines.append("|---" + "|---:" * (len(titles) + 2) + "|")
        for entry in entries:
            cells = [_bold(measured(entry), measured(entry), self._best(entry))]
            cells += [_mean(entry, name) for name in more]
            weights = self._place(row, entry.column)["weights"]
            cells += [cost(entry), f"{weights:,}"]
            lines.append(f"| {entry.column} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def by_fold(self, row: str, first: str) -> str:
        """A line a model, a column a fold; then by how much `first` exceeds it, ± the deviation over folds."""
        found = {
            name: {run["fold"]: run["test"] for run in entry.results}
            for (of, name), entry in self.summary.entries.items()
            if of == row and entry.results
        }
        folds, mine = sorted({n for runs in found.values() for n in runs}), found.get(first, {})
        lines = [f"| model | {' | '.join(f'fold {n}' for n in folds)} | mean | {first} less this |"]
        lines.append("|---" + "|---:" * (len(folds) + 2) + "|")
        for name, runs in found.items():
            cells = [f"{runs[n]:.3f}" if n in runs else "" for n in folds]
            cells.append(f"{fmean(runs.values()):.3f}")
            less = [mine[n] - runs[n] for n in folds if n in runs and n in mine]
            spread = f" ± {stdev(less):.3f}" if len(less) > 1 else ""
            cells.append("" if name == first or not less else f"{fmean(less):+.3f}{spread}")
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def streams(self, row: str) -> int:
        """Series of a row's data set, all splits together."""
        return max(
            sum(place["streams"].values()) for place in self.told["places"] if place["row"] == row
        )

    def has(self, row: str) -> bool:
        return any(place["row"] == row for place in self.told["places"])

    @property
    def cut_short(self) -> str:
        """Which rows have runs that ended before their own rule would have ended them, and how many."""
        told = []
        for row in dict.fromkeys(place["row"] for place in self.told["places"]):
            runs = [
                run["epochs"] < min(fit["epochs"], run["best_epoch"] + fit["stop"])
                for place in self.told["places"]
                if place["row"] == row
                for fit in [place["settings"]["fit"]]
                for run in place["runs"]
            ]
            if any(runs):
                told.append(f"{sum(runs)} of the {len(runs)} runs of {row}")
        return " and ".join(told)

    @property
    def source(self) -> str:
        """The command, what it took, and where."""
        results = self.summary.results
        spent = sum(run["seconds"] for run in results)
        seeds = sorted({run["seed"] for run in results})
        at_once = {run["hardware"].get("side_by_side", 1) for run in results} - {1}
        load = f", {' or '.join(map(str, sorted(at_once)))} runs at a time" if at_once else ""
        return (
            f"`{self.command}`; {len(results)} run{'s' * (len(results) > 1)} (seed{'s' * (len(seeds) > 1)} "
            f"{', '.join(map(str, seeds))}), {_duration(spent)} of training{load}. {made_on(self.summary)} "
            f"All numbers: [results/{self.file.name}](../results/{self.file.name})."
        )

    def _grid(self, cell: Any, *, metrics: bool = True) -> str:
        return "\n".join(
            grid_markdown(
                self.summary,
                lambda entry: cell(entry) if entry.results or entry.failures else "",
                metrics=metrics,
            )
        )

    def _best(self, entry: Entry) -> bool:
        """Whether an entry is the best of its row, among two or more."""
        row = [
            mean
            for (name, _), other in self.summary.entries.items()
            if name == entry.row.name and (mean := other.mean()) is not None
        ]
        if len(row) < 2 or entry.mean() is None:
            return False
        top = max(row) if better(entry.row.metric) == "max" else min(row)
        return entry.mean() == top

    def _place(self, row: str, column: str) -> dict[str, Any]:
        return next(p for p in self.told["places"] if (p["row"], p["column"]) == (row, column))


@dataclass(frozen=True)
class PublishedComparison:
    """One model beside others on the same subjects: what `onlinecde evaluate --json` wrote."""

    file: Path
    told: dict[str, Any]

    @property
    def command(self) -> str:
        return self.told["command"]

    @property
    def first(self) -> str:
        return self.told["evaluation"]["model"]

    @property
    def each(self) -> str:
        """What one run of each model is worth, the mean over its runs."""
        runs = self.told.get("runs")
        if runs is None:
            return ""
        return self._table([one["mean"] for one in runs], self.told["mean_differences"])

    @property
    def together(self) -> str:
        """The mean of the probabilities of a model's runs (of its only run, where it has one)."""
        metrics = [one["metrics"] for one in (self.told["evaluation"], *self.told["against"])]
        return self._table(metrics, self.told["differences"])

    @property
    def folds(self) -> list[str]:
        """The folds that were tested."""
        found = [one["fold"] for one in self.told["evaluation"].get("folds", [])]
        if not found:
            raise SystemExit(f"{self.file} is of one split: evaluate runs of folds into it.")
        return found

    def difference(self, against: str | None = None, metric: str = "auc") -> dict[str, Any]:
        """By how much one run of the first exceeds another model; default: the best of them."""
        names = [one["model"] for one in self.told["against"]]
        found = self.told.get("mean_differences") or self.told["differences"]
        if against is None:
            at = min(range(len(names)), key=lambda place: found[place][metric]["value"])
        else:
            at = names.index(against)
        return {"model": names[at], **found[at][metric]}

    def value(self, metric: str = "auc") -> dict[str, Any]:
        runs = self.told.get("runs")
        return (runs[0]["mean"] if runs else self.told["evaluation"]["metrics"])[metric]

    @property
    def source(self) -> str:
        evaluation, hardware = self.told["evaluation"], self.told["hardware"]
        where = hardware.get("gpu") or hardware["processor"]
        commit = short_commit(self.told["commit"])
        return (
            f"`{self.command}`; {evaluation['subjects']:,} patients, "
            f"{evaluation['labels_given']:,} hours of which {evaluation['positive']:,} are labelled 1; "
            f"{evaluation['bootstrap']:,} resamples. Commit {commit}, on {where}. "
            f"All numbers: [results/{self.file.name}](../results/{self.file.name})."
        )

    def _table(self, metrics: list[dict[str, Any]], differences: list[dict[str, Any]]) -> str:
        shown = [name for name in ("auc", "auprc", "utility") if name in metrics[0]]
        titles = [metric_title(name) for name in shown]
        lines = [f"| model | {' | '.join(titles)} | {titles[0]}, {self.first} less this |"]
        lines.append("|---" + "|---:" * (len(shown) + 1) + "|")
        names = [one["model"] for one in (self.told["evaluation"], *self.told["against"])]
        for number, (name, found) in enumerate(zip(names, metrics, strict=True)):
            cells = [interval(found[metric]) for metric in shown]
            cells.append(interval(differences[number - 1][shown[0]], sign="+") if number else "")
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join(lines)


def interval(found: dict[str, Any], sign: str = "") -> str:
    """A value and its interval."""
    if found["value"] is None:
        return "none"
    told = f"{found['value']:{sign}.3f}"
    if found["low"] is None:
        return told
    return f"{told} ({found['low']:{sign}.3f} to {found['high']:{sign}.3f})"


def _bold(text: str, part: str, best: bool) -> str:
    return text.replace(part, f"**{part}**", 1) if best else text


def _metric(run: Any, name: str) -> float | None:
    return (run.get("test_metrics") or {}).get(name)


def _mean(entry: Entry, name: str) -> str:
    found = [value for run in entry.results if (value := _metric(run, name)) is not None]
    told = f"{fmean(found):.3f}"
    return told if len(found) < 2 else f"{told} ± {stdev(found):.3f}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
