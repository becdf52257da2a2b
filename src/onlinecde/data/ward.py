"""A simulated ward: patients who may deteriorate, seen now and then, whose true risk is known.

Each patient is a Markov chain in steps of a quarter of an hour: a level of severity, and a mode
(stable, deteriorating, treated). The sicker, the more often the nurse comes and blood is drawn;
treatment mends blood pressure and oxygen before it mends the patient. Everything is drawn from
known tables (`ward_model`), so that the risk given the hidden state, and the best possible risk
given only what has been observed so far, are both computed and not estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from onlinecde.data import ward_model as model
from onlinecde.data.errors import DataError
from onlinecde.data.known_risk import KnownRisk, RiskCurve
from onlinecde.data.ragged import pad, pad_rows
from onlinecde.data.task import Task
from onlinecde.data.truth import EventTruth
from onlinecde.data.ward_filter import Filtered, online_risk

ROW_WITHIN = (0.02, 0.98)
"""A cell's row comes at a time uniform between these shares of it; the first at once."""


@dataclass(frozen=True, eq=False)
class Ward:
    """A simulated ward: the task, and what no model can see."""

    task: Task
    hidden_risk: Tensor
    """(stream, row): P(event within the horizon | the hidden state at this row); NaN in padding."""
    online_risk: Tensor
    """(stream, row): P(event within the horizon | everything observed up to this row, and when).

    The best any online model can do on average; NaN in padding."""
    grid_risk: Tensor
    """(stream, cell): the same after every quarter of an hour; NaN after the end. For any time: `KnownRisk.at`."""
    event_hours: Tensor
    """(stream,): when the event came; infinite where it did not within the time followed."""


def simulate_ward(
    streams: int = 1000,
    *,
    seed: int = 0,
    hours: float = 48.0,
    horizon: float = 12.0,
    split_seed: int = 0,
    kind: Literal["binary", "time-to-event"] = "binary",
) -> Ward:
    """Draw patients, watch each until the event or for a stay of up to `hours`.

    A row's label is 1 if the event comes within `horizon` hours, counted in quarters of an hour;
    patients are followed beyond the end of their stay for it, so that every row has its label. With `kind`
    "time-to-event" labels are how long it took to the event, or until nobody knows any more, and `horizon` is that of
    a model's first answer.

    >>> ward = simulate_ward(50, seed=1)
    >>> bool((ward.online_risk[ward.task.series.real] >= 0).all())
    True
    """
    if streams < 1:
        raise DataError(f"streams is {streams}: give at least 1.")
    if kind not in ("binary", "time-to-event"):
        raise DataError(f"kind is {kind!r}: choose 'binary' or 'time-to-event'.")
    if hours < 4 or horizon < model.CELL:
        raise DataError(
            f"hours {hours} must be at least 4, horizon {horizon} at least {model.CELL}."
        )
    cells, ahead = int(np.ceil(hours / model.CELL)), max(1, round(horizon / model.CELL))
    random = np.random.default_rng(seed)
    age = np.clip(random.normal(66.0, 15.0, streams), 18.0, 98.0)
    sex = random.integers(0, 2, streams)
    band = model.age_band(age)
    states, event = _hidden_states(random, band, cells + ahead)
    # A stay is at least 4 hours, most often the whole time; what follows the event is not seen.
    stay = np.ceil(np.minimum(hours, 4.0 + random.exponential(hours, streams)) / model.CELL)
    seen = np.minimum(stay.astype(np.int64), event)
    values = _observe(random, states[:, :cells], seen)
    offsets = random.uniform(*ROW_WITHIN, values.shape[:2])
    offsets[:, 0] = 0.0

    filtered = online_risk(values, band, seen, ahead)
    code, cell = np.nonzero(~np.isnan(values).all(2))
    lengths = np.bincount(code, minlength=streams)
    times = np.round((cell + offsets[code, cell]) * model.CELL, 4)
    series = pad_rows(
        lengths,
        times,
        values[code, cell].astype(np.float32),
        channels=[c.name for c in model.CHANNELS],
        streams=range(streams),
        static=torch.from_numpy(np.stack([age, sex], 1).astype(np.float32)),
        features=("age", "sex"),
    )
    label = (event[code] - cell <= ahead).astype(np.float32)
    hidden = model.event_probability(ahead)[band[code], states[code, cell]]
    settings = {
        "streams": streams,
        "simulation_seed": seed,
        "hours": hours,
        "horizon": horizon,
        "seed": split_seed,
        **({} if kind == "binary" else {"kind": kind}),
    }
    online = torch.from_numpy(pad(lengths, filtered.after[code, cell], np.nan))
    event_hours = torch.from_numpy(np.where(event < model.NEVER, event * model.CELL, np.inf))
    until = torch.from_numpy(seen * model.CELL)
    followed = torch.full_like(until, (cells + ahead) * model.CELL)
    # At the event itself there is nothing left to predict.
    before = until.where(event_hours > until, until.nextafter(until - 1))
    waits = kind == "time-to-event"
    truth = EventTruth(until, event_hours, None if waits else ahead * model.CELL, followed)
    task = Task.build(
        "simulated-ward",
        series,
        truth.at(series.times) if waits else torch.from_numpy(pad(lengths, label, np.nan)),
        kind=kind,
        per="row",
        classes=() if waits else ("no event", "event"),
        seed=split_seed,
        source="simulated (onlinecde.data.ward)",
        settings=settings,
        label_lead=0.0 if waits else horizon,
        horizon=horizon if waits else None,
        known_risk=KnownRisk(online, event_hours, _curve(filtered, before, code, cell, times)),
        truth=truth,
    )
    return Ward(
        task=task,
        hidden_risk=torch.from_numpy(pad(lengths, hidden, np.nan)),
        online_risk=online,
        grid_risk=torch.from_numpy(filtered.after),
        event_hours=event_hours,
    )


def load(
    paths: Sequence[Path] = (),
    *,
    task: str = "deterioration",
    seed: int = 0,
    streams: int = 2000,
    simulation_seed: int = 0,
    hours: float = 48.0,
    horizon: float = 12.0,
    kind: Literal["binary", "time-to-event"] = "binary",
) -> Task:
    """The task of a simulated ward, for the registry; `simulate_ward` gives the true risk too."""
    del paths, task
    return simulate_ward(
        streams, seed=simulation_seed, hours=hours, horizon=horizon, split_seed=seed, kind=kind
    ).task


def _curve(
    filtered: Filtered, until: Tensor, code: np.ndarray, cell: np.ndarray, times: np.ndarray
) -> RiskCurve:
    """The best possible risk at any time, of rows (line,) with their streams, cells and times.

    A piece begins with each cell but the first, which opens with a row, and with each row.
    """
    starts = np.full((*filtered.level.shape, 2), np.inf)
    known = ~np.isnan(filtered.level)
    known[:, 0] = False
    starts[..., 0][known] = np.nonzero(known)[1] * model.CELL
    starts[code, cell, 1] = times
    tables = np.zeros((3, *starts.shape))
    tables[..., 0] = filtered.level, filtered.slope, filtered.weight
    tables[0, code, cell, 1] = filtered.after[code, cell]
    real = np.isfinite(starts)
    pieces = real.sum((1, 2))
    lines = (starts, *tables)
    padded = [
        pad(pieces, one[real], fill) for one, fill in zip(lines, (np.inf, 0, 0, 0), strict=True)
    ]
    opens, closes = (model.CELL * share for share in ROW_WITHIN)
    return RiskCurve(until, *map(torch.from_numpy, padded), delay=opens, span=closes - opens)


def _hidden_states(
    random: np.random.Generator, band: np.ndarray, cells: int
) -> tuple[np.ndarray, np.ndarray]:
    """States (stream, cell) and the first cell (stream,) at which the event has come.

    The event can come at the end of any cell, the first included; NEVER where it did not.
    """
    step = np.cumsum(model.transition(), axis=2)
    start = np.cumsum(model.start(), axis=1)
    states = np.empty((len(band), cells + 1), np.int64)
    states[:, 0] = _draw(random, start[band])
    for cell in range(cells):
        states[:, cell + 1] = _draw(random, step[band, states[:, cell]])
    gone = states == model.EVENT
    event = np.where(gone.any(1), gone.argmax(1), model.NEVER)
    return states, event


def _draw(random: np.random.Generator, cumulative: np.ndarray) -> np.ndarray:
    """One category (stream,) from each row of cumulative probabilities (stream, category)."""
    drawn = (random.random(len(cumulative))[:, None] > cumulative).sum(1)
    return np.minimum(drawn, cumulative.shape[1] - 1)


def _observe(random: np.random.Generator, states: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Values (stream, cell, channel), NaN where not measured; nothing from cell `seen` on."""
    streams, cells = states.shape
    state = np.minimum(states, model.EVENT - 1)
    rounds, recorded = model.round_probability(), model.record_probability()
    mean, deviation = model.channel_mean(), model.channel_deviation()
    values = np.full((streams, cells, len(model.CHANNELS)), np.nan)
    for number, group in enumerate(model.GROUPS):
        visited = random.random((streams, cells)) < rounds[number][state]
        if number == 0:
            visited[:, 0] = True
        visited &= np.arange(cells) < seen[:, None]
        for channel in group:
            taken = visited & (random.random((streams, cells)) < recorded[channel][state])
            if channel == model.ALWAYS_FIRST:
                taken[:, 0] = True
            noise = random.standard_normal((streams, cells))
            drawn = mean[channel][state] + deviation[channel] * noise
            values[:, :, channel] = np.where(taken, np.round(drawn, 2), np.nan)
    return values
