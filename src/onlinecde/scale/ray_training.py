"""A training whose batches are cut over several processes; its losses are those of one process."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from onlinecde.data import Task
from onlinecde.evaluation.predictions import predict_task
from onlinecde.models import OnlineModel
from onlinecde.models.asking import ask
from onlinecde.models.channel_dropout import dropping_as_part
from onlinecde.models.readout import known_labels
from onlinecde.series import SeriesBatch
from onlinecde.solvers.counting import counting_evaluations, note_evaluations
from onlinecde.training.callbacks import Callback
from onlinecde.training.loop import Training
from onlinecde.training.objectives import HorizonReadout, Scales, along
from onlinecde.training.settings import FitSettings


class _Outputs(nn.Module):
    """A model's outputs and, where horizons are trained too, their logits: what all processes share gradients of."""

    def __init__(self, model: OnlineModel, ahead: HorizonReadout | None) -> None:
        super().__init__()
        self.model, self.ahead = model, ahead

    def forward(self, batch: SeriesBatch, times: Tensor | None, final: bool) -> tuple[Tensor, ...]:
        if self.ahead is None:
            return (ask(self.model, batch, times, final=final),)
        return self.ahead.forward_with(self.model, batch, times)


class SharedTraining(Training):
    """One process's part in a training; all processes of the group run it in step.

    Every process knows the whole task and draws the same batches. Of each it takes every n-th
    stream, and its loss counts by its share of the batch's labels, so that the gradients, summed up,
    are those of the mean over the whole batch. Validation batches are dealt out whole.
    """

    def __init__(
        self,
        model: OnlineModel,
        task: Task,
        scales: Scales,
        settings: FitSettings,
        device: torch.device,
    ) -> None:
        super().__init__(model, task, scales, settings, device)
        self.rank, self.processes = dist.get_rank(), dist.get_world_size()
        # A weight that no stream needs has no gradient here, as it has none in one process.
        self.parallel = DistributedDataParallel(
            _Outputs(model, self.ahead), find_unused_parameters=True
        )

    def run(
        self, save: Callable[[Training], None], callback: Callback, max_seconds: float | None = None
    ) -> None:
        """Train to the end, from where the first process stands."""
        tensors, facts = self.put_down()
        held = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
        told = [(held, facts) if self.rank == 0 else None]
        dist.broadcast_object_list(told, device=self.model.device)
        if self.rank:
            assert told[0] is not None
            self.take_up(*told[0])
        super().run(save, callback)

    def _captured_step(self) -> None:
        """No step is captured: a graph would not tell the others of its gradients."""
        return

    def _gradients(
        self,
        batch: SeriesBatch,
        labels: Tensor,
        times: Tensor | None = None,
        worth: Tensor | None = None,
    ) -> Tensor:
        many = len(batch)
        mine = torch.arange(many)[self.rank :: self.processes]
        idle = not len(mine)
        if idle:  # it must still take part: with a stream that has no labels
            mine = torch.zeros(1, dtype=torch.int64)
        own, known = batch[mine], labels[mine.to(labels.device)]
        asked = None if times is None else times[mine.to(times.device)]
        if self.per == "row":
            known = known[:, : own.times.shape[1]]
        if idle:
            known = torch.full_like(known, -1 if self.kind == "multiclass" else torch.nan)
        self.optimiser.zero_grad(set_to_none=True)
        with counting_evaluations() as evaluations, dropping_as_part(mine, many):
            outputs, *logits = self.parallel(own, asked, final=self.per == "stream")
        share = self._weight_of(known) / self._weight_of(labels)
        if worth is not None:
            worth = worth[mine.to(worth.device)][:, : known.shape[1]].masked_fill(
                known.isnan(), torch.nan
            )
        loss = self._loss(outputs, known, worth) * share
        whole = loss
        if self.ahead is not None:
            targets = self.ahead.targets(along(batch, times), labels)
            whole = loss + self.ahead.whole_loss(logits[0], own, asked, known, targets, share)
        (whole * self.processes).backward()  # the mean over processes is taken of it
        told = torch.tensor([0.0, float(evaluations.total)], dtype=torch.float64)
        told = told.to(loss.device)
        told[0] = loss.detach()
        heard = [torch.empty_like(told) for _ in range(self.processes)]
        dist.all_gather(heard, told)
        everyone = torch.stack(heard)
        # A batch is evaluated as often as its busiest stream, whoever has it.
        _count(int(everyone[:, 1].max()) - evaluations.total)
        return everyone[:, 0].sum()

    def _weight_of(self, labels: Tensor) -> Tensor:
        """What the mean loss of these labels is divided by."""
        known = known_labels(self.kind, labels)
        if self.kind != "multiclass" or self.weight is None:
            return known.sum().double()
        return self.weight.double()[labels[known].to(torch.int64)].sum()

    def _validation_outputs(self) -> Tensor:
        series, size = self.validation, self.settings.batch_size
        mine = series.length_buckets(size)[self.rank :: self.processes]
        along = series.times if self.asked is None else self.asked
        shape = (len(series), *((along.shape[1],) if self.per != "stream" else ()))
        whole = torch.zeros(*shape, self.model.outputs, dtype=self.model.dtype)
        with counting_evaluations() as evaluations:
            if mine:
                # Whole buckets in their order fall into the same buckets again.
                at = torch.cat(mine)
                asked = None if self.asked is None else self.asked[at.to(self.asked.device)]
                found = predict_task(self.model, series[at], self.per, times=asked, batch_size=size)
                if self.per == "row":
                    short = shape[1] - found.shape[1]
                    found = torch.cat([found, found[:, -1:].expand(-1, short, -1)], 1)
                whole[at] = found
        whole = whole.to(self.model.device)
        dist.all_reduce(whole)  # each stream is another's zero: nothing is rounded
        spent = torch.tensor(evaluations.total, device=self.model.device)
        dist.all_reduce(spent)
        _count(int(spent) - evaluations.total)
        return whole.cpu()

    def _judge(self) -> tuple[float, float | None, float | None]:
        told = [super()._judge()]
        # One word for all: processors that round differently must not part ways.
        dist.broadcast_object_list(told, device=self.model.device)
        return told[0]


def _count(more: int) -> None:
    """Tell whoever counts evaluations of those made elsewhere."""
    note_evaluations(torch.tensor([more]))
