"""Forecast tasks: what channels read later, from the series alone."""

import math

import numpy as np
import polars as pl
import pytest
import torch

import onlinecde as oc
from onlinecde.data import DataError, ForecastLabels, Task, forecast_task, task_from_table
from onlinecde.data.forecasting import last_values

NAN = math.nan


def toy(streams=40, rows=9, seed=0):
    random = np.random.default_rng(seed)
    times = np.cumsum(random.random((streams, rows)), axis=1) * 2
    values = random.normal(size=(streams, rows, 2))
    values[random.random(values.shape) < 0.4] = NAN
    batch = oc.SeriesBatch.from_arrays(times, values, channels=("a", "b"))
    return Task.build("toy", batch, [0, 1] * (streams // 2), kind="binary")


def by_hand(times, values, now, horizon, within):
    """The value nearest to `horizon` from now, the earlier of two; NaN where there is none."""
    best, found = within + 1e-9, NAN
    for t, x in zip(times, values, strict=True):
        if not math.isnan(x) and t > now and abs(t - now - horizon) < best:
            best, found = abs(t - now - horizon), x
    return found


def test_labels_are_what_was_observed_nearest_to_the_horizon():
    task = forecast_task(toy(), ["b", "a"], [4.0, 1.0], within=[1.5, 0.7])
    assert task.classes == ("b in 1 h", "b in 4 h", "a in 1 h", "a in 4 h")
    series, asked = task.series, task.asked("rows+random=5")
    pairs = [(1, 1.0, 0.7), (1, 4.0, 1.5), (0, 1.0, 0.7), (0, 4.0, 1.5)]
    for stream in range(len(series)):
        own = series.times[stream].tolist()
        for now, row in zip(asked.queries[stream].tolist(), asked.labels[stream], strict=True):
            if math.isnan(now):
                assert bool(row.isnan().all())
                continue
            wanted = [
                by_hand(own, series.values[stream, :, c].tolist(), now, h, w) for c, h, w in pairs
            ]
            np.testing.assert_allclose(row.numpy(), np.float32(wanted))
    torch.testing.assert_close(task.labels, task.asked("rows").labels, equal_nan=True)


def test_last_values_are_known_at_their_time_and_begin_at_the_training_mean():
    task = forecast_task(toy(), ["a"], [1.0])
    last, (series, _) = last_values(task, "test"), task.split("test")
    first = series.values[:, 0, 0].isnan()
    train, _ = task.split("train")
    assert bool(first.any())
    torch.testing.assert_close(
        last[first, 0, 0], torch.full((int(first.sum()),), float(train.values[:, :, 0].nanmean()))
    )
    assert torch.equal(last[~first, 0, 0], series.values[~first, 0, 0].float())


def test_of_two_equally_near_the_earlier_counts_and_now_never_does():
    batch = oc.SeriesBatch.from_arrays([[0.0, 1.0, 3.0]] * 9, [[[1.0], [2.0], [3.0]]] * 9)
    whole = Task.build("toy", batch, [0.0, 1.0, 2.0] * 3, kind="regression")
    task = forecast_task(whole, batch.channels, [2.0], within=2.0)
    assert task.labels[0, :, 0].tolist()[:2] == [2.0, 3.0]
    assert math.isnan(task.labels[0, 2, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["c"], [1.0]), "there is no channel 'c' to forecast: there are a, b"),
        ((["a", "a"], [1.0]), "channel 'a' is named twice"),
        (([], [1.0]), "no channel is named"),
        ((["a"], []), "no horizon is given"),
        ((["a"], [-1.0]), "horizon is -1.0: give a length of time above 0, in hours"),
        ((["a"], ["-1h"]), "horizon: '-1h' is no length of time"),
        ((["a"], [2.0, "120min"]), "horizon 2 hours is given twice"),
        ((["a"], ["3 cycles"]), "'cycles' cannot be turned into it: give a bare number of hours"),
        ((["a"], [1.0], 1.5), "within 1.5 of horizon 1 reaches back beyond now"),
        ((["a"], [1.0], [0.1, 0.2]), "within has 2 lengths for 1 horizons"),
    ],
)
def test_what_cannot_be_forecast_is_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        forecast_task(toy(), *arguments)


def test_horizons_that_nobody_reaches_are_refused():
    with pytest.raises(DataError, match="no label at all"):
        forecast_task(toy(), ["a"], [500.0])


def test_a_table_needs_no_labels():
    lines = pl.DataFrame(
        {"id": np.repeat(np.arange(12), 4), "t": [0.0, 1, 2, 3] * 12, "x": np.arange(48.0)}
    )
    task = task_from_table(lines, stream="id", time="t", labels=ForecastLabels(["x"], ["1h"]))
    assert (task.kind, task.per, task.metric, task.outputs) == ("forecast", "row", "crps", 9)
    assert task.labels[0, :3, 0].tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(DataError, match="kind is 'binary', and channels are forecast"):
        task_from_table(
            lines, stream="id", time="t", labels=ForecastLabels(["x"], ["1h"]), kind="binary"
        )
