"""Training a model of time to an event: where it starts, what it learns, what is kept of it."""

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.data import Task, simulate_ward
from onlinecde.evaluation import evaluate
from onlinecde.evaluation.metrics import MetricError
from onlinecde.models import Readout
from onlinecde.training import FitError, build_model, fit
from onlinecde.training.objectives import last_layer, start_at_base_rate
from onlinecde.training.recalibration import fit_map
from onlinecde.training.task_source import load_task, registry_source


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(120, seed=1, hours=12, kind="time-to-event", horizon=6.0).task


@pytest.fixture(scope="module")
def fitted(ward, tmp_path_factory):
    """A small model that was trained on it, and its run."""
    folder = tmp_path_factory.mktemp("run")
    return fit(
        ward, "gru-d", folder, epochs=3, model_settings={"hidden": 4}, at="random=4", seed=0
    ), folder


def test_no_other_constant_fits_the_training_labels_better(ward):
    model = build_model(ward, "gru", {"hidden": 4}).double()
    assert model.readout.bins.edges.tolist() == list(ward.edges)
    start_at_base_rate(model, ward)
    bias = last_layer(model).bias.detach().clone().requires_grad_()
    _, labels = ward.split("train")
    model.readout.loss(bias.expand(*labels.shape[:2], -1), labels).backward()
    assert float(bias.grad.abs().max()) < 0.01
    assert bool(bias.isfinite().all())


def waiting(streams=3000, seed=0):
    """One label a stream: an event at rate 0.2, or twice that where x is 1; lost at rate 0.15."""
    random = np.random.default_rng(seed)
    x = random.integers(0, 2, streams)
    event = random.exponential(1 / (0.2 * (1 + x)))
    lost = random.exponential(1 / 0.15, streams)
    labels = np.stack([np.minimum(event, lost), (event <= lost) * 1.0], 1)
    series = oc.SeriesBatch.from_arrays([[0.0]] * streams, x[:, None, None].astype(float))
    return Task.build("waiting", series, labels, kind="time-to-event", horizon=4.0)


def test_hazards_are_learned_from_streams_that_are_lost():
    """Risks that a share of the observed events would get wrong by a third."""
    task = waiting()
    done = fit(task, "gru", epochs=25, lr=5e-2, batch_size=512, model_settings={"hidden": 4})
    with torch.no_grad():
        said = done.model(task.series[:400], final=True).double()
    x = task.series.values[:400, 0, 0]
    for value in (0, 1):
        for horizon in (1.0, 4.0, 8.0):
            risk = done.model.readout.bins.risk_within(said[x == value], horizon).mean().item()
            true = 1 - np.exp(-0.2 * (1 + value) * horizon)
            assert risk == pytest.approx(true, abs=0.04)


def test_a_run_keeps_bins_and_horizon_bit_for_bit(fitted, ward):
    done, folder = fitted
    again = oc.load(folder / "model")
    assert again.readout.bins.edges.tolist() == list(ward.edges)
    assert again.readout.bins.horizon.item() == 6.0
    series = ward.split("test")[0]
    with torch.no_grad():
        assert torch.equal(again(series), done.model(series))
    assert "validation_concordance" in done.best
    assert fit(ward, "gru-d", folder, epochs=3, model_settings={"hidden": 4}, at="random=4").ended


def test_all_bins_share_a_scale_and_a_shift():
    head = Readout(1, 3, "time-to-event")
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(500, 3, dtype=torch.float64, generator=generator)
    risks = head.probabilities(0.5 * outputs - 1)
    drawn = torch.rand(500, 1, dtype=torch.float64, generator=generator)
    bin_ = (drawn > risks).sum(1)
    labels = torch.stack([torch.clamp(bin_ + 0.5, max=3.0), (bin_ < 3).double()], 1)
    scale, shift = fit_map(head, outputs, labels)
    assert len(scale.unique()) == len(shift.unique()) == 1
    assert scale[0].item() == pytest.approx(0.5, abs=0.12)
    assert shift[0].item() == pytest.approx(-1.0, abs=0.15)


def test_a_model_of_ones_own_gets_the_bins_of_the_task_unless_it_has_its_own(ward):
    sizes = {"channels": 12, "hidden": 4, "static": 2, "kind": "time-to-event"}
    own = oc.GRU(**sizes, outputs=ward.outputs)
    fit(ward, own, epochs=1)
    assert own.readout.bins.edges.tolist() == list(ward.edges)
    other = oc.GRU(**sizes, outputs=2)
    other.readout.bins.put([6.0, 40.0], 6.0)
    fit(ward, other, epochs=1)
    assert other.readout.bins.edges.tolist() == [6.0, 40.0]
    # Judged at the task's bins, whatever its own.
    found = evaluate(other, ward, bootstrap=0)
    assert found.probabilities.shape[-1] == ward.outputs
    short = oc.GRU(**sizes, outputs=2)
    short.readout.bins.put([3.0, 6.0], 6.0)
    with pytest.raises(MetricError, match="ahead, the model 6: give the task edges within that"):
        evaluate(short, ward, bootstrap=0)


def test_what_this_kind_has_no_use_for_is_refused(ward):
    with pytest.raises(FitError, match="class_weights are for classes"):
        fit(ward, "gru", epochs=1, class_weights="balanced")
    with pytest.raises(FitError, match="horizons are for binary tasks"):
        fit(ward, "gru", epochs=1, horizons=(6.0,))
    with pytest.raises(FitError, match="steps are of log-odds"):
        fit(
            ward,
            "neural-cde",
            epochs=1,
            model_settings={"readout_steps": 8, "readout_sees_path": True},
        )
    lost = ward.labels * torch.tensor([1.0, 0.0])
    never = Task.build("never", ward.series, lost, kind="time-to-event", per="row", edges=(6, 24))
    with pytest.raises(FitError, match="no event follows a label of the training split"):
        fit(never, "gru", epochs=1)


def test_it_is_judged_by_horizon_beside_the_best_possible(fitted, ward):
    done, _ = fitted
    found = evaluate(done.model, ward, bootstrap=20, reference=ward.known_risk.risk)
    ahead = [f"{name}@{h}" for h in (3, 6, 12) for name in ("auc", "brier", "log_loss")]
    assert list(found.metrics) == ["concordance", "integrated_brier", "nll", *ahead]
    assert all(one.value is not None and one.low is not None for one in found.metrics.values())
    assert list(found.reference.metrics) == ["auc@6", "brier@6", "log_loss@6"]
    assert all(one.low is not None for one in found.reference.metrics.values())
    assert found.title_of("auc@6") == "AUROC within 6 hours"
    assert found.calibration is not None
    assert found.horizon == 6.0
    assert found.naive[0].metric == "integrated_brier"
    few = evaluate(done.model, ward, horizons=(2.5,), bootstrap=0)
    assert "auc@2.5" in few.metrics
    # Nobody is lost within 6 hours of a row: the same as a binary model's, judged by itself.
    binary = simulate_ward(120, seed=1, hours=12, horizon=6.0).task
    alone = evaluate(done.model.within(6.0), binary, bootstrap=0)
    for name in ("auc", "brier", "log_loss"):
        both = alone.metrics[name].value, found.metrics[f"{name}@6"].value
        assert both[0] == pytest.approx(both[1], rel=1e-5)
    assert alone.calibration.slope.value == pytest.approx(found.calibration.slope.value, rel=1e-4)
    with pytest.raises(MetricError, match="horizons are for time-to-event tasks"):
        evaluate(done.model.within(6.0), binary, horizons=(6.0,))


def test_alarms_are_chosen_by_the_risk_within_a_horizon(tmp_path, capsys):
    """The policy a model is given says which; `evaluate` judges it by that."""
    from onlinecde.cli import main

    settings = {"streams": 250, "hours": 12.0, "kind": "time-to-event", "horizon": 6.0}
    source = registry_source("simulated-ward", settings)
    task = load_task(source)
    fit(task, "gru", tmp_path / "run", epochs=1, model_settings={"hidden": 4}, source=source)
    run = str(tmp_path / "run")
    command = ["alarms", run, "--budget", "5", "--confidence", "0", "--horizon", "4"]
    command += ["--bootstrap", "0", "--write"]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code in (0, None)
    assert "within 4 hours" in capsys.readouterr().out
    assert oc.load(tmp_path / "run" / "model").alarm_policy.horizon == 4.0
    found = evaluate(oc.load(tmp_path / "run" / "model"), task, bootstrap=0)
    assert "within 4 hours" in found.policy.words
    assert found.before_event
    with pytest.raises(SystemExit):
        main([*command, "--horizon", "100"])
    assert "the horizon is 100" in capsys.readouterr().err


def test_a_report_is_written_of_it(fitted, ward):
    from onlinecde.evaluation.following import follow
    from onlinecde.evaluation.report import report

    done, _ = fitted
    found = evaluate(done.model, ward, bootstrap=20)
    page = report(found, trajectories=follow({"GRU-D": done.model}, ward))
    assert "Log loss within 6 hours" in page
    assert "Observed share against predicted risk within 6 hours" in page
    assert "risk within 6 hours" in page
