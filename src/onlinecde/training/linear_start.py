"""Where a readout with a linear model beside its MLP starts: the linear model that predicts validation streams best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.evaluation.predictions import predict_split
from onlinecde.models import NeuralCDE, OnlineModel
from onlinecde.models.readout import RULES, Direct, Readout, known_labels
from onlinecde.training.callbacks import Callback
from onlinecde.training.objectives import Scales, last_layer, loss_weight
from onlinecde.training.settings import FitSettings

KINDS = ("regression", "binary", "multilabel", "multiclass")
PENALTIES = (10.0, 1.0, 0.1, 0.01, 1e-3, 1e-4)
"""Of squared weights of numbers of deviation 1, beside the mean loss, until two in a row are no better on validation"""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How much of what the MLP learned may be kept"""
ENOUGH = 0.4
"""The linear model is put there where it leaves no more than this of a constant's loss: labels are near to what was
seen last, say. Where it explains less, the MLP alone goes further (docs/tried.md)."""
LINES = 20_000
"""Labels, evenly spaced, that it is fitted to."""
STREAMS = 256
"""Streams looked at together."""


@torch.no_grad()
def start_at_linear(
    model: OnlineModel, task: Task, scales: Scales, settings: FitSettings, callback: Callback
) -> float | None:
    """Put the best linear model of what the readout sees beside its MLP, which begins by adding nothing to it.

    Of a regression it is the number that predicts the label best, often a last value, and beside it what a penalty
    leaves of the others. Of a constant, that number alone and ever smaller penalties it is the `simplest` by validation
    streams; where that is the constant, or leaves more than `ENOUGH` of its loss, nothing is put there.

    Returns that loss; None where nothing was put there.
    """
    direct = direct_of(model)
    if direct is None or task.kind not in KINDS or settings.objective != "label":
        return None
    head: Readout = model.readout  # pyright: ignore[reportAssignmentType]
    last, weight = last_layer(model), loss_weight(task, settings)
    assert last is not None
    assert isinstance(model, NeuralCDE)
    lines, labels, _ = _lines(model, task, "train", scales)
    others, wanted, owners = _lines(model, task, "validation", scales)
    if not len(labels) or not len(wanted):
        return None
    mean, spread = lines.mean(0), lines.std(0, correction=0)
    spread = torch.where(spread > 1e-6, spread, torch.inf)
    lines, others = (lines - mean) / spread, (others - mean) / spread
    anchor = torch.zeros(lines.shape[1], last.out_features)
    found = anchor, last.bias.detach().cpu().clone()
    tried: list[tuple[Tensor, Tensor, Tensor]] = []

    def losses() -> Tensor:
        """Of each validation stream, (stream,), in all; they add up to the loss."""
        each = _each_loss(head, others @ found[0] + found[1], wanted, weight)
        return each.new_zeros(int(owners.max()) + 1).index_add(0, owners, each)

    for penalty in (None, *PENALTIES):
        if penalty is not None and not anchor.any() and task.kind == "regression":
            anchor = _best_number(lines, labels)
            found = _fitted(head, lines, labels, weight, None, anchor, anchor, found[1])
            tried.append((losses(), *found))
        found = _fitted(head, lines, labels, weight, penalty, anchor, *found)
        tried.append((losses(), *found))
        sums = [float(one[0].sum()) for one in tried]
        if len(tried) > 2 and sums[-3] <= min(sums[-2:]):
            break
    best, slope, constant = simplest(tried)
    loss = float(best.sum())
    if not bool(slope.any()) or loss > ENOUGH * float(tried[0][0].sum()):
        return None
    slope = slope / spread[:, None]
    direct.weight.copy_(slope.T)
    direct.bias.copy_(-(mean @ slope))
    outputs = last.out_features
    last.weight[:, :-outputs] = 0.0
    last.weight[:, -outputs:] = torch.eye(outputs)
    last.bias.copy_(constant)
    callback.note(
        f"starts at a linear model of what the readout sees: validation loss {loss:.4f} before the first epoch"
    )
    return loss


def direct_of(model: OnlineModel) -> Direct | None:
    """Where a linear model stands beside a readout's MLP; None where there is no such place."""
    layers: Any = getattr(getattr(model, "readout", None), "layers", None)
    first = layers[0] if isinstance(layers, torch.nn.Sequential) else None
    return first if isinstance(first, Direct) else None


def _fitted(
    head: Readout,
    lines: Tensor,
    labels: Tensor,
    weight: Tensor | None,
    penalty: float | None,
    anchor: Tensor,
    slope: Tensor,
    constant: Tensor,
) -> tuple[Tensor, Tensor]:
    """Slope (number, output), near an anchor of that shape, and constant (output,); no penalty: a constant alone."""
    slope, constant = slope.clone(), constant.clone()
    chosen = [constant] if penalty is None else [constant, slope]
    for one in chosen:
        one.requires_grad_()
    optimiser = torch.optim.LBFGS(chosen, max_iter=60, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimiser.zero_grad()
        loss = head.loss(lines @ slope + constant, labels, weight)
        loss = loss + (penalty or 0.0) * (slope - anchor).square().sum() / 2
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(objective)
    return slope.detach(), constant.detach()


def _each_loss(head: Readout, outputs: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
    """The loss of each line (line,) float64, of which all together are `head.loss`."""
    rule = RULES[head.kind]
    labels = labels if rule.together or labels.ndim == 2 else labels[:, None]
    known = rule.known(labels)
    each = rule.each_loss(outputs, torch.where(known, labels, 0).to(labels.dtype), weight)
    each = torch.where(known, each, 0.0).double() / known.sum()
    return each if rule.together else each.sum(1)


def simplest(tried: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """The first of several, simplest first, that is worse than the best by no more than chance may have made it.

    Each with its losses (stream,): the difference must be within one standard error of it, over streams.
    """
    best = min(tried, key=lambda one: float(one[0].sum()))
    for one in tried:
        apart = one[0] - best[0]
        if float(apart.sum()) <= len(apart) ** 0.5 * float(apart.std(correction=0)):
            return one
    return best


def _best_number(lines: Tensor, labels: Tensor) -> Tensor:
    """Slope (number, output) of the number, of mean 0 and deviation 1, that each output is predicted from best."""
    labels = labels.reshape(len(lines), -1)
    slope = torch.zeros(lines.shape[1], labels.shape[1])
    for output, wanted in enumerate(labels.T):
        known = ~wanted.isnan()
        rises = lines[known].T @ (wanted[known] - wanted[known].mean()) / known.sum()
        number = int(rises.abs().argmax())
        slope[number, output] = rises[number]
    return slope


@torch.no_grad()
def settle(
    model: OnlineModel, task: Task, settings: FitSettings, callback: Callback
) -> float | None:
    """Keep as much of what the MLP learned beside a linear model as lowers the loss on validation.

    Returns the share; None where no linear model stands beside it.
    """
    direct, last = direct_of(model), last_layer(model)
    if direct is None or last is None or not bool(direct.weight.any()):
        return None
    labels, weight = task.split("validation")[1].cpu(), loss_weight(task, settings)
    learned = last.weight[:, : -last.out_features].clone()
    whole = predict_split(model, task, "validation")
    last.weight[:, : -last.out_features] = 0.0
    alone = predict_split(model, task, "validation")
    head: Any = model.readout
    losses = [float(head.loss(alone + share * (whole - alone), labels, weight)) for share in SHARES]
    share = SHARES[min(range(len(SHARES)), key=lambda at: losses[at])]
    last.weight[:, : -last.out_features] = share * learned
    if share < 1:
        callback.note(f"keeps {share:g} of what was learned beside the linear model, by validation")
    return share


def _lines(
    model: NeuralCDE, task: Task, split: str, scales: Scales
) -> tuple[Tensor, Tensor, Tensor]:
    """What the readout sees where there is a label (line, number), labels in the scale of training, whose (line,)."""
    series, labels = task.split(split)
    times = task.split_times(split) if task.per == "time" else None
    labels, lines, wanted, owners = scales.target(labels.cpu()), [], [], []
    step = -(-int(known_labels(task.kind, labels).sum()) // LINES)
    passed = 0
    for at in torch.arange(len(series)).split(STREAMS):
        batch = model.prepare(scales.series(series[at]).to(model.device))
        view = model.seen_of(batch, None if times is None else times[at.to(times.device)])
        assert view is not None
        known = labels[at]
        if task.per == "stream":
            view, known = view[:, -1:], known[:, None]
        known = known[:, : view.shape[1]]
        here = known_labels(task.kind, known)
        here = here.any(-1) if here.ndim > 2 else here
        place = torch.arange(passed, passed + int(here.sum()))
        passed += len(place)
        chosen = place % max(1, step) == 0
        seen, ramps = view[here.to(view.device)][chosen], model.readout.ramps
        lines.append((seen if ramps is None else ramps(seen)).float().cpu())
        wanted.append(known[here][chosen])
        owners.append(at[:, None].expand(here.shape)[here][chosen])
    return torch.cat(lines), torch.cat(wanted), torch.cat(owners)
