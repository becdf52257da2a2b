"""A linear model beside the readout's MLP: what it starts from, what is kept, and that nothing else changes."""

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.data import Task
from onlinecde.evaluation import evaluate
from onlinecde.series import SeriesBatch
from onlinecde.training import fit
from onlinecde.training.linear_start import direct_of, simplest

SMALL = {"hidden": 4, "width": 8}


def walks(streams=60, rows=12, kind="regression"):
    """Random walks with gaps; the label is the walk's next value, or whether that is above 0."""
    random = np.random.default_rng(0)
    walk = 5 * random.normal(size=(streams, 1)) + random.normal(size=(streams, rows + 1)).cumsum(1)
    values = np.stack([walk[:, :-1], random.normal(size=(streams, rows))], 2)
    values[:, 1:, 1][random.random((streams, rows - 1)) < 0.5] = np.nan
    times = np.arange(rows, dtype=float)
    series = SeriesBatch.from_arrays([times] * streams, list(values), channels=["walk", "noise"])
    labels = walk[:, 1:] if kind == "regression" else (walk[:, 1:] > 0).astype(float)
    return Task.build("walks", series, labels, kind=kind, per="row")


@pytest.fixture(scope="module")
def fitted():
    return fit(walks(), epochs=1, model_settings=SMALL).model


def test_a_last_value_that_says_nearly_all_is_known_after_an_epoch(fitted):
    found = evaluate(fitted, walks(), bootstrap=0)
    naive = {one.name: one.naive for one in found.naive}
    assert found.metrics["rmse"].value <= 1.02 * naive["last value of walk"]
    assert found.metrics["rmse"].value < 0.3 * naive["training mean"]


def test_without_it_an_epoch_is_not_enough():
    plain = fit(walks(), epochs=1, model_settings={**SMALL, "readout_direct": False}).model
    assert direct_of(plain) is None
    found = evaluate(plain, walks(), bootstrap=0)
    naive = {one.name: one.naive for one in found.naive}
    assert found.metrics["rmse"].value > 1.5 * naive["last value of walk"]


def test_classes_start_at_a_penalised_logistic_regression():
    task, said = walks(kind="binary"), []

    class Ear(oc.training.callbacks.Callback):
        def note(self, text):
            said.append(text)

    model = fit(task, epochs=1, model_settings=SMALL, callback=Ear()).model
    assert any("starts at a linear model" in text for text in said)
    assert evaluate(model, task, bootstrap=0).metrics["auc"].value > 0.9


def test_where_nothing_is_linear_nothing_is_put_there():
    task = walks()
    noise = torch.randn(task.labels.shape, generator=torch.Generator().manual_seed(0))
    other = Task.build("noise", task.series, noise.numpy(), kind="regression", per="row")
    model = fit(other, epochs=1, model_settings=SMALL).model
    assert not direct_of(model).weight.any()


def test_what_is_no_better_than_chance_may_have_made_it_is_left_out():
    zero = torch.zeros(1)
    plain, little, much = (
        torch.tensor(x, dtype=torch.float64) for x in ([1, 1, 1, 1], [2, 0, 1, 0.9], [0.1] * 4)
    )
    tried = [(plain, zero, zero), (little, zero, zero)]
    assert simplest(tried)[0] is plain
    assert simplest([*tried, (much, zero, zero)])[0] is much


def test_live_saved_and_explained_it_is_the_same_model(fitted, tmp_path):
    series = walks().split("test")[0][:3]
    with torch.no_grad():
        whole = fitted(series)
        state = fitted.init_state(streams=3)
        for row in range(series.times.shape[1]):
            state = fitted.observe(state, series.times[:, row], series.values[:, row])
        assert torch.allclose(fitted.predict(state), whole[:, -1], atol=1e-4)
    parts = fitted.explain(series).outputs()
    assert torch.allclose(parts, whole, atol=1e-3 * float(whole.abs().max()))
    oc.save(fitted, tmp_path / "model")
    with torch.no_grad():
        assert torch.equal(oc.load(tmp_path / "model")(series), whole)
