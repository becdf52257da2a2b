"""An outlook: targets by their definition, a loss whose optimum is known, and settings that cannot be right."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import onlinecde as oc
from onlinecde.data import Task, simulate_ward
from onlinecde.training import FitError, FitSettings, build_model, fit
from onlinecde.training.defaults import resolve
from onlinecde.training.journal import read_checkpoint, settings_of_then
from onlinecde.training.loop import Training
from onlinecde.training.objectives import HorizonReadout, Scales
from onlinecde.training.outlook import ALIKE, Outlook

HOW = FitSettings(outlook=(2.0, 5.0), at="rows+random=4", validate_at="every=1h", batch_size=16)
SMALL = {"hidden": 6}


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(60, seed=1, hours=12).task


@pytest.mark.parametrize("seed", range(3))
def test_targets_are_what_comes_after_each_time(seed):
    random = np.random.default_rng(seed)
    rows = random.integers(1, 9, 6)
    times = [np.cumsum(random.integers(1, 5, n)) / 2 for n in rows]
    values = [
        np.where(random.random((n, 3)) < 0.5, random.normal(size=(n, 3)), np.nan) for n in rows
    ]
    series = oc.SeriesBatch.from_arrays(times, values)
    outlook = Outlook(series, (1.0, 3.0))
    clock = series.times[:, :1] + torch.tensor([[0.0, 0.5, 2.0, 30.0]])
    found = outlook.targets(series, clock)
    every = np.concatenate(values)
    mean, deviation = np.nanmean(every, 0), np.nanstd(every, 0)
    for stream, asked in enumerate(clock.tolist()):
        for query, now in enumerate(asked):
            for place, stretch in enumerate((1.0, 3.0)):
                here = (times[stream] > now) & (times[stream] <= now + stretch)
                there = (values[stream][here] - mean) / deviation
                count = (~np.isnan(there)).sum(0)
                at = (stream, query, place)
                total = np.where(count, np.nansum(there, 0) / np.maximum(count, 1), 0)
                np.testing.assert_allclose(found[0][at], total, atol=1e-9)
                np.testing.assert_array_equal(found[1][at], [*count, here.sum()])
                followed = max(times[stream][-1], asked[-1])
                share = min(max(followed - now, 0) / stretch, 1)
                assert float(found[2][at]) == pytest.approx(share)


def test_the_loss_is_least_where_values_and_rates_are_right(ward):
    series = ward.split("train")[0]
    outlook = Outlook(series, (3.0,))
    known = series.real
    numbers = nn.Parameter(torch.zeros(outlook.columns, dtype=torch.float64))
    optimiser = torch.optim.LBFGS([numbers], max_iter=200, line_search_fn="strong_wolfe")

    def step():
        optimiser.zero_grad()
        loss = outlook.loss(numbers.expand(*known.shape, -1), series, series.times, known)
        loss.backward()
        return loss

    optimiser.step(step)
    mean, count, share = (part[known][:, 0] for part in outlook.targets(series, series.times))
    weight = count[:, :-1] / (1 + ALIKE * (count[:, :-1] - 1).clamp(min=0))
    values, rates = numbers.detach().split([12, 13])
    torch.testing.assert_close(values, (weight * mean).sum(0) / weight.sum(0), rtol=1e-3, atol=1e-3)
    expected = rates.exp() * outlook.usual[0] * share.sum(0)
    torch.testing.assert_close(expected, count.sum(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("horizons", [(), (6.0,)])
def test_it_is_learned_from_the_state_and_no_part_of_the_model(ward, tmp_path, horizons):
    ways = {"model_settings": SMALL, "settings": HOW, "epochs": 2}
    done = fit(ward, "gru", tmp_path / "run", horizons=horizons, **ways)
    without = fit(ward, "gru", horizons=horizons, outlook=(), **ways)
    assert done.model.state_dict().keys() == without.model.state_dict().keys()
    assert done.history[0]["train_loss"] != without.history[0]["train_loss"]
    tensors, _ = read_checkpoint(tmp_path / "run" / "checkpoint")
    assert tensors["ahead.weight"].shape == (len(horizons) + 2 * 25, 6)
    settings = json.loads((tmp_path / "run/model/manifest.json").read_text())["extra"]["settings"]
    assert settings["outlook"] == [2.0, 5.0]
    assert not [name for name in FitSettings().as_json() if "outlook" in name]


@pytest.mark.parametrize("name", ["neural-cde", "gru-d"])
def test_gradients_of_the_outlook_reach_the_state(ward, name):
    torch.manual_seed(0)
    model = build_model(ward, name, SMALL)
    asked = ward.asked("every=2h")
    training = Training(model, asked, Scales(), FitSettings(outlook=(2.0,)), torch.device("cpu"))
    labels = torch.full_like(training.labels[:8], torch.nan)
    labels[:, 0] = training.labels[:8, 0]
    assert isinstance(training.ahead, HorizonReadout)
    training._gradients(training.series[:8], labels, training.times[:8])
    moved = training.ahead.weight.grad.abs().sum(1)
    assert bool((moved[:-1] > 0).any())
    # A loss of labels alone leaves other gradients.
    both = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    training.ahead = None
    training._gradients(training.series[:8], labels, training.times[:8])
    alone = [p.grad for p in model.parameters() if p.grad is not None]
    assert any(not torch.allclose(one, other) for one, other in zip(both, alone, strict=True))


def test_a_run_goes_on_with_the_outlook_it_began_with(ward, tmp_path):
    for outlook in ((), (2.0, 5.0)):
        run = tmp_path / f"run-{len(outlook)}"
        small = {"hidden": 4, "width": 8}
        done = fit(ward, "neural-cde", run, epochs=1, outlook=outlook, model_settings=small)
        settings = settings_of_then(run)
        assert tuple(settings["outlook"]) == outlook
        again = resolve(ward, "neural-cde", small, changes={"epochs": 1}, run=run)
        assert (again.training.outlook, again.training.weight_decay) == (outlook, 0.3)
        assert done.model.readout.ramps.count == 3


def test_by_default_a_neural_cde_that_is_judged_by_the_clock_has_one(ward):
    found = resolve(ward, "neural-cde")
    assert len(found.training.outlook) == 3
    assert max(found.training.outlook) < 12
    assert found.chosen["training"]["outlook"].by == "data"
    assert (found.model["readout_width"], found.training.weight_decay) == (32, 0.3)
    assert resolve(ward, "neural-cde", {"readout_width": None}).model["readout_width"] is None
    assert not resolve(ward, "gru-d").training.outlook
    stays = Task.build("t", ward.series, torch.arange(60) % 2, kind="binary")
    assert not resolve(stays, "neural-cde").training.outlook
    with pytest.raises(FitError, match="outlook is for tasks with a label per row or query time"):
        fit(stays, "gru", outlook=(2.0,))


@pytest.mark.parametrize("outlook", [(0.0,), ("inf",), 3, "3", (float("nan"),)])
def test_times_that_cannot_be_right_are_refused(outlook):
    with pytest.raises(FitError, match=r"outlook is .*: give times above 0, such as \(2, 6, 12\)"):
        FitSettings(outlook=outlook)
