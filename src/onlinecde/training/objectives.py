"""What is learned: in which scales, how classes weigh, where the readout starts, and targets ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from onlinecde.data import Task
from onlinecde.evaluation.naive import label_counts
from onlinecde.models import OnlineModel
from onlinecde.models.asking import ask
from onlinecde.models.readout import RULES, known_labels
from onlinecde.series import SeriesBatch
from onlinecde.series.empty_rows import filled_queries
from onlinecde.training.callbacks import Callback
from onlinecde.training.outlook import Outlook
from onlinecde.training.settings import FitError, FitSettings, seed_for

START = 0.3
"""The readout's last weights start at this many times their usual size."""


@torch.no_grad()
def start_at_base_rate(model: OnlineModel, task: Task, *, balanced: bool = False) -> None:
    """Let a fresh model say the base rate of each label, and little else, before it has learned.

    The rates are those of the training split, half a label more counted of each class; with
    `balanced`, as a loss with balanced classes sees them. Of time to an event they are the hazards of the task's bins.
    Targets of a regression are scaled to mean 0 already: it is left as it is.

    >>> import onlinecde as oc
    >>> task = oc.data.simulate_ward(40, seed=0).task
    >>> model = oc.training.build_model(task, "gru")
    >>> start_at_base_rate(model, task)
    >>> bool(torch.isclose(model.readout.layers.bias.sigmoid(), task.split("train")[1].nanmean(), atol=0.01))
    True
    """
    lay_bins(model, task)
    last = last_layer(model)
    if RULES[task.kind].numbers or last is None:
        return
    _, labels = task.split("train")
    weight = class_weight(task) if balanced else 1.0
    if task.kind == "multiclass":
        start = (weight * _counts(labels, len(task.classes)) + 0.5).log().log_softmax(0)
    else:
        ones, zeros = label_counts(task, labels)
        start = (weight * ones + 0.5).log() - (zeros + 0.5).log()
    last.bias.copy_(start)
    last.weight.mul_(START)


def lay_bins(model: OnlineModel, task: Task) -> None:
    """Give the readout of a model of time to an event the bins and the horizon of its task."""
    bins = getattr(model.readout, "bins", None)
    if bins is not None and task.horizon is not None:
        bins.put(task.edges, task.horizon)


def class_weight(task: Task) -> Tensor:
    """Weights that make classes count alike: of the positives, or (class,) for multiclass."""
    _, labels = task.split("train")
    if task.kind == "multiclass":
        counts = _counts(labels, len(task.classes))
        return counts.sum() / (len(task.classes) * counts.clamp(min=1))
    if RULES[task.kind].numbers or task.kind == "time-to-event":
        raise FitError(f"class_weights are for classes, and the kind of this task is {task.kind}.")
    known = labels[~labels.isnan()]
    positive = known.sum().double()
    return (known.numel() - positive) / positive.clamp(min=1)


def loss_weight(task: Task, settings: FitSettings) -> Tensor | None:
    """`class_weight` where the settings ask for balanced classes."""
    return class_weight(task) if settings.class_weights == "balanced" else None


def _counts(labels: Tensor, classes: int) -> Tensor:
    return torch.bincount(labels[labels >= 0], minlength=classes).double()


def check_horizons(task: Task, settings: FitSettings) -> None:
    """Refuse horizons, or an outlook, for a task they mean nothing for."""
    if settings.outlook and task.per == "stream":
        raise FitError(
            f"outlook is for tasks with a label per row or query time; '{task.name}' has one per stream: leave it out, "
            'or teach its label all along, with at="random=16".'
        )
    if settings.horizons and (task.kind != "binary" or task.per == "stream"):
        raise FitError(
            f"horizons are for binary tasks with a label per row or query time; '{task.name}' is {task.kind} with one "
            f"per {task.per}: leave them out."
        )


def along(series: SeriesBatch, times: Tensor | None) -> Tensor:
    """When labels of series are, at rows or at query times: (stream, row) or (stream, query), padding as the last."""
    return series.times if times is None else filled_queries(series, times)


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
    """A linear readout of the state, for training alone: one logit for each horizon, and the numbers of an `Outlook`.

    A readout that sees the path besides reads the state first; what it sees of the path could answer
    for the state, which would then have nothing more to learn.
    """

    def __init__(
        self,
        model: OnlineModel,
        series: SeriesBatch,
        labels: Tensor,
        settings: FitSettings,
        times: Tensor | None = None,
    ) -> None:
        # Draws of its own: the model's and the batches' stay what they are without it.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for("horizons", settings.seed))
            outlook = Outlook(series, settings.outlook) if settings.outlook else None
            columns = len(settings.horizons) + (0 if outlook is None else outlook.columns)
            super().__init__(getattr(model, "hidden", model.readout.inputs), columns)
        self.horizons, self.outlook, self.kind = settings.horizons, outlook, model.readout.kind
        self.weights = settings.horizon_weight, settings.outlook_weight
        with torch.no_grad():
            self.weight.mul_(START)
            self.bias.zero_()
            if self.horizons:
                wanted = coming_labels(along(series, times), labels, self.horizons)
                wanted = wanted.flatten(0, 1).cpu()
                ones, zeros = (((wanted == label).sum(0) + 0.5).log() for label in (1, 0))
                self.bias[: len(self.horizons)] = ones - zeros
        self.to(model.device, model.dtype)

    def forward_with(
        self, model: OnlineModel, batch: SeriesBatch, times: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The model's outputs after each row, or at query times, and the logits of the horizons, (stream, row, ...)."""
        with self.beside(model.readout):
            both = ask(model, batch, times)
        if both.shape[-1] != model.outputs + self.out_features:
            raise FitError(
                f"{type(model).__name__} does not put out what its readout does, so horizons or an outlook cannot be "
                "read beside it: leave them out."
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
        if not self.horizons:
            return torch.zeros(0)
        return (~coming_labels(times, labels, self.horizons).isnan()).sum((0, 1))

    def loss(
        self, logits: Tensor, times: Tensor, labels: Tensor, targets: Tensor | None = None
    ) -> Tensor:
        """The sum over horizons of the mean losses of the targets that are known.

        `targets` (horizon,): how many there are in all, where these are a part of a batch.
        """
        logits = logits[..., : len(self.horizons)]
        wanted = coming_labels(times, labels, self.horizons).to(logits.dtype)
        known = ~wanted.isnan()
        each = nn.functional.binary_cross_entropy_with_logits(
            logits, wanted.nan_to_num(0.0), reduction="none"
        )
        count = known.sum((0, 1)) if targets is None else targets
        return (torch.where(known, each, 0.0).sum((0, 1)) / count.clamp(min=1)).sum()

    def whole_loss(
        self,
        numbers: Tensor,
        batch: SeriesBatch,
        times: Tensor | None,
        labels: Tensor,
        targets: Tensor | None = None,
        share: Tensor | float = 1.0,
    ) -> Tensor:
        """The losses of horizons and outlook, each with its weight; `share` of all labels are these."""
        total, clock = numbers.new_zeros(()), along(batch, times)
        if self.horizons:
            total = total + self.weights[0] * self.loss(numbers, clock, labels, targets)
        if self.outlook is not None:
            known = known_labels(self.kind, labels)
            known = known if known.ndim == 2 else known.any(-1)
            ahead = self.outlook.loss(numbers[..., len(self.horizons) :], batch, clock, known)
            total = total + self.weights[1] * share * ahead
        return total


def check_learnable(task: Task, series: SeriesBatch, labels: Tensor, callback: Callback) -> None:
    """Refuse a training split with one class, without a label or without a value; note empty channels."""
    known = labels[known_labels(task.kind, labels)]
    if not known.numel():
        raise FitError(f"the training split of '{task.name}' has no label: label more streams.")
    if task.kind == "time-to-event" and not bool((known[:, 1] == 1).any()):
        raise FitError(
            f"no event follows a label of the training split of '{task.name}': there is nothing to learn. Give "
            "streams with events, or another split seed."
        )
    numbers = RULES[task.kind].numbers or task.kind == "time-to-event"
    if not numbers and len(torch.unique(known)) < 2:
        name = task.classes[int(known[0])] if task.classes else str(int(known[0]))
        raise FitError(
            f"the training split of '{task.name}' has one class alone ({name}): there is nothing to tell "
            "apart. Give streams of another class, or another split seed."
        )
    seen = series.observed[series.real].any(0)
    if not bool(seen.any()):
        raise FitError(
            f"no channel of '{task.name}' is ever observed in the training split: check the columns of "
            "channels and values."
        )
    empty = [name for name, ever in zip(series.channels, seen.tolist(), strict=True) if not ever]
    if empty:
        callback.note(
            f"never observed in the training split, so nothing can be learned of: {', '.join(empty)}"
        )


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


@torch.no_grad()
def unfold(model: OnlineModel, scales: Scales) -> None:
    """The inverse of `fold`: a model that speaks of raw features and targets as one that is trained on scaled ones."""
    first = _initial(model)
    if scales.static_mean is not None and scales.static_deviation is not None:
        assert isinstance(first, nn.Linear)
        raw = first.weight.double()[:, : len(scales.static_mean)]
        mean, deviation = scales.static_mean.to(raw), scales.static_deviation.to(raw)
        first.bias.copy_(first.bias.double() + raw @ mean)
        first.weight[:, : len(mean)] = (raw * deviation).to(first.weight.dtype)
    last = last_layer(model)
    if scales.target_mean is not None and scales.target_deviation is not None:
        assert last is not None
        mean = scales.target_mean.to(last.weight.device)
        deviation = scales.target_deviation.to(last.weight.device)
        last.bias.copy_((last.bias.double() - mean) / deviation)
        last.weight.copy_(last.weight.double() / deviation[:, None])


def _initial(model: OnlineModel) -> nn.Module | None:
    """The linear map whose first inputs are the static features."""
    return getattr(model, "initial", None)


def last_layer(model: OnlineModel) -> nn.Linear | None:
    """The linear map that puts out what the model says; None where there is no such."""
    layers = getattr(getattr(model, "readout", None), "layers", None)
    last = layers[-1] if isinstance(layers, nn.Sequential) else layers
    return last if isinstance(last, nn.Linear) else None
