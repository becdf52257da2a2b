"""More targets in training: whether the label comes within some time, read from the state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from onlinecde.data import Task
from onlinecde.models import OnlineModel
from onlinecde.series import SeriesBatch
from onlinecde.training.base_rates import START
from onlinecde.training.batches import seed_for
from onlinecde.training.settings import FitError, FitSettings


def check_horizons(task: Task, settings: FitSettings) -> None:
    """Refuse horizons for a task they mean nothing for."""
    if settings.horizons and (task.kind != "binary" or task.per != "row"):
        raise FitError(
            f"horizons are for binary tasks with a label per row; '{task.name}' is {task.kind} with one per "
            f"{task.per}: leave them out."
        )


def coming_labels(times: Tensor, labels: Tensor, horizons: Sequence[float]) -> Tensor:
    """Whether a label of 1 comes at a row from t to t + h: (stream, row, horizon), NaN where not known.

    times and labels (stream, row), a label NaN where there is none. The row itself counts, and with
    an infinite h all rows after it. Rows without a label are passed over, whatever comes of them;
    where no row of the stretch has one, nothing is known. After a stream's last row nothing comes.

    >>> times, labels = torch.tensor([[0.0, 1.0, 4.0, 6.0]]), torch.tensor([[0.0, 0.0, 1.0, torch.nan]])
    >>> coming_labels(times, labels, [3.0])[0, :, 0]
    tensor([0., 1., 1., nan])
    """
    before = _before(labels == 1), _before(~labels.isnan())
    row = torch.arange(labels.shape[1], device=labels.device).expand(labels.shape)
    found = []
    for horizon in horizons:
        after = torch.searchsorted(times.contiguous(), times + horizon, right=True)
        # In the padding the last time is repeated, and it holds no labels.
        ones, known = (sums.gather(1, after) - sums.gather(1, row) for sums in before)
        found.append(torch.where(known > 0, (ones > 0).to(labels.dtype), torch.nan))
    return torch.stack(found, 2)


def _before(events: Tensor) -> Tensor:
    """How many there are before each row and in all: (stream, row) bool -> (stream, row + 1)."""
    return nn.functional.pad(events.to(torch.int64).cumsum(1), (1, 0))


class HorizonReadout(nn.Linear):
    """A linear readout of the state, for training alone: one logit for each horizon.

    A readout that sees the path besides reads the state first; what it sees of the path could answer
    for the state, which would then have nothing more to learn.
    """

    def __init__(
        self, model: OnlineModel, series: SeriesBatch, labels: Tensor, settings: FitSettings
    ) -> None:
        # Draws of its own: the model's and the batches' stay what they are without it.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for("horizons", settings.seed))
            super().__init__(getattr(model, "hidden", model.readout.inputs), len(settings.horizons))
        self.horizons = settings.horizons
        wanted = coming_labels(series.times, labels, self.horizons).flatten(0, 1).cpu()
        ones, zeros = (((wanted == label).sum(0) + 0.5).log() for label in (1, 0))
        with torch.no_grad():
            self.weight.mul_(START)
            self.bias.copy_(ones - zeros)
        self.to(model.device, model.dtype)

    def forward_with(self, model: OnlineModel, batch: SeriesBatch) -> tuple[Tensor, Tensor]:
        """The model's outputs after each row and the logits of the horizons, (stream, row, ...)."""
        with self.beside(model.readout):
            both = model(batch)
        if both.shape[-1] != model.outputs + self.out_features:
            raise FitError(
                f"{type(model).__name__} does not put out what its readout does, so horizons cannot be read "
                "beside it: leave them out."
            )
        return both[..., : model.outputs], both[..., model.outputs :]

    @contextmanager
    def beside(self, head: nn.Module) -> Iterator[None]:
        """For a while, let a head put out the logits too; rows keep the model's own order."""

        def both(_: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> Tensor:
            return torch.cat([outputs, self(inputs[0][..., : self.in_features])], -1)

        handle = head.register_forward_hook(both)
        try:
            yield
        finally:
            handle.remove()

    def targets(self, times: Tensor, labels: Tensor) -> Tensor:
        """How many targets of each horizon are known, (horizon,)."""
        return (~coming_labels(times, labels, self.horizons).isnan()).sum((0, 1))

    def loss(
        self, logits: Tensor, times: Tensor, labels: Tensor, targets: Tensor | None = None
    ) -> Tensor:
        """The sum over horizons of the mean losses of the targets that are known.

        `targets` (horizon,): how many there are in all, where these are a part of a batch.
        """
        wanted = coming_labels(times, labels, self.horizons).to(logits.dtype)
        known = ~wanted.isnan()
        each = nn.functional.binary_cross_entropy_with_logits(
            logits, wanted.nan_to_num(0.0), reduction="none"
        )
        count = known.sum((0, 1)) if targets is None else targets
        return (torch.where(known, each, 0.0).sum((0, 1)) / count.clamp(min=1)).sum()
