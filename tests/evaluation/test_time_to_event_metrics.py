"""Metrics of time to an event: each written out pair by pair, with weights, and those of scikit-survival.

scikit-survival is compared where it is installed; by hand with its version 0.28.0.
"""

import sys

import numpy as np
import pytest
import sklearn.metrics as sklearn_metrics
import torch

from onlinecde.evaluation.bootstrap import Cohort
from onlinecde.evaluation.metrics import (
    METRICS,
    MetricError,
    UndefinedMetric,
    chosen_score,
    metric_for,
    metric_named,
    metric_title,
    resampled_metrics,
    score,
)
from onlinecde.evaluation.questions import Question, not_lost
from onlinecde.models import Readout

EDGES = (1.0, 2.5, 4.0, 6.0, 9.0)
N = 60


def made(rng, edges=EDGES, count=N, ties=False):
    """Risks (label, bin) and labels (label, 2): about two in three see their event."""
    hazard = rng.gamma(2.0, 0.1, (count, 1)) * rng.uniform(0.3, 1.0, (count, len(edges)))
    risks = 1 - np.exp(-hazard.cumsum(1))
    event, lost = rng.exponential(4.0, count), rng.exponential(8.0, count)
    time = np.minimum(event, lost)
    if ties:
        time, risks = np.ceil(2 * time) / 2, risks.round(1).clip(0, 0.9)
    return torch.tensor(risks), torch.tensor(np.stack([time, (event <= lost) * 1.0], 1))


def staying(labels, at):
    """P(not lost before a time), one loss after the other."""
    chance = 1.0
    for when in sorted({t for t, e in labels.tolist() if e == 0 and t < at}):
        there = sum(t > when or (t == when and e == 0) for t, e in labels.tolist())
        chance *= 1 - sum(t == when and e == 0 for t, e in labels.tolist()) / there
    return chance


def risk_by(row, horizon):
    """A risk within a horizon, log-survival a straight line within a bin."""
    alive, start, edge = [0.0, *np.log1p(-row)], [0.0, *EDGES], 0
    while start[edge + 1] < horizon:
        edge += 1
    share = (horizon - start[edge]) / (start[edge + 1] - start[edge])
    return 1 - np.exp(alive[edge] + share * (alive[edge + 1] - alive[edge]))


def telling(risks, labels, horizon):
    """(risk, whether it came, what it stands for, its place) of labels that tell about a horizon."""
    for place, (row, (t, e)) in enumerate(zip(risks.numpy(), labels.tolist(), strict=True)):
        if (e and t <= horizon) or t >= horizon:
            came = bool(e) and t <= horizon
            yield (
                risk_by(row, horizon),
                came,
                1 / staying(labels, t if came else horizon),
                place,
            )


def area(risks, labels, horizon, weights):
    lines = [(p, y, c * weights[i]) for p, y, c, i in telling(risks, labels, horizon)]
    pairs = [(a, b) for a in lines if a[1] for b in lines if not b[1]]
    right = sum(a[2] * b[2] * ((a[0] > b[0]) + 0.5 * (a[0] == b[0])) for a, b in pairs)
    return right / sum(a[2] * b[2] for a, b in pairs)


def brier(risks, labels, horizon, weights):
    lines = [(p, y, c * weights[i]) for p, y, c, i in telling(risks, labels, horizon)]
    return sum(c * (p - y) ** 2 for p, y, c in lines) / sum(c for *_, c in lines)


def log_loss(risks, labels, horizon, weights):
    lines = [(p, y, c * weights[i]) for p, y, c, i in telling(risks, labels, horizon)]
    return -sum(c * np.log(p if y else 1 - p) for p, y, c in lines) / sum(c for *_, c in lines)


def concordance(risks, labels, weights):
    right = whole = 0.0
    for i, (t, e) in enumerate(labels.tolist()):
        place = next((k for k, end in enumerate(EDGES) if t <= end), None)
        if not e or place is None:
            continue
        for j, (other, came) in enumerate(labels.tolist()):
            if other > EDGES[place] or (other == EDGES[place] and not came):
                pair = weights[i] * weights[j] / staying(labels, t) ** 2
                mine, theirs = risks[i, place], risks[j, place]
                right += pair * float((mine > theirs) + 0.5 * (mine == theirs))
                whole += pair
    return right / whole


def integrated(risks, labels, weights):
    ends = [end for end in EDGES if end <= float(labels[:, 0].max())]
    each = [brier(risks, labels, end, weights) for end in ends]
    return np.trapezoid(each, ends) / (ends[-1] - ends[0])


def surprise(risks, labels, weights):
    head = Readout(1, len(EDGES), "time-to-event")
    head.bins.put(EDGES, 1.0)
    steps = -np.diff(np.log1p(-risks.numpy()), prepend=0.0, axis=1)
    logits = torch.tensor(np.log(np.expm1(steps)))
    each = [head.loss(a, b).item() for a, b in zip(logits, labels, strict=True)]
    return np.average(each, weights=weights)


WRITTEN_OUT = {
    "concordance": concordance,
    "integrated_brier": integrated,
    "nll": surprise,
    "auc@3": lambda p, y, w: area(p, y, 3.0, w),
    "brier@2.5": lambda p, y, w: brier(p, y, 2.5, w),
    "log_loss@5": lambda p, y, w: log_loss(p, y, 5.0, w),
}


@pytest.mark.parametrize("ties", [False, True], ids=["apart", "with ties"])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_each_metric_is_what_it_is_pair_by_pair_plain_and_weighted(name, ties, rng):
    risks, labels = made(rng, ties=ties)
    if ties and name in ("nll", "log_loss@5"):
        # A bin without any risk has no likelihood, and an event that had none an infinite loss.
        risks = 0.9 * risks + 0.001 * torch.arange(1, 6)
    question = Question(risks, labels, np.arange(N), N, edges=EDGES)
    weights = np.stack([np.ones(N), rng.integers(1, 4, N), rng.random(N) + 0.1])
    found = metric_named(name).define(question)(weights)
    wanted = [WRITTEN_OUT[name](risks, labels, row) for row in weights]
    assert found == pytest.approx(wanted, rel=1e-9)
    value = chosen_score(
        metric_for("time-to-event", name), "time-to-event", risks, labels, edges=EDGES
    )
    assert value == pytest.approx(wanted[0], rel=1e-9)


def test_who_is_lost_is_counted_as_kaplan_and_meier_do(rng):
    _, labels = made(rng, ties=True)
    at = np.array([0.0, 0.5, 1.0, 1.7, 3.0, 8.0])
    wanted = [staying(labels, t) for t in at]
    assert not_lost(*labels.numpy().T, at) == pytest.approx(wanted)


def test_without_censoring_a_horizon_is_a_binary_question(rng):
    risks, labels = made(rng)
    labels[:, 1] = 1
    came, risk = labels[:, 0] <= 4.0, risks[:, 2]
    for name, oracle in (
        ("auc", sklearn_metrics.roc_auc_score),
        ("auprc", sklearn_metrics.average_precision_score),
        ("log_loss", sklearn_metrics.log_loss),
        ("brier", sklearn_metrics.brier_score_loss),
    ):
        found = metric_named(f"{name}@4").value(risks, labels, EDGES)
        assert found == pytest.approx(oracle(came, risk), rel=1e-9)


def test_what_tells_stands_for_all(rng):
    """The weights of the labels that tell add up to all labels, and observed shares to Kaplan and Meier's."""
    risks, labels = made(rng)
    for horizon in (1.0, 3.3, 6.0):
        one = Question(risks, labels, edges=EDGES).within(horizon)
        assert one.counts.sum() == pytest.approx(N)
        alive = 1.0
        for when in sorted(t for t, e in labels.tolist() if e and t <= horizon):
            alive *= 1 - 1 / sum(t >= when for t, _ in labels.tolist())
        assert np.average(one.labels, weights=one.counts) == pytest.approx(1 - alive)


def test_several_labels_of_a_subject_are_drawn_together(rng):
    risks, labels = made(rng)
    cohort = Cohort.of([place // 3 for place in range(N)], resamples=40, seed=1)
    names = ["concordance", "integrated_brier", "nll", "auc@3"]
    given = risks, labels, cohort
    statistics = resampled_metrics(names, "time-to-event", *given, edges=EDGES)
    drawn = cohort.resample(statistics)
    for name in names:
        assert cohort.value(statistics[name]) == pytest.approx(
            WRITTEN_OUT[name](risks, labels, np.ones(N)), rel=1e-9
        )
        assert drawn[name].shape == (40,)
        assert np.isfinite(drawn[name]).all()
        assert drawn[name].std() > 0


def test_a_metric_without_a_value_says_why(rng):
    risks, labels = made(rng)
    none = labels.clone()
    none[:, 1] = 0
    with pytest.raises(UndefinedMetric, match="there is no pair"):
        METRICS["concordance"].value(risks, none, EDGES)
    with pytest.raises(UndefinedMetric, match="takes both classes"):
        metric_named("auc@3").value(risks, none, EDGES)
    short = torch.tensor([[0.5, 0.0]] * N)
    with pytest.raises(UndefinedMetric, match="no label reaches the end of the first bin, 1"):
        METRICS["integrated_brier"].value(risks, short, EDGES)
    head = Readout(1, len(EDGES), "time-to-event")
    head.bins.put(EDGES, 1.0)
    unknown = torch.full((N, 2), torch.nan)
    for name in ("concordance", "integrated_brier", "nll", "brier@2"):
        with pytest.raises(UndefinedMetric, match="there is no label"):
            score("time-to-event", name, torch.zeros(N, 5), unknown, head)


def test_horizons_that_cannot_be_judged_are_refused(rng):
    risks, labels = made(rng)
    with pytest.raises(MetricError, match=r"the horizon 12 is not above 0 and up to 9"):
        metric_named("auc@12").value(risks, labels, EDGES)
    for name in ("auc@", "auc@soon", "auc@-1", "auc@inf", "rmse@3", "concordance@3"):
        with pytest.raises(MetricError, match=f"there is no metric '{name}'"):
            metric_named(name)
    with pytest.raises(MetricError, match="'auc' is not for time-to-event tasks"):
        metric_for("time-to-event", "auc")
    with pytest.raises(MetricError, match="'auc@3' is not for binary tasks"):
        metric_for("binary", "auc@3")
    assert metric_title("log_loss@0.5", "days") == "Log loss within 0.5 days"


def test_scikit_survival_says_the_same(rng):
    """A bin for each time, so that none of two pairs shares one; a risk that keeps its order over time."""
    survival = pytest.importorskip("sksurv.metrics")
    count = 80
    factor = rng.gamma(2.0, 1.0, count)
    event, lost = rng.exponential(4.0 / factor), rng.exponential(4.0, count)
    time = np.minimum(event, lost)
    came = event <= lost
    edges = tuple(np.unique(time))
    labels = torch.tensor(np.stack([time, came * 1.0], 1))
    risks = torch.tensor(1 - np.exp(-np.outer(factor, np.array(edges) / 5)))
    known = np.array(list(zip(came, time, strict=True)), [("event", bool), ("time", float)])
    pairs = survival.concordance_index_ipcw(known, known, factor)[0]
    assert METRICS["concordance"].value(risks, labels, edges) == pytest.approx(pairs, rel=1e-9)
    for quantile in (0.2, 0.5, 0.7):
        at = float(np.quantile(time, quantile)) + 1e-9
        risk = 1 - np.exp(-factor * at / 5)
        wanted = survival.cumulative_dynamic_auc(known, known, risk, at)[0][0]
        question = Question(risks, labels, edges=edges).within(at)
        found = METRICS["auc"].define(question)(np.ones((1, 1)))[0]
        assert found == pytest.approx(wanted, rel=1e-6)
    ends = tuple(np.linspace(0.2, 0.9, 6) * np.quantile(time, 0.9))
    alive = np.exp(-np.outer(factor, np.array(ends) / 5))
    wanted = survival.integrated_brier_score(known, known, alive, ends)
    found = METRICS["integrated_brier"].value(torch.tensor(1 - alive), labels, ends)
    assert found == pytest.approx(wanted, rel=1e-9)
    assert "sksurv" in sys.modules
