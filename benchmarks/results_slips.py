"""The slips of the paper's code as Markdown: tables of docs/results.md with the difference each makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

from benchmarks.results_tables import PublishedTable
from onlinecde.experiments import load_table
from onlinecde.experiments.rendering import beside, pair, places
from onlinecde.experiments.summary import Entry

SLIPS = {
    "slip-test-file-twice": "The test file read twice",
    "slip-left-slope": "The slope of the piece before",
    "slip-scaling": "Scaled before the split",
    "slip-padding": "Padding that moves",
    "slip-static": "Static features for one model alone",
}
"""Tables of slips and their titles, in the order of the page."""


@dataclass(frozen=True)
class Difference:
    """A slip less the clean, at one row."""

    slip: Entry
    clean: Entry

    @cached_property
    def values(self) -> list[float]:
        """One for each seed that both have, in the row's units."""
        ours, clean = _by_seed(self.slip), _by_seed(self.clean)
        return [ours[seed] - clean[seed] for seed in ours if seed in clean]

    @property
    def deviation(self) -> float | None:
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def larger(self) -> bool:
        """Whether it is larger than its deviation."""
        return self.deviation is not None and abs(fmean(self.values)) > self.deviation

    def __str__(self) -> str:
        """Mean and deviation, with as many digits as the clean number; empty without a seed of both."""
        clean = self.clean.mean()
        if not self.values or clean is None:
            return ""
        digits = len(pair(clean, None, self.clean).partition(".")[2])
        told = f"{fmean(self.values):+z.{digits}f}"
        return told if self.deviation is None else f"{told} ± {self.deviation:.{digits}f}"


@dataclass(frozen=True)
class SlipTable:
    """The file of one slip. Columns come in twos: with the slip, and clean."""

    name: str
    published: PublishedTable

    @property
    def title(self) -> str:
        return SLIPS[self.name]

    @property
    def about(self) -> str:
        return self.published.summary.table.about.strip()

    @property
    def source(self) -> str:
        return self.published.source

    @cached_property
    def twos(self) -> list[tuple[str, str]]:
        """Names of the columns: slip and clean. The file cannot tell which is which where one is missing."""
        names = [column.name for column in load_table(self.name).columns]
        found = [column.name for column in self.published.summary.table.columns]
        if unknown := [name for name in found if name not in names]:
            raise SystemExit(
                f"{self.published.file} has a column '{unknown[0]}', which the table '{self.name}' has not: "
                f"publish it again with `{self.published.command} --publish {self.published.file.parent}`."
            )
        return list(zip(names[::2], names[1::2], strict=True))

    @cached_property
    def rows(self) -> dict[str, list[Difference]]:
        """By row, a difference for each two columns; rows of which nothing was run are not there."""
        entries = self.published.summary.entries
        found = {}
        for row in self.published.summary.table.rows:
            differences = [
                Difference(*(entries.get((row.name, name), Entry(row, name, None)) for name in two))
                for two in self.twos
            ]
            if any(_shown(one.slip) or _shown(one.clean) for one in differences):
                found[row.name] = differences
        return found

    @property
    def table(self) -> str:
        """Ours beside the published, slip and clean, and their difference."""
        titles, _, _ = places(self.published.summary)
        heads = [head for two in self.twos for head in (*two, "difference")]
        lines = [
            f"| {self.published.summary.table.down} | {' | '.join(heads)} |",
            "|---" + "|---:" * len(heads) + "|",
        ]
        for row, differences in self.rows.items():
            cells = [
                cell
                for one in differences
                for cell in (_shown(one.slip), _shown(one.clean), str(one))
            ]
            lines.append(f"| {titles[row]} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    @property
    def larger(self) -> list[str]:
        """The differences larger than their deviation, in words."""
        return [
            f"{row}{f', {one.slip.column}' if len(self.twos) > 1 else ''}: {one}"
            for row, differences in self.rows.items()
            for one in differences
            if one.larger
        ]


def slips_for(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the page tells of slips: tables of those in `found`, names of the others, and what stands out."""
    tables = [
        SlipTable(name, found[key]) for name in SLIPS if (key := name.replace("-", "_")) in found
    ]
    measured = {table.name for table in tables}
    return {
        "slips": tables,
        "unmeasured": [name for name in SLIPS if name not in measured],
        "larger": larger(tables),
    }


def larger(tables: Iterable[SlipTable]) -> str:
    """How many differences are larger than their deviation, and which; empty where none has one."""
    tables = list(tables)
    judged = sum(
        one.deviation is not None
        for table in tables
        for differences in table.rows.values()
        for one in differences
    )
    if not judged:
        return ""
    told = [f"{table.title} ({'; '.join(table.larger)})" for table in tables if table.larger]
    many = sum(len(table.larger) for table in tables)
    named = f" {'. '.join(told)}." if told else ""
    return f"Differences larger than their deviation: {many} of {judged}.{named}"


def _by_seed(entry: Entry) -> dict[int, float]:
    runs = [run for run in entry.results if run["test"] is not None]
    return {run["seed"]: value for run, value in zip(runs, entry.values(), strict=True)}


def _shown(entry: Entry) -> str:
    return beside(entry) if entry.results or entry.failures else ""
