"""Every control path keeps the contracts that concern paths, on complete data and on gaps."""

import pytest
import torch

from onlinecde import SeriesBatch, audit, controls

SCHEMES = ("natural_cubic", "linear", "hermite", "rectilinear")


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return getattr(controls, request.param)


@pytest.fixture(params=[False, True], ids=["values", "values and counts"])
def build(scheme, request):
    return lambda batch: scheme(batch, request.param)


def rows_of(path, stream, rows):
    return path.rows[stream, :rows]


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_the_measured_measurability_is_the_declared_one(build, missing):
    batch = audit.trial_batch(seed=1, streams=4, rows=7, missing=missing)
    found = audit.path_measurability(build, batch, cuts_per_stream=8)
    assert found.measurability is build(batch).measurability, found.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_path_is_the_same_alone_or_among_255_others(build, dtype):
    batch = audit.trial_batch(seed=2, streams=256, rows=6, missing=0.3).to(dtype=dtype)
    among = build(batch)
    for stream in (0, 100, 255):
        alone = build(batch[stream])
        s = torch.linspace(0, alone.pieces, 50, dtype=dtype)
        torch.testing.assert_close(
            among.evaluate(s)[stream], alone.evaluate(s)[0], rtol=1e-6, atol=1e-6
        )


def test_a_longer_companion_changes_nothing(build):
    short = audit.trial_batch(seed=3, streams=3, rows=5, missing=0.3)
    longer = audit.trial_batch(seed=4, streams=1, rows=12)
    both = SeriesBatch.concatenate([short, renamed(longer)])
    torch.testing.assert_close(rows_of(build(both), slice(0, 3), 5), build(short).rows)
    after = build(both).derivative(torch.linspace(build(short).pieces, build(both).pieces, 9))
    assert not after[:3].any(), "after its last row a path stands still"


def renamed(batch):
    return SeriesBatch.from_padded(batch.times, batch.values, streams=["long"])
