"""Heads: losses and probabilities against torch's own, and labels that are not there."""

import math

import pytest
import torch
from torch import nn

from onlinecde.models import Readout

D = torch.float64
NAN = float("nan")


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def test_the_readout_is_linear_or_a_small_mlp():
    features = numbers(2, 3, 4)
    straight = Readout(4, 2).double()
    assert straight.linear
    torch.testing.assert_close(
        straight(features), features @ straight.layers.weight.T + straight.layers.bias
    )
    bent = Readout(4, 2, width=5).double()
    assert not bent.linear
    assert bent(features).shape == (2, 3, 2)
    torch.testing.assert_close(bent(features), bent(3 * features + 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["regression", "binary", "multilabel"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_losses_are_means_over_the_labels_there_are(kind, outputs):
    """Written out label by label, with the gaps left out."""
    head = Readout(4, outputs, kind)
    said = numbers(2, 5, outputs).requires_grad_()
    labels = numbers(2, 5, outputs, seed=1)
    if kind != "regression":
        labels = (labels > 0).double()
    labels[0, 1:4] = NAN
    labels[1, 0, 0] = NAN
    parts = []
    for y, label in zip(said.flatten().tolist(), labels.flatten().tolist(), strict=True):
        if not math.isnan(label):
            p = 1 / (1 + math.exp(-y))
            parts.append(
                (y - label) ** 2 if kind == "regression" else -math.log(p if label else 1 - p)
            )
    loss = head.loss(said, labels)
    assert loss.item() == pytest.approx(sum(parts) / len(parts), rel=1e-12)
    loss.backward()
    assert (said.grad[labels.isnan()] == 0).all()
    assert said.grad[~labels.isnan()].all()


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_one_output_takes_labels_with_or_without_their_own_axis(kind):
    head, said = Readout(4, 1, kind), numbers(2, 5, 1)
    labels = (numbers(2, 5, seed=1) > 0).double()
    assert head.loss(said, labels) == head.loss(said, labels[:, :, None])
    assert head.loss(said, labels) == head.loss(said, labels.long())


def test_classes_are_whole_numbers_and_minus_1_is_none():
    head = Readout(4, 3, "multiclass")
    said = numbers(6, 3).requires_grad_()
    labels = torch.tensor([0, 2, -1, 1, 1, -1])
    known = labels >= 0
    chosen = said.log_softmax(1)[known].gather(1, labels[known, None])
    torch.testing.assert_close(head.loss(said, labels), -chosen.mean())
    gaps = torch.where(known, labels.double(), NAN)
    assert head.loss(said, gaps) == head.loss(said, labels)
    weight = torch.tensor([1.0, 2.0, 5.0], dtype=D)
    torch.testing.assert_close(
        head.loss(said, labels, weight),
        nn.functional.cross_entropy(said, labels, weight, ignore_index=-1),
    )


def test_a_positive_weight_counts_positives_more():
    head, said = Readout(4, 1, "binary"), torch.zeros(2, 1, dtype=D)
    labels = torch.tensor([1.0, 0.0], dtype=D)
    assert head.loss(said, labels, torch.tensor(3.0, dtype=D)).item() == pytest.approx(
        2 * math.log(2)
    )


@pytest.mark.parametrize("kind", ["regression", "binary", "multilabel", "multiclass"])
def test_a_batch_without_labels_costs_nothing_and_teaches_nothing(kind):
    """NaN here would spoil every weight at the next step."""
    head, said = Readout(4, 2, kind), numbers(3, 2).requires_grad_()
    labels = torch.full((3,), -1) if kind == "multiclass" else torch.full((3, 2), NAN, dtype=D)
    loss = head.loss(said, labels)
    loss.backward()
    assert loss.item() == 0
    assert (said.grad == 0).all()


def test_probabilities():
    said = numbers(2, 5, 3)
    assert (Readout(4, 3).probabilities(said) == said).all()
    for kind in ("binary", "multilabel"):
        torch.testing.assert_close(Readout(4, 3, kind).probabilities(said), 1 / (1 + (-said).exp()))
    shares = Readout(4, 3, "multiclass").probabilities(said)
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 5, dtype=D))
    torch.testing.assert_close(shares, said.exp() / said.exp().sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "ordinal", "outputs": 2}, "kind is 'ordinal': choose one of regression, binary"),
        ({"outputs": 0}, "outputs is 0: give at least 1"),
        ({"outputs": 1, "width": 0}, "width is 0: give at least 1, or None"),
        ({"kind": "multiclass", "outputs": 1}, "one output for each class, at least 2"),
    ],
)
def test_heads_that_cannot_be_built(arguments, message):
    with pytest.raises(ValueError, match=message):
        Readout(4, **arguments)
