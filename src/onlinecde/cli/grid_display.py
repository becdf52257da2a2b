"""What a person sees while a table is run, and the table itself on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from onlinecde.cli.crew import last_words, work_together
from onlinecde.experiments import ExperimentError, Summary, Table, cells_of
from onlinecde.experiments.cells import Cell
from onlinecde.experiments.grid import forget_failures, grid_of
from onlinecde.experiments.rendering import cost, evaluations, measured, places, published
from onlinecde.experiments.running import read_result
from onlinecde.experiments.summary import Entry


class GridDisplay:
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

    def __enter__(self) -> GridDisplay:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, cell: Cell, number: int, cells: int) -> None:
        self._running = True
        self._progress.reset(
            self._bar,
            total=cell.fit["epochs"],
            description=f"{number}/{cells} {cell.title}",
            said="",
            visible=True,
        )

    def end(self, cell: Cell, result: Mapping[str, Any]) -> None:
        self._running = False
        self._progress.update(self._bar, visible=False)
        name = f"{cell.table}: {cell.title}"
        if result["status"] == "failed":
            text = Text.assemble((f"{name}: failed: ", "bold red"), result["reason"])
            self.console.print(text, soft_wrap=True)
            return
        value = result["test"]
        said = "no value" if value is None else f"{value:.4f}"
        self.console.print(
            f"{name}: {cell.row.metric} {said}, {result['epochs']} epochs, "
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


def run_together(
    workers: int,
    out: Path,
    arguments: Sequence[str],
    tables: Sequence[Table],
    asked: Mapping[str, Any],
    retry: bool,
    display: GridDisplay,
) -> None:
    """Let several processes run the cells of tables, and tell of each cell as it ends.

    What a process that died left undone is for whoever comes next.
    """
    cells = [
        cell
        for table in tables
        if table.kind != "command"
        for cell in cells_of(grid_of(table), **asked)
    ]
    if retry:
        forget_failures(cells, out)
    waiting = [cell for cell in cells if read_result(out / cell.place, cell) is None]
    if not waiting:
        return
    many = len(waiting)

    def news() -> None:
        for cell in tuple(waiting):
            if (result := read_result(out / cell.place, cell)) is not None:
                waiting.remove(cell)
                display.end(cell, result)

    display.note(f"{many} cells, {workers} at a time")
    came = work_together(
        workers,
        out,
        ["reproduce", *arguments],
        news=news,
        note=display.note,
    )
    if not came and len(waiting) == many:
        raise ExperimentError(f"no worker came to an end: {last_words(out)}")


def as_rich(summary: Summary) -> RichTable:
    """The table: ours, below it the published numbers, then what it cost."""
    down, across, place = places(summary)
    table = RichTable(
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
