"""The map of log-odds `scale * l + shift` that fits labels best, and the loss with it."""

from __future__ import annotations

import torch
from torch import Tensor

from onlinecde.models.readout import Readout

PRIOR = 0.25
"""Standard deviation of log scale and of shift before any label is seen: few labels change little."""


def fit_map(
    head: Readout, outputs: Tensor, labels: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Scale and shift (output,) of outputs (..., output) that minimise the loss, with a prior at 1 and 0.

    A stream counts once, however many labels it has, for they resemble each other. The prior is of
    the logarithm of the scale and of the shift at the mean log-odds. Classes share one scale above 0
    and have no shift.

    >>> outputs = torch.tensor([-4.0, -4.0, 4.0, 4.0] * 99)[:, None]
    >>> labels = torch.tensor([0.0, 1.0, 0.0, 1.0] * 99)
    >>> scale, _ = fit_map(Readout(1, 1, "binary"), outputs, labels)
    >>> bool(scale < 0.5)
    True
    """
    outputs = outputs.double()
    known = labels >= 0 if head.kind == "multiclass" else ~labels.isnan()
    shared = head.kind == "multiclass"
    count = outputs.shape[-1]
    # (stream, output) pairs with a label; of classes, streams.
    by_stream = known.reshape(len(known), -1, 1 if shared or known.ndim < outputs.ndim else count)
    evidence = float(by_stream.any(1).sum())
    present = known if known.ndim == outputs.ndim else known[..., None].expand(outputs.shape)
    centre = torch.where(present, outputs, 0.0).flatten(0, -2).sum(0)
    centre = centre / present.flatten(0, -2).sum(0).clamp(min=1)
    if shared:
        centre = torch.zeros_like(centre)
    log_scale = torch.zeros(1 if shared else count, dtype=torch.float64, requires_grad=True)
    move = torch.zeros(count, dtype=torch.float64, requires_grad=not shared)
    wanted = labels.double() if not shared else labels
    weight = None if weight is None else weight.double()

    def changed() -> Tensor:
        return log_scale.exp() * (outputs - centre) + centre + move

    chosen = [log_scale] if shared else [log_scale, move]
    optimiser = torch.optim.LBFGS(
        chosen, max_iter=100, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimiser.zero_grad()
        prior = sum((part.square().sum() for part in chosen), torch.zeros(())) / (2 * PRIOR**2)
        loss = evidence * head.loss(changed(), wanted, weight) + prior
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(objective)
    with torch.no_grad():
        scale = log_scale.exp().expand(count)
        return scale.clone(), centre - scale * centre + move


def mapped(outputs: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """`scale * outputs + shift`, worked out in float64."""
    return (outputs.double() * scale + shift).to(outputs.dtype)
