"""A captured step: when there is none, and a loss that is `Head.loss` without a look at the labels."""

import pytest
import torch

import onlinecde as oc
from onlinecde.training.graphs import GraphedStep, bucket, masked_loss, why_not


@pytest.mark.parametrize("kind", ["regression", "binary", "multilabel", "multiclass"])
@pytest.mark.parametrize("missing", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_masked_loss_is_that_of_the_head(kind, missing, weighted):
    outputs = torch.randn(5, 7, 3, requires_grad=True)
    head = oc.NeuralCDE(2, 4, 4, outputs=3, kind=kind).head
    shape = (5, 7) if kind == "multiclass" else (5, 7, 3)
    labels = torch.randint(0, 2, shape).float()
    labels[torch.rand(shape) < missing] = -1 if kind == "multiclass" else torch.nan
    weight = None
    if weighted and kind != "regression":
        weight = torch.rand(3) + 0.5 if kind == "multiclass" else torch.tensor(1.7)
    mine, wanted = masked_loss(kind, outputs, labels, weight), head.loss(outputs, labels, weight)
    torch.testing.assert_close(mine, wanted)
    for found in zip(*(torch.autograd.grad(x, outputs) for x in (mine, wanted)), strict=True):
        torch.testing.assert_close(*found)


def test_what_cannot_be_captured_is_said():
    with pytest.raises(ValueError, match="the model is on cpu"):
        GraphedStep(oc.NeuralCDE(2, 4, 4), streams=8)
    for model in (oc.GRU, oc.GRUdt, oc.GRUdtIntensity, oc.GRUD, oc.ODERNN):
        assert why_not(model(2, 4)) == "the model is on cpu"
        own = type("Own", (model,), {})
        assert why_not(own(2, 4)) == "Own has no captured step"
    assert "depends on the data" in why_not(oc.ODERNN(2, 4, max_step=1.0))
    assert "depends on the data" in why_not(oc.ODERNN(2, 4, method="heun", rtol=1e-3, atol=1e-6))
    assert "leg by leg" in why_not(oc.ODERNN(2, 4, gradient="adjoint"))
    assert "was asked for" in why_not(oc.ODERNN(2, 4, backend="torch"))
    assert "natural_cubic" in why_not(oc.NeuralCDE(2, 4, 4, control="natural_cubic"))
    assert "depends on the data" in why_not(oc.NeuralCDE(2, 4, 4, max_step=1.0))


def test_few_buckets_hold_all_lengths():
    sizes = {bucket(rows) for rows in range(1, 201)}
    assert len(sizes) <= 14
    assert all(rows <= bucket(rows) < rows + 32 for rows in range(1, 201))
