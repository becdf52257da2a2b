"""What models say on a whole split: raw outputs, probabilities, each found once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.data.task import Per
from onlinecde.evaluation.trees import Trees
from onlinecde.models import OnlineModel
from onlinecde.models.asking import ask
from onlinecde.models.base import Asking
from onlinecde.models.readout import Readout
from onlinecde.models.time_bins import risk_at
from onlinecde.series import SeriesBatch


class MetricError(ValueError):
    """A metric that does not exist, or does not belong to a task of this kind."""


def predict_task(
    model: OnlineModel,
    series: SeriesBatch,
    per: Per,
    *,
    times: Tensor | None = None,
    batch_size: int = 256,
    asking: Asking | None = None,
) -> Tensor:
    """Raw outputs on the CPU, in the order of the streams.

    (stream, output) after the last row with `per="stream"`; (stream, row, output) with `per="row"`,
    where what stands in the padding repeats the last row; (stream, query, output) at `times` (stream, query) with
    `per="time"`, NaN behind a stream's last, whose answer is repeated. Streams of like length go together, so
    that padding costs little; the model is left in the mode it was in. `asking`: see `models.asking.ask`.

    >>> import onlinecde as oc
    >>> series = oc.SeriesBatch.from_arrays([[0.0, 1.0], [0.0]], [[[1.0], [2.0]], [[3.0]]])
    >>> predict_task(oc.GRU(channels=1, hidden=4, outputs=2), series, "row").shape
    torch.Size([2, 2, 2])
    """
    if per not in ("stream", "row", "time") or (times is None) != (per != "time"):
        raise MetricError(f"per is {per!r}: choose 'stream' or 'row', or 'time' and give times.")
    series = model.aligned(series)
    was_training = model.training
    model.eval()
    order, parts = series.length_buckets(batch_size), []
    try:
        with torch.no_grad():
            for at in order:
                batch = model.prepare(series[at].to(model.device))
                asked = None if times is None else asked_alone(times[at.to(times.device)])
                outputs = ask(model, batch, asked, final=per == "stream", asking=asking).cpu()
                if per != "stream":
                    # Padding repeats the last row, here as within a batch.
                    most = (series.times if times is None else times).shape[1]
                    short = most - outputs.shape[1]
                    outputs = torch.cat([outputs, outputs[:, -1:].expand(-1, short, -1)], 1)
                parts.append(outputs)
    finally:
        model.train(was_training)
    return torch.cat(parts)[torch.cat(order).argsort()]


def predict_split(
    model: OnlineModel,
    task: Task,
    split: str,
    *,
    batch_size: int = 256,
    asking: Asking | None = None,
) -> Tensor:
    """`predict_task` on one split of a task, where its labels are."""
    times = task.split_times(split) if task.per == "time" else None
    series, _ = task.split(split)
    return predict_task(model, series, task.per, times=times, batch_size=batch_size, asking=asking)


def asked_alone(times: Tensor) -> Tensor:
    """Query times (stream, query) without columns in which no stream is asked."""
    return times[:, : max(1, int((~times.isnan()).sum(1).max()))]


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

    def __init__(self, task: Task, batch_size: int = 256, asking: Asking | None = None) -> None:
        self.task, self.batch_size = task, batch_size
        self.asking: Asking | None = asking
        self._found: dict[tuple[OnlineModel | Trees, str], Tensor] = {}

    def __call__(self, model: OnlineModel | Trees, split: str) -> Tensor:
        if (model, split) in self._found:
            return self._found[model, split]
        if isinstance(model, Trees):
            self._found[model, split] = model.predict_split(self.task, split)
        else:
            outputs = predict_split(
                model, self.task, split, batch_size=self.batch_size, asking=self.asking
            )
            head: Any = model.readout
            self._found[model, split] = at_edges(head, as_probabilities(head, outputs), self.task)
        return self._found[model, split]
