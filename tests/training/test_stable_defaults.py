"""The defaults of `fit` are stable on any table: its size, gaps, units, clock and roughness do not matter."""

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

import onlinecde as oc
from onlinecde.controls.fill import forward_fill
from onlinecde.data import Task
from onlinecde.evaluation.predictions import predict_task
from onlinecde.training import fit
from onlinecde.training.defaults import build_model

THOROUGH = os.environ.get("ONLINECDE_HYPOTHESIS") == "thorough"
MOST_CHANNELS, MOST_ROWS, MOST_CELLS = (500, 20_000, 20_000) if THOROUGH else (500, 500, 500)
"""Of a stream; cells are rows times channels."""


@dataclass(frozen=True)
class Table:
    """What a table is like; everything else of it follows from the seed."""

    channels: int
    rows: int
    missing: float
    period: float = 1.0
    """Median time from row to row"""
    uneven: float = 0.3
    """Deviation of its logarithm: with 3, one gap in a hundred is a thousand times as long"""
    unit: float = 1.0
    offset: float = 0.0
    """Of all values, in units"""
    memory: float = 0.0
    """Of the values, from 0 (noise) to 1 (random walk)"""
    per: str = "stream"
    streams: int = 10
    seed: int = 0

    def series(self, longer: int = 1) -> oc.SeriesBatch:
        """Streams with so many times as many rows, each with at least one value."""
        random = np.random.default_rng(self.seed)
        rows = self.rows * longer
        gaps = np.exp(self.uneven * random.normal(size=(self.streams, rows)))
        values = random.normal(size=(self.streams, rows, self.channels))
        for row in range(1, rows):
            values[:, row] += self.memory * values[:, row - 1]
        values[:, 1:][random.random(values[:, 1:].shape) < self.missing] = np.nan
        times = self.period * np.cumsum(gaps + 1e-3, axis=1)
        return oc.SeriesBatch.from_padded(times, self.unit * (values + self.offset))

    def task(self) -> Task:
        """To tell the first value of the first channel, in another unit, once or at all rows."""
        series = self.series()
        labels = series.values[:, 0, 0] / self.unit - self.offset
        if self.per == "row":
            labels = labels[:, None].expand(-1, self.rows)
        return Task.build("table", series, labels, kind="regression", per=self.per)


def size(most):
    """Whole numbers from 1 to `most`, evenly by ratios."""
    return st.floats(0, np.log(most + 1), exclude_max=True).map(lambda log: int(np.exp(log)))


@st.composite
def tables(draw):
    channels = draw(size(MOST_CHANNELS))
    return Table(
        channels,
        rows=1 + draw(size(min(MOST_ROWS, MOST_CELLS // channels))),
        missing=draw(st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.15, 0.5, 0.9, 0.99])),
        period=10.0 ** draw(st.integers(-3, 3)),
        uneven=draw(st.sampled_from([0.0, 0.3, 1.0, 3.0])),
        unit=10.0 ** draw(st.integers(-9, 9)),
        offset=draw(st.sampled_from([0.0, -10.0, 1000.0])),
        memory=draw(st.sampled_from([0.0, 0.9, 1.0])),
        per=draw(st.sampled_from(["stream", "row"])),
        seed=draw(st.integers(0, 2**20)),
    )


@settings(max_examples=100 if THOROUGH else 6)
@given(table=tables())
@example(Table(13, 100, 0.1))
@example(Table(30, 20, 0.02, per="row", memory=0.9, unit=1e3))
@example(Table(300, 4, 0.0))
@example(Table(475, 2, 0.01, uneven=0.0))
@example(Table(1, 300, 0.02, uneven=3.0))
def test_the_defaults_train_and_stay_sane_on_streams_ten_times_as_long(table):
    note(f"{table}")
    done = fit(table.task(), epochs=2)
    losses = [entry["train_loss"] for entry in done.history]
    assert max(losses) < 50, losses
    longer = table.series(longer=10).to(torch.float32)
    with torch.no_grad():
        known = done.model(table.series().to(torch.float32), final=True)
        outputs = done.model(longer)
        late = done.model(longer, at=longer.times[:, -1:] * 1e6)
    usual = 1 + float(known.abs().max())
    assert float(outputs.abs().max()) < 30 * usual
    assert float(late.abs().max()) < 30 * usual


@settings(max_examples=50 if THOROUGH else 3)
@given(table=tables())
@example(Table(30, 40, 0.1, unit=1e9, streams=30))
@example(Table(60, 3, 0.0, offset=1000.0, period=1e-3, per="row", streams=30))
@example(Table(2, 40, 0.9, period=1e3, uneven=3.0, per="row", streams=30))
def test_the_defaults_learn_what_a_channel_showed_last(table):
    note(f"{table}")
    series = replace(table, streams=30).series()
    labels = forward_fill(series.values)[:, :, 0]
    labels = labels if table.per == "row" else labels[:, -1]
    task = Task.build("now", series, labels, kind="regression", per=table.per)
    losses = [entry["train_loss"] for entry in fit(task, epochs=20, batch_size=8).history]
    assert max(losses) < 10, losses
    assert min(losses[-5:]) < 0.7, losses


@pytest.mark.parametrize(
    "table",
    [
        Table(9, 100, 0.1),
        Table(13, 168, 0.14),
        Table(100, 60, 0.05),
        Table(3, 1_000, 0.0),
        Table(300, 12, 0.0),
    ],
    ids=str,
)
def test_a_fresh_model_has_no_gradient_that_grew_along_a_series(table):
    task = table.task()
    model = build_model(task, "neural-cde")
    model.fit_scales(task.series)
    model.readout.loss(model(task.series.to(torch.float32), final=True), task.labels).backward()
    gradient = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert gradient < 100


@pytest.mark.parametrize(
    "table",
    [
        Table(1, 20_000, 0.02, uneven=3.0),
        Table(1, 20_000, 0.0, memory=1.0, period=1e-3, per="row"),
        Table(60, 2_000, 0.1, per="row"),
        Table(500, 40, 0.99, per="row", period=1e3),
        Table(500, 40, 0.0, unit=1e9),
        Table(500, 1, 0.0, unit=1e-9),
    ],
    ids=str,
)
def test_the_longest_and_widest_tables_are_trained_on_too(table):
    losses = [
        entry["train_loss"]
        for entry in fit(replace(table, streams=4).task(), epochs=1, batch_size=1).history
    ]
    assert max(losses) < 50, losses


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_on_streams_a_hundred_times_as_long_a_model_still_tells_what_it_learned(missing):
    table = Table(4, 40, missing, memory=0.9, streams=60, seed=1)

    def now(series):
        return forward_fill(series.values)[:, :, 0]

    series = table.series()
    task = Task.build("now", series, now(series), kind="regression", per="row")
    model = fit(task, epochs=15, batch_size=16, lr=3e-3).model
    longer = replace(table, streams=4, seed=2).series(longer=100)
    with torch.no_grad():
        outputs = model(longer.to(torch.float32)).squeeze(-1)
    wanted = now(longer)[:, -400:]
    error = (outputs[:, -400:] - wanted).square().mean().sqrt()
    assert error < 0.5 * wanted.std()


def air_quality(streams=60, rows=168, ahead=6, seed=0):
    """Thirteen sensors that have four causes and a day in common, 86 % there, in outages of half a day.

    Labels are the first one `ahead` hours on; with them comes what it showed last.
    """
    random, sensors = np.random.default_rng(seed), 13
    hours = np.arange(streams * rows + ahead)
    causes, own = np.zeros((2, len(hours), sensors))
    shared = random.normal(size=(4, sensors)) / 2
    noise = 0.24 * random.normal(size=(len(hours), 4)) @ shared
    for hour in hours[1:]:
        causes[hour] = 0.97 * causes[hour - 1] + noise[hour]
        own[hour] = 0.8 * own[hour - 1] + 0.3 * random.normal(size=sensors)
    day = np.sin(2 * np.pi * (hours[:, None] / 24 + random.random(sensors)))
    unit = 10.0 ** random.uniform(-2, 3, sensors)
    values = unit * (causes + own + 0.7 * day + 3)
    seen = values.copy()
    for sensor in range(sensors):
        for start in np.flatnonzero(random.random(len(hours)) < 0.0125):
            seen[start : start + random.geometric(1 / 12), sensor] = np.nan
    weeks = seen[: streams * rows].reshape(streams, rows, sensors)
    labels = values[ahead:, 0].reshape(streams, rows)
    series = oc.SeriesBatch.from_padded(np.tile(np.arange(float(rows)), (streams, 1)), weeks)
    there = ~np.isnan(weeks[:, :, 0])
    last = np.maximum.accumulate(np.where(there, np.arange(rows), 0), 1)
    shown = np.take_along_axis(np.nan_to_num(weeks[:, :, 0], nan=values[:, 0].mean()), last, 1)
    return Task.build("air", series, labels, kind="regression", per="row"), shown


def test_sensors_with_a_few_outages_are_foretold_better_than_by_their_mean_or_last_value():
    task, last = air_quality()
    model = fit(task, epochs=8, batch_size=8).model
    series, wanted = task.split("test")
    last = torch.from_numpy(last)[task.splits["test"]]
    outputs = predict_task(model, series.to(torch.float32), task.per).squeeze(-1).double()
    of_model, of_last = ((x - wanted).square().mean().sqrt() for x in (outputs, last))
    assert 1 - float(series.observed.double().mean()) > 0.1
    assert of_model < 0.8 * of_last
    assert of_model < 0.8 * wanted.std()
