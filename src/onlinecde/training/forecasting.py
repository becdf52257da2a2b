"""What `fit` does for forecasts: where they start, and by how much changes and widths are overstated."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.data.forecasting import channel_means, last_values
from onlinecde.evaluation.metrics import score_or_none
from onlinecde.evaluation.predictions import predict_split
from onlinecde.models import OnlineModel
from onlinecde.models.forecasts import LEVELS, MIDDLE, by_level, pinball
from onlinecde.models.readout import masked_loss
from onlinecde.training.callbacks import Callback
from onlinecde.training.objectives import last_layer
from onlinecde.training.settings import FitError

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of a change that was learned, the shares that are tried on validation"""
WIDTHS = tuple(2.0 ** (n / 6) for n in range(-9, 10))
"""Factors of the distances from the median that are tried"""


@torch.no_grad()
def start_at_last_values(model: OnlineModel, task: Task) -> None:
    """Let a fresh model forecast last values, as far around them as changes in training are.

    Raises:
        FitError: a channel, or one so far ahead, is never observed in training.
    """
    forecasts, forecast = model.readout.forecasts, task.forecast
    assert forecasts is not None
    assert forecast is not None
    labels = task.split("train")[1]
    count = (~labels.isnan()).flatten(0, 1).sum(0)
    for number, (channel, horizon) in enumerate(forecast.pairs):
        if not int(count[number]):
            raise FitError(
                f"channel {channel!r} is never observed {horizon:g} {task.time_unit} after a row of the training split "
                f"(within {forecast.within[number % len(forecast.horizons)]:g}): there is nothing to learn. Leave it "
                "out, or give other horizons, or a wider --within."
            )
    known = [str(one) for one in task.series.channels]
    changes = (labels - last_values(task, "train")).double().flatten(0, 1)
    usual = changes.abs().nanmean(0)
    usual = torch.where(usual > 0, usual, 1.0)
    forecasts.put(
        [known.index(channel) for channel, _ in forecast.pairs],
        [horizon for _, horizon in forecast.pairs],
        start=channel_means(task).tolist(),
        unit=usual.tolist(),
    )
    last = last_layer(model)
    if last is None:
        return
    start = torch.zeros(len(forecasts), len(LEVELS), dtype=torch.float64)
    for number, column in enumerate((changes / usual).unbind(1)):
        quantiles = np.quantile(column[~column.isnan()].numpy(), LEVELS)
        # From level to level, outwards from the middle one, which stays at the last value.
        steps = torch.from_numpy(np.maximum(np.diff(quantiles), 0.02))
        away = steps.expm1().log()
        start[number, :MIDDLE], start[number, MIDDLE + 1 :] = away[:MIDDLE], away[MIDDLE:]
    last.bias.copy_(start.flatten())
    last.weight.zero_()


def settle_forecasts(model: OnlineModel, task: Task, callback: Callback) -> dict[str, Any] | None:
    """Shrink changes of the median, and widen or narrow the quantiles, as validation asks for.

    A share of 0 is the last value itself, so that on validation no forecast loses to it in mean absolute error. A
    stream counts once, however many labels it has.
    """
    forecasts = model.readout.forecasts
    if forecasts is None:
        return None
    outputs, labels = predict_split(model, task, "validation"), task.split("validation")[1].cpu()
    last = last_values(task, "validation").double().cpu()
    quantiles = by_level(outputs.double())
    middle = quantiles[..., MIDDLE]
    known = ~labels.isnan()
    weight = known / known.flatten(1, -2).sum(1)[:, None].clamp(min=1)

    def mean(each: Tensor) -> Tensor:
        return (torch.where(known, each, 0.0) * weight).flatten(0, -2).sum(0)

    moves, away = middle - last, quantiles - middle[..., None]
    wanted = labels.double().nan_to_num(0.0)
    errors = torch.stack([mean((wanted - last - share * moves).abs()) for share in SHARES])
    share = torch.tensor(SHARES, dtype=torch.float64)[errors.argmin(0)]
    middle = last + share * moves
    losses = torch.stack(
        [mean(pinball(middle[..., None] + width * away, wanted, None)) for width in WIDTHS]
    )
    width = torch.tensor(WIDTHS, dtype=torch.float64)[losses.argmin(0)]
    with torch.no_grad():
        forecasts.shrink.mul_(share.to(forecasts.shrink))
        forecasts.widen.mul_(width.to(forecasts.widen))
    outputs = (middle[..., None] + width[:, None] * away).flatten(-2)
    loss = float(masked_loss(task.kind, outputs, labels, forecasts.unit.cpu()))
    value = score_or_none(task.kind, task.metric, outputs, labels, model.readout)
    callback.note(
        f"on validation {_listed(share)} of each change from the last value is kept, and widths times {_listed(width)}"
    )
    return {
        "share": share.tolist(),
        "width": width.tolist(),
        "validation_loss": loss,
        f"validation_{task.metric}": value,
    }


def _listed(numbers: Tensor) -> str:
    shown = [f"{number:.3g}" for number in numbers.tolist()[:6]]
    return ", ".join(shown) + ", ..." * (len(numbers) > 6)
