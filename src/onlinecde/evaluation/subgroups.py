"""How good a model is for some streams beside others: by a static feature, or by a column of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.evaluation.bootstrap import Cohort, Estimate
from onlinecde.evaluation.metrics import metric_named
from onlinecde.evaluation.since_row import estimate_of, loss_of
from onlinecde.models.readout import known_labels
from onlinecde.series.static_columns import is_missing

GROUPS = 6
"""Numbers with more values than this are cut into quarters, and of more categories the rarest are one group"""
OTHERS, MISSING = "others", "not known"


@dataclass(frozen=True)
class GroupScore:
    """Metrics on the streams of a split that a column has one value for."""

    column: str
    group: str
    streams: int
    labels: int
    metrics: dict[str, Estimate]


def by_group(
    task: Task,
    split: str,
    risk: Tensor,
    labels: Tensor,
    cohort: Cohort,
    columns: Mapping[str, Sequence[Any]],
) -> tuple[GroupScore, ...]:
    """The task's metric and its loss, group by group of each column (stream of the task,).

    risk (stream, ..., output) and labels (stream, ...) of a split.
    """
    names = [name for name in dict.fromkeys((task.metric, loss_of(task))) if name != "utility"]
    unknown = -1 if task.kind == "multiclass" else torch.nan
    found = []
    for column, cells in columns.items():
        for group, streams in groups_of([cells[at] for at in task.splits[split].tolist()]).items():
            away = torch.ones(len(labels), dtype=torch.bool)
            away[streams] = False
            chosen = labels.masked_fill(away.view(-1, *(1,) * (labels.ndim - 1)), unknown)
            known = known_labels(task.kind, chosen)
            metrics = {n: estimate_of(metric_named(n), task, risk, chosen, cohort) for n in names}
            found.append(GroupScore(column, group, len(streams), int(known.sum()), metrics))
    return tuple(found)


def groups_of(cells: Sequence[Any]) -> dict[str, list[int]]:
    """Positions by group: each value or, of many numbers, each quarter; what is missing is a group of its own.

    >>> groups_of(["f", "m", None, "f"])
    {'f': [0, 3], 'm': [1], 'not known': [2]}
    >>> list(groups_of(list(range(100))))
    ['0 to 24', '25 to 49', '50 to 74', '75 to 99']
    """
    there = [at for at, cell in enumerate(cells) if not is_missing(cell)]
    numbers = all(isinstance(cells[at], int | float | np.number) for at in there)
    values = sorted({cells[at] for at in there}, key=None if numbers else str)
    if numbers and len(values) > GROUPS:
        quarters = np.array_split(np.array(sorted((cells[at], at) for at in there)), 4)
        ends = [quarter[-1][0] for quarter in quarters[:-1]]
        place = {at: int(np.searchsorted(ends, cells[at])) for at in there}
        found: dict[str, list[int]] = {}
        for number in range(4):
            own = [at for at in there if place[at] == number]
            if own:
                inside = [cells[at] for at in own]
                found[f"{min(inside):g} to {max(inside):g}"] = own
    else:
        most = sorted(values, key=lambda value: -sum(cells[at] == value for at in there))
        kept = values if len(values) <= GROUPS else [v for v in values if v in most[: GROUPS - 1]]
        found = {_shown(value): [at for at in there if cells[at] == value] for value in kept}
        rest = [at for at in there if cells[at] not in kept]
        found |= {OTHERS: rest} if rest else {}
    missing = [at for at, cell in enumerate(cells) if is_missing(cell)]
    return found | ({MISSING: missing} if missing else {})


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
