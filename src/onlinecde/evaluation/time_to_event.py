"""Metrics of time to an event with censoring: concordance, Brier score over all horizons, likelihood.

Who is lost before the event tells less, and those who tell stand for them (`Question.within`): inverse probability of
censoring weights, from Kaplan and Meier's estimate on the labels that are judged. They are right where being lost has
nothing to do with the event to come; that estimate is the same in each resample.
"""

from __future__ import annotations

import numpy as np
import torch

from onlinecde.evaluation.bootstrap import Means, Ranking, Statistic
from onlinecde.evaluation.questions import Question, UndefinedMetric, not_lost
from onlinecde.models.time_bins import hazards, taken


class Concordance:
    """How often, of two labels, the one whose event comes first was given the higher risk by then.

    Of all pairs in which an event comes in one bin and the other is known to be without by the end of that bin,
    weighted by the square of what the event stands for (Uno et al. 2011); risks are those by the end of that bin
    (Antolini et al. 2005), so that a model may change its mind about who is next. Equal risks count half.
    """

    def __init__(self, question: Question) -> None:
        question.check_labels()
        time, event = question.labels.astype(np.float64).T
        stands_for = 1 / not_lost(time, event, time) ** 2
        self.parts: list[Ranking] = []
        pairs, start = [], 0.0
        for place, end in enumerate(question.edges):
            first = (event == 1) & (time > start) & (time <= end)
            later = (time > end) | ((time == end) & (event != 1))
            both, start = first | later, end
            if first.any() and later.any():
                scores, owners = question.predicted[both, place], question.owners[both]
                counts = np.where(first, stands_for, 1.0)[both]
                self.parts.append(Ranking(scores, first[both], owners, counts))
                pairs += [question.sums([first * stands_for, later.astype(np.float64)])]
        if not pairs:
            raise UndefinedMetric("no event comes before another label is over: there is no pair.")
        self.firsts, self.laters = (np.stack([one[:, side] for one in pairs], 1) for side in (0, 1))

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        pairs = (weights @ self.firsts) * (weights @ self.laters)
        area = np.stack([ranking.auc(weights) for ranking in self.parts], 1)
        right = np.where(pairs > 0, area, 0.0) * pairs
        with np.errstate(divide="ignore", invalid="ignore"):
            return right.sum(1) / pairs.sum(1)


def integrated_brier(question: Question) -> Statistic:
    """The Brier score within each horizon, averaged over time from the first edge to the last that labels reach."""
    question.check_labels()
    longest = float(question.labels[:, 0].max())
    ends = [end for end in question.edges if end <= longest]
    if not ends:
        raise UndefinedMetric(
            f"no label reaches the end of the first bin, {question.edges[0]:g}: there is no horizon to judge."
        )
    each = [question.within(end) for end in ends]
    columns = [
        one.sums([(one.predicted - one.labels) ** 2, np.ones(len(one.labels))]) for one in each
    ]
    lengths = np.diff(ends)
    share = np.ones(1) if len(ends) == 1 else np.zeros(len(ends))
    if len(ends) > 1:  # the trapezoidal rule
        share[:-1] += lengths / 2
        share[1:] += lengths / 2
        share /= lengths.sum()
    sums = np.concatenate([np.stack([c[:, side] for c in columns], 1) for side in (0, 1)], 1)
    return Means(sums, lambda total: (total[:, : len(ends)] / total[:, len(ends) :]) @ share)


def surprise(question: Question) -> Statistic:
    """Minus the log-likelihood of a label; see `models.time_bins`."""
    question.check_labels()
    steps = hazards(torch.from_numpy(question.predicted)).clamp(min=torch.finfo(torch.float64).eps)
    edges = torch.tensor(question.edges, dtype=torch.float64)
    exposed, came = taken(edges, torch.from_numpy(question.labels).double())
    logits = steps + torch.log(-torch.expm1(-steps))
    each = (exposed * steps - came * logits).sum(1).numpy()
    sums = question.sums([each, np.ones(len(each))])
    return Means(sums, lambda total: total[:, 0] / total[:, 1])
