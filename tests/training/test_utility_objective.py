"""A model may learn where an alarm is worth more than silence; it then says so, and still answers probabilities."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.artifacts import ArtifactError
from onlinecde.data import Task, Utility, simulate_ward
from onlinecde.data.alarm_utility import UtilityCurve
from onlinecde.evaluation import evaluate
from onlinecde.training import FitError, FitSettings, fit
from onlinecde.training.utility_objective import Worth, utility_loss

CORNERS = {"corners": (-8.0, -4.0, 2.0), "alarm": (-0.1, 1.0, 0.0), "silence": (0.0, 0.0, -2.0)}


def ward_with_worth(streams=300, seed=3):
    """The simulated ward, where an alarm from eight hours before the event on is worth something, any other costs."""
    task = simulate_ward(streams, seed=seed).task
    curve = UtilityCurve(task.known_risk.event_times, **CORNERS)
    labelled = task.series.times.masked_fill(task.labels.isnan(), torch.nan)
    return replace(task, utility=curve.at(labelled))


@pytest.fixture(scope="module")
def task():
    return ward_with_worth()


@pytest.fixture(scope="module")
def fitted(task, tmp_path_factory):
    home = tmp_path_factory.mktemp("worth") / "run"
    settings = {"epochs": 6, "lr": 0.01, "model_settings": {"hidden": 8}}
    return fit(task, "gru", home, objective="utility", **settings), home


def test_the_loss_is_the_weighted_log_loss_written_out():
    random = np.random.default_rng(0)
    odds, worth = random.normal(size=(5, 7)), random.normal(size=(5, 7))
    worth[random.random((5, 7)) < 0.3] = np.nan
    total, count = 0.0, 0
    for f, d in zip(odds.ravel(), worth.ravel(), strict=True):
        if not np.isnan(d):
            p = 1 / (1 + np.exp(-f))
            total += abs(d) * -np.log(p if d > 0 else 1 - p)
            count += 1
    loss = utility_loss(torch.from_numpy(odds)[..., None], torch.from_numpy(worth))
    assert float(loss) == pytest.approx(total / count)
    wild = torch.full((1, 2, 1), torch.inf, requires_grad=True)
    utility_loss(wild, torch.tensor([[torch.nan, torch.nan]])).backward()
    assert (wild.grad == 0).all()


def test_it_is_lowest_where_the_sign_of_the_expected_worth_is():
    """Whatever mixture of gains and costs a place has, the best log-odds are above 0 just where their mean is."""
    random = np.random.default_rng(1)
    for _ in range(20):
        worth = torch.from_numpy(random.normal(size=40) * random.choice([0.1, 3.0], 40))
        grid = torch.linspace(-6, 6, 1201, dtype=torch.float64)
        losses = torch.stack([utility_loss(f.expand(40, 1), worth) for f in grid])
        assert bool(grid[losses.argmin()] > 0) == bool(worth.mean() > 0)


def test_a_model_finds_its_boundary_and_answers_probabilities(task, fitted):
    model = fitted[0].model
    assert 0 < model.boundary < 1
    found = evaluate(
        model, task, "train", at="clock", bootstrap=50
    )  # the test split has few events
    own, best = found.metrics["utility_own"], found.metrics["utility"]
    assert own.value > 0.2
    assert abs(own.value - best.value) < 0.1
    assert own.low <= own.value <= own.high
    assert found.title_of("utility_own") == "Utility at its own boundary"
    # The probability is that of the label, though another question was learned.
    risk, labels = found.probabilities[..., 0], found.labels
    known = ~labels.isnan()
    assert float(risk[known].mean()) == pytest.approx(float(labels[known].mean()), abs=0.03)
    assert found.metrics["auc"].value > 0.65


def test_the_boundary_is_kept_and_a_damaged_one_refused(fitted):
    done, home = fitted
    assert oc.load(home / "model").boundary == done.model.boundary
    manifest = home / "model" / "manifest.json"
    text = manifest.read_text()
    assert json.loads(text)["extra"]["settings"]["objective"] == "utility"
    manifest.write_text(json.dumps({**json.loads(text), "boundary": 3.0}))
    with pytest.raises(ArtifactError, match=r"`boundary` .* is 3.0: no probability"):
        oc.load(home / "model")
    manifest.write_text(text)


def test_a_run_goes_on_and_the_usual_objective_is_as_ever(task, fitted, tmp_path):
    again = fit(
        task, "gru", fitted[1], objective="utility", epochs=6, lr=0.01, model_settings={"hidden": 8}
    )
    assert again.model.boundary == fitted[0].model.boundary
    assert "objective" not in FitSettings().as_json()
    plain = fit(task, "gru", epochs=1, model_settings={"hidden": 4})
    assert plain.model.boundary is None
    assert "utility_own" not in evaluate(plain.model, task, bootstrap=0).metrics


def test_worth_is_learned_at_drawn_times_with_horizons_too(task):
    settings = {"epochs": 2, "lr": 0.01, "model_settings": {"hidden": 4}}
    done = fit(
        task, "gru", objective="utility", at="random=6", validate_at="every=4h",
        horizons=(6.0, float("inf")), **settings,
    )  # fmt: skip
    assert 0 < done.model.boundary < 1
    worth = Worth(task)
    given = worth.of("train")
    assert given.abs()[given.abs() > 0].nanmean() == pytest.approx(1.0, abs=1e-5)
    assert torch.equal(given.isnan(), task.split("train")[1].isnan())


def test_what_cannot_be_learned_is_refused(task):
    with pytest.raises(FitError, match="does not say what alarms are worth"):
        fit(simulate_ward(40, seed=0).task, "gru", objective="utility")
    with pytest.raises(FitError, match="both weigh labels"):
        fit(task, "gru", objective="utility", class_weights="balanced")
    with pytest.raises(FitError, match="objective is 'profit'"):
        fit(task, "gru", objective="profit")
    rows = replace(task, utility=replace(task.utility, curve=None))
    with pytest.raises(FitError, match="ask at the times of its labels"):
        fit(rows, "gru", objective="utility", at="random=4")
    cost = np.where(task.labels.isnan(), 0.0, -1.0)
    worthless = replace(task, utility=Utility(cost, np.zeros_like(cost)))
    with pytest.raises(FitError, match="no alarm is worth more than silence"):
        fit(worthless, "gru", objective="utility", at="task", validate_at="task")


def test_a_task_of_one_own_rows_needs_no_curve():
    random = np.random.default_rng(2)
    values = random.normal(size=(120, 5, 1)).astype(np.float32)
    series = oc.SeriesBatch.from_padded(np.arange(5.0)[None].repeat(120, 0), values)
    labels = (values[:, :, 0] + 0.5 * random.normal(size=(120, 5)) > 1).astype(float)
    worth = Utility(np.where(labels == 1, 1.0, -0.5), np.zeros((120, 5)))
    task = Task.build("own", series, labels, kind="binary", per="row", utility=worth)
    done = fit(
        task, "gru", epochs=25, lr=0.03, objective="utility", batch_size=16,
        model_settings={"hidden": 8},
    )  # fmt: skip
    found = evaluate(done.model, task, bootstrap=0)
    assert found.metrics["utility_own"].value > 0.3
