"""What a person sees while a model is fitted: one line an epoch, and a bar that moves."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from onlinecde.evaluation.estimates import shown


class FitDisplay:
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

    def __enter__(self) -> FitDisplay:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

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


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
