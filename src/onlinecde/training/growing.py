"""Growing: boosted trees over running statistics, averaged with a trained readout as serves the validation split."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.data import Task
from onlinecde.evaluation.metrics import score_or_none
from onlinecde.evaluation.past_features import rows_before
from onlinecde.evaluation.predictions import predict_split
from onlinecde.evaluation.trees import fit_trees
from onlinecde.models import NeuralCDE, OnlineModel
from onlinecde.models.forest import Forest
from onlinecde.models.readout import is_plain_readout
from onlinecde.series import SeriesBatch
from onlinecde.training.callbacks import Callback
from onlinecde.training.objectives import loss_weight
from onlinecde.training.settings import FitSettings, seed_for

KINDS = ("binary", "multilabel", "regression")
"""Kinds of tasks that trees are grown for"""
SHARES = np.linspace(0, 1, 21)
"""Shares of the trees in the mean, of which the validation split chooses one"""


def grow(
    model: OnlineModel, task: Task, settings: FitSettings, callback: Callback
) -> dict[str, Any] | None:
    """Grow trees beside the readout of a trained model where `settings.trees` asks for them.

    They are told what the model keeps of the past (`NeuralCDE.past_along`) at the labels of the training split, and
    stop where the validation loss does. Their share in the mean is that of the lowest validation loss.

    Returns:
        How many there are, their share, and the validation loss and metric with them; None where there are none: then
        the outputs stay as they are.
    """
    if not settings.trees or settings.objective != "label":
        return None
    if not isinstance(model, NeuralCDE) or task.kind not in KINDS or not has_room(model):
        return None

    def told(series: SeriesBatch, asked: np.ndarray) -> np.ndarray:
        """What trees are told of series, (question, number), where asked (stream, query) is no NaN."""
        batch = model.prepare(series.to(model.device))
        row = rows_before(batch, asked)
        clock = torch.from_numpy(asked).to(row.device)
        clock = torch.where(clock.isnan(), batch.times.gather(1, row), clock)
        with torch.no_grad():
            numbers = model.past_along(model.path(batch), batch.static, row, clock)
        return numbers.cpu().numpy()[~np.isnan(asked)]

    try:
        seed = seed_for("trees", settings.seed) % 2**31
        grown = fit_trees(task, seed=seed, features=told)
    except ModuleNotFoundError as error:
        callback.note(f"no trees are grown beside the readout: {error}")
        return None
    forest = planted([booster.dump_model() for booster in grown.boosters])
    weight = loss_weight(task, settings)
    if weight is not None and task.kind != "regression":
        forest.base += weight.double().log().cpu()
    labels = task.split("validation")[1].cpu()
    before = predict_split(model, task, "validation")
    model.plant(forest)
    forest = model.trees
    assert forest is not None
    forest.share.fill_(1.0)
    alone = predict_split(model, task, "validation")
    losses = [
        float(model.readout.loss(before + share * (alone - before), labels, weight))
        for share in SHARES.tolist()
    ]
    share = float(SHARES[int(np.argmin(losses))])
    if share == 0.0:
        model.uproot()
        callback.note("no share of trees lowers the validation loss: none are kept")
        return None
    forest.share.fill_(share)
    scores = validation_scores(
        model, task, settings, predict_split(model, task, "validation"), labels
    )
    value = scores[f"validation_{task.metric}"]
    shown = "" if value is None else f", {task.metric} {value:.4f}"
    callback.note(
        f"{forest.trees} trees are grown beside the readout, with a share of {share:.2f}; with them validation loss "
        f"{scores['validation_loss']:.4f}{shown}"
    )
    return {"trees": forest.trees, "share": share, **scores}


def has_room(model: NeuralCDE) -> bool:
    """Whether trees can stand beside a model's readout."""
    own = "class" in model.config["readout"]
    usual = is_plain_readout(model.readout) and model.readout.steps is None and not own
    return usual and model.control == "rectilinear"


def validation_scores(
    model: OnlineModel, task: Task, settings: FitSettings, outputs: Tensor, labels: Tensor
) -> dict[str, float | None]:
    """Loss and metric of outputs on the validation split, the metric None where it has no value."""
    head, labels = model.readout, labels.cpu()
    return {
        "validation_loss": float(head.loss(outputs, labels, loss_weight(task, settings))),
        f"validation_{task.metric}": score_or_none(task.kind, task.metric, outputs, labels, head),
    }


def planted(boosters: list[dict[str, Any]]) -> Forest:
    """The trees of LightGBM's models, one for each output, as `dump_model` has them."""
    number, threshold, missing_left, left, right, value = ([] for _ in range(6))
    root, output, depth = [], [], 0

    def lay(node: dict[str, Any], level: int) -> int:
        nonlocal depth
        at, leaf = len(number), "leaf_value" in node
        depth = max(depth, level)
        number.append(0 if leaf else node["split_feature"])
        threshold.append(0.0 if leaf else _at_most(node["threshold"]))
        # Where nothing was missing in training, LightGBM takes what is missing for 0.
        missing = not leaf and node["missing_type"] == "NaN"
        missing_left.append(node["default_left"] if missing else threshold[-1] >= 0)
        value.append(node["leaf_value"] if leaf else 0.0)
        left.append(at)
        right.append(at)
        if not leaf:
            left[at] = lay(node["left_child"], level + 1)
            right[at] = lay(node["right_child"], level + 1)
        return at

    for place, booster in enumerate(boosters):
        for tree in booster["tree_info"]:
            output.append(place)
            root.append(lay(tree["tree_structure"], 0))
    forest = Forest(len(root), len(number), depth, len(boosters))
    return forest.put(
        root=root, output=output, number=number, threshold=threshold, missing_left=missing_left,
        left=left, right=right, value=value, base=np.zeros(len(boosters)), share=0.5,
    )  # fmt: skip


def _at_most(threshold: float) -> float:
    """The greatest float32 at most a threshold: numbers, which are float32, go the same way."""
    # LightGBM writes 1e300 for where all go left that are there.
    largest = float(np.finfo(np.float32).max)
    near = np.float32(np.clip(threshold, -largest, largest))
    return float(near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf)))
