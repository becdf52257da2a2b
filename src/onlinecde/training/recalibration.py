"""Recalibration: the map of log-odds that fits the validation labels best, within the readout's own weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.evaluation.predictions import predict_task
from onlinecde.models import NeuralCDE, OnlineModel
from onlinecde.models.readout import RULES, Readout, known_labels
from onlinecde.training.callbacks import Callback
from onlinecde.training.growing import validation_scores
from onlinecde.training.objectives import last_layer, loss_weight
from onlinecde.training.settings import FitSettings

PRIOR = 0.25
"""Standard deviation of log scale and of shift before any label is seen: few labels change little."""
ELSEWHERE = 4.0
"""The same where outputs were not learned as log-odds of the label."""


def fit_map(
    head: Readout,
    outputs: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    deviation: float = PRIOR,
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
    known, classes = known_labels(head.kind, labels), head.kind == "multiclass"
    shared = RULES[head.kind].together
    count = outputs.shape[-1]
    # (stream, output) pairs with a label; where all outputs answer to one label, streams.
    by_stream = known.reshape(len(known), -1, 1 if shared or known.ndim < outputs.ndim else count)
    evidence = float(by_stream.any(1).sum())
    present = known if known.ndim == outputs.ndim else known[..., None].expand(outputs.shape)
    centre = torch.where(present, outputs, 0.0).flatten(0, -2).sum(0)
    centre = centre / present.flatten(0, -2).sum(0).clamp(min=1)
    if shared:
        centre = torch.zeros_like(centre) if classes else centre.mean().expand(count)
    log_scale = torch.zeros(1 if shared else count, dtype=torch.float64, requires_grad=True)
    move = torch.zeros_like(log_scale, requires_grad=not classes)
    wanted = labels if classes else labels.double()
    weight = None if weight is None else weight.double()

    def changed() -> Tensor:
        return log_scale.exp() * (outputs - centre) + centre + move

    chosen = [log_scale] if classes else [log_scale, move]
    optimiser = torch.optim.LBFGS(
        chosen, max_iter=100, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimiser.zero_grad()
        prior = sum((part.square().sum() for part in chosen), torch.zeros(())) / (2 * deviation**2)
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


CHECKED = 8
"""Streams on which the changed weights are compared with the outputs they should give."""


def recalibrate(
    model: OnlineModel, task: Task, settings: FitSettings, callback: Callback
) -> dict[str, Any] | None:
    """Replace the log-odds l of a fitted classifier by `scale * l + shift`, fitted to the validation split.

    Each output has a scale and a shift of its own; classes share one scale and have no shift, bins of time to an event
    share both. Scales are above 0, so AUROC and the most likely class stay what they were. The map becomes part of the
    readout's last layer (and of the trees beside it), so live answers, attributions and exports need
    nothing else. Returns scale, shift, and the validation loss and metric with them; None for a
    regression, with another `monitor`, and for a readout without such a layer.
    """
    numbers = RULES[task.kind].numbers
    if settings.monitor != "calibrated" or numbers or last_layer(model) is None:
        return None
    series, labels = task.split("validation")
    times = task.split_times("validation") if task.per == "time" else None
    outputs = predict_task(model, series, task.per, times=times)
    weight = loss_weight(task, settings)
    # What was learned of alarms' worth is on another scale than the label.
    deviation = PRIOR if settings.objective == "label" else ELSEWHERE
    scale, shift = fit_map(model.readout, outputs, labels.cpu(), weight, deviation)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rescale(model, scale, shift)
    few = None if times is None else times[:CHECKED]
    some = predict_task(model, series[:CHECKED], task.per, times=few)
    expected = mapped(outputs[:CHECKED], scale, shift)
    if task.per == "row":
        expected = expected[:, : some.shape[1]]
    tolerance = 1e-3 * max(1.0, float(expected.abs().max()))
    if not bool(((some - expected).abs() <= tolerance).all()):
        model.load_state_dict(before)
        callback.note("not recalibrated: the outputs are not those of the readout's last layer")
        return None
    scores = validation_scores(model, task, settings, mapped(outputs, scale, shift), labels)
    callback.note(
        f"log-odds recalibrated on validation: scale {_listed(scale)}, shift {_listed(shift)}; "
        f"validation loss {scores['validation_loss']:.4f}"
    )
    return {"scale": scale.tolist(), "shift": shift.tolist(), **scores}


@torch.no_grad()
def rescale(model: OnlineModel, scale: Tensor, shift: Tensor) -> None:
    """Let a model put out `scale * output + shift`, worked out in float64 and rounded once."""
    last = last_layer(model)
    assert last is not None
    scale, shift = scale.to(last.weight.device), shift.to(last.weight.device)
    last.bias.copy_(last.bias.double() * scale + shift)
    last.weight.copy_(last.weight.double() * scale[:, None])
    if not isinstance(model, NeuralCDE):
        return
    # The output is a mean of the readout's log-odds and those of trees or steps: all change alike.
    if model.trees is not None:
        model.trees.rescale(scale, shift)
    if (steps := model.readout.steps) is not None:
        steps.base.copy_(steps.base.double() * scale[0] + shift[0])
        steps.height.copy_(steps.height.double() * scale[0])


def _listed(numbers: Tensor) -> str:
    shown = [f"{number:.3g}" for number in numbers.unique_consecutive().tolist()[:6]]
    return ", ".join(shown) + ", ..." * (len(numbers.unique_consecutive()) > 6)
