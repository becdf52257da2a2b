"""When the streams of a task are asked in training and validation, and what their labels are then."""

from __future__ import annotations

import torch
from torch import Tensor

from onlinecde.data import DataError, Queries, Task
from onlinecde.training.settings import FitError, FitSettings, seed_for

OWN = "task"
"""The name of a task's own times."""


def check_queries(task: Task, settings: FitSettings) -> None:
    """Refuse query times that cannot be read."""
    for name in ("at", "validate_at"):
        text = getattr(settings, name)
        try:
            _ = text == OWN or Queries.parse(text, task.time_unit)
        except DataError as error:
            raise FitError(f"{name}: {error}") from error


def asked_task(task: Task, settings: FitSettings) -> Task:
    """The task as it is learned: training streams asked at the times of `at`, all others at those of `validate_at`.

    Times drawn at random are those of epoch 0. With the task's own times for both it is the task itself.

    >>> from onlinecde.data import simulate_ward
    >>> task = simulate_ward(40, seed=0).task
    >>> asked = asked_task(task, FitSettings(at="random=4"))
    >>> asked.per, int(asked.split_times("train").isfinite().sum())
    ('time', 111)
    """
    if settings.at == settings.validate_at == OWN:
        return task
    trained = torch.zeros(len(task.series), dtype=torch.bool)
    trained[task.splits["train"]] = True
    parts = []
    for text, at in (
        (settings.at, trained.nonzero()[:, 0]),
        (settings.validate_at, (~trained).nonzero()[:, 0]),
    ):
        parts.append((at, _times(task, text, at, settings.seed, epoch=0)))
    most = max(times.shape[1] for _, times in parts)
    queries = torch.full(
        (len(trained), most), torch.nan, dtype=torch.float64, device=task.series.device
    )
    for at, times in parts:
        queries[at.to(queries.device), : times.shape[1]] = times
    return task.asked(queries)


def drawn_anew(asked: Task, settings: FitSettings, epoch: int) -> tuple[Tensor, Tensor] | None:
    """Query times and labels of the training streams in an epoch, (stream, query); None where none are drawn.

    The same for a seed and an epoch, whatever came before. `asked`: what `asked_task` gave.
    """
    if settings.at == OWN or not Queries.parse(settings.at, asked.time_unit).drawn:
        return None
    at = asked.splits["train"]
    times = _times(asked, settings.at, at, settings.seed, epoch)
    return times, asked.label_truth.select(at.to(times.device)).at(times)


def _times(task: Task, text: str, at: Tensor, seed: int, epoch: int) -> Tensor:
    """Query times (stream, query) of the streams at some positions."""
    if text == OWN and task.queries is not None:
        return task.queries[at.to(task.queries.device)]
    own = {"row": "rows", "stream": "end"}
    queries = Queries.parse(own[task.per] if text == OWN else text, task.time_unit)
    until = task.label_truth.until
    generator = torch.Generator().manual_seed(seed_for("queries", seed, epoch))
    return queries.times(task.series[at], until[at.to(until.device)], generator)
