"""What a person sees while a model is fitted, settings are searched, or a table is run."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from onlinecde.evaluation.bootstrap import shown
from onlinecde.scoring.files import Display
from onlinecde.training.callbacks import Callback

if TYPE_CHECKING:
    from onlinecde.experiments import Cell
    from onlinecde.tuning.study import TrialReport

STYLES = {"complete": "", "pruned": "dim", "failed": "red", "running": "yellow"}
"""How a trial is written, by its state."""


def as_text(value: Any) -> str:
    """A setting in few characters."""
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


class _Bar(Callback):
    """On a terminal, a bar that moves while work is under way."""

    _progress: Progress

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()


class FitDisplay(_Bar):
    """Prints each epoch; on a terminal also a bar with the batches, the speed and the time left.

    `rows`: rows of the training split, for the speed. `epochs`: how many there are at most.
    """

    def __init__(self, metric: str, rows: int, epochs: int, console: Console | None = None) -> None:
        self.metric, self.rows, self.epochs = metric, rows, epochs
        self.console = console or Console()
        self._shown_header = False
        self._spent: list[float] = []
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} batches"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=1, epoch=1, loss="", left="")

    def data(self, task: Any, epochs: int) -> None:
        self.metric, self.epochs = task.metric, epochs
        self.rows = int(task.series.rows[task.splits["train"]].sum())

    def batch(self, epoch: int, done: int, batches: int, loss: float) -> None:
        self._progress.update(
            self._bar, total=batches, completed=done, epoch=epoch, loss=shown(loss)
        )

    def epoch(self, entry: dict[str, Any], best: bool) -> None:
        if not self._shown_header:
            self._shown_header = True
            self.console.print(
                f"{'epoch':>6}  {'train loss':>10}  {'valid loss':>10}  {self.metric:>10}  "
                f"{'nfe':>8}  {'rows/s':>8}  {'seconds':>8}",
                style="bold",
                highlight=False,
            )
        self._spent.append(entry["seconds"])
        value = entry[f"validation_{self.metric}"]
        said = "-" if value is None else shown(value)
        speed = self.rows / max(entry["seconds"], 1e-9)
        self.console.print(
            f"{entry['epoch']:>6}  {shown(entry['train_loss']):>10}  {shown(entry['validation_loss']):>10}  "
            f"{said:>10}  {entry['nfe']:>8,}  {speed:>8,.0f}  {entry['seconds']:>8.2f}"
            + ("  best" if best else ""),
            highlight=False,
        )
        recent = self._spent[-5:]
        left = sum(recent) / len(recent) * (self.epochs - entry["epoch"])
        self._progress.update(self._bar, completed=0, left=f"at most {_duration(left)} left")

    def note(self, text: str) -> None:
        style = "bold yellow" if text.startswith("warning") else "dim"
        self.console.print(f"        {text}", style=style, highlight=False)


class TuneDisplay(Callback):
    """Prints a line when a trial begins and one when it ends."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def begin(self, job: TrialReport, number: int, jobs: int) -> None:
        more = " (taken up again)" if job.attempts > 1 else ""
        settings = ", ".join(f"{name} {as_text(value)}" for name, value in job.settings.items())
        self._say(f"trial {job.number}: {settings}{more}", "dim")

    def end(self, job: TrialReport, result: Mapping[str, Any]) -> None:
        said = job.state if job.value is None else shown(job.value)
        more = f": {job.reason}" if job.reason else ""
        self._say(
            f"trial {job.number}: {said}, {job.epochs} epochs, {job.seconds or 0:.1f} s{more}",
            STYLES[job.state],
        )

    def note(self, text: str) -> None:
        self._say(text, "yellow")

    def _say(self, text: str, style: str) -> None:
        self.console.print(Text(text, style=style), soft_wrap=True)


class GridDisplay(_Bar):
    """One line a cell; on a terminal also a bar with the epochs of the one that runs."""

    def __init__(self, console: Console) -> None:
        self.console, self._running = console, False
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("epoch {task.completed:.0f} of at most {task.total:.0f}"),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=1, said="", visible=False)

    def begin(self, job: Cell, number: int, jobs: int) -> None:
        self._running = True
        self._progress.reset(
            self._bar,
            total=job.fit["epochs"],
            description=f"{number}/{jobs} {job.title}",
            said="",
            visible=True,
        )

    def end(self, job: Cell, result: Mapping[str, Any]) -> None:
        self._running = False
        self._progress.update(self._bar, visible=False)
        name = f"{job.table}: {job.title}"
        if result["status"] == "failed":
            text = Text.assemble((f"{name}: failed: ", "bold red"), result["reason"])
            self.console.print(text, soft_wrap=True)
            return
        value = result["test"]
        said = "no value" if value is None else f"{value:.4f}"
        self.console.print(
            f"{name}: {job.row.metric} {said}, {result['epochs']} epochs, "
            f"{result['seconds']:.1f} s",
            highlight=False,
            soft_wrap=True,
        )

    def batch(self, epoch: int, done: int, batches: int, loss: float) -> None:
        part = epoch - 1 + done / batches
        self._progress.update(self._bar, completed=part, said=f"loss {loss:.4f}")

    def epoch(self, entry: dict[str, Any], best: bool) -> None:
        self._progress.update(self._bar, completed=entry["epoch"])

    def note(self, text: str) -> None:
        if self._running:
            self._progress.update(self._bar, said=text)
        else:
            self.console.print(text, style="dim", highlight=False, soft_wrap=True)


class ScoringDisplay(Display):
    """On a terminal, a bar for each stage of a scoring, with the time left; elsewhere nothing."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self.console = console
        self._progress = Progress(
            TextColumn("{task.description:8}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._progress.stop()

    def stage(self, name: str, share: float) -> None:
        """A stage has come so far, 0 to 1."""
        for other, bar in self._bars.items():
            if other != name:
                self._progress.update(bar, visible=False)
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=1.0)
        self._progress.update(self._bars[name], completed=share)

    def note(self, text: str) -> None:
        self.console.print(text, style="dim", highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
