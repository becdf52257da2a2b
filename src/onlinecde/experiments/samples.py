"""A task made small for a budget: some of its streams, every class among them, and their first rows."""

from __future__ import annotations

import torch
from torch import Tensor

from onlinecde.data import Task


def sample_task(task: Task, streams: int | None, rows: int | None) -> Task:
    """At most `streams` streams, split as in the task, and `rows` rows of each; always the same ones.

    Classes take turns, so that few streams still hold all of them.
    """
    if rows is not None:
        task = task.first_rows(rows)
    if streams is None or streams >= len(task.series):
        return task
    chosen, splits, start = [], {}, 0
    for name, at in task.splits.items():
        count = max(1, round(streams * len(at) / len(task.series)))
        kept = _taking_turns(at, _classes(task, at))[:count].sort().values
        chosen.append(kept)
        splits[name] = torch.arange(start, start + len(kept))
        start += len(kept)
    return task.select(torch.cat(chosen), splits)


def _classes(task: Task, at: Tensor) -> Tensor:
    """(stream in split,): the class of each stream, or whether it has a positive label."""
    labels = task.labels[at]
    if task.kind == "regression":
        return torch.zeros(len(at), dtype=torch.int64)
    if task.kind == "multiclass":
        return labels if labels.ndim == 1 else labels.amax(1)
    return (labels == 1).reshape(len(at), -1).any(1).to(torch.int64)


def _taking_turns(at: Tensor, classes: Tensor) -> Tensor:
    """Positions in an order in which the classes take turns."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randperm(len(at), generator=generator)
    turn = torch.empty(len(at), dtype=torch.int64)
    for value in classes.unique():
        mine = classes[mixed] == value
        turn[mixed[mine]] = torch.arange(int(mine.sum()))
    return at[mixed[torch.argsort(turn[mixed], stable=True)]]
