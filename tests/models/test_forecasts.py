"""Forecasts: quantiles that never cross around the last value, scored by their CRPS."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import onlinecde as oc
from onlinecde.models.flat_settings import maker
from onlinecde.models.forecasts import LEVELS, MIDDLE, Forecasts, by_level, crps, points

NAMES = ("NeuralCDE", "GRU", "GRUdt", "GRUdtIntensity", "GRUD", "ODERNN")


def made(name, **settings):
    torch.manual_seed(0)
    model = maker(name)(channels=3, hidden=5, outputs=18, kind="forecast", **settings)
    model.readout.forecasts.put([2, 0], [6.0, 6.0], start=[40.0, -1.0], unit=[2.0, 0.5])
    return model.eval()


def series(rows=7, seed=0):
    random = np.random.default_rng(seed)
    values = random.normal(size=(2, rows, 3)) * 50
    values[random.random(values.shape) < 0.5] = np.nan
    values[:, 0, 0] = np.nan
    times = np.sort(random.random((2, rows)) * 9, axis=1)
    return oc.SeriesBatch.from_arrays(times, values)


def last_of(batch, channel, start):
    """The last value after each row, by a loop."""
    found = np.empty(batch.values.shape[:2])
    for stream in range(len(found)):
        last = start
        for row, value in enumerate(batch.values[stream, :, channel].tolist()):
            last = last if math.isnan(value) else value
            found[stream, row] = last
    return found


@pytest.mark.parametrize("name", NAMES)
def test_an_untrained_model_says_the_last_value_however_far_out_it_is(name):
    model, batch = made(name, clip=0.1), series()
    model.encoding.fit(batch)
    with torch.no_grad():
        said = points(model(batch).numpy())
        between = points(model(batch, at=batch.times + 0.01).numpy())
    for place, (channel, start) in enumerate([(2, 40.0), (0, -1.0)]):
        wanted = last_of(batch, channel, start).astype(np.float32)
        np.testing.assert_array_equal(said[..., place], wanted)
        np.testing.assert_array_equal(between[..., place], wanted)


def test_live_streams_say_the_same_event_by_event_of_one_instant():
    model, nan = made("NeuralCDE", width=4), math.nan
    with torch.no_grad():
        torch.nn.init.normal_(model.readout.layers.weight)
        once = model.observe(model.init_state(), 1.0, [[5.0, nan, 70.0]])
        state = model.observe(model.init_state(), 1.0, [[nan, nan, 70.0]])
        state = model.observe(state, 1.0, [[5.0, nan, nan]])
        assert state.last.tolist() == [[70.0, 5.0]]
        torch.testing.assert_close(model.predict(state, 2.0), model.predict(once, 2.0))
        assert model.observe(state, 3.0, [[nan, 9.0, 60.0]]).last.tolist() == [[60.0, 5.0]]


def test_quantiles_never_cross():
    torch.manual_seed(1)
    forecasts = Forecasts(18).put([0, 1], [1.0, 2.0], start=[0.0, 0.0], unit=[1e-3, 50.0])
    said = by_level(forecasts(torch.randn(500, 18) * 30, torch.randn(500, 2) * 1e6))
    assert bool((said.diff(dim=-1) >= 0).all())


@pytest.mark.parametrize(("mean", "deviation", "value"), [(0, 1, 0.3), (2, 3, -4), (5, 0.1, 5)])
def test_the_crps_of_a_normal_is_that_of_its_closed_form(mean, deviation, value):
    normal = stats.norm(mean, deviation)
    z = (value - mean) / deviation
    known = deviation * (
        z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi)
    )
    found = crps(normal.ppf(LEVELS), np.array(float(value)))
    assert found == pytest.approx(known, rel=0.04)


def test_the_crps_of_one_number_is_its_distance():
    assert crps(np.full((3, 9), 2.0), np.array([2.0, 5.0, -1.0])).tolist() == pytest.approx(
        [0, 3, 3]
    )


def test_intervals_are_between_quantiles():
    model, batch = made("GRU"), series()
    said = model(batch).detach()
    lower, upper = model.interval(said, 0.8)
    each = by_level(said)
    assert torch.equal(lower, each[..., LEVELS.index(0.1)])
    assert torch.equal(upper, each[..., LEVELS.index(0.9)])
    assert bool((lower < each[..., MIDDLE]).all())
    with pytest.raises(ValueError, match=r"no intervals of level 0.7: choose 0.8, 0.9"):
        model.interval(said, 0.7)


def test_a_saved_model_says_the_same_bit_by_bit(tmp_path):
    model, batch = made("NeuralCDE"), series()
    oc.save(model, tmp_path / "model")
    assert torch.equal(oc.load(tmp_path / "model")(batch), model(batch))


def test_an_odd_number_of_outputs_and_explanations_are_refused():
    with pytest.raises(ValueError, match="9 quantiles for each channel and horizon"):
        oc.GRU(channels=1, hidden=2, outputs=10, kind="forecast")
    with pytest.raises(ValueError, match="changes from the last value"):
        made("NeuralCDE").explain(series())
