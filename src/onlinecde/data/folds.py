"""Folds: the split turns, so that every stream that chose nothing is a test stream once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from onlinecde.data.errors import DataError
from onlinecde.data.splits import split_streams
from onlinecde.data.task import Task, encoded, strata_of
from onlinecde.data.time_ahead import time_bins
from onlinecde.data.truth import ListedLabels

_SEED = 0
"""Of the lot. Fixed: another one would deal other folds, which must never be compared."""


def fold_task(task: Task, fold: int, folds: int) -> Task:
    """The task with another split: of `folds`, number `fold` (from 1) is tested, the others trained on.

    The validation streams stay what they are, since settings were chosen on them, and are never tested. The
    train and test streams together are dealt by lot into folds of equal size, whole subjects at a time, with
    like numbers of each class (of streams with a label of 1). The same task gives the same folds on every machine.
    Raw static features are encoded anew, by the fold's own training streams.

    >>> from onlinecde.data import simulate_ward
    >>> task = fold_task(simulate_ward(100, seed=0).task, 3, 5)
    >>> {name: len(at) for name, at in task.splits.items()}, task.settings["fold"]
    ({'train': 68, 'validation': 15, 'test': 17}, 3)
    """
    if folds < 2:
        raise DataError(f"folds is {folds}: give 2 or more.")
    if not 1 <= fold <= folds:
        raise DataError(f"there is no fold {fold}: they are numbered from 1 to {folds}.")
    kept = [task.splits[name] for name in ("train", "test") if name in task.splits]
    pool = torch.cat(kept).sort().values
    # All labels that are known, so that however few of them are seen or asked about, the folds are the same.
    listed = task.truth.listed if isinstance(task.truth, ListedLabels) else task.labels
    dealt = split_streams(
        [task.subjects[at] for at in pool.tolist()],
        strata_of(listed[pool.to(listed.device)], task.kind, task.horizon),
        seed=_SEED,
        fractions={str(number): 1 / folds for number in range(1, folds + 1)},
    )
    tested = torch.zeros(len(pool), dtype=torch.bool)
    tested[dealt[str(fold)]] = True
    splits = {**task.splits, "train": pool[~tested], "test": pool[tested]}
    bins = {}
    if task.kind == "time-to-event":
        given = task.settings.get("edges"), task.horizon
        bins = dict(zip(("edges", "horizon"), time_bins(task.labels, splits, *given), strict=True))
    return replace(
        task,
        series=encoded(task.series, splits),
        splits=splits,
        settings={**task.settings, "fold": fold, "folds": folds},
        **bins,
    )


def fold_of(description: Mapping[str, Any]) -> tuple[int, int] | None:
    """Which fold of how many a run was tested on; None where it has the data set's own split.

    >>> fold_of({"source": "experiment", "arguments": {"name": "simulated-ward", "fold": 3, "folds": 6}})
    (3, 6)
    """
    told = description.get("arguments", {})
    return (told["fold"], told["folds"]) if "fold" in told else None
