"""Learning when an alarm is worth more than silence, for tasks whose data set says what both are worth.

With d what an alarm is worth beyond silence, the log loss of whether d is above 0, weighted by its size, is lowest
where the log-odds are above 0 just where the expected d is: E[d+] / (E[d+] + E[d-]) is then above a half. `fit` finds
the map of these log-odds that makes them probabilities of the label (recalibration); what it makes of 0 is the model's
`boundary`, from which on an alarm is worth more than silence.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from onlinecde.data import Task
from onlinecde.models import OnlineModel
from onlinecde.training.objectives import START, last_layer
from onlinecde.training.settings import FitError, FitSettings


def check_objective(task: Task, settings: FitSettings) -> None:
    """Refuse to learn utility of a task that has none where it is asked, or with weights of classes besides."""
    if settings.objective == "label":
        return
    if task.utility is None:
        raise FitError(
            f"objective is 'utility', and '{task.name}' does not say what alarms are worth at the times it is asked: "
            "leave it out, or ask at the times of its labels (at=task, validate_at=task)."
        )
    if settings.class_weights != "none":
        raise FitError(
            "class_weights and objective='utility' both weigh labels: leave one of them out."
        )


class Worth:
    """What an alarm is worth beyond silence at the labels of a task, in units of its mean size in training."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.unit = 1.0
        given = self.of("train")
        if not bool((given > 0).any()):
            raise FitError(
                f"in the training split of '{task.name}' no alarm is worth more than silence: there is nothing to "
                "learn. Give streams with the event, or another split seed."
            )
        self.unit = float(given[given != 0].abs().nanmean())

    def of(self, split: str) -> Tensor:
        """Of a split, (stream, label) float32; NaN where there is no label."""
        _, labels = self.task.split(split)
        assert self.task.utility is not None
        utility = self.task.utility.select(self.task.splits[split], labels.shape[1])
        return self._beyond(utility.alarm, utility.silence, labels)

    def drawn(self, times: Tensor, labels: Tensor) -> Tensor:
        """Of the training streams at other times (stream, query), with the labels there."""
        utility = self.task.utility and self.task.utility.select(self.task.splits["train"])
        utility = utility and utility.at(times, ~labels.isnan())
        assert utility is not None  # else the task would have none at the times it was first asked
        return self._beyond(utility.alarm, utility.silence, labels)

    def _beyond(self, alarm: object, silence: object, labels: Tensor) -> Tensor:
        both = torch.as_tensor(alarm), torch.as_tensor(silence)
        beyond = ((both[0] - both[1]) / self.unit).float()
        return beyond.masked_fill(labels.cpu().isnan(), torch.nan)


def utility_loss(outputs: Tensor, worth: Tensor) -> Tensor:
    """The mean over labels of |d| times the log loss of whether d > 0; outputs (..., 1) log-odds, worth (...) d.

    >>> utility_loss(torch.tensor([[0.0], [0.0]]), torch.tensor([2.0, torch.nan]))
    tensor(1.3863)
    """
    known = ~worth.isnan()
    size = torch.where(known, worth, 0.0).abs()
    odds = torch.where(known, outputs[..., 0], 0.0)
    each = size * nn.functional.softplus(torch.where(worth > 0, -odds, odds))
    return each.sum() / known.sum().clamp(min=1)


@torch.no_grad()
def start_at_balance(model: OnlineModel, worth: Tensor) -> None:
    """Let a fresh model say how much of all worth is on the side of alarms, and little else."""
    last = last_layer(model)
    if last is None:
        return
    gain, cost = worth.clamp(min=0).nansum(), (-worth).clamp(min=0).nansum()
    last.bias.fill_(float((gain + 0.5).log() - (cost + 0.5).log()))
    last.weight.mul_(START)
