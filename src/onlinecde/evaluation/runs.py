"""Runs of one model, one a seed or one a fold: each judged by itself, and all of them as one.

A run's own record says its fold, so that runs of one split and runs of folds cannot be taken for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onlinecde.artifacts import read_manifest
from onlinecde.data import Task, fold_of
from onlinecde.evaluation.bootstrap import Difference, Estimate
from onlinecde.evaluation.evaluating import evaluate
from onlinecde.evaluation.predictions import Predictions
from onlinecde.evaluation.results import Evaluation, compare, mean_metrics, over_folds
from onlinecde.evaluation.trees import Trees
from onlinecde.models import OnlineModel


class FoldsError(ValueError):
    """Runs that cannot be judged together; the message says which and what to do."""


def tested_folds(homes: Iterable[Path]) -> dict[Path, tuple[int, int] | None]:
    """The fold, and of how many, that each model's record says it was tested on; None: the task's own split."""
    return {home: fold_of(_record(home)) for home in homes}


def runs_by_fold(models: Mapping[str, Sequence[Path]]) -> list[dict[str, list[Path]]]:
    """For each fold, first to last, the folders of each model's runs; empty where all have one split.

    `models` are the folders of all runs, by the model's name. One fold alone is one split. Refused are folds beside
    another split, models without the same folds, folds that are missing or have fewer runs than others, and runs
    that were fitted on other streams than the rest of their split.
    """
    dealt = tested_folds(home for several in models.values() for home in several)
    splits = {fold and fold[1]: home for home, fold in dealt.items()}
    if len(splits) > 1:
        told = " and ".join(f"{home} ({_told(dealt[home])})" for home in splits.values())
        raise FoldsError(
            f"{told} do not have the same split: runs of one split and folds of another cannot be judged together. "
            "Give the folders of runs of one table."
        )
    count = next(iter(splits))
    numbers = range(1, count + 1) if count is not None else ()
    folds = [
        {
            name: [home for home in several if dealt[home] == (number, count)]
            for name, several in models.items()
        }
        for number in numbers
    ]
    there = [fold for fold in folds if any(fold.values())]
    for fold in there or [{name: list(several) for name, several in models.items()}]:
        _check_same_streams(home for several in fold.values() for home in several)
    first = next(iter(models))
    for number, fold in zip(numbers, folds, strict=True):
        for name, several in fold.items():
            if bool(several) != bool(fold[first]):
                has, lacks = (first, name) if fold[first] else (name, first)
                raise FoldsError(
                    f"{has} has a run of fold {number} of {count}, {lacks} has none: only models that were tested on "
                    "the same folds can be compared. Run what is missing."
                )
            if len(there) > 1 and len(several) != max(len(other[name]) for other in folds):
                many = f"{len(several)} run{'s' * (len(several) != 1)}"
                raise FoldsError(
                    f"{name} has {many} of fold {number} of {count} and more of others: run what is "
                    "missing, or give the folders of runs of one fold."
                )
    return folds if len(there) > 1 else []


def fold_seed(seed: int, number: int, folds: int) -> int:
    """The seed that draws the subjects of a fold again: no two folds, and no two seeds, have the same."""
    return seed * folds + number - 1


def joined(folds: Sequence[JudgedRuns], *, seed: int = 0) -> JudgedRuns:
    """What was found on each fold of a model, as one: means over the folds, of each run and of all together."""
    runs = tuple(
        over_folds(several, seed=seed)
        for several in zip(*(fold.runs for fold in folds), strict=True)
    )
    together = over_folds([fold.together for fold in folds], seed=seed)
    return JudgedRuns(folds[0].name, runs, runs[0] if len(runs) == 1 else together)


def _record(home: Path) -> dict[str, Any]:
    """What a model's manifest says of the task it was fitted on."""
    told = read_manifest(home).extra.get("task")
    return told if isinstance(told, dict) else {}


def _check_same_streams(homes: Iterable[Path]) -> None:
    """Refuse runs whose records tell of other series, labels or splits than the first one's."""
    known = [(home, content) for home in homes if (content := _record(home).get("content"))]
    for home, content in known[1:]:
        if content != known[0][1]:
            raise FoldsError(
                f"{home} was fitted on other streams, labels or splits than {known[0][0]}: streams that one of them "
                "tests may have trained the other. Compare runs on the same data, or name a task with --task to judge "
                "all the same."
            )


def _told(fold: tuple[int, int] | None) -> str:
    return "the task's own split" if fold is None else f"fold {fold[0]} of {fold[1]}"


@dataclass(frozen=True, eq=False)
class JudgedRuns:
    """What was found of the runs of one model."""

    name: str
    runs: tuple[Evaluation, ...]
    """Each by itself."""
    together: Evaluation
    """One prediction of all: the mean of their probabilities."""

    @property
    def mean(self) -> dict[str, Estimate]:
        """The mean of each metric over the runs: what one run is worth."""
        return mean_metrics(self.runs)


def judge_runs(
    name: str, models: Sequence[OnlineModel | Trees], task: Task, split: str = "test", **how: Any
) -> JudgedRuns:
    """Judge each run and all of them together; `how` goes to `evaluate`."""
    how["predictions"] = Predictions(task, asking=how.get("asking"))
    runs = []
    for model in models:
        runs.append(evaluate(model, task, split, name=name, **how))
        # What is known is judged once.
        how["reference"] = runs[0].reference
    together = runs[0] if len(runs) == 1 else evaluate(models, task, split, name=name, **how)
    return JudgedRuns(name, tuple(runs), together)


def comparison(first: JudgedRuns, others: Sequence[JudgedRuns]) -> dict[str, Any]:
    """All that was found, as plain values: the first model beside the others, and the differences.

    `evaluation`, `against` and `differences` are of the runs of each model together. Where there
    are several, `runs` has the metrics of each run and their mean, and `mean_differences` how the
    means differ; all on the same resamples of subjects.
    """
    told: dict[str, Any] = {
        "evaluation": first.together.to_json(),
        "against": [other.together.to_json() for other in others],
        "differences": [_plain(compare(first.together, other.together)) for other in others],
    }
    if any(len(judged.runs) > 1 for judged in (first, *others)):
        told["runs"] = [
            {
                "model": judged.name,
                "each": [{n: e.value for n, e in run.metrics.items()} for run in judged.runs],
                "mean": _plain(judged.mean),
            }
            for judged in (first, *others)
        ]
        told["mean_differences"] = [_plain(compare(first.runs, other.runs)) for other in others]
    return told


def _plain(found: dict[str, Estimate] | dict[str, Difference]) -> dict[str, Any]:
    return {name: asdict(one) for name, one in found.items()}
