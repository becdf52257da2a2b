"""The training loop: plain PyTorch, and a state that can be put down and taken up at any batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from onlinecde.data import Task
from onlinecde.data.task import Per
from onlinecde.evaluation.metrics import better, score_or_none
from onlinecde.evaluation.predictions import asked_alone, predict_task
from onlinecde.models import OnlineModel, RecurrentModel
from onlinecde.models.asking import ask
from onlinecde.models.base import present_name
from onlinecde.models.readout import RULES, known_labels
from onlinecde.series import SeriesBatch
from onlinecde.solvers import SolverError, counting_evaluations
from onlinecde.training.callbacks import Callback
from onlinecde.training.graphs import AT_TIMES, CapturedStep, GraphedStep, why_not
from onlinecde.training.objectives import HorizonReadout, Scales, class_weight
from onlinecde.training.optimiser import (
    AveragedWeights,
    adamw,
    epoch_batches,
    pack_optimiser,
    rates,
    unpack_optimiser,
)
from onlinecde.training.query_times import drawn_anew
from onlinecde.training.recalibration import fit_map, mapped
from onlinecde.training.recurrent_graphs import RecurrentStep
from onlinecde.training.settings import FitError, FitSettings, seed_for
from onlinecde.training.utility_objective import Worth, utility_loss

LEAST_GAIN = 1e-6
"""A loss lower by less than this share of itself is not better."""

CALIBRATED = "validation_calibrated_loss"
"""The loss after recalibration, in the line of an epoch."""

VALIDATED = 512
"""Streams of a batch in validation on a GPU, which takes no longer for them than for a few."""


@dataclass
class Position:
    """How far a training has come; plain values, so that it can be put down in JSON."""

    epoch: int = 1
    batch: int = 0
    """Batches of this epoch that are done"""
    loss_sum: float = 0.0
    labels: int = 0
    nfe: int = 0
    seconds: float = 0.0
    lr: float = 0.0
    last_cut: int = 0
    """Epoch after which the learning rate last fell"""
    best_epoch: int = 0
    averaged_batches: int = 0
    ended: str = ""
    """Why training is over; empty while it is not"""
    history: list[dict[str, Any]] = field(default_factory=list)


class Training:
    """A model, its optimiser and how far they have come on a task, as `asked_task` gives it.

    All randomness of a batch comes from (seed, epoch, batch), and query times that are drawn from (seed, epoch), so
    that a training taken up again goes on exactly as it would have.
    """

    def __init__(
        self,
        model: OnlineModel,
        task: Task,
        scales: Scales,
        settings: FitSettings,
        device: torch.device,
    ) -> None:
        self.model, self.settings, self.scales, self.task = model, settings, scales, task
        self.kind, self.metric = task.kind, task.metric
        self.per: Per = task.per
        dtype = getattr(torch, settings.dtype)
        self.series, self.labels, self.times = _split(task, "train", scales, dtype, device)
        self.validation, wanted, self.asked = _split(task, "validation", scales, dtype, device)
        self.wanted = wanted.cpu()
        self.weight = (
            class_weight(task).to(device, dtype) if settings.class_weights == "balanced" else None
        )
        self.worth: Tensor | None = None
        """What alarms are worth at the labels of training, where that is learned"""
        self._worth = Worth(task) if settings.objective == "utility" else None
        if self._worth is not None:
            self.worth = self._worth.of("train").to(device)
        # Learns beside the model, and is no part of what is averaged, validated or saved.
        self.ahead = None
        if settings.horizons or settings.outlook:
            self.ahead = HorizonReadout(model, self.series, self.labels, settings, self.times)
        self.optimiser = adamw(model, self.ahead, settings)
        self.average = AveragedWeights(model, settings.average) if settings.average else None
        self.best = {name: t.detach().clone() for name, t in model.state_dict().items()}
        self.at = Position(lr=settings.lr)
        self.captured = self._captured_step()
        self.callback: Callback = Callback()
        self.max_seconds = math.inf

    def run(
        self, save: Callable[[Training], None], callback: Callback, max_seconds: float | None = None
    ) -> None:
        """Train to the end; `save` is called where the training may be put down.

        max_seconds: of training in all, whoever did it before; a training that had ended goes on where it has more.
        """
        self.callback = callback
        self.max_seconds = math.inf if max_seconds is None else max_seconds
        if self.at.ended:
            self._reopen()
        if self.times is not None and self.model.device.type == "cuda" and not self.at.ended:
            callback.note(f"steps are computed plainly: {AT_TIMES}")
        while not self.at.ended:
            self._epoch(save)
            save(self)
        self.model.load_state_dict(self.best)

    def _epoch(self, save: Callable[[Training], None]) -> None:
        at, settings = self.at, self.settings
        self._draw_times()
        batches = epoch_batches(len(self.series), settings.batch_size, settings.seed, at.epoch)
        started = time.monotonic() - at.seconds
        for group, factor in zip(self.optimiser.param_groups, rates(self.optimiser), strict=True):
            group["lr"] = at.lr * factor
        for number in range(at.batch, len(batches)):
            self._seed(number)
            loss, labels = self._step(batches[number], number)
            at.loss_sum += loss * labels
            at.labels += labels
            at.batch, at.seconds = number + 1, time.monotonic() - started
            self.callback.batch(at.epoch, at.batch, len(batches), at.loss_sum / max(at.labels, 1))
            if self._time_is_over:
                break
            if at.batch < len(batches):
                save(self)
        if at.batch < len(batches) and at.best_epoch:
            # What this epoch did is kept for a run that goes on, and is no part of the model.
            at.ended = self._end(at.epoch - 1)
            return
        entry, best = self._validate(started)
        at.history.append(entry)
        self.callback.epoch(entry, best)
        self._plan_next()

    def _draw_times(self) -> None:
        """Query times of this epoch, and the labels there, where they are drawn anew."""
        drawn = drawn_anew(self.task, self.settings, self.at.epoch)
        if drawn is not None:
            times, labels = drawn
            if self._worth is not None:
                self.worth = self._worth.drawn(times, labels).to(self.series.device)
            self.times = times.to(self.series.device)
            self.labels = self.scales.target(labels).to(self.series.device)

    def _step(self, chosen: Tensor, number: int) -> tuple[float, int]:
        """One step of the optimiser; the mean loss before it, and over how many labels."""
        batch = self.series[chosen]
        at = chosen.to(self.labels.device)
        labels, times = self.labels[at], None
        if self.per == "row":
            labels = labels[:, : batch.times.shape[1]]
        elif self.times is not None:
            times = asked_alone(self.times[at])
            labels = labels[:, : times.shape[1]]
        worth = None if self.worth is None else self.worth[at][:, : labels.shape[1]]
        many = int(known_labels(self.kind, labels).sum())
        if not many:
            return 0.0, 0
        self.model.train()
        try:
            with counting_evaluations() as evaluations:
                loss = self._gradients(batch, labels, times, worth)
        except SolverError as error:
            raise self._diverged(number, str(error)) from error
        clip = self.settings.clip_gradient
        ahead = () if self.ahead is None else self.ahead.parameters()
        weights = [p for p in (*self.model.parameters(), *ahead) if p.grad is not None]
        norm = nn.utils.clip_grad_norm_(weights, float("inf") if clip is None else clip)
        found = float(loss.detach())
        if found != found or not bool(norm.isfinite()):
            raise self._diverged(number, f"the loss is {found}, its gradient {float(norm)}")
        self.optimiser.step()
        if self.average is not None:
            self.average.update(self.model)
            self.at.averaged_batches = self.average.batches
        self.at.nfe += evaluations.total
        return found, many

    def _gradients(
        self,
        batch: SeriesBatch,
        labels: Tensor,
        times: Tensor | None = None,
        worth: Tensor | None = None,
    ) -> Tensor:
        """The mean loss of a batch; its gradients are left in the weights' `grad`."""
        if self.captured is not None:
            try:
                loss = self.captured(batch, labels)
            except torch.OutOfMemoryError:
                self.captured = None
                self.callback.note(
                    "a captured step has no room on the GPU: steps are computed plainly"
                )
            else:
                if bool(loss.isfinite()):
                    return loss
            # Plainly: in "highest" where states left the range of "high", or with an error that says where.
            self._seed(self.at.batch)
        # The gradients of a captured step stay where it writes them.
        self.optimiser.zero_grad(set_to_none=self.captured is None)
        if self.ahead is None:
            outputs = ask(self.model, batch, times, final=self.per == "stream")
            loss = self._loss(outputs, labels, worth)
            loss.backward()
            return loss
        outputs, numbers = self.ahead.forward_with(self.model, batch, times)
        loss = self._loss(outputs, labels, worth)
        (loss + self.ahead.whole_loss(numbers, batch, times, labels)).backward()
        return loss

    def _loss(self, outputs: Tensor, labels: Tensor, worth: Tensor | None) -> Tensor:
        """The mean loss of what is learned: labels, or where an alarm is worth more than silence."""
        if worth is not None:
            return utility_loss(outputs, worth)
        return self.model.readout.loss(outputs, labels, self.weight)

    def _seed(self, number: int) -> None:
        """Begin the draws of a batch anew."""
        torch.manual_seed(seed_for("batch", self.settings.seed, self.at.epoch, number))

    def _captured_step(self) -> CapturedStep | None:
        """On a GPU, the step as a CUDA graph, where it is one at rows and the model's can be captured."""
        if self.times is not None or self.worth is not None or self.settings.outlook:
            return None
        if why_not(self.model) is not None:
            return None
        step = RecurrentStep if isinstance(self.model, RecurrentModel) else GraphedStep
        return step(
            self.model,  # pyright: ignore[reportArgumentType]
            streams=min(self.settings.batch_size, len(self.series)),
            final=self.per == "stream",
            weight=self.weight,
            ahead=self.ahead,
            horizon_weight=self.settings.horizon_weight,
            longest=int(self.series.rows.max()),
        )

    def _diverged(self, number: int, what: str) -> FitError:
        return FitError(
            f"epoch {self.at.epoch}, batch {number + 1}: {what}: try a smaller learning rate (now "
            f"{self.at.lr:g}), clip_gradient, or a smaller `gain` of the values."
        )

    def _validate(self, started: float) -> tuple[dict[str, Any], bool]:
        """The line of this epoch in the log, and whether it is the best so far."""
        at = self.at
        if self.average is not None:
            with self.average.in_place(self.model):
                loss, value, calibrated = self._judge()
                now = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        else:
            loss, value, calibrated = self._judge()
            now = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
        if loss != loss:
            raise self._diverged(at.batch - 1, "the validation loss is not a number")
        entry = {
            "epoch": at.epoch,
            "train_loss": at.loss_sum / max(at.labels, 1),
            "validation_loss": loss,
            f"validation_{self.metric}": value,
            **({} if calibrated is None else {CALIBRATED: calibrated}),
            "lr": at.lr,
            "nfe": at.nfe,
            "seconds": round(time.monotonic() - started, 3),
        }
        best = at.best_epoch == 0 or self._beats(entry, at.history[at.best_epoch - 1])
        if best:
            at.best_epoch, self.best = at.epoch, now
        return entry, best

    def _judge(self) -> tuple[float, float | None, float | None]:
        """Loss, metric and loss after recalibration on the validation split; None where there is no such."""
        with counting_evaluations() as evaluations:
            try:
                outputs = self._validation_outputs()
            except SolverError as error:
                raise self._diverged(self.at.batch - 1, str(error)) from error
        self.at.nfe += evaluations.total
        head = self.model.readout
        if self._worth is not None:
            loss = float(utility_loss(outputs, self._worth.of("validation")))
            return loss, score_or_none(self.kind, self.metric, outputs, self.wanted, head), None
        weight = None if self.weight is None else self.weight.cpu()
        loss = float(head.loss(outputs, self.scales.target(self.wanted), weight))
        value = score_or_none(
            self.kind, self.metric, self.scales.outputs(outputs), self.wanted, head
        )
        if self.settings.monitor != "calibrated" or RULES[self.kind].numbers:
            return loss, value, None
        if not math.isfinite(loss):
            return loss, value, loss
        best = mapped(outputs, *fit_map(head, outputs, self.wanted, weight))
        return loss, value, float(head.loss(best, self.wanted, weight))

    def _validation_outputs(self) -> Tensor:
        many = self.settings.batch_size
        if self.model.device.type == "cuda":
            many = max(many, VALIDATED)
        return predict_task(
            self.model, self.validation, self.per, times=self.asked, batch_size=many
        )

    def _beats(self, entry: dict[str, Any], best: dict[str, Any]) -> bool:
        name = f"validation_{self.metric}"
        new, old = entry[name], best[name]
        if self.settings.monitor != "metric" or new is None or old is None or new == old:
            loss = CALIBRATED if CALIBRATED in entry else "validation_loss"
            return entry[loss] < best[loss] - LEAST_GAIN * abs(best[loss])
        return new > old if better(self.metric) == "max" else new < old

    @property
    def _time_is_over(self) -> bool:
        spent = sum(entry["seconds"] for entry in self.at.history)
        return spent + self.at.seconds >= self.max_seconds

    def _end(self, epochs: int) -> str:
        """Why a training that has done so many epochs is over; empty while it is not."""
        settings, since = self.settings, epochs - self.at.best_epoch
        if epochs >= settings.epochs:
            return f"all {settings.epochs} epochs are done"
        if epochs and since >= settings.stop:
            return f"nothing better came for {since} epochs"
        return f"its time is over after {epochs} epochs" if self._time_is_over else ""

    @property
    def still_improving(self) -> bool:
        """Whether a training was ended though its last epochs were its best."""
        done = len(self.at.history)
        return not self.at.ended.startswith("nothing better") and (
            done - self.at.best_epoch <= max(1, done // 20)
        )

    def _reopen(self) -> None:
        """Go on where what ended a training has been raised since."""
        self.at.ended = self._end(self.at.epoch - 1)
        if not self.at.ended and self.at.batch == 0:
            self._slow_down(self.at.epoch - 1)

    def _slow_down(self, epochs: int) -> None:
        """Lower the learning rate where no epoch has been better for a while."""
        at, settings = self.at, self.settings
        if epochs - max(at.best_epoch, at.last_cut) >= settings.plateau:
            lower = min(at.lr, max(at.lr * settings.lr_factor, settings.lr_floor))
            if lower < at.lr:
                self.callback.note(f"learning rate {at.lr:.3g} -> {lower:.3g} after epoch {epochs}")
            at.lr, at.last_cut = lower, epochs

    def _plan_next(self) -> None:
        at = self.at
        at.seconds = 0.0
        at.ended = self._end(at.epoch)
        if not at.ended:
            self._slow_down(at.epoch)
        at.epoch, at.batch, at.loss_sum, at.labels, at.nfe = at.epoch + 1, 0, 0.0, 0, 0

    def put_down(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All there is to know of this training, as tensors and plain values."""
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        tensors |= {f"best.{name}": t for name, t in self.best.items()}
        if self.average is not None:
            tensors |= {f"average.{name}": t for name, t in self.average.mean.items()}
        if self.ahead is not None:
            tensors |= {f"ahead.{name}": t for name, t in self.ahead.state_dict().items()}
        return tensors | pack_optimiser(self.optimiser), asdict(self.at)

    def take_up(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Go on where a training was put down."""

        def part(prefix: str) -> dict[str, Tensor]:
            own = {k[len(prefix) :]: t for k, t in tensors.items() if k.startswith(prefix)}
            return {present_name(name): tensor for name, tensor in own.items()}

        self.model.load_state_dict(part("model."))
        device = next(self.model.parameters()).device
        self.best = {name: t.to(device) for name, t in part("best.").items()}
        self.at = Position(**facts)
        if self.average is not None:
            self.average.mean = {name: t.to(device) for name, t in part("average.").items()}
            self.average.batches = self.at.averaged_batches
        if self.ahead is not None:
            self.ahead.load_state_dict(part("ahead."))
        unpack_optimiser(self.optimiser, tensors)


def _split(
    task: Task, name: str, scales: Scales, dtype: torch.dtype, device: torch.device
) -> tuple[SeriesBatch, Tensor, Tensor | None]:
    """Series, labels and, where the task is asked at times of its own, those."""
    series, labels = task.split(name)
    series = scales.series(series).to(device, dtype)
    labels = scales.target(labels) if name == "train" else labels
    times = task.split_times(name) if task.per == "time" else None
    return series, labels.to(device), None if times is None else times.to(device)
