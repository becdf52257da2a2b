"""Streams whose label shows in one channel, in every form that users have them."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import onlinecde as oc

CHANNELS = ("hr", "bp")
COLUMNS = {"stream": "bed", "time": "hours"}
LONG = {**COLUMNS, "channel": "name", "value": "value"}


@pytest.fixture(scope="module")
def ward():
    """40 streams of 3 to 8 rows at whole hours, a third of the values missing; "high" where hr mostly is."""
    rng = np.random.default_rng(5)
    labels = np.where(np.arange(40) % 2, "high", "low")
    cube = np.full((40, 2, 9), np.nan)
    pairs = []
    for stream, label in enumerate(labels):
        times = np.sort(rng.choice(9, rng.integers(3, 9), replace=False))
        values = rng.normal([2.0 * (label == "high"), 0.0], 0.5, (len(times), 2)).astype(np.float32)
        values[rng.random(values.shape) < 0.3] = np.nan
        values[np.isnan(values).all(1), 0] = 1.0
        cube[stream][:, times] = values.T
        pairs.append((times.astype(float), values))
    names = [f"bed {stream}" for stream in range(40)]
    wide = pl.concat(
        pl.DataFrame({"bed": name, "hours": times, "hr": values[:, 0], "bp": values[:, 1]})
        for name, (times, values) in zip(names, pairs, strict=True)
    ).fill_nan(None)
    long = wide.unpivot(index=["bed", "hours"], variable_name="name", value_name="value")
    series = oc.SeriesBatch.from_arrays(*zip(*pairs, strict=True), channels=CHANNELS, streams=names)
    return SimpleNamespace(
        labels=labels,
        names=names,
        cube=cube,
        pairs=pairs,
        wide=wide,
        long=long.drop_nulls(),
        series=series,
    )
