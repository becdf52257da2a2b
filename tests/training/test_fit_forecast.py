"""Forecasts through fit, evaluate, trees and score files: never much worse than the last value, all of one mind."""

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import onlinecde as oc
from onlinecde.data import Task, forecast_task
from onlinecde.evaluation import evaluate
from onlinecde.evaluation.trees import fit_trees
from onlinecde.models.forecasts import points
from onlinecde.training import FitError, fit

HORIZONS = (2.0, 3.0)


def swinging(streams=60, rows=12, never=0):
    """Channel x returns to 0 fast, y stays where it is; `never`: how many channels are observed in no stream."""
    random = np.random.default_rng(4)
    values = np.full((streams, rows, 2 + never), math.nan)
    x, y = random.normal(size=streams), 100 * random.normal(size=streams)
    for row in range(rows):
        x = 0.1 * x + random.normal(size=streams)
        y = y + random.normal(size=streams)
        values[:, row, 0], values[:, row, 1] = x, y
    times = np.broadcast_to(np.arange(float(rows)), (streams, rows))
    names = ("x", "y", *(f"n{number}" for number in range(never)))
    batch = oc.SeriesBatch.from_arrays(times, values, channels=names)
    return Task.build("swinging", batch, [0, 1] * (streams // 2), kind="binary")


@pytest.fixture(scope="module")
def task():
    return forecast_task(swinging(), ["x", "y"], HORIZONS)


@pytest.fixture(scope="module")
def run(task, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {"epochs": 25, "lr": 0.02, "at": "task", "validate_at": "task"}
    return fit(task, "gru", out, model_settings={"hidden": 8}, **settings)


def test_it_learns_what_returns_and_keeps_what_stays(task, run):
    found = evaluate(run.model, task, bootstrap=20)
    naive = {one.output: one for one in found.naive}
    assert set(naive) == set(task.classes)
    for name in ("x in 2 h", "x in 3 h"):
        assert naive[name].model < 0.85 * naive[name].naive
    for name in ("y in 2 h", "y in 3 h"):
        assert naive[name].model < 1.05 * naive[name].naive
    assert [one.name for one in found.per_output] == list(task.classes)
    assert found.per_output[0].crps < found.per_output[0].mae
    shares = [one.share.value for one in found.intervals if one.level == 0.9]
    assert len(shares) == 4
    assert min(shares) > 0.75


def test_metrics_are_those_of_points_and_quantiles(task, run):
    said, labels = evaluate(run.model, task, bootstrap=0).probabilities, task.split("test")[1]
    known = ~labels[..., 0].isnan().numpy()
    errors = (points(said.numpy())[..., 0] - labels[..., 0].numpy())[known]
    one = evaluate(run.model, task, bootstrap=0).per_output[0]
    assert one.rmse == pytest.approx(np.sqrt((errors**2).mean()))
    assert one.mae == pytest.approx(np.abs(errors).mean())


def test_trees_forecast_beside_it(task):
    found = evaluate(fit_trees(task, threads=1), task, bootstrap=0)
    naive = {one.output: one for one in found.naive}
    assert naive["x in 2 h"].model < naive["x in 2 h"].naive
    assert bool((found.probabilities.unflatten(-1, (-1, 9)).diff(dim=-1) >= 0).all())


def test_saved_scored_and_asked_live_it_says_the_same(task, run):
    model = oc.load(run.folder / "model")
    series, _ = task.split("test")
    whole = model(series).detach()
    lines = pl.DataFrame({"id": ["s"] * 12, "t": series.times[0].numpy()}).with_columns(
        pl.Series("x", series.values[0, :, 0].numpy()),
        pl.Series("y", series.values[0, :, 1].numpy()),
    )
    scores = oc.predict(run.folder, lines, stream="id", time="t")
    assert scores.columns[2] == "x in 2 h q0.05"
    assert scores.columns[-1] == "y in 3 h q0.95"
    np.testing.assert_allclose(scores[:, 2:].to_numpy(), whole[0].numpy(), rtol=1e-5, atol=1e-5)
    state = model.init_state()
    for t, x in zip(series.times[0].tolist(), series.values[0], strict=True):
        state = model.observe(state, t, x[None])
    torch.testing.assert_close(model.predict(state)[0], whole[0, -1], rtol=1e-5, atol=1e-5)


def test_it_is_not_judged_on_other_channels_or_horizons(task, run):
    other = forecast_task(swinging(), ["y", "x"], HORIZONS)
    with pytest.raises(ValueError, match="the model x at 2, x at 3, y at 2, y at 3"):
        evaluate(run.model, other, bootstrap=0)


def test_validation_shrinks_changes_that_are_overstated(task, run):
    from onlinecde.training.callbacks import Callback
    from onlinecde.training.forecasting import settle_forecasts

    model = oc.load(run.folder / "model")
    with torch.no_grad():
        for weight in model.readout.layers.parameters():
            weight.mul_(10)  # what it says now is ten times too much
    found = settle_forecasts(model, task, Callback())
    assert max(found["share"]) < 0.5
    assert min(found["width"]) > 0


def test_a_channel_never_observed_in_training_is_refused_before_anything_is_written(tmp_path):
    whole = swinging(never=1)
    values = whole.series.values.clone()
    values[whole.splits["test"], :, 2] = 1.0  # it is observed, but not in training
    lacking = replace(whole, series=replace(whole.series, values=values))
    with pytest.raises(
        FitError, match="'n0' is never observed 2 hours after a row of the training"
    ):
        fit(forecast_task(lacking, ["n0"], [2.0]), "gru", tmp_path / "run", epochs=1)
    assert not (tmp_path / "run").exists()
