"""The exclusion flow: how many stays are left after each question, as in the paper's figure."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from onlinecde.data.mimic.folder import MimicFolder
from onlinecde.data.mimic.settings import MimicSettings

PAPER_FLOW: dict[str, int] = {
    "ICU stays": 76_540,
    "with any variable of interest": 76_539,
    "of 4 to 72 hours": 51_508,
    "mortality": 50_538,
    "los": 16_054,
    "sepsis": 45_218,
}
"""The numbers in the paper (MIMIC-IV 1.0), to set beside one's own."""


@dataclass(frozen=True)
class Step:
    """One box of the flow: what the stays in it have, and how many they are."""

    what: str
    stays: int


@dataclass(frozen=True)
class MimicReport:
    """What became of the stays of a folder, for the cohort and then for each task."""

    source: str
    layout: str
    settings: MimicSettings
    cohort: tuple[Step, ...]
    tasks: dict[str, tuple[Step, ...]]
    labels: dict[str, str]
    """For each task, its labels in words."""
    notes: tuple[str, ...]
    """What the folder lacks, and what was done instead."""

    def text(self) -> str:
        """The flow as lines to print."""
        settings = next(
            (name for name in ("clean", "paper") if MimicSettings.named(name) == self.settings),
            "of your own",
        )
        lines = [
            f"MIMIC-IV at {self.source} (release {self.layout}), settings: {settings}",
            *_draw(self.cohort, None),
        ]
        for name, steps in self.tasks.items():
            lines += [f"{name}: {self.labels[name]}", *_draw(steps, self.cohort[-1].stays)]
        if self.notes:
            lines += ["not as in a full release:", *(f"  - {note}" for note in self.notes)]
        return "\n".join(lines)


def _draw(steps: tuple[Step, ...], before: int | None) -> list[str]:
    lines = []
    for step in steps:
        gone = "" if before is None else f"  (-{before - step.stays:,})"
        lines.append(f"  {step.stays:>7,}  {step.what}{gone}")
        before = step.stays
    return lines


def build_report(
    connection: duckdb.DuckDBPyConnection, folder: MimicFolder, settings: MimicSettings
) -> MimicReport:
    """Count the stays left after each question; needs the tables of all concepts."""
    s = settings
    cohort = [
        ("ICU stays", "true"),
        ("with any variable of interest", "observed"),
        (f"of {s.hours_least:g} to {s.hours_most:g} hours", "right_length"),
        (f"with readings at {s.rows_least} or more times", "enough_rows"),
    ]
    if s.monitored_run:
        cohort.append(("not charted minute by minute", "not_monitored"))
    los = (
        f"of {s.los_hours:g} to {s.hours_most:g} hours"
        if s.los_rule == "stay of 24 to 72 h"
        else f"without a reading after {s.los_hours:g} hours (the rule of the paper's code)"
    )
    sepsis = [
        (f"with an onset of sepsis after {s.onset_least_hours:g} hours, or none", "onset_later"),
        (
            f"with {s.rows_least} or more rows until {s.sepsis_hours_after:g} h after it",
            "long_enough",
        ),
    ]
    if s.drop_antibiotics_before_icu:
        sepsis.insert(0, ("without antibiotics before the ICU", "untreated"))
    dead = _number(connection, "select sum(label) from mortality")
    days = _number(connection, "select avg(label) from length_of_stay where chosen")
    septic = _number(
        connection, "select count(*) from sepsis_stays where chosen and onset is not null"
    )
    rows = _number(connection, "select count(*) from sepsis_rows")
    ones = _number(connection, "select sum(label) from sepsis_rows")
    return MimicReport(
        source=str(folder.path),
        layout=folder.layout,
        settings=settings,
        cohort=_count(connection, "cohort", cohort),
        tasks={
            "mortality": _count(connection, "mortality", [("in the task", "chosen")]),
            "los": _count(
                connection,
                "length_of_stay",
                [
                    (los, "of_length"),
                    (
                        f"with {s.los_rows_least} or more rows by {s.los_hours:g} hours",
                        "long_enough",
                    ),
                ],
            ),
            "sepsis": _count(connection, "sepsis_stays", sepsis),
        },
        labels={
            "mortality": f"{dead:.0f} died in hospital",
            "los": f"{days:.2f} days on average",
            "sepsis": f"{septic:.0f} stays with sepsis, {ones:.0f} of {rows:.0f} rows positive",
        },
        notes=folder.notes + _notes_on_content(connection),
    )


def _number(connection: duckdb.DuckDBPyConnection, sql: str) -> float:
    value = connection.execute(sql).fetchall()[0][0]
    return float("nan") if value is None else float(value)


def _count(
    connection: duckdb.DuckDBPyConnection, table: str, questions: list[tuple[str, str]]
) -> tuple[Step, ...]:
    """Stays of the table for which the first question, the first two, ... are answered with yes."""
    steps, asked = [], []
    for what, question in questions:
        asked.append(question)
        many = _number(connection, f"select count(*) from {table} where {' and '.join(asked)}")
        steps.append(Step(what, int(many)))
    return tuple(steps)


def _notes_on_content(connection: duckdb.DuckDBPyConnection) -> tuple[str, ...]:
    """What columns that are there turn out not to hold."""
    notes = []
    texts = "words is not null and try_cast(words as double) is null"
    if not _number(connection, f"select count(*) from charted where {texts}"):
        notes.append(
            "chartevents holds no texts: ventilation is taken from procedureevents, and a verbal "
            "response of 1 under ventilation is taken for a tube"
        )
    if not _number(connection, f"select count(*) from measured where {texts}"):
        notes.append("labevents holds no texts: every blood gas is taken for arterial")
    return tuple(notes)
