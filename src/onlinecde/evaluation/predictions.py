"""What models say on a whole split: raw outputs, probabilities, each found once."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.models import OnlineModel
from onlinecde.models.readout import Readout
from onlinecde.models.time_bins import risk_at
from onlinecde.series import SeriesBatch


class MetricError(ValueError):
    """A metric that does not exist, or does not belong to a task of this kind."""


def predict_task(
    model: OnlineModel,
    series: SeriesBatch,
    per: Literal["stream", "row"],
    *,
    batch_size: int = 256,
) -> Tensor:
    """Raw outputs on the CPU, in the order of the streams.

    (stream, output) after the last row with `per="stream"`; (stream, row, output) with `per="row"`,
    where what stands in the padding repeats the last row. Streams of like length go together, so
    that padding costs little; the model is left in the mode it was in.

    >>> import onlinecde as oc
    >>> series = oc.SeriesBatch.from_arrays([[0.0, 1.0], [0.0]], [[[1.0], [2.0]], [[3.0]]])
    >>> predict_task(oc.GRU(channels=1, hidden=4, outputs=2), series, "row").shape
    torch.Size([2, 2, 2])
    """
    if per not in ("stream", "row"):
        raise MetricError(f"per is {per!r}: choose 'stream' or 'row'.")
    series = model.aligned(series)
    was_training = model.training
    model.eval()
    order, parts = series.length_buckets(batch_size), []
    try:
        with torch.no_grad():
            for at in order:
                batch = model.prepare(series[at].to(model.device))
                outputs = model(batch, final=per == "stream").cpu()
                if per == "row":
                    # Padding repeats the last row, here as within a batch.
                    short = series.times.shape[1] - outputs.shape[1]
                    outputs = torch.cat([outputs, outputs[:, -1:].expand(-1, short, -1)], 1)
                parts.append(outputs)
    finally:
        model.train(was_training)
    return torch.cat(parts)[torch.cat(order).argsort()]


def as_probabilities(head: Readout, outputs: Tensor) -> Tensor:
    """Raw outputs (..., output) as probabilities in float64; numbers of a regression as they are.

    Equal outputs get equal probabilities, so that ties stay ties: the last bit of a sigmoid depends
    on where in memory its argument stands.
    """
    outputs = outputs.detach().double()
    if head.kind not in ("binary", "multilabel"):
        return head.probabilities(outputs)
    values, place = outputs.unique(return_inverse=True)
    return head.probabilities(values)[place]


def at_edges(head: Readout, risks: Tensor, task: Task) -> Tensor:
    """Risks by the end of a readout's own bins (..., bin) as those by the end of a task's.

    Raises:
        MetricError: the task's bins reach further ahead.
    """
    if head.bins is None or head.bins.edges.tolist() == list(task.edges):
        return risks
    if task.edges[-1] > head.bins.last:
        raise MetricError(
            f"task '{task.name}' looks {task.edges[-1]:g} {task.time_unit} ahead, the model {head.bins.last:g}: "
            "give the task edges within that."
        )
    return risk_at(risks, head.bins.edges.cpu(), torch.tensor(task.edges, dtype=torch.float64))


class Predictions:
    """What models say on splits of a task, as probabilities (of their numbers, for regression); each found once."""

    def __init__(self, task: Task, batch_size: int = 256) -> None:
        self.task, self.batch_size = task, batch_size
        self._found: dict[tuple[OnlineModel, str], Tensor] = {}

    def __call__(self, model: OnlineModel, split: str) -> Tensor:
        if (model, split) not in self._found:
            series, _ = self.task.split(split)
            outputs = predict_task(model, series, self.task.per, batch_size=self.batch_size)
            head: Any = model.readout
            self._found[model, split] = at_edges(head, as_probabilities(head, outputs), self.task)
        return self._found[model, split]
