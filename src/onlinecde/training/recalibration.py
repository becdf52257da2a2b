"""Recalibration: log-odds scaled and shifted to fit the validation labels, within the readout's own weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.evaluation.predictions import predict_task
from onlinecde.models import NeuralCDE, OnlineModel
from onlinecde.training.base_rates import loss_weight
from onlinecde.training.calibration_map import fit_map, mapped
from onlinecde.training.callbacks import Callback
from onlinecde.training.folding import last_layer
from onlinecde.training.readout_steps import validation_scores
from onlinecde.training.settings import FitSettings

CHECKED = 8
"""Streams on which the changed weights are compared with the outputs they should give."""


def recalibrate(
    model: OnlineModel, task: Task, settings: FitSettings, callback: Callback
) -> dict[str, Any] | None:
    """Replace the log-odds l of a fitted classifier by `scale * l + shift`, fitted to the validation split.

    Each output has a scale and a shift of its own; classes share one scale and have no shift. Scales
    are above 0, so AUROC and the most likely class stay what they were. The map becomes part of the
    readout's last layer (and of the steps beside it), so live answers, attributions and exports need
    nothing else. Returns scale, shift, and the validation loss and metric with them; None for a
    regression, with another `monitor`, and for a readout without such a layer.
    """
    if settings.monitor != "calibrated" or task.kind == "regression" or last_layer(model) is None:
        return None
    series, labels = task.split("validation")
    outputs = predict_task(model, series, task.per)
    weight = loss_weight(task, settings)
    scale, shift = fit_map(model.readout, outputs, labels.cpu(), weight)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rescale(model, scale, shift)
    some = predict_task(model, series[:CHECKED], task.per)
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
    steps = model.readout.steps if isinstance(model, NeuralCDE) else None
    if steps is not None:
        # The output is a mean of the readout's log-odds and those of the steps: both change alike.
        steps.base.copy_(steps.base.double() * scale[0] + shift[0])
        steps.height.copy_(steps.height.double() * scale[0])


def _listed(numbers: Tensor) -> str:
    shown = [f"{number:.3g}" for number in numbers.unique_consecutive().tolist()[:6]]
    return ", ".join(shown) + ", ..." * (len(numbers.unique_consecutive()) > 6)
