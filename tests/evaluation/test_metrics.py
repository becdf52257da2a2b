"""Metrics agree with scikit-learn, ignore what has no label, and say why where they have no value."""

import numpy as np
import pytest
import sklearn.metrics as oracle
import torch

import onlinecde as oc
from onlinecde.evaluation.metrics import METRICS, MetricError, UndefinedMetric, better, score
from onlinecde.evaluation.predictions import as_probabilities, predict_task
from onlinecde.models.readout import Readout

HEAD = Readout(1, 1, "regression")


def tied_scores(rng, n, levels=40):
    """Logits with many ties, and labels that follow them."""
    logits = rng.integers(-levels, levels, n) / 10
    labels = (rng.random(n) < 1 / (1 + np.exp(-logits / 2))).astype(np.float32)
    return torch.tensor(logits)[:, None], torch.tensor(labels)


def made_series(rng, streams=13, channels=3, static=None):
    rows = rng.integers(1, 12, streams)
    times = [np.sort(rng.random(n)).cumsum() for n in rows]
    values = [rng.normal(size=(n, channels)).astype(np.float32) for n in rows]
    for value in values:
        value[rng.random(value.shape) < 0.3] = np.nan
    return oc.SeriesBatch.from_arrays(times, values, static)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("auc", oracle.roc_auc_score),
        ("auprc", oracle.average_precision_score),
        ("brier", oracle.brier_score_loss),
        ("log_loss", oracle.log_loss),
        ("accuracy", lambda y, p: oracle.accuracy_score(y, p > 0.5)),
    ],
)
def test_binary_metrics_are_those_of_scikit_learn(metric, expected, rng):
    logits, labels = tied_scores(rng, 501)
    head = Readout(1, 1, "binary")
    p = as_probabilities(head, logits)[:, 0].numpy()
    found = score("binary", metric, logits, labels, head)
    assert found == pytest.approx(expected(labels.numpy(), p), abs=1e-6)


def test_sensitivity_is_the_most_with_ninety_percent_specificity(rng):
    logits, labels = tied_scores(rng, 400)
    false, hit, _ = oracle.roc_curve(labels.numpy(), logits[:, 0].numpy(), drop_intermediate=False)
    found = score("binary", "sensitivity", logits, labels, Readout(1, 1, "binary"))
    assert found == pytest.approx(hit[false <= 0.1].max(), abs=1e-6)


def test_calibration_error_is_the_mean_gap_of_fifteen_bins(rng):
    logits, labels = tied_scores(rng, 400)
    p, y = logits[:, 0].sigmoid().numpy(), labels.numpy()
    place = np.digitize(p, np.linspace(0, 1, 16)[1:-1])
    gaps = [abs((p - y)[place == b].sum()) for b in range(15)]
    found = score("binary", "ece", logits, labels, Readout(1, 1, "binary"))
    assert found == pytest.approx(sum(gaps) / len(p), abs=1e-5)


def test_multiclass_metrics_are_those_of_scikit_learn(rng):
    outputs, labels = torch.tensor(rng.normal(size=(300, 4))), rng.integers(0, 4, 300)
    head, p = Readout(1, 4, "multiclass"), outputs.softmax(1).numpy()
    expected = {
        "accuracy": oracle.accuracy_score(labels, p.argmax(1)),
        "auc": oracle.roc_auc_score(labels, p, multi_class="ovr", average="macro"),
        "log_loss": oracle.log_loss(labels, p),
        "brier": ((p - np.eye(4)[labels]) ** 2).sum(1).mean(),
    }
    for metric, value in expected.items():
        found = score("multiclass", metric, outputs, torch.tensor(labels), head)
        assert found == pytest.approx(value, abs=1e-6), metric


def test_regression_has_one_rmse_over_the_whole_set(rng):
    outputs, labels = torch.tensor(rng.normal(size=(2, 90, 1)))
    labels[rng.random(labels.shape) < 0.2] = torch.nan
    head, known = Readout(1, 1, "regression"), ~labels.isnan()
    y, p = labels[known].numpy(), outputs[known].numpy()
    expected = {
        "rmse": oracle.root_mean_squared_error(y, p),
        "mae": oracle.mean_absolute_error(y, p),
        "r2": oracle.r2_score(y, p),
    }
    for metric, value in expected.items():
        assert score("regression", metric, outputs, labels, head) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e7])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_a_regression_is_judged_alike_in_any_unit(size, offset, rng):
    labels = torch.tensor(size * (offset + rng.normal(size=(60, 1))))
    outputs = torch.zeros_like(labels) + size * offset
    found = {m: score("regression", m, outputs, labels, HEAD) for m in ("rmse", "mae", "r2")}
    y, p = labels[:, 0].numpy(), outputs[:, 0].numpy()
    assert found["rmse"] == pytest.approx(oracle.root_mean_squared_error(y, p), rel=1e-9, abs=0)
    assert found["mae"] == pytest.approx(oracle.mean_absolute_error(y, p), rel=1e-9, abs=0)
    assert found["r2"] == pytest.approx(oracle.r2_score(y, p), rel=1e-6, abs=1e-9)


def test_equal_outputs_have_equal_probabilities_wherever_they_stand(rng):
    head = Readout(1, 1, "binary")
    few = torch.tensor(rng.normal(size=5))
    for n in range(40, 60):
        logits = few[torch.tensor(rng.integers(0, 5, n))][:, None]
        found = as_probabilities(head, logits)
        assert len(found.unique()) == len(logits.unique())
        labels = torch.tensor(rng.permutation(n) % 2).float()
        expected = oracle.roc_auc_score(labels, logits[:, 0])  # ties are ties of the logits
        assert score("binary", "auc", logits, labels, head) == pytest.approx(expected, abs=1e-6)


def test_rows_without_a_label_do_not_count(rng):
    logits, labels = tied_scores(rng, 120)
    head = Readout(1, 1, "binary")
    alone = score("binary", "auc", logits, labels, head)
    more = torch.cat([logits, torch.tensor(rng.normal(size=(50, 1)))]).reshape(-1, 10, 1)
    padded = torch.cat([labels, torch.full((50,), torch.nan)]).reshape(-1, 10)
    assert score("binary", "auc", more, padded, head) == alone
    outputs, classes = torch.tensor(rng.normal(size=(60, 3))), rng.integers(0, 3, 60)
    head, classes = Readout(1, 3, "multiclass"), torch.tensor(classes)
    hidden = torch.where(torch.arange(60) < 20, -1, classes)
    assert score("multiclass", "accuracy", outputs, hidden, head) == score(
        "multiclass", "accuracy", outputs[20:], classes[20:], head
    )


def test_a_question_with_one_class_is_left_out_of_the_mean(rng):
    logits = torch.tensor(rng.normal(size=(80, 2)))
    labels = torch.tensor(rng.integers(0, 2, (80, 2)).astype(np.float32))
    labels[:, 1] = 1
    found = score("multilabel", "auc", logits, labels, Readout(1, 2, "multilabel"))
    assert found == pytest.approx(oracle.roc_auc_score(labels[:, 0], logits[:, 0]), abs=1e-6)


def test_without_a_value_it_says_why():
    head, outputs = Readout(1, 1, "binary"), torch.zeros(3, 1)
    with pytest.raises(UndefinedMetric, match="every label is 1: it takes both classes"):
        score("binary", "auc", outputs, torch.ones(3), head)
    with pytest.raises(UndefinedMetric, match="no label"):
        score("binary", "accuracy", outputs, torch.full((3,), torch.nan), head)
    with pytest.raises(UndefinedMetric, match="not finite"):
        score("binary", "auc", outputs * torch.nan, torch.tensor([0.0, 1, 1]), head)
    assert score("binary", "accuracy", outputs, torch.ones(3), head) == 0


def test_unknown_and_unfitting_metrics_are_refused_with_those_there_are():
    with pytest.raises(MetricError, match="no metric 'auroc': choose one of auc, auprc"):
        better("auroc")
    with pytest.raises(MetricError, match="'rmse' is not for binary tasks: choose one of auc"):
        score("binary", "rmse", torch.zeros(2, 1), torch.zeros(2), Readout(1, 1, "binary"))
    assert {name: better(name) for name in ("auc", "rmse", "brier")} == {
        "auc": "max",
        "rmse": "min",
        "brier": "min",
    }
    assert all(metric.name == name for name, metric in METRICS.items())


@pytest.mark.parametrize("model", [oc.GRU, oc.NeuralCDE])
def test_predictions_come_in_order_whatever_the_batch(model, rng):
    series = made_series(rng)
    torch.manual_seed(0)
    net = model(channels=3, hidden=6, outputs=2)
    net.train()
    with torch.no_grad():
        whole = net(series)
    for size in (1, 4, 256):
        rows = predict_task(net, series, "row", batch_size=size)
        assert torch.allclose(rows, whole, atol=1e-6)
        last = predict_task(net, series, "stream", batch_size=size)
        assert torch.allclose(last, whole[:, -1], atol=1e-6)
    assert net.training
    assert not rows.requires_grad


def test_what_is_asked_per_is_checked(rng):
    with pytest.raises(MetricError, match="choose 'stream' or 'row'"):
        predict_task(oc.GRU(channels=3, hidden=2), made_series(rng), "rows")
