"""The running mean of a model's weights, which generalises better than the last ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class AveragedWeights:
    """`mean <- d * mean + (1 - d) * weights` after every batch; d grows to `decay` as batches pass."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.batches = decay, 0
        self.mean = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights after a batch."""
        self.batches += 1
        # The first weights are far from any good mean: they are forgotten sooner.
        decay = min(self.decay, (1 + self.batches) / (10 + self.batches))
        named = dict(model.named_parameters())
        means = [self.mean[name] for name in named]
        torch._foreach_lerp_(means, [p.detach() for p in named.values()], 1 - decay)

    @contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """For a while, let the model have the mean as its weights."""
        kept = {name: p.detach().clone() for name, p in model.named_parameters()}
        _assign(model, self.mean)
        try:
            yield
        finally:
            _assign(model, kept)


@torch.no_grad()
def _assign(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
