"""What a metric is asked: the predictions and labels of one output, whose each label is, and what it counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onlinecde.evaluation.bootstrap import Ranking
from onlinecde.evaluation.predictions import MetricError
from onlinecde.models.forecasts import by_level
from onlinecde.models.readout import known_labels
from onlinecde.models.time_bins import risk_at


class UndefinedMetric(MetricError):  # noqa: N818 - a finding more than a fault
    """A metric without a value on these labels: one class only, no label; the message says why."""


class Question:
    """The predictions and labels of one output, and whose each label is."""

    def __init__(
        self,
        predicted: Tensor,
        labels: Tensor,
        owners: np.ndarray | None = None,
        subjects: int = 1,
        *,
        edges: Sequence[float] = (),
        counts: np.ndarray | None = None,
    ) -> None:
        """Predictions (label,), (label, class) or (label, bin), labels (label,) or (label, 2).

        owners: (label,) their subjects, from 0. edges: where bins of time ahead end. counts: (label,) what each counts
        in itself, by default 1.
        """
        self.predicted, self.labels = predicted.double().numpy(), labels.numpy()
        self.owners = np.zeros(len(labels), np.int64) if owners is None else owners
        self.subjects, self.edges, self.counts = subjects, tuple(edges), counts
        self._rankings: dict[int | None, Ranking] = {}
        self._within: dict[float, Question] = {}

    def check_labels(self) -> None:
        """Refuse a question without a label."""
        if not len(self.labels):
            raise UndefinedMetric("there is no label to compare with.")

    def ranking(self, of: int | None = None) -> Ranking:
        """Labels ranked by their prediction; of a class, by its probability. Sorted once for all metrics."""
        if of not in self._rankings:
            alone = of is None
            scores = self.predicted if alone else self.predicted[:, of]
            self._rankings[of] = Ranking(
                scores, self.labels == (1 if alone else of), self.owners, self.counts
            )
        return self._rankings[of]

    def sums(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        """What each subject adds to the sum of each column (label,): (subject, column)."""
        counted = columns if self.counts is None else [c * self.counts for c in columns]
        return np.stack([np.bincount(self.owners, c, self.subjects) for c in counted], 1)

    def within(self, horizon: float) -> Question:
        """Of time to an event, whether it comes within a horizon: with labels that tell, each for those that do not.

        A label counts one over the chance not to have been lost by the time at which it tells (`not_lost`).
        """
        if horizon not in self._within:
            if not self.edges or not 0 < horizon <= self.edges[-1]:
                raise MetricError(
                    f"the horizon {horizon:g} is not above 0 and up to {self.edges[-1] if self.edges else 0:g}, as far "
                    "as bins of time ahead reach."
                )
            self.check_labels()
            time, event = self.labels.astype(np.float64).T
            came = (event == 1) & (time <= horizon)
            tells = came | (time >= horizon)
            chance = not_lost(time, event, np.minimum(time, horizon))[tells]
            edges, wanted = (
                torch.tensor(one, dtype=torch.float64) for one in (self.edges, [horizon])
            )
            risk = risk_at(torch.from_numpy(self.predicted[tells]), edges, wanted)[:, 0]
            self._within[horizon] = Question(
                risk,
                torch.from_numpy(came[tells].astype(np.float64)),
                self.owners[tells],
                self.subjects,
                counts=1 / chance,
            )
        return self._within[horizon]


def not_lost(time: np.ndarray, event: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The chance not to have been lost before each time `at`, by Kaplan and Meier, from labels (label,).

    >>> time, event = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 1, 0, 1])
    >>> not_lost(time, event, np.array([1.0, 2.0, 4.0]))
    array([1.   , 0.75 , 0.375])
    """
    lost = np.sort(time[event != 1])
    when, count = np.unique(lost, return_counts=True)
    # Who has the event at that very time is no longer there to be lost.
    there = len(time) - np.searchsorted(np.sort(time), when) - _count_at(time[event == 1], when)
    staying = np.concatenate([[1.0], np.cumprod(1 - count / there)])
    return staying[np.searchsorted(when, at, side="left")]


def _count_at(times: np.ndarray, at: np.ndarray) -> np.ndarray:
    ordered = np.sort(times)
    return np.searchsorted(ordered, at, side="right") - np.searchsorted(ordered, at, side="left")


def questions(
    task_kind: str, probabilities: Tensor, labels: Tensor
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Each question's probabilities (n,), its labels (n,), and where these were (bool).

    Of forecasts it has quantiles (n, level).

    Multiclass is one question, with probabilities (n, class); so is time to an event, with risks by the end of each
    bin, (n, bin), and labels (n, 2).
    """
    probabilities, labels = probabilities.cpu(), labels.cpu()
    if task_kind == "forecast":
        probabilities = by_level(probabilities)
        if labels.shape != probabilities.shape[:-1]:
            raise MetricError(
                f"labels have shape {tuple(labels.shape)}: give one for each forecast."
            )
        known = ~labels.isnan()
        each = zip(probabilities.unbind(-2), labels.unbind(-1), known.unbind(-1), strict=True)
        return [(f[k], w[k].to(probabilities), k) for f, w, k in each]
    if task_kind in ("multiclass", "time-to-event"):
        known = known_labels(task_kind, labels)
        if known.shape != probabilities.shape[:-1]:
            raise MetricError(
                f"outputs have shape {tuple(probabilities.shape)}, labels {tuple(labels.shape)}: they must agree, "
                "but for the last axis."
            )
        wanted = labels[known]
        return [
            (probabilities[known], wanted.long() if task_kind == "multiclass" else wanted, known)
        ]
    if labels.ndim == probabilities.ndim - 1:
        labels = labels.unsqueeze(-1)
    if labels.shape != probabilities.shape:
        raise MetricError(
            f"outputs have shape {tuple(probabilities.shape)}, labels {tuple(labels.shape)}: they "
            "must agree, but for a single output."
        )
    known = ~labels.isnan()
    each = zip(probabilities.unbind(-1), labels.unbind(-1), known.unbind(-1), strict=True)
    return [(f[k], w[k].to(probabilities), k) for f, w, k in each]
