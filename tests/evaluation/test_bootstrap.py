"""Resampling subjects by weights gives what scikit-learn gives with those weights."""

import numpy as np
import pytest
import sklearn.metrics as oracle
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from onlinecde.evaluation.bootstrap import Cohort, Ranking, draws, interval
from onlinecde.evaluation.calibration import calibration
from onlinecde.evaluation.metrics import METRICS, chosen_score, resampled_metrics


@given(st.integers(0, 2**32 - 1))
def test_ranking_is_scikit_learn_with_sample_weights(seed):
    random = np.random.default_rng(seed)
    n, subjects = int(random.integers(2, 80)), int(random.integers(1, 20))
    scores = random.integers(0, 12, n) / 4  # with ties
    labels, owner = random.integers(0, 2, n), random.integers(0, subjects, n)
    weights = random.integers(0, 4, (3, subjects)).astype(float)
    ranking = Ranking(scores, labels, owner)
    found = ranking.auc(weights), ranking.auprc(weights), ranking.sensitivity(weights)
    for number, row in enumerate(weights):
        w = row[owner]
        if not w[labels == 1].sum() or not w[labels == 0].sum():
            assert all(np.isnan(f[number]) for f in found)
            continue
        y, s = labels, scores
        auc, auprc, sensitivity = (f[number] for f in found)
        assert auc == pytest.approx(oracle.roc_auc_score(y, s, sample_weight=w), abs=1e-12)
        expected = oracle.average_precision_score(y, s, sample_weight=w)
        assert auprc == pytest.approx(expected, abs=1e-12)
        false, hit, _ = oracle.roc_curve(y, s, sample_weight=w, drop_intermediate=False)
        assert sensitivity == pytest.approx(hit[false <= 0.1 + 1e-9].max(), abs=1e-12)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel", "regression"])
def test_drawn_once_each_subject_gives_the_metric_itself(kind):
    random = np.random.default_rng(7)
    streams, rows, outputs = 30, 5, {"binary": 1, "regression": 2}.get(kind, 3)
    along = kind == "binary"
    shape = (streams, rows) if along else (streams,)
    found = torch.tensor(random.random((*shape, outputs)))
    if kind == "multiclass":
        found = found / found.sum(-1, keepdim=True)
        labels = torch.tensor(random.integers(-1, 3, shape))
    else:
        shape = shape if along else (*shape, outputs)
        labels = torch.tensor(random.integers(0, 2, shape).astype(np.float32))
        labels[random.random(shape) < 0.2] = torch.nan
    cohort = Cohort.of(random.integers(0, 9, streams).tolist(), resamples=0, seed=0)
    names = [name for name, metric in METRICS.items() if kind in metric.kinds]
    statistics = resampled_metrics(names, kind, found, labels, cohort)
    assert set(names) - set(statistics) <= {"ece"}
    for name, statistic in statistics.items():
        expected = chosen_score(METRICS[name], kind, found, labels)
        assert cohort.value(statistic) == pytest.approx(expected, abs=1e-6), name


def test_weights_are_the_same_as_drawing_the_rows_of_subjects_again():
    random = np.random.default_rng(1)
    owner = random.integers(0, 8, 60)
    found = torch.tensor(random.random((60, 1)))
    labels = torch.tensor(random.integers(0, 2, 60).astype(np.float32))
    cohort = Cohort.of(owner.tolist(), resamples=20, seed=3)
    names = [name for name, metric in METRICS.items() if "binary" in metric.kinds and name != "ece"]
    drawn = cohort.resample(resampled_metrics(names, "binary", found, labels, cohort))
    weights = np.concatenate(list(draws(cohort.count, 20, 3)))
    assert np.array_equal(weights.sum(1), np.full(20, cohort.count))
    for number, row in enumerate(weights.astype(int)):
        again = np.repeat(np.arange(60), row[cohort.codes])
        for name in names:
            expected = chosen_score(METRICS[name], "binary", found[again], labels[again])
            assert drawn[name][number] == pytest.approx(expected, abs=1e-6), name


def test_resamples_of_r2_hold_for_labels_that_are_small_or_far_from_zero():
    random = np.random.default_rng(4)
    owner = np.arange(40) // 4
    cohort = Cohort.of(owner.tolist(), resamples=30, seed=3)
    weights = np.concatenate(list(draws(cohort.count, 30, 3)))[:, cohort.codes]
    for size, offset in ((1e-6, 0.0), (1.0, 1e6)):
        labels = offset + size * random.normal(size=40)
        found = labels + size * random.normal(size=40)
        statistic = resampled_metrics(
            ["r2"], "regression", torch.tensor(found)[:, None], torch.tensor(labels), cohort
        )
        expected = [oracle.r2_score(labels, found, sample_weight=w) for w in weights]
        assert cohort.resample(statistic)["r2"] == pytest.approx(expected, rel=1e-6)


def test_a_resample_with_one_label_all_over_has_no_r2():
    cohort = Cohort.of(["ann", "bob"], resamples=50, seed=0)
    found, labels = torch.tensor([[0.1], [0.4]]).double(), torch.tensor([0.3, 0.7])
    drawn = cohort.resample(resampled_metrics(["r2"], "regression", found, labels, cohort))["r2"]
    assert 0 < np.isnan(drawn).sum() < 50
    assert np.nanmin(drawn) == pytest.approx(1 - (0.04 + 0.09) / 0.08, abs=1e-5)


def test_draws_depend_on_the_seed_alone():
    few, many = next(draws(50, 3, 9)), np.concatenate(list(draws(50, 200, 9)))
    assert np.array_equal(few, many[:3])
    assert not np.array_equal(many, np.concatenate(list(draws(50, 200, 10))))


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    random = np.random.default_rng(0)
    held = 0
    for seed in range(120):
        # Twenty subjects, each with rows that are alike: rows drawn alone would be far too sure.
        mean = random.normal(size=25)
        values = np.repeat(mean, 8) + 0.1 * random.normal(size=200)
        labels = torch.zeros(200)
        cohort = Cohort.of(np.repeat(np.arange(25), 8).tolist(), resamples=200, seed=seed)
        statistic = resampled_metrics(
            ["rmse"], "regression", torch.tensor(values)[:, None], labels, cohort
        )
        spread = interval(0.0, cohort.resample(statistic)["rmse"])
        held += spread.low <= np.sqrt(1.01) <= spread.high
    assert 0.82 <= held / 120 <= 0.99


def test_one_subject_has_no_interval():
    cohort = Cohort.of(["ann"] * 4, resamples=100, seed=0)
    assert cohort.resample({"any": lambda weights: weights.sum(1)})["any"].shape == (0,)
    assert interval(0.3, np.empty(0)).low is None
    assert "too few subjects" in interval(0.3, np.full(10, np.nan)).reason


def test_calibration_line_is_logistic_regression_on_the_logit():
    random = np.random.default_rng(5)
    p = random.beta(1, 6, 4000)
    true = 1 / (1 + np.exp(-(0.4 + 0.7 * np.log(p / (1 - p)))))
    labels = (random.random(4000) < true).astype(float)
    cohort = Cohort.of(np.arange(4000).tolist(), resamples=50, seed=0)
    found = calibration(p, labels, cohort.codes, cohort)
    fitted = LogisticRegression(C=np.inf, tol=1e-10).fit(np.log(p / (1 - p))[:, None], labels)
    assert found.slope.value == pytest.approx(fitted.coef_[0, 0], abs=1e-4)
    assert found.intercept.value == pytest.approx(fitted.intercept_[0], abs=1e-4)
    assert found.slope.low < 0.7 < found.slope.high
    assert sum(one.labels for one in found.bins) == 4000
    assert len(found.bins) == 10
    for one in found.bins:
        assert one.low <= one.observed <= one.high
    total = sum(one.observed * one.labels for one in found.bins)
    assert total == pytest.approx(labels.sum())


def test_calibration_without_a_line_says_why():
    cohort = Cohort.of(range(4), resamples=10, seed=0)
    same = calibration(np.full(4, 0.2), np.array([0, 1, 0, 1.0]), cohort.codes, cohort)
    assert "every risk is the same" in same.slope.reason
    assert len(same.bins) == 1
    apart = np.array([0.1, 0.2, 0.8, 0.9])
    parted = calibration(apart, np.array([0, 0, 1, 1.0]), cohort.codes, cohort)
    assert "separated" in parted.slope.reason
    one = calibration(apart, np.zeros(4), cohort.codes, cohort)
    assert "both classes" in one.intercept.reason
