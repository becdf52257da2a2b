"""What a person sees of a search: a line a trial, and in the end all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onlinecde.cli.crew import last_words, work_together
from onlinecde.evaluation.estimates import shown
from onlinecde.tuning.search import read_study
from onlinecde.tuning.spaces import TuneError
from onlinecde.tuning.study import DATABASE, TrialReport, Tuned

_STYLES = {"complete": "", "pruned": "dim", "failed": "red", "running": "yellow"}


class TuneDisplay:
    """Prints a line when a trial begins and one when it ends."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def begin(self, number: int, settings: Mapping[str, Any], again: bool) -> None:
        more = " (taken up again)" if again else ""
        self._say(f"trial {number}: {_told(settings)}{more}", "dim")

    def epoch(self, number: int, entry: Mapping[str, Any]) -> None:
        pass

    def end(self, trial: TrialReport) -> None:
        said = trial.state if trial.value is None else shown(trial.value)
        more = f": {trial.reason}" if trial.reason else ""
        self._say(
            f"trial {trial.number}: {said}, {trial.epochs} epochs, {trial.seconds or 0:.1f} s{more}",
            _STYLES[trial.state],
        )

    def note(self, text: str) -> None:
        """Something worth knowing."""
        self._say(text, "yellow")

    def _say(self, text: str, style: str) -> None:
        self.console.print(Text(text, style=style), soft_wrap=True)


def as_rich(found: Tuned) -> Table:
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
            *[_number(trial.settings.get(name)) for name in names],
            "-" if trial.value is None else shown(trial.value),
            str(trial.epochs),
            "-" if trial.seconds is None else f"{trial.seconds:.1f}",
            "best" if is_best else "" if trial.state == "complete" else trial.state,
            style="bold green" if is_best else _STYLES[trial.state],
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


def search_together(
    workers: int, out: Path, arguments: Sequence[str], display: TuneDisplay
) -> Tuned:
    """Let several processes search in one folder, and tell of each trial as it ends.

    A process that dies is not replaced: the others take up its trial.
    """
    told: set[int] = set()
    seen: list[int] = []

    def news() -> None:
        nonlocal seen
        if (now := _changed(out)) != seen:
            seen = now
            _tell_news(out, told, display)

    any_ended = work_together(workers, out, ["tune", *arguments], news=news, note=display.note)
    if not any_ended or not (out / DATABASE).is_file():
        raise TuneError(f"no worker came to an end: {last_words(out)}")
    return read_study(out)


def _changed(out: Path) -> list[int]:
    """Differs when the study was written to."""
    files = [file for file in (out / DATABASE, out / f"{DATABASE}-wal") if file.exists()]
    return [file.stat().st_mtime_ns for file in files]


def _tell_news(out: Path, told: set[int], display: TuneDisplay) -> None:
    if not (out / DATABASE).is_file():
        return
    try:
        trials = read_study(out).trials
    except Exception:  # the first worker is still making the study
        return
    for trial in trials:
        if trial.state != "running" and trial.number not in told:
            told.add(trial.number)
            display.end(trial)


def _told(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in settings.items())


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)
