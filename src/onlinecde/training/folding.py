"""Scales a model is trained in, folded into its own weights: what is saved speaks raw units."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from onlinecde.models import OnlineModel
from onlinecde.series import SeriesBatch


@dataclass(frozen=True)
class Scales:
    """Means and deviations of static features (feature,) and of targets (output,); None: as they are."""

    static_mean: Tensor | None = None
    static_deviation: Tensor | None = None
    target_mean: Tensor | None = None
    target_deviation: Tensor | None = None

    def series(self, batch: SeriesBatch) -> SeriesBatch:
        """The batch with scaled static features."""
        if self.static_mean is None or self.static_deviation is None or batch.static is None:
            return batch
        scaled = (batch.static - self.static_mean.to(batch.static)) / self.static_deviation.to(
            batch.static
        )
        return replace(batch, static=scaled)

    def target(self, labels: Tensor) -> Tensor:
        """Labels in the scale the model is trained in."""
        if self.target_mean is None or self.target_deviation is None:
            return labels
        return (labels - self.target_mean.to(labels)) / self.target_deviation.to(labels)

    def outputs(self, found: Tensor) -> Tensor:
        """Outputs (..., output) of the model in training, in the task's units."""
        if self.target_mean is None or self.target_deviation is None:
            return found
        return found * self.target_deviation.to(found) + self.target_mean.to(found)


def learn_scales(
    model: OnlineModel, series: SeriesBatch, labels: Tensor, *, target: bool
) -> Scales:
    """Scales of training data, as far as the model has places to fold them into."""
    static_mean = static_deviation = target_mean = target_deviation = None
    # A model that has them in its path scales them itself, as it scales values.
    apart = not getattr(model, "static_in_path", False)
    if series.static is not None and apart and isinstance(_initial(model), nn.Linear):
        features = series.static.double()
        static_mean = features.mean(0)
        spread = features.std(0, correction=0)
        static_deviation = torch.where(spread > 1e-12 * static_mean.abs(), spread, 1.0)
    head = last_layer(model)
    if target and head is not None and model.readout.kind == "regression":
        known = labels.double().reshape(-1, head.out_features)
        target_mean = torch.nanmean(known, 0)
        spread = torch.nanmean((known - target_mean).square(), 0).sqrt()
        target_deviation = torch.where(spread > 0, spread, 1.0)
    return Scales(static_mean, static_deviation, target_mean, target_deviation)


@torch.no_grad()
def fold(model: OnlineModel, scales: Scales) -> None:
    """Make a model trained on scaled static features and targets say the same of raw ones.

    Worked out in float64 and rounded once.
    """
    first = _initial(model)
    if scales.static_mean is not None and scales.static_deviation is not None:
        assert isinstance(first, nn.Linear)
        many = len(scales.static_mean)
        weight = first.weight.double()
        mean, deviation = scales.static_mean.to(weight), scales.static_deviation.to(weight)
        scaled = weight[:, :many] / deviation
        first.bias.copy_(first.bias.double() - scaled @ mean)
        first.weight[:, :many] = scaled.to(first.weight.dtype)
    last = last_layer(model)
    if scales.target_mean is not None and scales.target_deviation is not None:
        assert last is not None
        mean = scales.target_mean.to(last.weight.device)
        deviation = scales.target_deviation.to(last.weight.device)
        last.bias.copy_(last.bias.double() * deviation + mean)
        last.weight.copy_(last.weight.double() * deviation[:, None])


def _initial(model: OnlineModel) -> nn.Module | None:
    """The linear map whose first inputs are the static features."""
    return getattr(model, "initial", None)


def last_layer(model: OnlineModel) -> nn.Linear | None:
    """The linear map that puts out what the model says; None where there is no such."""
    layers = getattr(getattr(model, "readout", None), "layers", None)
    last = layers[-1] if isinstance(layers, nn.Sequential) else layers
    return last if isinstance(last, nn.Linear) else None
