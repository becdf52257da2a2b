"""Naive predictions, which a model must beat to be worth having: base rates, means, last values, labels before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from onlinecde.controls.path import rows_at
from onlinecde.data import Task
from onlinecde.data.forecasting import last_values
from onlinecde.evaluation.metrics import METRICS
from onlinecde.evaluation.questions import UndefinedMetric, questions
from onlinecde.models.forecasts import LEVELS
from onlinecde.models.readout import RULES, known_labels
from onlinecde.models.time_bins import cumulative_risk, taken
from onlinecde.series.empty_rows import filled_queries

JUDGED_BY = {
    "binary": "log_loss",
    "multilabel": "log_loss",
    "multiclass": "log_loss",
    "regression": "rmse",
    "time-to-event": "integrated_brier",
    "forecast": "rmse",
}


@dataclass(frozen=True)
class NaiveScore:
    """A model beside one naive prediction; less is better in `metric`."""

    name: str
    """What the naive prediction is: "base rate", "training mean", "last value of PM2.5", ..."""
    output: str
    """Name of the output; empty where there is one, and for classes."""
    metric: str
    naive: float
    model: float

    @property
    def beaten(self) -> bool:
        """Whether the model is the better one."""
        return self.model < self.naive

    @property
    def in_words(self) -> str:
        """Both, for people."""
        of = f" of '{self.output}'" if self.output else ""
        title = METRICS[self.metric].title
        return f"{title}{of} {self.model:.4g}; of the {self.name} {self.naive:.4g}"

    @property
    def warning(self) -> str:
        """What to say of a model that is not."""
        title = METRICS[self.metric].title
        of = f" of '{self.output}'" if self.output else ""
        advice = (
            "as probabilities its answers are worth less than that one number"
            if self.metric == "log_loss"
            else "predict that instead, or find out what the model lacks"
        )
        return f"{title}{of}, {self.model:.4g}, does not beat the {self.name}'s, {self.naive:.4g}: {advice}"


def beside_naive(
    task: Task, split: str, predictions: Tensor, naive: Mapping[str, Tensor] | None = None
) -> tuple[NaiveScore, ...]:
    """Predictions of a split, as probabilities or numbers (..., output), beside each naive one, output by output.

    `naive`: what `naive_predictions` gives for the split, computed where it is not given.
    """
    naive = naive_predictions(task, split) if naive is None else naive
    labels, metric = task.split(split)[1].cpu(), METRICS[JUDGED_BY[task.kind]]
    several = task.outputs > 1 and not RULES[task.kind].together
    names = output_names(task) if several else ("",)
    found = []
    for name, guess in naive.items():
        pairs = zip(
            names,
            questions(task.kind, guess, labels),
            questions(task.kind, predictions.double(), labels),
            strict=True,
        )
        for output, (guessed, wanted, _), (said, _, _) in pairs:
            if not bool(said.isfinite().all()):
                continue
            try:
                scores = [metric.value(one, wanted, task.edges) for one in (guessed, said)]
            except UndefinedMetric:
                continue
            found.append(NaiveScore(name, output, metric.name, *scores))
    return tuple(found)


def mean_naive(several: Sequence[Sequence[NaiveScore]]) -> tuple[NaiveScore, ...]:
    """The mean over folds of what was found on each, of those that every fold has."""
    keys = [{(one.name, one.output): one for one in scores} for scores in several]
    return tuple(
        replace(
            one,
            naive=float(np.mean([found[key].naive for found in keys])),
            model=float(np.mean([found[key].model for found in keys])),
        )
        for key, one in keys[0].items()
        if all(key in found for found in keys)
    )


def naive_predictions(task: Task, split: str) -> dict[str, Tensor]:
    """Predictions of a split that need no model, each (..., output) float64, by name.

    For forecasts the last value. For classes the share of each in the training split. For numbers its mean;
    the last value of the channel that predicts them best there, where one does so better than the
    mean; and, with labels along time, the label before. Where a task has no training
    split, shares and means are those of the labels that are judged.
    """
    if task.kind == "forecast":
        last = last_values(task, split).double().cpu()
        return {"last value": last[..., None].expand(*last.shape, len(LEVELS)).flatten(-2)}
    labels = task.split(split)[1].cpu()
    trained = "train" in task.splits and len(task.splits["train"]) > 0
    known = task.split("train")[1].cpu() if trained else labels
    wide = labels[..., 0] if task.kind == "time-to-event" else labels
    shape = (*wide.shape, task.outputs) if wide.ndim < _dimensions(task) else wide.shape
    if task.kind != "regression":
        name = "base rate" if trained else "base rate of these labels"
        return {name: base_rate(task, known).expand(shape)}
    mean = known.double().reshape(-1, task.outputs).nanmean(0)
    found = {"training mean" if trained else "mean of these labels": mean.expand(shape)}
    if trained:
        last = _last_values(task, known, mean)
        if last is not None:
            name, columns = last
            values = _latest(task, split)[..., [max(c, 0) for c in columns]]
            use = torch.tensor([c >= 0 for c in columns]) & values.isfinite()
            found[name] = torch.where(use, values, mean)
    if task.per != "stream":
        found["label before"] = _label_before(labels.double(), mean)[..., None]
    return found


def base_rate(task: Task, labels: Tensor) -> Tensor:
    """The share (output,) of each class or positive label, half a label more counted of each.

    Of time to an event, the risk by the end of each bin.
    """
    if task.kind == "multiclass":
        counts = torch.bincount(labels[labels >= 0], minlength=len(task.classes)).double() + 0.5
        return counts / counts.sum()
    ones, zeros = (count + 0.5 for count in label_counts(task, labels))
    if task.kind == "time-to-event":
        return cumulative_risk(ones.log() - zeros.log())
    return ones / (ones + zeros)


def label_counts(task: Task, labels: Tensor) -> tuple[Tensor, Tensor]:
    """How many labels of each output are 1, and how many are 0, (output,) float64.

    Of time to an event: how many events came in each bin, and how many bins went by without (in part, where a stream
    was lost within one).
    """
    if task.kind != "time-to-event":
        rows = labels.reshape(-1, task.outputs)
        return (rows == 1).sum(0).double(), (rows == 0).sum(0).double()
    known = labels[known_labels(task.kind, labels)].double()
    exposed, came = taken(torch.tensor(task.edges, dtype=torch.float64, device=known.device), known)
    return came.sum(0), (exposed - came).sum(0)


def output_names(task: Task) -> tuple[str, ...]:
    """A name for each output of a task that names them, or their numbers."""
    if len(task.classes) == task.outputs or task.forecast is not None:
        return task.classes
    return tuple(f"output {number}" for number in range(1, task.outputs + 1))


def _dimensions(task: Task) -> int:
    """How many dimensions predictions have."""
    return 2 if task.per == "stream" else 3


def _last_values(task: Task, known: Tensor, mean: Tensor) -> tuple[str, list[int]] | None:
    """For each output the channel whose last value predicts it best in training, -1 for none; and a name."""
    latest = _latest(task, "train")
    labels = known.double()[..., None] if known.ndim < _dimensions(task) else known.double()
    columns = []
    for output in range(task.outputs):
        wanted = labels[..., output]
        here = ~wanted.isnan()
        wanted, values = wanted[here], latest[here]
        guesses = torch.where(values.isfinite(), values, mean[output])
        errors = (guesses - wanted[:, None]).square().mean(0)
        best = int(errors.argmin())
        enough = float(errors[best]) < float((wanted - mean[output]).square().mean())
        columns.append(best if enough else -1)
    if max(columns) < 0:
        return None
    named = ", ".join(dict.fromkeys(str(task.series.channels[c]) for c in columns if c >= 0))
    return f"last value of {named}", columns


def _latest(task: Task, split: str) -> Tensor:
    """The newest value of each channel where a label is: (stream, channel), or (stream, row or query, channel)."""
    series, asked = task.split(split)[0], task.split_times(split)
    values = series.values.cpu().double().numpy()
    rows = np.where(np.isnan(values), -1, np.arange(values.shape[1])[:, None])
    rows = np.maximum.accumulate(rows, 1)
    found = np.take_along_axis(values, rows.clip(0), 1)
    if task.per == "stream":
        found = found[np.arange(len(found)), series.rows.cpu().numpy() - 1]
    elif task.per == "time" and asked is not None:
        clock = filled_queries(series, asked)
        row = rows_at(series.times, series.rows, clock, series.streams).cpu().numpy()
        found = np.take_along_axis(found, row[:, :, None], 1)
    return torch.from_numpy(found)


def _label_before(labels: Tensor, mean: Tensor) -> Tensor:
    """The newest label at an earlier row or query, the training mean before there is one: (stream, row)."""
    known = labels.numpy()
    rows = np.where(np.isnan(known), -1, np.arange(known.shape[1]))
    rows = np.maximum.accumulate(rows, 1)
    rows = np.concatenate([np.full((len(rows), 1), -1), rows[:, :-1]], 1)
    found = np.take_along_axis(known, rows.clip(0), 1)
    return torch.from_numpy(np.where(rows < 0, float(mean[0]), found))
