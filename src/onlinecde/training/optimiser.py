"""The optimiser of a training: what learns how fast, from which batches, and the mean of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from onlinecde.models import OnlineModel
from onlinecde.training.objectives import HorizonReadout
from onlinecde.training.settings import FitSettings, seed_for


def adamw(
    model: OnlineModel, ahead: HorizonReadout | None, settings: FitSettings
) -> torch.optim.Optimizer:
    """AdamW with a rate of its own for body, readout and horizons; matrices alone decay."""
    head = {id(p) for p in model.readout.parameters()}
    body = [p for p in model.parameters() if id(p) not in head]
    body_pace, head_pace = model.readout.paces
    if ahead is not None:
        # A state that has more to learn than the label does not learn the label by heart.
        body_pace = 1.0
    groups = []
    for part in (
        body,
        [*model.readout.parameters()],
        [] if ahead is None else [*ahead.parameters()],
    ):
        for matrix in (True, False):
            weights = [p for p in part if p.requires_grad and (p.ndim > 1) == matrix]
            if weights:
                rate = body_pace if part is body else head_pace * settings.head_lr
                decay = settings.weight_decay if matrix else 0.0
                groups.append({"params": weights, "rate": rate, "weight_decay": decay})
    return torch.optim.AdamW(groups, lr=settings.lr)


def rates(optimiser: torch.optim.Optimizer) -> list[float]:
    """What the learning rate is multiplied by in each group."""
    return [group["rate"] for group in optimiser.param_groups]


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


def pack_optimiser(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimiser remembers of each weight, by name."""
    held = optimiser.state_dict()["state"]
    return {
        f"optimiser.{index}.{name}": torch.as_tensor(value)
        for index, entry in held.items()
        for name, value in entry.items()
    }


def unpack_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give an optimiser back what it remembered; learning rates are the caller's to set."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def epoch_batches(streams: int, size: int, seed: int, epoch: int) -> list[Tensor]:
    """Positions of the streams of each batch of an epoch, from the seed alone; at most `size` a batch.

    Streams of like length are not put together, though it would save padding: events are rarer or
    more frequent in longer streams, so each batch would know another share of them
    (docs/tried.md has what that cost). Batches are of one size, give or take a stream.

    >>> batches = epoch_batches(5, 2, seed=0, epoch=1)
    >>> [len(batch) for batch in batches], sorted(i for batch in batches for i in batch.tolist())
    ([2, 2, 1], [0, 1, 2, 3, 4])
    """
    generator = torch.Generator().manual_seed(seed_for("batches", seed, epoch))
    shuffled = torch.randperm(streams, generator=generator)
    return list(shuffled.tensor_split(-(-streams // size)))
