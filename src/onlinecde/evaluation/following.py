"""Streams as models see them: the curve of each, the observations beneath, chosen by lot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from onlinecde.controls import Measurability
from onlinecde.data import Task
from onlinecde.data.queries import rising
from onlinecde.models import OnlineModel
from onlinecde.models.asking import ask
from onlinecde.models.forecasts import MIDDLE
from onlinecde.models.readout import RULES
from onlinecde.plots.evaluation_curves import KNOWN
from onlinecde.plots.trajectories import Trajectory
from onlinecde.series import SeriesBatch

_POINTS = 600


def follow(
    models: Mapping[str, OnlineModel],
    task: Task,
    split: str = "test",
    *,
    streams: int | Sequence[str] = 4,
    channels: int = 4,
    seed: int = 0,
    reference: Tensor | None = None,
    events: np.ndarray | None = None,
) -> tuple[Trajectory, ...]:
    """What models say of some streams of a split as time goes.

    `streams` are their names, or how many: those are drawn by lot among the streams with at least
    the median number of rows; along time, half of them with a label 1 somewhere. A CONTINUOUS model
    gives a curve between rows too, up to where the stream's labels end; a DISCRETE one stands still there, or moves
    at empty rows on the task's clock if that is how it was taught; an OFFLINE one has seen the
    future and is left out. What the task knows of the best possible at any time is drawn too; else
    `reference`: a known risk (stream, row) of the whole task. `events` (stream of the split,): when the event came.
    """
    online = {n: m for n, m in models.items() if m.measurability is not Measurability.OFFLINE}
    if not online:
        return ()
    series, labels = task.split(split)
    found = []
    chosen = (
        _chosen(series, labels, task, streams, seed)
        if isinstance(streams, int)
        else _named(series, streams, split)
    )
    for at in chosen:
        stream, label = series[at], labels[at].cpu()
        place = task.splits[split][at : at + 1]
        until = _until(task, place)
        curves = {n: _curve(m, stream, task, label, until) for n, m in online.items()}
        times = stream.times[0].cpu().numpy()
        known = task.known_risk and task.known_risk.select(place)
        clock = _between(stream.times[0].cpu(), until)
        if known is not None and (best := known.at(clock[None])) is not None:
            curves[KNOWN] = (clock.numpy(), best.risk[0].double().cpu().numpy(), False)
        elif reference is not None and task.per == "row":
            said = reference[place[0], : len(times)].double().cpu().numpy()
            curves[KNOWN] = (times, said, True)
        event = None
        if events is not None and np.isfinite(events[at]) and events[at] <= times[-1] + 12.0:
            event = float(events[at])
        found.append(
            Trajectory(
                stream=str(stream.streams[0]),
                title=_title(stream, label, task, event),
                says=_says(task, label),
                unit=task.time_unit,
                curves=curves,
                channels=_observed(stream, channels),
                positive=_shaded(_label_times(task, place, stream), label, task),
                event=event,
                truth=float(label.reshape(-1)[0])
                if task.kind == "regression" and task.per == "stream"
                else None,
                limits=_limits(curves, task, label),
                places={name: place for place, name in enumerate(models)},
            )
        )
    return tuple(found)


def _named(series: SeriesBatch, names: Sequence[str], split: str) -> list[int]:
    places = {str(name): place for place, name in enumerate(series.streams)}
    for name in names:
        if name not in places:
            raise ValueError(
                f"stream '{name}' is not in the {split} split: there are "
                f"{', '.join(list(places)[:3])} and {max(0, len(places) - 3)} others."
            )
    return [places[name] for name in names]


def _chosen(series: SeriesBatch, labels: Tensor, task: Task, streams: int, seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    rows = series.rows.cpu().numpy()
    long = np.flatnonzero(rows >= np.median(rows))
    if task.kind != "binary":
        return sorted(random.permutation(long)[:streams].tolist())
    positive = (labels == 1).cpu().reshape(len(labels), -1).any(1).numpy()
    some = random.permutation(long[positive[long]])[: (streams + 1) // 2]
    others = random.permutation(long[~positive[long]])[: streams - len(some)]
    return [*some.tolist(), *others.tolist()]


def _until(task: Task, place: Tensor) -> float:
    """How long a stream is looked at: as long as its labels are known between rows, else to its last row."""
    last = task.series[place].times[0, -1]
    if task.truth is None or not task.truth.continuous:
        return float(last)
    return max(float(last), float(task.truth.until[place.to(task.truth.until.device)][0]))


def _label_times(task: Task, place: Tensor, stream: SeriesBatch) -> np.ndarray:
    """When the labels of one stream are."""
    if task.queries is None:
        return stream.times[0].cpu().numpy()
    times = task.queries[place.to(task.queries.device)][0].cpu().numpy()
    return times[~np.isnan(times)]


def _curve(
    model: OnlineModel, stream: SeriesBatch, task: Task, label: Tensor, until: float
) -> tuple[np.ndarray, np.ndarray, bool]:
    rows = stream.times[0].cpu()
    continuous = model.measurability is Measurability.CONTINUOUS
    at = (
        _between(rows, until)
        if continuous
        else rising(torch.cat([rows, _until_end(rows, until)])[None])[0]
    )
    if model.asking == "empty-rows" and task.clock is not None:
        clock = task.clock.times(stream.to("cpu"), torch.tensor([until], dtype=torch.float64))
        at = rising(torch.cat([at[None], clock], 1))[0]
    with torch.no_grad():
        batch = model.prepare(stream.to(model.device))
        outputs = ask(model, batch, at.to(model.device)[None])
    head = model.readout
    if head.bins is not None:
        return (
            at.numpy(),
            head.bins.risk_within(outputs[0].double(), task.horizon).cpu().numpy(),
            not continuous,
        )
    said = head.probabilities(outputs[0].double()).cpu().numpy()
    if task.forecast is not None:
        return at.numpy(), said[:, MIDDLE], not continuous
    place = int(label) if task.kind == "multiclass" and label.ndim == 0 and label >= 0 else 0
    return at.numpy(), said[:, place], not continuous


def _between(rows: Tensor, until: float) -> Tensor:
    """Times along the rows: at each, and some up to just before the next, or the end."""
    knots = torch.cat([rows, _until_end(rows, until)])
    each = max(2, min(24, _POINTS // len(rows)))
    share = torch.linspace(0, 1 - 1e-6, each, dtype=rows.dtype)
    inner = knots[:-1, None] + (knots[1:] - knots[:-1])[:, None] * share
    return torch.cat([inner.reshape(-1), knots[-1:]])


def _until_end(rows: Tensor, until: float) -> Tensor:
    """The end, (1,), where it comes after the last row; else nothing."""
    return rows.new_tensor([until] if until > rows[-1] else [])


def _observed(stream: SeriesBatch, most: int) -> tuple[tuple[str, np.ndarray, np.ndarray], ...]:
    """The channels observed most often, in the series' order."""
    values, times = stream.values[0].cpu().numpy(), stream.times[0].cpu().numpy()
    seen = ~np.isnan(values)
    often = np.argsort(-seen.sum(0), kind="stable")[:most]
    return tuple(
        (str(stream.channels[c]), times[seen[:, c]], values[seen[:, c], c])
        for c in sorted(often.tolist())
        if seen[:, c].any()
    )


def _shaded(times: np.ndarray, label: Tensor, task: Task) -> tuple[tuple[float, float], ...]:
    """Where the label is the class whose probability is drawn: from a label's time to the next one's."""
    drawn = {"binary": 1, "multiclass": 0}.get(task.kind)
    if task.per == "stream" or drawn is None:
        return ()
    found: list[tuple[float, float]] = []
    for row in np.flatnonzero(label[: len(times)].numpy() == drawn):
        start, end = float(times[row]), float(times[min(row + 1, len(times) - 1)])
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, end))
    return tuple(found)


def _title(stream: SeriesBatch, label: Tensor, task: Task, event: float | None) -> str:
    name = f"Stream {stream.streams[0]}"
    if task.per != "stream" and task.kind == "binary":
        if event is not None:
            return f"{name}: event at {event:.1f} {task.time_unit}"
        return f"{name}: {'label turns to 1' if bool((label == 1).any()) else 'no event'}"
    if task.kind in ("binary", "multiclass") and label.ndim == 0:
        number = int(label)
        return f"{name}: {task.classes[number] if number < len(task.classes) else number}"
    return name


def _says(task: Task, label: Tensor) -> str:
    if RULES[task.kind].numbers:
        return task.classes[0] if task.classes else "prediction"
    if task.kind == "multiclass":
        return "P(true class)" if label.ndim == 0 else f"P({task.classes[0]})"
    if task.horizon is not None:
        return f"risk within {task.horizon:g} {task.time_unit}"
    return f"P({task.classes[0]})" if task.kind == "multilabel" and task.classes else "risk"


def _limits(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray, bool]], task: Task, label: Tensor
) -> tuple[float, float]:
    """All that is said fits, and the truth of a regression; a small risk is not drawn on 0 to 1."""
    values = np.concatenate([values for _, values, _ in curves.values()])
    if RULES[task.kind].numbers:
        # Of several forecasts the first is drawn.
        truth = label if task.forecast is None else label[..., 0]
        values = np.append(values, truth.double().numpy())
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        margin = 0.08 * (high - low) or 1.0
        return low - margin, high + 2 * margin
    return 0.0, min(1.02, max(0.05, 1.35 * float(np.nanmax(values))))
