"""The training step of the recurrent models as a CUDA graph: one launch in place of many for every row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from onlinecde.models import ODERNN, RecurrentModel
from onlinecde.series import SeriesBatch
from onlinecde.solvers.counting import note_evaluations
from onlinecde.training.graphs import RECURRENT, CapturedStep


@dataclass(frozen=True, eq=False)
class _Padded:
    """Where a graph reads series from: streams and rows padded to its size."""

    batch: SeriesBatch
    labels: Tensor

    @property
    def times(self) -> Tensor:
        return self.batch.times


class RecurrentStep(CapturedStep[RecurrentModel, _Padded]):
    """The captured step of the GRU models and `ODERNN`, in training mode as cuDNN asks.

    The encoding is part of the graph: fit it before the first step.
    """

    takes = RECURRENT

    def __call__(self, batch: SeriesBatch, labels: Tensor) -> Tensor:
        loss = super().__call__(batch, labels)
        if isinstance(self.model, ODERNN):
            solver = self.model.solver
            note_evaluations((batch.rows - 1) * (solver.steps * solver.table.stages))
        return loss

    def _room(self, rows: int, batch: SeriesBatch, labels: Tensor) -> _Padded:
        streams, values = self.streams, batch.values
        room = replace(
            batch,
            times=batch.times.new_zeros(streams, rows),
            values=values.new_full((streams, rows, values.shape[2]), torch.nan),
            rows=batch.rows.new_ones(streams),
            static=None
            if batch.static is None
            else values.new_zeros(streams, batch.static.shape[1]),
            streams=tuple(range(streams)),
        )
        return _Padded(room, self._room_for_labels(rows, labels))

    def _fill(self, to: _Padded, batch: SeriesBatch, labels: Tensor) -> None:
        streams, rows = batch.times.shape
        # Streams that are not there keep finite numbers of an earlier batch and have no labels.
        to.batch.times[:streams, :rows] = batch.times
        to.batch.times[:streams, rows:] = batch.times[:, -1:]
        to.batch.values[:streams, :rows] = batch.values
        to.batch.values[:streams, rows:] = torch.nan
        to.batch.rows[:streams] = batch.rows
        if to.batch.static is not None and batch.static is not None:
            to.batch.static[:streams] = batch.static
        self._fill_labels(to.labels, labels)

    def _outputs(self, inputs: _Padded) -> Tensor:
        model, batch = self.model, inputs.batch
        h0 = model.start(len(batch), batch.static)
        h = model.trajectory(model.rows(batch), h0, batch.streams)
        return model.read(h, batch.rows, self.final)
