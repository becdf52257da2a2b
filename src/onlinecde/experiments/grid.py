"""A table, run: what is missing is run, what is done is left, what fails is written down."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onlinecde.data import Task
from onlinecde.experiments.cells import Cell, cells_of
from onlinecde.experiments.rendering import write_tables
from onlinecde.experiments.running import RESULT, read_result, record_failure, run_cell
from onlinecde.experiments.sources import MissingDataError, cell_task
from onlinecde.experiments.summary import Summary, summarise
from onlinecde.experiments.table import ExperimentError, Table, load_table
from onlinecde.files import claim
from onlinecde.training.callbacks import Callback

CLAIM = ".claim"
"""Held, in a cell's folder, by whoever runs it."""


def reproduce(
    name: str | Table,
    out: str | os.PathLike[str],
    *,
    protocol: str = "clean",
    budget: str = "full",
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    found: Sequence[Mapping[str, Any]] = (),
    demo: bool = False,
    retry: bool = False,
    device: str = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    callback: Callback | None = None,
    run: Callable[..., dict[str, str]] | None = None,
) -> Summary:
    """Run what is missing of a table, then write it as Markdown, CSV, LaTeX and a picture.

    Cells that are done are left as they are, those that failed too unless `retry`. Killed at any
    moment and called again, it goes on and ends with the same numbers. Several processes may work
    on one folder: each cell is run by one of them. `run` is who runs the cells: default `run_cells`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = reproduce("simulated-ward", folder, budget="smoke", only=["*/GRU"])
    >>> done.entry("Deterioration", "GRU").state
    ''
    """
    asked = name if isinstance(name, Table) else load_table(name)
    table = grid_of(asked)
    cells = cells_of(
        table, protocol=protocol, budget=budget, seeds=seeds, only=only, found=found, demo=demo
    )
    home = Path(out)
    missing = (run or run_cells)(
        cells, home, retry=retry, device=device, data_dir=data_dir, callback=callback or Callback()
    )
    summary = summarise(table, cells, home, missing)
    write_tables(summary, asked.name if asked.kind == "figure" else None)
    return summary


def grid_of(table: Table) -> Table:
    """The table whose cells are run: itself, or the one a figure shows."""
    grid = load_table(table.of) if table.kind == "figure" else table
    if grid.kind != "grid":
        raise ExperimentError(f"'{table.name}' is made by `onlinecde {table.command}`.")
    return grid


def run_cells(
    cells: Sequence[Cell],
    home: Path,
    *,
    retry: bool = False,
    device: str = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    callback: Callback | None = None,
) -> dict[str, str]:
    """Run the cells that have no result yet; returns, by data set and task, why data is missing."""
    callback = callback or Callback()
    missing: dict[str, str] = {}
    tasks = _LastTask(data_dir)
    for number, cell in enumerate(cells, 1):
        folder = home / cell.place
        if _is_settled(folder, cell, retry) or cell.row.data in missing:
            continue
        mine = claim(folder / CLAIM)
        if mine is None:
            callback.note(f"{cell.title}: another process is at it")
            continue
        try:
            if _is_settled(folder, cell, retry):  # by whoever held it a moment ago
                continue
            task = tasks.of(cell)
            callback.begin(cell, number, len(cells))
            result = run_cell(cell, task, folder, device=device, callback=callback)
            callback.end(cell, result)
        except MissingDataError as error:
            missing[cell.row.data] = str(error)
        except Exception as error:  # whatever it is, the other cells are worth running
            callback.end(cell, record_failure(cell, folder, error, device))
        finally:
            mine.release()
    return missing


def forget_failures(cells: Sequence[Cell], home: Path) -> None:
    """Take away the records of cells that failed, so that whoever comes first runs them again."""
    for cell in cells:
        result = read_result(home / cell.place, cell)
        if result is not None and result["status"] == "failed":
            (home / cell.place / RESULT).unlink(missing_ok=True)


def _is_settled(folder: Path, cell: Cell, retry: bool) -> bool:
    result = read_result(folder, cell)
    return result is not None and (result["status"] == "done" or not retry)


class _LastTask:
    """Keeps the task loaded last: cells come data set by data set, and fold by fold."""

    def __init__(self, data_dir: str | os.PathLike[str] | None) -> None:
        self.data_dir = data_dir
        self._held: tuple[dict[str, Any], Task] | None = None

    def of(self, cell: Cell) -> Task:
        about = cell.settings["data"]
        if self._held is None or self._held[0] != about:
            self._held = None  # two data sets at once may be more than fits
            self._held = about, cell_task(cell, self.data_dir)
        return self._held[1]


def tables_named(name: str) -> list[Table]:
    """What a name stands for: itself; "all" tables; "open": those that need no credentials."""
    from onlinecde.experiments.table import table_names

    if name not in ("all", "open"):
        return [load_table(name)]
    tables = [load_table(known) for known in table_names()]
    return [t for t in tables if t.kind == "grid" and (name == "all" or not _closed(t))]


def _closed(table: Table) -> bool:
    return bool(table.rows) and set(table.data_sets) == {"mimic-iv"}
