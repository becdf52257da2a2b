"""Where a readout starts: at the constant that fits the training labels best, with small weights."""

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.data import Task, simulate_ward
from onlinecde.training import MODEL_NAMES, build_model, fit
from onlinecde.training.objectives import START, class_weight, last_layer, start_at_base_rate


def rare_task(kind, per="stream", streams=400, seed=0):
    random = np.random.default_rng(seed)
    rows = random.integers(2, 5, streams)
    series = oc.SeriesBatch.from_arrays(
        [np.arange(n, dtype=float) for n in rows], [random.normal(size=(n, 2)) for n in rows]
    )
    shape = tuple(series.times.shape) if per == "row" else (streams,)
    labels = {
        "binary": lambda: (random.random(shape) < 0.1).astype(float),
        "multilabel": lambda: (random.random((streams, 3)) < [0.05, 0.3, 0.8]).astype(float),
        "multiclass": lambda: random.choice(4, shape, p=[0.6, 0.3, 0.1, 0.0]),
        "regression": lambda: random.normal(50, 3, shape),
    }[kind]()
    if kind == "multilabel" or per == "row":
        unknown = random.random(labels.shape) < 0.3
        labels = np.where(unknown, -1 if kind == "multiclass" else np.nan, labels)
    classes = tuple("abcd") if kind == "multiclass" else ()
    return Task.build("rare", series, labels, kind=kind, per=per, classes=classes, stratify=False)


@pytest.mark.parametrize(
    ("kind", "per"),
    [
        ("binary", "stream"),
        ("binary", "row"),
        ("multilabel", "stream"),
        ("multiclass", "stream"),
        ("multiclass", "row"),
    ],
)
@pytest.mark.parametrize("balanced", [False, True])
def test_no_other_constant_fits_the_training_labels_better(kind, per, balanced):
    task = rare_task(kind, per)
    model = build_model(task, "gru", {"hidden": 4}).double()
    start_at_base_rate(model, task, balanced=balanced)
    bias = last_layer(model).bias.detach().clone().requires_grad_()
    _, labels = task.split("train")
    weight = class_weight(task) if balanced else None
    model.readout.loss(
        bias.expand(*labels.shape[: 1 + (per == "row")], -1), labels, weight
    ).backward()
    # The half labels added, and a class that never comes, leave a little.
    assert float(bias.grad.abs().max()) < 0.01
    assert bool(bias.isfinite().all())


@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("readout_width", [None, 5])
def test_every_model_built_by_name_starts_there(name, readout_width):
    task = rare_task("binary", "row")
    sizes = {"hidden": 4, "readout_width": readout_width}
    torch.manual_seed(0)
    plain = build_model(task, name, sizes)
    torch.manual_seed(0)
    started = build_model(task, name, sizes)
    start_at_base_rate(started, task)
    torch.testing.assert_close(last_layer(started).weight, START * last_layer(plain).weight)
    others = [n for n in plain.state_dict() if not n.startswith("readout.layers")]
    assert all(torch.equal(plain.state_dict()[n], started.state_dict()[n]) for n in others)
    # So slow a training shows where it began.
    done = fit(task, name, model_settings=sizes, epochs=1, lr=1e-12, monitor="loss")
    share = task.split("train")[1].nanmean()
    assert float(last_layer(done.model).bias.detach().sigmoid()) == pytest.approx(
        float(share), abs=0.005
    )


def test_a_regression_and_a_model_that_was_given_are_left_as_they_are():
    task = rare_task("regression")
    model = build_model(task, "gru", {"hidden": 4})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    start_at_base_rate(model, task)
    assert all(torch.equal(before[name], model.state_dict()[name]) for name in before)
    ward = simulate_ward(60, seed=1, hours=12).task
    own = oc.GRU(len(ward.series.channels), 4, static=2, kind="binary")
    bias = own.readout.layers.bias.detach().clone()
    fit(ward, own, epochs=1, lr=1e-12, monitor="loss")
    torch.testing.assert_close(own.readout.layers.bias.detach(), bias)


def test_the_first_loss_of_a_rare_label_is_that_of_its_base_rate():
    task = rare_task("binary", "row")
    done = fit(task, "gru", model_settings={"hidden": 8}, epochs=1, lr=1e-12)
    share = float(task.split("train")[1].nanmean())
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    assert done.history[0]["train_loss"] == pytest.approx(entropy, rel=0.03)
