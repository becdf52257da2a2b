"""Features of the past: what a slow reading of the events gives, and nothing of what comes later."""

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.evaluation.past_features import STATISTICS, feature_names, past_features


def made(rng, streams=6, rows=12, channels=3, offset=0.0, static=None):
    """Irregular series with gaps; channel 2 is never observed in stream 0."""
    times, values = [], []
    for stream in range(streams):
        count = int(rng.integers(1, rows))
        times.append(np.sort(rng.uniform(-5, 40, count)))
        table = offset + rng.normal(size=(count, channels))
        table[rng.random(table.shape) < 0.4] = np.nan
        if stream == 0:
            table[:, 2] = np.nan
        values.append(table)
    return oc.SeriesBatch.from_arrays(times, values, static)


def read_slowly(batch, stream, clock):
    """The features of one stream at one time, from its events until then, one by one."""
    rows = [r for r in range(int(batch.rows[stream])) if float(batch.times[stream, r]) <= clock]
    by_statistic = {name: [] for name in STATISTICS}
    for channel in range(batch.values.shape[2]):
        events = [
            (float(batch.times[stream, r]), np.longdouble(float(batch.values[stream, r, channel])))
            for r in rows
            if not torch.isnan(batch.values[stream, r, channel])
        ]
        found = dict.fromkeys(STATISTICS, np.nan) | {"count": len(events)}
        if events:
            t, x = (np.array(column, np.longdouble) for column in zip(*events, strict=True))
            found |= {"last": x[-1], "mean": x.mean(), "min": x.min(), "max": x.max()}
            found |= {"deviation": x.std(), "first": x[0], "since": clock - t[-1]}
            if len(events) > 1:
                centred = t - t.mean()
                found["slope"] = (centred * (x - x.mean())).sum() / (centred**2).sum()
        for name in STATISTICS:
            by_statistic[name].append(found[name])
    static = [] if batch.static is None else batch.static[stream].tolist()
    return [
        *(each for name in STATISTICS for each in by_statistic[name]),
        *static,
        clock,
        len(rows),
    ]


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_features_are_those_of_a_slow_reading(rng, offset):
    batch = made(rng, offset=offset, static=rng.normal(size=(6, 2)))
    first = batch.times[:, 0].numpy()
    asked = first[:, None] + np.sort(rng.uniform(0, 50, (6, 5)), axis=1)
    asked[:, 0] = first  # at a row, too
    asked[3, 2:] = np.nan
    found = past_features(batch, asked)
    wanted = [
        read_slowly(batch, stream, clock)
        for stream, clocks in enumerate(asked)
        for clock in clocks[~np.isnan(clocks)]
    ]
    wanted = np.array(wanted, np.float64)
    assert found.dtype == np.float32
    assert found.shape == wanted.shape == (27, len(feature_names(batch)))
    assert np.isnan(wanted).any()
    assert (wanted[:, [feature_names(batch).index("x2 count")]] == 0).any()
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)


def test_a_constant_has_no_deviation_and_no_slope():
    batch = oc.SeriesBatch.from_arrays([[0.1, 0.2, 0.7]], [[[0.1], [0.1], [0.1]]])
    found = dict(zip(feature_names(batch), past_features(batch, np.array([[5.0]]))[0], strict=True))
    assert found["x0 deviation"] == found["x0 slope"] == 0


def test_the_future_leaves_every_bit_of_the_features_as_it_was(rng):
    batch = made(rng, streams=4)
    names = feature_names(batch)
    as_model = {
        "past": lambda series, at=None: answers(series, at, np.array),
        "of the whole": lambda series, at=None: answers(series, at, with_whole_mean(series)),
    }

    def answers(series, at, change):
        asked = series.times if at is None else at
        asked = np.maximum(asked.numpy(), series.times[:, :1].numpy())
        cells = change(past_features(series, asked)).reshape(*asked.shape, -1)
        return torch.from_numpy(np.nan_to_num(cells, nan=-7.0))

    def with_whole_mean(series):
        mean = float(series.values.nanmean())
        return lambda cells: np.where(np.arange(len(names)) == names.index("x0 mean"), mean, cells)

    audits = {name: oc.audit.measurability(model, batch) for name, model in as_model.items()}
    assert audits["past"].measurability is oc.Measurability.CONTINUOUS
    assert audits["past"].edits > 20
    assert audits["of the whole"].measurability is oc.Measurability.OFFLINE


def test_a_stream_alone_has_the_features_it_has_among_others(rng):
    batch = made(rng, streams=5)
    asked = np.where(batch.real, batch.times, np.nan)
    whole = past_features(batch, asked)
    alone = [past_features(batch[i], asked[i : i + 1, : int(batch.rows[i])]) for i in range(5)]
    np.testing.assert_array_equal(np.concatenate(alone), whole)
