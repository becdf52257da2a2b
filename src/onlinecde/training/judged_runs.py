"""Runs of one model, one a seed: each judged by itself, and all together by their mean probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onlinecde.data import Task
from onlinecde.models import OnlineModel
from onlinecde.training.bootstrap import Difference, Estimate
from onlinecde.training.evaluating import Predictions, evaluate
from onlinecde.training.evaluation import Evaluation, compare, mean_metrics


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
    name: str, models: Sequence[OnlineModel], task: Task, split: str = "test", **how: Any
) -> JudgedRuns:
    """Judge each run and all of them together; `how` goes to `evaluate`."""
    how["predictions"] = Predictions(task)
    runs = tuple(evaluate(model, task, split, name=name, **how) for model in models)
    together = runs[0] if len(runs) == 1 else evaluate(models, task, split, name=name, **how)
    return JudgedRuns(name, runs, together)


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
