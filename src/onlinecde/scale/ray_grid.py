"""`reproduce` on a cluster: each cell by one worker, by another one where that one died."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from onlinecde.experiments import Cell, Summary, Table
from onlinecde.experiments import reproduce as reproduce_alone
from onlinecde.experiments.grid import CLAIM, forget_failures, run_cells
from onlinecde.experiments.running import read_result, record_failure
from onlinecde.files import claim
from onlinecde.scale.ray_cluster import (
    DEATHS,
    ClusterError,
    Room,
    check_address,
    check_nodes,
    connected,
    died,
    first_line,
    room_for,
    worker,
)
from onlinecde.sharing import SIDE_BY_SIDE
from onlinecde.training.callbacks import Callback

_PAUSE = 0.2


def reproduce(
    name: str | Table,
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    address: str = "",
    **more: Any,
) -> Summary:
    """Run a table as `onlinecde.experiments.reproduce` does, its cells spread over a Ray cluster.

    At most `workers` cells run at once; default, one for each GPU or processor. A cell whose worker
    died is run again, from its last checkpoint; one that another process holds is waited for. All
    nodes must see `out` and the data. Other arguments are those of `reproduce`.
    """
    check_address(address)
    run = partial(_spread, workers=workers, address=address)
    return reproduce_alone(name, out, run=run, **more)


def _spread(
    cells: Sequence[Cell],
    home: Path,
    *,
    workers: int | None,
    address: str,
    retry: bool = False,
    device: str = "auto",
    data_dir: str | os.PathLike[str] | None = None,
    callback: Callback | None = None,
) -> dict[str, str]:
    """Run the cells that have no result; returns, by data set and task, why data is missing."""
    if retry:
        forget_failures(cells, home)
    home, data = home.resolve(), None if data_dir is None else Path(data_dir).resolve()
    grid = _Grid(cells, home, callback or Callback())
    if not grid.waiting:
        return {}
    with connected(address):
        room = room_for(workers, device)
        check_nodes(home)
        return grid.run(room, data)


class _Grid:
    """Cells that wait, cells that run, and how often each lost its worker."""

    def __init__(self, cells: Sequence[Cell], home: Path, callback: Callback) -> None:
        self.cells, self.home, self.callback = cells, home, callback
        self.waiting = [at for at in range(len(cells)) if self._result(at) is None]
        self.running: dict[Any, int] = {}
        self.deaths = [0] * len(cells)
        self.missing: dict[str, str] = {}

    def run(self, room: Room, data_dir: Path | None) -> dict[str, str]:
        """Keep the workers busy until no cell is left."""
        import ray

        work = worker(_work, room)
        self.callback.note(f"{len(self.waiting)} cells, {room.workers} at a time")
        while True:
            while len(self.running) < room.workers and (at := self._next()) is not None:
                ref = work.remote(self.cells[at], str(self.home), data_dir, room)
                self.running[ref] = at
            if self.running:
                for ref in ray.wait(list(self.running), timeout=_PAUSE)[0]:
                    self._end(ref, self.running.pop(ref))
            elif self.waiting:
                time.sleep(_PAUSE)
            else:
                return self.missing

    def _next(self) -> int | None:
        """The first cell that is still to be run and that nobody holds."""
        for at in tuple(self.waiting):
            if self.cells[at].row.data in self.missing or self._result(at) is not None:
                self.waiting.remove(at)
                continue
            mine = claim(self._folder(at) / CLAIM)
            if mine is not None:
                mine.release()
                self.waiting.remove(at)
                return at
        return None

    def _end(self, ref: Any, at: int) -> None:
        """Take in what came of a cell, or put it back."""
        import ray
        from ray import exceptions

        cell = self.cells[at]
        try:
            self.missing |= ray.get(ref)
        except exceptions.RayError as error:
            if not died(error):
                raise ClusterError(f"a worker could not begin: {first_line(error)}") from None
            self.deaths[at] += 1
            if self.deaths[at] < DEATHS:
                self.callback.note(f"{cell.title}: its worker died; it is run again")
                self.waiting.insert(0, at)
                return
            lost = ClusterError(f"its worker died {DEATHS} times while it ran")
            record_failure(cell, self._folder(at), lost, "cpu")
        result = self._result(at)
        if result is not None:
            self.callback.end(cell, result)
        elif cell.row.data not in self.missing:
            self.waiting.append(at)  # another process took it first

    def _folder(self, at: int) -> Path:
        return self.home / self.cells[at].place

    def _result(self, at: int) -> Mapping[str, Any] | None:
        return read_result(self._folder(at), self.cells[at])


def _work(cell: Cell, home: str, data_dir: Path | None, room: Room) -> dict[str, str]:
    """What a worker runs: one cell, as one process would."""
    import torch

    torch.set_num_threads(room.cpus)
    beside = min(room.workers, max(1, (os.cpu_count() or 1) // room.cpus))
    os.environ[SIDE_BY_SIDE] = str(beside)
    return run_cells([cell], Path(home), device=room.device, data_dir=data_dir)
