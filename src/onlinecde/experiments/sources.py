"""The task of a cell, from wherever its data lies; what is missing is said exactly."""

from __future__ import annotations

import os
from pathlib import Path

from onlinecde.data import Task, fold_task, load
from onlinecde.data.errors import DataError
from onlinecde.data.registry import DataSet, data_set, default_data_dir
from onlinecde.experiments.cells import Cell


class MissingDataError(DataError):
    """The data of a cell is not on this machine; the message says how to get it."""


def cell_task(cell: Cell, data_dir: str | os.PathLike[str] | None = None) -> Task:
    """Load the task of a cell, whole. Streams are split with seed 0, whatever the cell's seed.

    One split for all seeds: settings found by a search have seen its validation streams, and with
    another split those would be test streams. A cell of a fold has that fold as its test split,
    and the same validation streams.
    """
    task = _own_task(cell, data_dir)
    return task if cell.fold is None else fold_task(task, cell.fold, cell.folds)


def _own_task(cell: Cell, data_dir: str | os.PathLike[str] | None) -> Task:
    entry = data_set(cell.row.data_set)
    home = Path(data_dir) if data_dir is not None else default_data_dir()
    task = cell.row.task or entry.tasks[0]
    if not cell.demo or entry.name != "mimic-iv":
        located(entry, home)
        return load(entry.name, task, data_dir=home, **cell.data)
    # Through a folder of its own the demo is found even where the whole of MIMIC-IV is, too.
    paths = [path for path in sorted(home.glob("*mimic*demo*")) if path.is_dir()]
    if not paths:
        raise MissingDataError(
            f"the demo of MIMIC-IV is not in {home}: download it from "
            "https://physionet.org/content/mimic-iv-demo/ (open, 100 patients) to "
            f"{home / 'mimic-iv-demo'}."
        )
    return entry.function()((paths[0],), task=task, seed=0, **cell.data)


def located(entry: DataSet, home: Path) -> None:
    """Refuse where the files of a data set are not there, or are those of a demo."""
    try:
        paths = entry.locate(home)
    except DataError as error:
        more = " Or run it on the demo with --demo." if entry.name == "mimic-iv" else ""
        raise MissingDataError(f"{error}{more}") from error
    if entry.name == "mimic-iv" and any("demo" in path.name for path in paths):
        raise MissingDataError(
            f"only the demo of MIMIC-IV is in {home} ({paths[0].name}, 100 patients). "
            f"{entry.instructions(home)} To run on the demo as it is, add --demo."
        )
