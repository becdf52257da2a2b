"""Forecast tasks: what chosen channels will read at chosen horizons; labels come from the series themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from onlinecde.data.errors import DataError
from onlinecde.data.queries import ABBREVIATIONS, duration
from onlinecde.data.truth import Truth
from onlinecde.series import SeriesBatch

if TYPE_CHECKING:
    from onlinecde.data.task import Task

SHARE = 0.25
"""How far from t + h an observation may lie, as a share of h, where nobody says otherwise"""


@dataclass(frozen=True)
class Forecast:
    """Which channels are forecast how far ahead; a forecast for each pair, channel by channel.

    The value of a channel at t + h is its observation nearest to that time, at most `within` away and after t; of two
    equally near the earlier. Where there is none, it is not known.

    >>> Forecast(("creatinine",), (6.0, 12.0), (1.5, 3.0)).names("hours")
    ('creatinine in 6 h', 'creatinine in 12 h')
    """

    channels: tuple[str, ...]
    horizons: tuple[float, ...]
    """In the unit of the series' time, rising"""
    within: tuple[float, ...]
    """For each horizon"""

    @property
    def pairs(self) -> list[tuple[str, float]]:
        """Channel and horizon of each forecast."""
        return [(channel, horizon) for channel in self.channels for horizon in self.horizons]

    def names(self, unit: str) -> tuple[str, ...]:
        """A name for each: "creatinine in 6 h"."""
        return tuple(forecast_name(*pair, unit) for pair in self.pairs)

    def as_json(self) -> dict[str, list[Any]]:
        """Plain values; `forecast_task` takes them as arguments."""
        return {n: list(getattr(self, n)) for n in ("channels", "horizons", "within")}


def forecast_name(channel: str, horizon: float, unit: str) -> str:
    """What a forecast is called.

    >>> forecast_name("creatinine", 6.0, "hours")
    'creatinine in 6 h'
    """
    short = {long: name for name, long in reversed(ABBREVIATIONS.items())}.get(unit, unit)
    return f"{channel} in {horizon:g} {short}"


@dataclass(frozen=True, eq=False)
class ForecastTruth(Truth):
    """What each channel reads some time after any time, as far as it was observed.

    >>> times, values = torch.tensor([[[1.0, 5.0]]]), torch.tensor([[[7.0, 8.0]]])
    >>> truth = ForecastTruth(torch.tensor([9.0]), times, values, (2.0,), (1.0,))
    >>> truth.at(torch.tensor([[0.0, 2.0, 3.0, 4.5]])).flatten()
    tensor([7., 8., 8., nan])
    """

    times: Tensor
    """(stream, channel, entry) float64: when each channel was observed, rising; infinite behind the last"""
    values: Tensor
    """(stream, channel, entry) float32"""
    horizons: tuple[float, ...]
    within: tuple[float, ...]

    def describe(self, unit: str) -> str:
        ahead = ", ".join(
            f"{h:g} (+-{w:g})" for h, w in zip(self.horizons, self.within, strict=True)
        )
        return f"values {ahead} {unit} ahead"

    def labels(self, times: Tensor) -> Tensor:
        found = [self._near(times, h, w) for h, w in zip(self.horizons, self.within, strict=True)]
        # (stream, channel, query, horizon) as (stream, query, channel * horizon)
        return torch.stack(found, -1).transpose(1, 2).flatten(2)

    def _near(self, times: Tensor, horizon: float, within: float) -> Tensor:
        """(stream, channel, query): the observation nearest to a horizon after each time (stream, query)."""
        now = times[:, None].expand(-1, self.times.shape[1], -1).contiguous()
        wanted = now + horizon
        after = torch.searchsorted(self.times, wanted)
        places = torch.stack([after - 1, after], -1).clamp(0, self.times.shape[2] - 1)
        when = self.times.gather(2, places.flatten(2)).view(places.shape)
        away = (when - wanted[..., None]).abs()
        # A hair of tolerance: 0.1 + 0.2 lies within 0.1 of 0.2.
        far = (away > within + 1e-9 * horizon) | (when <= now[..., None])
        away = away.masked_fill(far | ~away.isfinite(), torch.inf)
        nearest = away.argmin(-1, keepdim=True)
        value = self.values.gather(2, places.gather(3, nearest)[..., 0])
        return value.masked_fill(away.amin(-1).isinf(), torch.nan)

    def latest(self, times: Tensor) -> Tensor:
        """The last values at times (stream, query), (stream, query, forecast); NaN where never observed before."""
        now = times[:, None].expand(-1, self.times.shape[1], -1).to(self.times).contiguous()
        place = torch.searchsorted(self.times, now, right=True) - 1
        value = self.values.gather(2, place.clamp(min=0)).masked_fill(place < 0, torch.nan)
        return value.transpose(1, 2).repeat_interleave(len(self.horizons), 2)


def last_values(task: Task, split: str) -> Tensor:
    """Of a forecast task, what was last observed of each channel where the labels of a split are, of their shape.

    Where a channel was never observed, its mean over the training split (of this one, where there is none).
    """
    truth, at = task.truth, task.splits[split]
    assert isinstance(truth, ForecastTruth)
    times = task.split_times(split)
    assert times is not None
    times = times.to(truth.times).nan_to_num(torch.inf)
    latest = truth.select(at.to(truth.until.device)).latest(times)
    trained = "train" if len(task.splits.get("train", ())) else split
    return torch.where(latest.isnan(), channel_means(task, trained).to(latest), latest)


def channel_means(task: Task, split: str = "train") -> Tensor:
    """(forecast,) float64: the mean of each forecast's channel over what was observed of a split."""
    assert task.forecast is not None
    series, known = task.split(split)[0], [str(one) for one in task.series.channels]
    columns = [known.index(name) for name in task.forecast.channels]
    means = series.values[series.real][:, columns].double().nanmean(0)
    return means.repeat_interleave(len(task.forecast.horizons))


def forecast_of(
    series: SeriesBatch,
    channels: Sequence[str],
    horizons: Sequence[float | str],
    within: float | str | Sequence[float | str] | None,
    time_unit: str,
) -> Forecast:
    """Check which channels are forecast how far ahead.

    Args:
        series: that have the channels.
        channels: names.
        horizons: numbers in `time_unit`, or lengths of time such as "90min"; above 0, each once.
        within: how far from t + h an observation may lie: for all horizons, or one for each; default: a quarter of it.
        time_unit: of the series.

    Raises:
        DataError: no such channel, none at all, or horizons that cannot be.
    """
    channels, known = [str(one) for one in channels], [str(one) for one in series.channels]
    if not channels:
        raise DataError("no channel is named: say which are forecast.")
    for name in channels:
        if name not in known:
            shown = ", ".join(known[:10]) + ", ..." * (len(known) > 10)
            raise DataError(f"there is no channel {name!r} to forecast: there are {shown}.")
        if channels.count(name) > 1:
            raise DataError(f"channel {name!r} is named twice: forecast it once.")
    ahead = [_length(one, "horizon", time_unit) for one in horizons]
    if not ahead:
        raise DataError("no horizon is given: say how far ahead the channels are forecast.")
    for one in ahead:
        if ahead.count(one) > 1:
            raise DataError(f"horizon {one:g} {time_unit} is given twice: give each once.")
    order = sorted(range(len(ahead)), key=ahead.__getitem__)
    if within is None:
        near = [SHARE * one for one in ahead]
    else:
        given = [within] if isinstance(within, float | int | str) else list(within)
        near = [_length(one, "within", time_unit) for one in given]
        near = near * len(ahead) if len(near) == 1 else near
    if len(near) != len(ahead):
        raise DataError(
            f"within has {len(near)} lengths for {len(ahead)} horizons: give one, or one for each."
        )
    for horizon, length in zip(ahead, near, strict=True):
        if length > horizon:
            raise DataError(
                f"within {length:g} of horizon {horizon:g} reaches back beyond now: give at most the horizon."
            )
    return Forecast(tuple(channels), tuple(ahead[n] for n in order), tuple(near[n] for n in order))


def _length(given: float | str, what: str, unit: str) -> float:
    try:
        size = duration(given, unit) if isinstance(given, str) else float(given)
    except DataError as error:
        raise DataError(f"{what}: {error}") from error
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} is {given!r}: give a length of time above 0.") from error
    if not 0 < size < math.inf:
        raise DataError(f"{what} is {given!r}: give a length of time above 0, in {unit}.")
    return size


def forecast_truth(
    series: SeriesBatch, forecast: Forecast, until: Tensor | None = None
) -> ForecastTruth:
    """What the channels read after any time; until (stream,): asked about no later, default its last row."""
    known = [str(one) for one in series.channels]
    values = series.values[:, :, [known.index(name) for name in forecast.channels]].transpose(1, 2)
    seen = ~values.isnan() & series.real[:, None]
    most = max(1, int(seen.sum(2).max()))
    # A stable sort brings what was observed to the front, in order of time.
    place = (~seen).to(torch.int8).sort(dim=2, stable=True).indices[:, :, :most]
    times = series.times[:, None].expand(seen.shape).masked_fill(~seen, torch.inf)
    last = series.times.gather(1, series.rows[:, None] - 1)[:, 0]
    return ForecastTruth(
        last if until is None else until,
        times.gather(2, place),
        values.gather(2, place).float(),
        forecast.horizons,
        forecast.within,
    )


def forecast_task(
    task: Task,
    channels: Sequence[str],
    horizons: Sequence[float | str],
    within: float | str | Sequence[float | str] | None = None,
) -> Task:
    """A task's series and splits, to forecast channels instead of what the task asks.

    Args:
        task: any; its own labels are left aside.
        channels: names.
        horizons: how far ahead, numbers or lengths of time.
        within: how far from then an observation may lie; see `forecast_of`.

    Returns:
        A task of kind "forecast", with labels (stream, row, forecast).

    >>> from onlinecde.data import simulate_ward
    >>> task = forecast_task(simulate_ward(40, seed=0).task, ["heart_rate"], ["6h", 12])
    >>> task.classes, task.labels.shape[2], task.outputs
    (('heart_rate in 6 h', 'heart_rate in 12 h'), 2, 18)
    """
    from onlinecde.data.task import METRICS, Task

    forecast = forecast_of(task.series, channels, horizons, within, task.time_unit)
    truth = forecast_truth(task.series, forecast)
    plain = {n: x for n, x in task.settings.items() if n not in ("asked", "edges")}
    return Task.build(
        task.name,
        task.series,
        truth.at(task.series.times),
        kind="forecast",
        per="row",
        subjects=task.subjects,
        splits=task.splits,
        time_unit=task.time_unit,
        metric=METRICS["forecast"],
        source=task.source,
        settings={**plain, "forecast": forecast.as_json()},
        flow=task.flow,
        notes=task.notes,
        truth=truth,
        forecast=forecast,
        table_clock=task.table_clock,
    )
