"""`Task`: series, what is to be predicted of them, and who is trained and tested on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from onlinecde.data.alarm_utility import Utility
from onlinecde.data.errors import DataError
from onlinecde.data.forecasting import Forecast
from onlinecde.data.known_risk import KnownRisk
from onlinecde.data.queries import Queries, clock_grid
from onlinecde.data.splits import FRACTIONS, check_splits, split_streams
from onlinecde.data.time_ahead import time_bins
from onlinecde.data.truth import EndLabels, EventTruth, ListedLabels, Truth, check_truth
from onlinecde.series import Schema, SeriesBatch, SeriesError

if TYPE_CHECKING:
    from onlinecde.data.table_times import TableClock

Kind = Literal["binary", "multiclass", "multilabel", "regression", "time-to-event", "forecast"]
Per = Literal["stream", "row", "time"]

QUANTILES = 9
"""Numbers that a model puts out for each forecast"""

METRICS: Mapping[str, str] = {
    "binary": "auc",
    "multiclass": "accuracy",
    "multilabel": "auc",
    "regression": "rmse",
    "time-to-event": "concordance",
    "forecast": "crps",
}
"""The metric a task is judged by unless it names another."""


@dataclass(frozen=True, eq=False)
class Task:
    """A prediction task; build one with `Task.build`, which checks it and deals out the splits.

    Series and labels are raw: scaling belongs to the model, which learns it from the training
    split (`Encoding.fit(task.split("train")[0])`).

    >>> series = SeriesBatch.from_arrays([[0.0, 1.0]] * 10, [[[1.0], [2.0]]] * 10)
    >>> task = Task.build("toy", series, [0, 1] * 5, kind="binary")
    >>> batch, labels = task.split("train")
    >>> len(batch), labels.shape
    (7, torch.Size([7]))
    """

    name: str
    series: SeriesBatch
    labels: Tensor
    """(stream,) or (stream, output) with `per="stream"`; (stream, row) with `per="row"`; (stream, query) or
    (stream, query, output) with `per="time"`; of "forecast" the last axis is that of its forecasts.

    float32, NaN where there is no label; classes of "multiclass" are int64, -1 where there is none; of "time-to-event"
    (..., 2): how long from then (a stream's last row with `per="stream"`) to the event or to when the stream was lost,
    and 1 for the event.
    """
    kind: Kind
    per: Per
    subjects: tuple[Hashable, ...]
    """Whose each stream is: no subject is in two splits."""
    splits: dict[str, Tensor]
    """Positions (stream in split,) int64 of "train", "validation" and "test"."""
    time_unit: str
    metric: str
    classes: tuple[str, ...]
    """Names of the classes, of the outputs of "multilabel" and "regression", or of forecasts."""
    source: str
    """Where the data came from, in words or as a path."""
    settings: dict[str, Any] = field(default_factory=dict)
    """How it was prepared: everything that, changed, would give other numbers."""
    flow: tuple[tuple[str, int], ...] = ()
    """How many were left after each exclusion, first to last; empty where none was made."""
    notes: tuple[str, ...] = ()
    """What else is worth knowing of how the data was read."""
    label_lead: float = 0.0
    """How long before the event a label per row turns to 1, in `time_unit`; 0: with it, or unknown."""
    utility: Utility | None = None
    """The data set's own score of alarms at rows; None where it defines none."""
    known_risk: KnownRisk | None = None
    """True risk and times of events; None unless the data are simulated."""
    truth: Truth | None = None
    """What the label is at any time, where more is known than `labels` lists; see `label_truth`."""
    queries: Tensor | None = None
    """(stream, query) float64 with `per="time"`: when each label is asked for; NaN behind a stream's last."""
    edges: tuple[float, ...] = ()
    """Where the bins of time ahead end, of "time-to-event"."""
    horizon: float | None = None
    """How far ahead its first answer looks, of "time-to-event"."""
    forecast: Forecast | None = None
    """Which channels are forecast how far ahead, of "forecast"."""
    table_clock: TableClock | None = None
    """How times of its own tables are read; None: they are numbers in `time_unit`."""

    @classmethod
    def build(
        cls,
        name: str,
        series: SeriesBatch,
        labels: Any,
        *,
        kind: Kind,
        per: Per = "stream",
        subjects: Sequence[Hashable] | None = None,
        splits: Mapping[str, Any] | None = None,
        seed: int = 0,
        fractions: Mapping[str, float] = FRACTIONS,
        stratify: bool = True,
        time_unit: str = "hours",
        metric: str | None = None,
        classes: Sequence[str] = (),
        source: str = "given in memory",
        settings: Mapping[str, Any] | None = None,
        flow: Sequence[tuple[str, int]] = (),
        notes: Sequence[str] = (),
        label_lead: float = 0.0,
        utility: Utility | None = None,
        known_risk: KnownRisk | None = None,
        truth: Truth | None = None,
        queries: Tensor | None = None,
        edges: Sequence[float] | None = None,
        horizon: float | None = None,
        forecast: Forecast | None = None,
        table_clock: TableClock | None = None,
    ) -> Task:
        """Check series against labels and deal the streams out to splits.

        `subjects` (default: every stream its own) are never divided; `splits` gives your own
        positions instead of a seeded deal by `fractions`. With `stratify`, classes (or "has a
        positive label at all") are kept at like shares in every split. The bins of "time-to-event" are finer
        where events of the training split are, with `horizon` (default: the median time to them) among their `edges`.
        """
        if kind not in METRICS:
            raise DataError(f"kind is {kind!r}: choose one of {list(METRICS)}.")
        if per not in get_args(Per):
            raise DataError(f"per is {per!r}: choose 'stream', 'row' or 'time'.")
        queries = _checked_queries(queries, series, per)
        subjects = tuple(subjects) if subjects is not None else series.streams
        if len(subjects) != len(series):
            raise DataError(
                f"{len(subjects)} subjects for {len(series)} streams: give one for each."
            )
        target = _checked_labels(labels, series, kind, per, tuple(classes), queries)
        if truth is not None:
            check_truth(truth, series)
        if splits is None:
            strata = strata_of(target, kind, horizon) if stratify else None
            dealt = split_streams(subjects, strata, seed=seed, fractions=fractions)
        else:
            dealt = {name: torch.as_tensor(at, dtype=torch.int64) for name, at in splits.items()}
            check_splits(dealt, subjects)
        settings = dict(settings or {})
        bins = ()
        if kind == "time-to-event":
            settings |= {} if edges is None else {"edges": list(edges)}
            bins, horizon = time_bins(target, dealt, edges, horizon)
        elif edges is not None or horizon is not None:
            raise DataError(f"edges and horizon are of kind 'time-to-event', and this is {kind!r}.")
        if (forecast is None) != (kind != "forecast"):
            raise DataError(f"kind is {kind!r}: forecasts are built by `data.forecast_task`.")
        if forecast is not None:
            classes = forecast.names(time_unit)
        return cls(
            name=name,
            series=encoded(series, dealt),
            labels=target,
            kind=kind,
            per=per,
            subjects=subjects,
            splits=dealt,
            time_unit=time_unit,
            metric=metric or METRICS[kind],
            classes=tuple(str(c) for c in classes),
            source=source,
            settings=settings,
            flow=tuple((str(step), int(left)) for step, left in flow),
            notes=tuple(notes),
            label_lead=float(label_lead),
            utility=utility,
            known_risk=known_risk,
            truth=truth,
            queries=queries,
            edges=bins,
            horizon=horizon,
            forecast=forecast,
            table_clock=table_clock,
        )

    @property
    def times(self) -> Tensor | None:
        """When each label is: row times, query times, both (stream, ...); None with one label a stream."""
        return {"stream": None, "row": self.series.times, "time": self.queries}[self.per]

    @property
    def label_truth(self) -> Truth:
        """What the label is at any time: `truth`, or as far as `labels` tell."""
        if self.truth is not None:
            return self.truth
        series = self.series
        last = series.times.gather(1, series.rows[:, None] - 1)[:, 0]
        if self.per == "stream":
            return EndLabels(last, self.labels)
        times = series.times.masked_fill(~series.real, torch.inf)
        if self.queries is not None:
            times = self.queries.nan_to_num(torch.inf)
            last = torch.maximum(last, self.queries.nan_to_num(-torch.inf).amax(1))
        return ListedLabels(last, times, self.labels)

    @property
    def asked_when(self) -> str:
        """When it has its labels, in words."""
        if self.per == "time":
            return f"asked {self.settings.get('asked', 'at given times')}"
        return "a label at every row" if self.per == "row" else "one label a stream"

    @property
    def clock(self) -> Queries | None:
        """The grid on which it is judged by the clock; None where labels are not known between rows, or rows are it.

        A label that never changes in time, as that of how a stay ends, is no reason to ask again and again.
        """
        truth, series = self.truth, self.series
        if truth is None or self.per == "time" or not truth.continuous:
            return None
        if isinstance(truth, EndLabels):
            return None
        grid = clock_grid(series, truth.until)
        times = grid.times(series, truth.until)
        row = torch.searchsorted(series.times, times.contiguous(), right=True) - 1
        since = times - series.times.gather(1, row.clamp(min=0))
        # Rows that come with the clock are all that there is to ask about.
        return grid if bool((since > 0).sum() > 0.05 * (~times.isnan()).sum()) else None

    def asked(self, queries: Queries | str | Tensor, *, seed: int = 0) -> Task:
        """The task with its labels at other times: a grid, random times, or (stream, query) of one's own.

        Where the label is not known at a time there is none. With `Queries` of the rows or the end, labels are
        those that the truth has there.

        >>> from onlinecde.data import simulate_ward
        >>> task = simulate_ward(40, seed=0).task.asked("every=1h")
        >>> task.per, task.labels.shape == task.queries.shape
        ('time', True)
        """
        truth, words = self.label_truth, "at given times"
        if isinstance(queries, str):
            queries = Queries.parse(queries, self.time_unit)
        if isinstance(queries, Queries):
            words = queries.in_words(self.time_unit)
            generator = torch.Generator().manual_seed(seed)
            queries = queries.times(self.series, truth.until, generator)
        times = _checked_queries(queries, self.series, "time")
        assert times is not None
        times = times[:, : _most_of(times)]
        asked = replace(self, per="time", queries=times, labels=truth.at(times), truth=truth)
        if not bool(asked.labelled.any()):
            raise DataError(
                f"task '{self.name}': no label is known at any of the times asked about: choose others."
            )
        return replace(
            asked,
            settings={**self.settings, "asked": words},
            utility=self.utility and self.utility.at(times, asked.labelled),
            known_risk=self.known_risk and self.known_risk.at(times),
        )

    def within(self, horizon: float | None = None) -> Task:
        """Of time to an event, the binary task of whether it comes within a horizon, with the same splits.

        Args:
            horizon: default: the task's own.

        >>> from onlinecde.data import simulate_ward
        >>> task = simulate_ward(40, seed=0, kind="time-to-event").task.within(6.0)
        >>> task.kind, task.labels.shape == task.series.times.shape
        ('binary', True)
        """
        if self.horizon is None:
            raise DataError(f"task '{self.name}' is {self.kind}: it has no horizons.")
        ahead = self.horizon if horizon is None else float(horizon)
        time, event = self.labels.unbind(-1)
        came = (event == 1) & (time <= ahead)
        labels = torch.where(came | (time >= ahead), came.to(time.dtype), torch.nan)
        truth = self.truth
        return replace(
            self,
            kind="binary",
            labels=labels,
            truth=replace(truth, horizon=ahead) if isinstance(truth, EventTruth) else None,
            known_risk=self.known_risk if ahead == self.horizon else None,
            metric=METRICS["binary"],
            classes=("no event", "event"),
            label_lead=ahead,
            edges=(),
            horizon=None,
        )

    def select(self, streams: Tensor, splits: dict[str, Tensor]) -> Task:
        """Only these streams, by position, dealt out to `splits`, positions among them."""
        series = self.series[streams]
        chosen = replace(
            self,
            series=series,
            labels=self.labels[streams.to(self.labels.device)],
            queries=None if self.queries is None else self.queries[streams.to(self.queries.device)],
            truth=self.truth and self.truth.select(streams.to(self.truth.until.device)),
            utility=self.utility and self.utility.select(streams),
            known_risk=self.known_risk and self.known_risk.select(streams),
            subjects=tuple(self.subjects[at] for at in streams.tolist()),
            splits=splits,
        )
        if self.per == "stream":
            return chosen
        most = series.times.shape[1] if chosen.queries is None else _most_of(chosen.queries)
        return chosen._first_labels(most)

    def first_rows(self, rows: int) -> Task:
        """Only the first rows of each stream, and nothing asked about after the last of them."""
        if rows >= self.series.times.shape[1]:
            return self
        series = self.series.first_rows(rows)
        last = series.times.gather(1, series.rows[:, None] - 1)
        short = replace(self, series=series, truth=self.truth and self.truth.cut(last[:, 0]))
        if self.queries is not None:
            return short.asked(self.queries.masked_fill(self.queries > last, torch.nan))
        return short._first_labels(rows) if self.per == "row" else short

    def _first_labels(self, most: int) -> Task:
        """Only so many labels of each stream, which has no more, and what stands beside them."""
        whole = slice(None)
        return replace(
            self,
            labels=self.labels[:, :most],
            queries=None if self.queries is None else self.queries[:, :most],
            utility=self.utility and self.utility.select(whole, most),
            known_risk=self.known_risk and self.known_risk.select(whole, most),
        )

    def split(self, name: str) -> tuple[SeriesBatch, Tensor]:
        """The series and labels of one split; labels along time are cut to the most that a stream of it has."""
        if name not in self.splits:
            raise DataError(
                f"task '{self.name}' has no split '{name}': it has {list(self.splits)}."
            )
        at = self.splits[name]
        if not len(at):
            raise DataError(f"split '{name}' of task '{self.name}' is empty.")
        batch, labels = self.series[at], self.labels[at.to(self.labels.device)]
        times = self.split_times(name)
        return batch, labels if times is None else labels[:, : times.shape[1]]

    def split_times(self, name: str) -> Tensor | None:
        """When the labels of one split are, (stream, row) or (stream, query); None with one label a stream."""
        at = self.splits[name]
        if self.per == "row":
            return self.series[at].times
        if self.queries is None:
            return None
        chosen = self.queries[at.to(self.queries.device)]
        return chosen[:, : _most_of(chosen)]

    @cached_property
    def schema(self) -> Schema:
        """Names, and how static features are encoded: what a model trained on this task carries."""
        at = self.splits.get("train")
        training = None if at is None else at.cpu().numpy()
        return Schema.of(self.series, training, self.time_unit)

    def under(self, schema: Schema) -> Task:
        """The task with a model's channels and static features; what it lacks, or has besides, is a note.

        Raises DataError where it has none of the channels, or counts in another unit of time.
        """
        if schema.time_unit not in (None, self.time_unit):
            raise DataError(
                f"task '{self.name}' is in {self.time_unit}, the model counts {schema.time_unit}: prepare the "
                f"task with time_unit={schema.time_unit!r}."
            )
        if schema.fits(self.series):
            return self
        try:
            series, notes = schema.align(self.series)
        except SeriesError as error:
            raise DataError(f"task '{self.name}': {error}") from error
        return replace(self, series=series, notes=(*self.notes, *notes))

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Task:
        """Move series and labels to a device, or give the values another dtype."""
        moved = {
            name: None if (one := getattr(self, name)) is None else one.to(device)
            for name in ("truth", "queries")
        }
        series, labels = self.series.to(device, dtype), self.labels.to(device)
        return replace(self, series=series, labels=labels, **moved)

    @property
    def outputs(self) -> int:
        """How many numbers a model for this task puts out."""
        if self.kind in ("multiclass", "time-to-event"):
            return len(self.classes if self.kind == "multiclass" else self.edges)
        if self.forecast is not None:
            return len(self.forecast.pairs) * QUANTILES
        several = self.labels.ndim == (2 if self.per == "stream" else 3)
        return self.labels.shape[-1] if several else 1

    @property
    def answers(self) -> int:
        """How many labels it has at a time: outputs, or forecasts."""
        return self.outputs if self.forecast is None else len(self.forecast.pairs)

    @property
    def labelled(self) -> Tensor:
        """Where there is a label: bool of the shape of `labels`, of "time-to-event" without the last axis."""
        if self.kind == "multiclass":
            return self.labels >= 0
        return ~(self.labels[..., 0] if self.kind == "time-to-event" else self.labels).isnan()

    def describe(self) -> str:
        """What the task is, in a few lines: sizes, labels, how much is observed, splits, source."""
        series = self.series
        rows = series.rows.double()
        last = series.times.gather(1, series.rows[:, None] - 1)[:, 0] - series.times[:, 0]
        real, seen = float(rows.sum()), (~series.values[series.real].isnan()).sum(0).double()
        share = (100 * seen / real).tolist()
        order = sorted(range(len(share)), key=lambda i: -share[i])
        shown = ", ".join(f"{series.channels[i]} {share[i]:.0f} %" for i in order[:8])
        parts = ", ".join(f"{name} {len(at)}" for name, at in self.splits.items())
        return "\n".join(
            [
                f"{self.name}: {self.kind}, one label per {'query ' * (self.per == 'time')}{self.per}, "
                f"judged by {self.metric}",
                f"  streams   {len(series)} of {len(set(self.subjects))} subjects; {parts}",
                f"  rows      {int(real)}; {int(rows.min())} to {int(rows.max())} a stream, "
                f"median {int(rows.median())}",
                f"  time      {self.time_unit}; a stream spans {float(last.median()):.4g} (median) "
                f"to {float(last.max()):.4g}",
                f"  channels  {len(share)}, {sum(share) / len(share):.1f} % observed: {shown}"
                + ", ..." * (len(share) > 8),
                f"  static    {', '.join(series.features) or 'none'}",
                f"  labels    {_describe_labels(self)}",
                *([f"  known     {_describe_truth(self, self.truth)}"] if self.truth else []),
                f"  source    {self.source}",
                f"  settings  {', '.join(f'{k}={v}' for k, v in self.settings.items()) or 'none'}",
                *(
                    [f"  left      {', '.join(f'{k} {v}' for k, v in self.flow)}"]
                    if self.flow
                    else []
                ),
                *(f"  note      {note}" for note in self.notes),
            ]
        )


def _most_of(queries: Tensor) -> int:
    """The most queries that a stream has, at least 1."""
    return max(1, int((~queries.isnan()).sum(1).max()))


def _checked_queries(queries: Any, series: SeriesBatch, per: Per) -> Tensor | None:
    """Query times as (stream, query) float64, rising; None where labels are not asked for by times."""
    if (queries is None) != (per != "time"):
        raise DataError(
            "query times go with per='time', and per='time' with query times: give both or neither."
        )
    if queries is None:
        return None
    times = torch.as_tensor(queries, dtype=torch.float64, device=series.device)
    if times.ndim != 2 or len(times) != len(series):
        raise DataError(
            f"query times have shape {tuple(times.shape)} for {len(series)} streams: give (stream, query)."
        )
    asked = ~times.isnan()
    wrong = {
        "is not finite: leave it out": asked & ~times.isfinite(),
        "follows a gap: NaN may only stand behind a stream's last query": asked
        & ~asked.cummin(1).values,
        "does not come after the one before it: sort them and give each once": nn.functional.pad(
            times[:, 1:] <= times[:, :-1], (1, 0)
        ),
        "lies before the stream's first row, when nothing is known: leave it out": times
        < series.times[:, :1],
    }
    for what, where in wrong.items():
        if bool(where.any()):
            stream, query = where.nonzero()[0].tolist()
            raise DataError(
                f"stream {series.streams[stream]!r}: query time {float(times[stream, query])} {what}."
            )
    return times


def _checked_labels(
    labels: Any,
    series: SeriesBatch,
    kind: Kind,
    per: Per,
    classes: tuple[str, ...],
    queries: Tensor | None,
) -> Tensor:
    try:
        if isinstance(labels, np.ndarray):
            # polars and pandas hand out arrays that must not be written to.
            labels = labels.copy()
        target = torch.as_tensor(labels, device=series.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"the labels cannot be read as numbers ({error}).") from error
    times = {"stream": None, "row": series.times, "time": queries}[per]
    shape = (len(series),) if times is None else tuple(times.shape)
    waiting = kind == "time-to-event"
    many = target.ndim == len(shape) + 1 and (
        kind == "forecast" or (kind in ("multilabel", "regression") and per != "row")
    )
    wanted = (*shape, 2) if waiting else shape
    if target.shape[: len(shape)] != shape or (not many and tuple(target.shape) != wanted):
        words = {"stream": "(stream,", "row": "(stream, row", "time": "(stream, query"}[per]
        words += " 2)" if words[-1] == "," and waiting else ", 2)" if waiting else ")"
        raise DataError(f"labels have shape {tuple(target.shape)}: they must be {words}, {wanted}.")
    if kind == "multiclass":
        target = torch.where(target.isnan(), -1, target) if target.is_floating_point() else target
        target = target.to(torch.int64)
        if not classes:
            raise DataError("a multiclass task needs the names of its classes: give `classes`.")
        bad = (target < -1) | (target >= len(classes))
        missing = target == -1
    else:
        target = target.to(torch.float32)
        missing = target.isnan()
        bad = target.isinf()
        if kind in ("binary", "multilabel"):
            bad = bad | ~(missing | (target == 0) | (target == 1))
        if waiting:
            bad = bad | _bad_waiting(target)
    if per == "row":
        # What a row label says of padding is no label.
        real = series.real[..., None] if waiting or many else series.real
        target = target.masked_fill(~real, -1 if kind == "multiclass" else torch.nan)
        bad = bad & real
    elif per == "stream" and not many:
        bad = bad | missing
    if bad.any():
        where = bad.nonzero()[0].tolist()
        at = f"stream {series.streams[where[0]]!r}" + (
            f", {per} {where[1]}" if per != "stream" else ""
        )
        allowed = {
            "binary": "0 or 1",
            "multilabel": "0 or 1",
            "multiclass": f"0 to {len(classes) - 1}",
            "regression": "a finite number",
            "forecast": "a finite number",
            "time-to-event": "a time of 0 or more (above 0 to an event), then 1 for the event or 0 for censoring",
        }[kind]
        found = target[tuple(where[:-1] if waiting else where)].tolist()
        raise DataError(f"{at}: the label is {found}: it must be {allowed}.")
    if bool((target == -1).all() if kind == "multiclass" else target.isnan().all()):
        raise DataError("there is no label at all: give at least one.")
    return target


def _bad_waiting(labels: Tensor) -> Tensor:
    """Where a label (..., 2) is no time to an event or to censoring, bool of its shape."""
    time, event = labels.unbind(-1)
    missing = time.isnan() & event.isnan()
    fine = ((event == 1) & (time > 0)) | ((event == 0) & (time >= 0))
    return ~(missing | fine)[..., None].expand_as(labels)


def encoded(
    series: SeriesBatch, splits: Mapping[str, Tensor], *, seen: Tensor | None = None
) -> SeriesBatch:
    """The series with raw static features encoded by what the training split has; others stay as they are.

    seen: streams whose categories and gaps count, where they are not those of the training split.
    """
    return series.with_raw_static(series.raw_static, training=splits.get("train"), seen=seen)


def strata_of(labels: Tensor, kind: Kind, horizon: float | None = None) -> Tensor | None:
    """(stream,) int64: the class of each stream, or whether it has any positive label.

    Of time to an event, whether one comes within the horizon of a label: as where that is the label itself.
    """
    if kind in ("regression", "forecast"):
        return None
    if kind == "multiclass":
        return (labels if labels.ndim == 1 else labels.amax(1)).cpu()
    if kind == "time-to-event":
        came = (labels[..., 1] == 1) & (labels[..., 0] <= (horizon or torch.inf))
        return came.reshape(len(labels), -1).any(1).to(torch.int64).cpu()
    positive = (labels == 1).flatten(1) if labels.ndim > 1 else labels == 1
    return (positive if labels.ndim == 1 else positive.any(1)).to(torch.int64).cpu()


def _describe_truth(task: Task, truth: Truth) -> str:
    spans = truth.until.to(task.series.times) - task.series.times[:, 0]
    return (
        f"{truth.describe(task.time_unit)}; asked about for {float(spans.median()):.4g} (median) to "
        f"{float(spans.max()):.4g} {task.time_unit} from its first row"
    )


def _describe_labels(task: Task) -> str:
    known = task.labels[task.labelled]
    if task.forecast is not None:
        counts = (~task.labels.isnan()).flatten(0, 1).sum(0).tolist()
        each = zip(task.classes, counts, strict=True)
        return ", ".join(f"{name}: {count}" for name, count in each)
    if task.kind == "regression":
        deviation = float(known.double().std(correction=0))
        return f"{known.numel()}; mean {float(known.mean()):.4g}, deviation {deviation:.4g}"
    if task.kind == "multiclass":
        counts = torch.bincount(known, minlength=len(task.classes))
        return (
            f"{known.numel()} in {len(task.classes)} classes; "
            f"{int(counts.min())} to {int(counts.max())} a class"
        )
    if task.kind == "time-to-event":
        came = known[known[:, 1] == 1, 0].double()
        middle = f", half of them within {float(came.median()):.4g}" if len(came) else ""
        several = int((task.labels[..., 1] == 1).reshape(len(task.labels), -1).any(1).sum())
        return (
            f"{len(known)}; {len(came)} followed by the event{middle}, in {several} streams; {len(task.edges)} bins of "
            f"time ahead, to {task.edges[-1]:g}, first answer within {task.horizon:g}"
        )
    text = f"{known.numel()}; {int(known.sum())} positive ({100 * float(known.mean()):.2f} %)"
    if task.per != "stream":
        text += f", in {int((task.labels == 1).any(1).sum())} streams"
    return text
