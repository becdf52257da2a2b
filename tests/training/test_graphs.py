"""A captured step: when there is none, and a loss that is `Head.loss` without a look at the labels."""

import pytest
import torch
from torch import nn

import onlinecde as oc
from onlinecde.data import simulate_ward
from onlinecde.training.callbacks import Callback
from onlinecde.training.defaults import build_model
from onlinecde.training.graphs import GraphedStep, bucket, why_not
from onlinecde.training.loop import Training
from onlinecde.training.objectives import Scales
from onlinecde.training.settings import FitSettings


def picked_loss(kind, outputs, labels, weight):
    """The loss of the labels that are there, picked out."""
    known = labels >= 0 if kind == "multiclass" else ~labels.isnan()
    found, wanted = outputs[known], labels[known]
    if not len(found):
        return found.sum()
    if kind == "multiclass":
        return nn.functional.cross_entropy(found, wanted.long(), weight)
    if kind == "regression":
        return nn.functional.mse_loss(found, wanted)
    return nn.functional.binary_cross_entropy_with_logits(found, wanted, pos_weight=weight)


@pytest.mark.parametrize("kind", ["regression", "binary", "multilabel", "multiclass"])
@pytest.mark.parametrize("missing", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_looks_at_no_number_and_is_the_mean_over_the_labels_there_are(
    kind, missing, weighted
):
    outputs = torch.randn(5, 7, 3, requires_grad=True)
    head = oc.NeuralCDE(2, 4, outputs=3, field={"width": 4}, readout={"kind": kind}).readout
    shape = (5, 7) if kind == "multiclass" else (5, 7, 3)
    labels = torch.randint(0, 2, shape).float()
    labels[torch.rand(shape) < missing] = -1 if kind == "multiclass" else torch.nan
    weight = None
    if weighted and kind != "regression":
        weight = torch.rand(3) + 0.5 if kind == "multiclass" else torch.tensor(1.7)
    mine, wanted = head.loss(outputs, labels, weight), picked_loss(kind, outputs, labels, weight)
    torch.testing.assert_close(mine, wanted)
    for found in zip(*(torch.autograd.grad(x, outputs) for x in (mine, wanted)), strict=True):
        torch.testing.assert_close(*found)


def test_what_cannot_be_captured_is_said():
    with pytest.raises(ValueError, match="the model is on cpu"):
        GraphedStep(oc.NeuralCDE(2, 4, field={"width": 4}), streams=8)
    for model in (oc.GRU, oc.GRUdt, oc.GRUdtIntensity, oc.GRUD, oc.ODERNN):
        assert why_not(model(2, 4)) == "the model is on cpu"
        own = type("Own", (model,), {})
        assert why_not(own(2, 4)) == "Own has no captured step"
    assert "depends on the data" in why_not(oc.ODERNN(2, 4, max_step=1.0))
    assert "depends on the data" in why_not(oc.ODERNN(2, 4, method="heun", rtol=1e-3, atol=1e-6))
    assert "leg by leg" in why_not(oc.ODERNN(2, 4, gradient="adjoint"))
    assert "was asked for" in why_not(oc.ODERNN(2, 4, backend="torch"))
    assert "depends on the data" in why_not(
        oc.NeuralCDE(2, 4, field={"width": 4}, solver={"max_step": 1.0})
    )
    for control in ("rectilinear", "linear", "hermite", "natural_cubic"):
        assert (
            why_not(oc.NeuralCDE(2, 4, control=control, field={"width": 4}))
            == "the model is on cpu"
        )
        adaptive = oc.NeuralCDE(
            2,
            4,
            control=control,
            field={"width": 4},
            solver={"method": "bosh3", "rtol": 1e-3, "atol": 1e-6},
        )
        assert "depends on the data" in why_not(adaptive)


def test_few_buckets_hold_all_lengths():
    sizes = {bucket(rows) for rows in range(1, 201)}
    assert len(sizes) <= 14
    assert all(rows <= bucket(rows) < rows + 32 for rows in range(1, 201))


class Noted(Callback):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


def training_of_a_ward(captured):
    """A training whose captured step is this one, and a batch of it."""
    task = simulate_ward(40, seed=0).task
    torch.manual_seed(0)
    model = build_model(task, "gru", {"hidden": 5, "channel_dropout": 0.5})
    settings = FitSettings(horizons=(), batch_size=8)
    training = Training(model, task, Scales(), settings, torch.device("cpu"))
    training.captured, training.callback = captured, Noted()
    model.train()
    training._seed(0)
    batch = training.series[:8]
    return training, batch, training.labels[:8, : batch.times.shape[1]]


def gradients(training):
    return [p.grad.clone() for p in training.model.parameters()]


def test_a_captured_step_that_is_not_finite_is_computed_anew_into_the_same_gradients():
    plain, *asked = training_of_a_ward(None)
    wanted = plain._gradients(*asked)

    def broken(batch, labels):
        torch.rand(5)  # what it drew does not count
        for place in places:
            place.fill_(torch.nan)
        return torch.tensor(torch.nan)

    training, *asked = training_of_a_ward(broken)
    for p in training.model.parameters():
        p.grad = torch.zeros_like(p)
    places = [p.grad for p in training.model.parameters()]
    assert torch.equal(training._gradients(*asked), wanted)
    assert training.captured is broken
    assert all(
        p.grad is place for p, place in zip(training.model.parameters(), places, strict=True)
    )
    assert all(map(torch.equal, gradients(training), gradients(plain)))


def test_where_a_captured_step_has_no_room_steps_are_computed_plainly():
    plain, *asked = training_of_a_ward(None)
    wanted = plain._gradients(*asked)

    def too_large(batch, labels):
        raise torch.OutOfMemoryError

    training, *asked = training_of_a_ward(too_large)
    assert torch.equal(training._gradients(*asked), wanted)
    assert training.captured is None
    assert "no room on the GPU" in training.callback.said[0]
    assert all(map(torch.equal, gradients(training), gradients(plain)))
