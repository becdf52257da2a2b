"""One definition of each metric serves its value and its resamples: both are those of scikit-learn."""

import numpy as np
import pytest
import sklearn.metrics as oracle
import torch

from onlinecde.evaluation.breakdown import by_class
from onlinecde.evaluation.metrics import METRICS, Question, UndefinedMetric


def with_ninety_percent(y, p, sample_weight):
    false, hit, _ = oracle.roc_curve(y, p, sample_weight=sample_weight, drop_intermediate=False)
    return hit[false <= 0.1 + 1e-9].max()


def gap(y, p, sample_weight):
    place = np.minimum((p * 15).astype(int), 14)
    gaps = [abs((sample_weight * (p - y))[place == b].sum()) for b in range(15)]
    return sum(gaps) / sample_weight.sum()


BINARY = {
    "auc": oracle.roc_auc_score,
    "auprc": oracle.average_precision_score,
    "sensitivity": with_ninety_percent,
    "accuracy": lambda y, p, sample_weight: oracle.accuracy_score(
        y, p > 0.5, sample_weight=sample_weight
    ),
    "brier": oracle.brier_score_loss,
    "log_loss": oracle.log_loss,
    "ece": gap,
}
NUMBERS = {
    "rmse": oracle.root_mean_squared_error,
    "mae": oracle.mean_absolute_error,
    "r2": oracle.r2_score,
}


def weighted(metric, predicted, labels, weights):
    """The metric with a weight for each label, every label a subject of its own."""
    question = Question(
        torch.tensor(predicted), torch.tensor(labels), np.arange(len(labels)), len(labels)
    )
    return METRICS[metric].define(question)(weights)


def check(metric, expected, predicted, labels, rng):
    ones = np.ones(len(labels))
    weights = np.stack([ones, rng.integers(1, 4, len(labels)), rng.random(len(labels)) + 0.1])
    found = weighted(metric, predicted, labels, weights)
    wanted = [expected(labels, predicted, sample_weight=row) for row in weights]
    assert found == pytest.approx(wanted, abs=1e-9)
    plain = METRICS[metric].value(torch.tensor(predicted), torch.tensor(labels))
    assert plain == pytest.approx(wanted[0], abs=1e-9)


@pytest.mark.parametrize("metric", BINARY)
def test_a_binary_metric_is_scikit_learn_plain_and_weighted(metric, rng):
    labels = rng.integers(0, 2, 200).astype(float)
    check(metric, BINARY[metric], rng.random(200), labels, rng)


@pytest.mark.parametrize("metric", BINARY)
def test_ties_are_those_of_scikit_learn(metric, rng):
    labels = rng.integers(0, 2, 120).astype(float)
    # Off the edges of bins, where rounding would choose.
    check(metric, BINARY[metric], rng.integers(0, 5, 120) / 5 + 0.01, labels, rng)


@pytest.mark.parametrize("metric", NUMBERS)
def test_a_metric_of_numbers_is_scikit_learn_plain_and_weighted(metric, rng):
    labels = rng.normal(size=150)
    check(metric, NUMBERS[metric], labels + rng.normal(size=150), labels, rng)


def test_metrics_of_classes_are_scikit_learn_plain_and_weighted(rng):
    labels = rng.integers(0, 3, 150)
    predicted = rng.dirichlet(np.ones(4), 150)  # class 3 never occurs
    present = range(3)
    one_hot = np.eye(4)

    def area(y, p, sample_weight):
        each = [oracle.roc_auc_score(y == c, p[:, c], sample_weight=sample_weight) for c in present]
        return np.mean(each)

    def brier(y, p, sample_weight):
        return np.average(((p - one_hot[y]) ** 2).sum(1), weights=sample_weight)

    def surprise(y, p, sample_weight):
        return oracle.log_loss(y, p, sample_weight=sample_weight, labels=range(4))

    def right(y, p, sample_weight):
        return oracle.accuracy_score(y, p.argmax(1), sample_weight=sample_weight)

    for metric, expected in (
        ("auc", area),
        ("brier", brier),
        ("log_loss", surprise),
        ("accuracy", right),
    ):
        check(metric, expected, predicted, labels, rng)


def test_class_by_class_is_scikit_learn(rng):
    labels, predicted = rng.integers(0, 3, 90), rng.dirichlet(np.ones(3), 90)
    found = by_class(torch.tensor(predicted), torch.tensor(labels), ("a", "b", "c"))
    said = predicted.argmax(1)
    assert np.array_equal(found["confusion"], oracle.confusion_matrix(labels, said))
    precision, recall, _, _ = oracle.precision_recall_fscore_support(labels, said)
    for number, one in enumerate(found["per_class"]):
        assert (one.precision, one.recall) == pytest.approx((precision[number], recall[number]))
        area = oracle.roc_auc_score(labels == number, predicted[:, number])
        assert one.auc == pytest.approx(area)
        assert one.labels == (labels == number).sum()


def test_where_there_is_one_class_or_no_label_a_metric_has_no_value_or_says_so():
    one, none = torch.tensor([0.2, 0.7]), torch.empty(0, dtype=torch.float64)
    for metric in ("auc", "auprc", "sensitivity"):
        with pytest.raises(UndefinedMetric, match="takes both classes"):
            METRICS[metric].value(one, torch.ones(2))
        drawn = weighted(metric, [0.2, 0.7], [0.0, 1.0], np.array([[0.0, 2.0], [1.0, 1.0]]))
        assert np.isnan(drawn[0])
        assert drawn[1] == pytest.approx(1)
    with pytest.raises(UndefinedMetric, match="nothing to explain"):
        METRICS["r2"].value(one, torch.full((2,), 3.0))
    for metric in METRICS.values():
        with pytest.raises(UndefinedMetric, match="there is no label"):
            metric.value(none, none)
