"""Two tasks of one kind as one: old streams and new ones, to go on learning from both."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onlinecde.data.errors import DataError
from onlinecde.data.task import Task
from onlinecde.data.truth import Truth
from onlinecde.series import SeriesBatch

_ENDLESS = ("times", "starts", "ends")
"""Tables of times, infinite behind a stream's last entry"""


def check_alike(old: Task, new: Task) -> None:
    """Refuse a new task that asks something else than the old one, or of other channels."""
    for what in ("kind", "per", "classes", "time_unit", "forecast"):
        mine, other = getattr(old, what), getattr(new, what)
        if mine != other:
            raise DataError(
                f"{_shown(new)} has {what} {_plain(other)!r}, the model was taught {_plain(mine)!r}: an update goes on "
                "with the same labels."
            )
    if old.labels.ndim != new.labels.ndim or old.labels.shape[2:] != new.labels.shape[2:]:
        raise DataError(
            f"{_shown(new)} has {new.outputs} outputs, the model was taught {old.outputs}: give the same labels."
        )
    known, there = ([str(one) for one in task.series.channels] for task in (old, new))
    if extra := [name for name in there if name not in known]:
        raise DataError(
            f"{_shown(new)} has the channels {', '.join(extra[:5])}, which the model does not know: an update has its "
            f"channels, {', '.join(known[:10])}. Leave them out, or fit a new model."
        )
    seen = old.series.observed.any(1).double().mean(0)
    observed = new.series.observed.flatten(0, 1).any(0)
    ever = {n: bool(o) for n, o in zip(there, observed, strict=True)}
    for name, share in zip(known, seen.tolist(), strict=True):
        # What few streams have may be missing in a few new ones.
        if share > 0.05 and not ever.get(name, False):
            raise DataError(
                f"{_shown(new)} has no value of channel {name!r}, which {100 * share:.0f} % of the streams before had: "
                "give a table with it, or fit a new model."
            )


def _plain(value: Any) -> Any:
    return value.as_json() if hasattr(value, "as_json") else value


def _shown(task: Task) -> str:
    return f"the new data ({task.source})"


def join(old: Task, new: Task, *, rehearsal: float, seed: int = 0) -> Task:
    """The streams of two tasks as one, with both tasks' splits; of the old training streams a share.

    New streams of a subject that the old task has stay in its split, so that nobody is judged whom the model was
    trained on. What is known of the old data beside its labels (utility of alarms, true risk) is left out.

    Args:
        old: what a model was trained on.
        new: of the same kind, channels and static features; see `check_alike`.
        rehearsal: of the old training streams, the share that is taught again, by subject.
        seed: draws it.

    Raises:
        DataError: streams that are in both.
    """
    known = set(old.series.streams)
    twice = [] if old.series.numbered else [s for s in new.series.streams if s in known]
    if twice:
        raise DataError(
            f"{_shown(new)} has {len(twice)} streams that the old data has too, such as {twice[0]!r}: give new streams "
            "alone."
        )
    count = len(old.series)
    homes = {
        old.subjects[at]: name
        for name, places in old.splits.items()
        for at in places.tolist()
        if not old.series.numbered
    }
    splits: dict[str, list[int]] = {name: places.tolist() for name, places in old.splits.items()}
    splits["train"] = _share(old, rehearsal, seed)
    for name, places in new.splits.items():
        for at in places.tolist():
            splits[homes.get(new.subjects[at], name)].append(count + at)
    # Padding must not be taken for a label.
    fill = -1 if old.kind == "multiclass" else torch.nan
    same = old.per != "stream"
    most = max(old.labels.shape[1], new.labels.shape[1]) if same else 0
    truth = None
    if old.truth is not None and new.truth is not None:
        truth = _joined(old.truth, new.truth)
    queries = None
    if old.queries is not None and new.queries is not None:
        queries = _stacked(old.queries, new.queries, torch.nan)
    series = [replace(task.series, raw_static=None) for task in (old, new)]
    return replace(
        old,
        series=SeriesBatch.concatenate(series),
        labels=_stacked(old.labels, new.labels, fill)
        if most
        else torch.cat([old.labels, new.labels]),
        subjects=(*_own(old, "old"), *_own(new, "new")),
        splits={name: torch.tensor(sorted(places)) for name, places in splits.items()},
        source=f"{old.source}, and {new.source}",
        flow=(),
        notes=tuple(dict.fromkeys((*old.notes, *new.notes))),
        utility=None,
        known_risk=None,
        truth=truth,
        queries=queries,
    )


def _own(task: Task, which: str) -> tuple[Hashable, ...]:
    """The subjects of a task; of one whose streams have no names, told apart from the other's."""
    return tuple((which, one) for one in task.subjects) if task.series.numbered else task.subjects


def _share(task: Task, share: float, seed: int) -> list[int]:
    """Training streams of some of a task's subjects."""
    places = task.splits["train"].tolist()
    subjects = list(dict.fromkeys(task.subjects[at] for at in places))
    drawn = np.random.default_rng(seed).permutation(len(subjects))[: round(share * len(subjects))]
    chosen = {subjects[number] for number in drawn.tolist()}
    return [at for at in places if task.subjects[at] in chosen]


def _joined(old: Truth, new: Truth) -> Truth | None:
    """One truth of all streams; None where they are of two kinds."""
    if type(old) is not type(new):
        return None
    parts: dict[str, Any] = {}
    for one in fields(old):
        mine, other = getattr(old, one.name), getattr(new, one.name)
        if not isinstance(mine, Tensor) or not isinstance(other, Tensor):
            if mine != other and not (mine != mine and other != other):
                return None
            parts[one.name] = mine
        elif mine.ndim == 1:
            parts[one.name] = torch.cat([mine, other])
        else:
            fill = torch.inf if one.name in _ENDLESS else torch.nan
            parts[one.name] = _stacked(mine, other, fill if mine.is_floating_point() else -1)
    return type(old)(**parts)


def _stacked(first: Tensor, second: Tensor, fill: float) -> Tensor:
    """(stream, ...) of both, filled up to the same size."""
    size = [max(pair) for pair in zip(first.shape[1:], second.shape[1:], strict=True)]
    both = []
    for one in (first, second):
        missing = [want - have for want, have in zip(size, one.shape[1:], strict=True)]
        pad = [side for short in reversed(missing) for side in (0, short)]
        both.append(nn.functional.pad(one, pad, value=fill))
    return torch.cat(both)
