"""The slips of the paper's code, by name, so that what each is worth can be measured."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from onlinecde.controls import Path, PolynomialPath, RectilinearPath
from onlinecde.data import Task
from onlinecde.models import NeuralCDE, OnlineModel
from onlinecde.models.flat_settings import parts_of
from onlinecde.series import SeriesBatch
from onlinecde.solvers import solve_with
from onlinecde.solvers.counting import note_evaluations
from onlinecde.solvers.segments import segments_from
from onlinecde.solvers.solve import solve_problem
from onlinecde.training.defaults import build_model, model_settings

SLIPS: Mapping[str, str] = {
    "no static": "the model is not told the static features",
    "rows as time": "rows are taken to be one unit of time apart",
    "shared layers": "the field's inner layers from the second on share one set of weights",
    "left slope": "rk4's first stage at a knot takes the slope of the piece before",
    "padding": "a natural cubic path goes on after the last row, with its last slope",
}
"""What each is, in words. The first two change the task, the others the model."""

_OF_THE_TASK = ("no static", "rows as time")


def slipped_task(task: Task, slips: Sequence[str]) -> Task:
    """The task as a model with these slips sees it."""
    series = task.series
    if "no static" in slips:
        series = replace(series, static=None, features=())
    if "rows as time" in slips:
        row = torch.arange(series.times.shape[1], dtype=torch.float64)
        series = replace(series, times=row.minimum(series.rows[:, None] - 1.0))
        task = replace(task, truth=None)  # it goes by the clock
    return task if series is task.series else replace(task, series=series)


def slipped_model(
    task: Task, name: str, settings: Mapping[str, Any], slips: Sequence[str]
) -> OnlineModel:
    """A model for a task, with fresh weights from torch's random numbers and the slips asked for."""
    own = [slip for slip in slips if slip not in _OF_THE_TASK]
    if not own:
        return build_model(task, name, settings)
    longest = int(task.series.rows.max())
    given = model_settings(task, name, settings)
    return SlippedCDE(slips=",".join(own), longest=longest, **parts_of(given))


class SlippedCDE(NeuralCDE):
    """A `NeuralCDE` that repeats slips of the paper's code; only ever for a whole series.

    `slips`: names in `SLIPS`, with commas. `longest`: rows of the longest stream of the data set,
    to which the paper's code padded all.
    """

    def __init__(self, *, slips: str, longest: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.slips, self.longest = tuple(slips.split(",")), longest
        self.config |= {"slips": slips, "longest": longest}
        if "padding" in self.slips and self.control != "natural_cubic":
            raise ValueError("the slip 'padding' is one of the natural cubic control.")
        own = self.solver
        if "left slope" in self.slips and (own.table.name, own.steps, own.max_step) != (
            "rk4",
            1,
            None,
        ):
            raise ValueError("the slip 'left slope' is one of rk4 with one step a piece.")
        if "shared layers" in self.slips:
            for layer in range(2, len(self.field.inner)):
                self.field.inner[layer] = self.field.inner[1]

    def path(self, batch: SeriesBatch) -> Path:
        path = super().path(batch)
        if "padding" not in self.slips:
            return path
        assert isinstance(path, PolynomialPath)
        return beyond_the_end(path, self.longest)

    def forward(self, batch: SeriesBatch, at: Any = None, *, final: bool = False) -> Tensor:
        if at is not None:
            raise ValueError("a model with slips answers at the rows alone: leave `at` out.")
        batch = self.prepare(batch)
        path = self.path(batch)
        z0 = self.begin(path.rows[:, 0], batch.static)
        if "left slope" in self.slips and not path.smooth:
            knots = self._left_slopes(path, z0)
            z = knots[-1] if final else knots[:: path.pieces_per_row].transpose(0, 1)
        else:
            ask = "end" if final else "rows"
            z = solve_with(self.solver, path, self.field, z0, outputs=ask).z
        rows, ages = batch.times.shape[1], self.ages(batch.times, self.stamps(batch))
        if final:
            return self.read(z, self.seen(path.rows[:, -1], None if ages is None else ages[:, -1]))
        return self.read(z[:, :rows], self.seen(path.rows[:, :rows], ages))

    def _left_slopes(self, path: Path, z0: Tensor) -> Tensor:
        """z at the knots, (knot, stream, hidden)."""
        # One piece more, on which nothing moves but for the slope left over from the last one.
        still = z0.new_zeros(1, len(path.rows), path.channels)
        ends = path.pieces_per_stream + (path.lengths < self.longest)
        own = torch.cat([increments(path), still])[: int(ends.max())]
        order = torch.argsort(ends, descending=True, stable=True)
        segments = segments_from(with_left_slopes(own)[:, order], ends[order], order)

        def where(place: int, s: float) -> str:
            return f"stream {path.streams[int(order[place])]!r} at knot {s:g}"

        done = solve_problem(self.solver.problem(segments, self.vector_field, z0[order], where))
        note_evaluations(done.nfe)
        return done.z[:, torch.argsort(order)]


_own = inspect.signature(NeuralCDE)
SlippedCDE.__signature__ = _own.replace(  # pyright: ignore[reportAttributeAccessIssue]
    parameters=[
        *_own.parameters.values(),
        inspect.Parameter("slips", inspect.Parameter.KEYWORD_ONLY, annotation=str),
        inspect.Parameter("longest", inspect.Parameter.KEYWORD_ONLY, annotation=int),
    ]
)


def increments(path: Path) -> Tensor:
    """dX on every straight piece, all channels: (piece, stream, channel)."""
    rise = path.rows.diff(dim=1).transpose(0, 1)
    if not isinstance(path, RectilinearPath):
        return rise
    time, values = torch.zeros_like(rise), rise.clone()
    time[:, :, 0] = path.time_legs.T
    values[:, :, 0] = 0.0
    return torch.stack([time, values], 1).flatten(0, 1)


def with_left_slopes(own: Tensor) -> Tensor:
    """dX/du of pieces whose slope at u = 0 is that of the piece before: (piece, stream, 4, channel).

    The 3/8 rule looks at u = 0, 1/3, 2/3 and 1: the cubic that is 1 at the first and 0 at the
    others, (1 - 3u)(1 - 3u/2)(1 - u), brings in the slope before at the first stage and nowhere else.
    """
    wrong = torch.cat([own[:1], own[:-1]]) - own
    return torch.stack([own + wrong, -5.5 * wrong, 9.0 * wrong, -4.5 * wrong], 2)


def beyond_the_end(path: PolynomialPath, longest: int) -> PolynomialPath:
    """The path carried on from each stream's last row with its last slope, to `longest` rows."""
    assert path.slopes is not None
    more = longest - path.rows.shape[1]

    def longer(table: Tensor) -> Tensor:
        return torch.cat([table, table[:, -1:].expand(-1, more, *table.shape[2:])], 1)

    rows, slopes = longer(path.rows), longer(path.slopes)
    last = (path.lengths - 1)[:, None]
    steps = (torch.arange(longest, device=last.device) - last).clamp(min=0)[:, :, None]
    at = last[:, :, None].expand(-1, -1, rows.shape[2])
    end, slope = rows.gather(1, at), slopes.gather(1, at)
    after = steps > 0
    return replace(
        path,
        rows=torch.where(after, end + steps * slope, rows),
        slopes=torch.where(after, slope, slopes),
        times=longer(path.times),
        lengths=torch.full_like(path.lengths, longest),
    )
