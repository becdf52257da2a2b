"""What a table's cells came to: means, deviations and costs beside the published numbers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onlinecde.experiments.cells import Cell
from onlinecde.experiments.protocols import Budget, Protocol
from onlinecde.experiments.running import read_result
from onlinecde.experiments.table import Published, Row, Table


@dataclass(frozen=True)
class Entry:
    """One place of a table: the runs over all folds and seeds."""

    row: Row
    column: str
    published: Published | None
    results: tuple[Mapping[str, Any], ...] = ()
    """Of the runs that are done, one a seed, or one a fold and seed."""
    failures: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    """The runs there should be."""
    missing: str = ""
    """Why there is no data, where there is none."""

    def values(self, name: str = "test") -> list[float]:
        """A number of each run that has it, in the row's units (per cent for accuracy)."""
        values = [result[name] for result in self.results if result.get(name) is not None]
        scale = 100.0 if self.row.percent and name in ("test", "validation") else 1.0
        return [scale * value for value in values]

    def mean(self, name: str = "test") -> float | None:
        values = self.values(name)
        return statistics.fmean(values) if values else None

    def deviation(self, name: str = "test") -> float | None:
        """Over the runs, with n - 1; None for a single one."""
        values = self.values(name)
        return statistics.stdev(values) if len(values) > 1 else None

    @property
    def nfe(self) -> float | None:
        """In thousands an epoch; None for models without a solver."""
        evaluations = self.mean("nfe_per_epoch")
        return evaluations / 1000 if evaluations else None

    @property
    def state(self) -> str:
        """What stands where a number should: "failed", "no data", "not run", "undefined" or ""."""
        if self.mean() is not None:
            return ""
        if self.failures:
            return "failed"
        if self.missing:
            return "no data"
        return "undefined" if self.results else "not run"


@dataclass(frozen=True)
class Summary:
    """A table with its numbers."""

    table: Table
    protocol: str
    budget: str
    demo: bool
    entries: Mapping[tuple[str, str], Entry]
    """By row and column."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers must know."""
    folder: Path = field(default_factory=Path)

    def entry(self, row: str, column: str) -> Entry:
        return self.entries[row, column]

    @property
    def results(self) -> list[Mapping[str, Any]]:
        return [result for entry in self.entries.values() for result in entry.results]


def summarise(
    table: Table, cells: Sequence[Cell], folder: Path, missing: Mapping[str, str] | None = None
) -> Summary:
    """Collect the results of a table's cells from the output folder.

    `missing` says, by data set and task, why data is not there.
    """
    missing = missing or {}
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    wanted: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        place = cell.row.name, cell.column.name
        wanted.setdefault(place, []).append(cell)
        result = read_result(folder / cell.place, cell)
        if result is not None:
            results.setdefault(place, []).append(result)
    entries = {}
    for row in table.rows:
        for column in table.columns:
            place = row.name, column.name
            runs = results.get(place, [])
            entries[place] = Entry(
                row=row,
                column=column.name,
                published=row.published.get(column.name),
                results=tuple(r for r in runs if r["status"] == "done"),
                failures=tuple(r["reason"] for r in runs if r["status"] == "failed"),
                cells=tuple(wanted.get(place, ())),
                missing=missing.get(row.data, ""),
            )
    first = cells[0]
    kind = first.place.parts[0]
    return Summary(
        table=table,
        protocol=first.protocol.name,
        budget=first.budget.name,
        demo=first.demo,
        entries=entries,
        notes=notes_on(table, first.protocol, first.budget, first.demo, entries, missing),
        folder=folder / kind,
    )


def notes_on(
    table: Table,
    protocol: Protocol,
    budget: Budget,
    demo: bool,
    entries: Mapping[tuple[str, str], Entry],
    missing: Mapping[str, str],
) -> tuple[str, ...]:
    """What a reader of the numbers must know."""
    notes = [
        f"Protocol {protocol.name}: {protocol.what}.",
        f"Budget {budget.name}: {budget.what}.",
    ]
    runs = {len(entry.results) for entry in entries.values() if entry.results}
    if runs:
        counts = f"{min(runs)}" if len(runs) == 1 else f"{min(runs)} to {max(runs)}"
        notes.append(
            "One run each."
            if runs == {1}
            else f"Means over {counts} runs, ± one deviation (n - 1)."
        )
    if table.folds:
        notes.append(
            f"Each run tests one of {table.folds} folds and is trained on the others; the validation streams are "
            "the data set's own, and are not tested. ± is over folds: other streams, and training anew."
        )
    if demo:
        notes.append("On the demo of MIMIC-IV, 100 patients: the numbers mean nothing.")
    if any(entry.nfe for entry in entries.values()):
        counted = {r["nfe_counted"] for e in entries.values() for r in e.results}
        adaptive = ", ".join(f"{name} {value}" for name, value in table.solver.items())
        if "one epoch of the trained model" in counted:
            notes.append(
                f"Trained with rk4, one step a piece; NFE counted with {adaptive} in the forward "
                "passes of one epoch of the trained model."
            )
        else:
            notes.append("NFE: thousands of vector-field evaluations an epoch, as trained.")
    if any(entry.published for entry in entries.values()):
        notes.append("In brackets: the numbers published in the paper.")
    for place, entry in entries.items():
        for reason in dict.fromkeys(entry.failures):
            notes.append(f"Failed: {'/'.join(place)}: {reason}")
    for reason in dict.fromkeys(missing.values()):
        names = ", ".join(name for name, why in missing.items() if why == reason)
        notes.append(f"No data for {names}: {reason}")
    return tuple(notes)
