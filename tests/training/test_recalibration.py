"""Probabilities are as often right as they say: epochs are kept for it, log-odds are mapped within the weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.artifacts import read_manifest
from onlinecde.data import Task, simulate_ward
from onlinecde.evaluation.metrics import score
from onlinecde.evaluation.predictions import predict_task
from onlinecde.models.readout import Readout
from onlinecde.training import FitSettings, build_model, fit
from onlinecde.training.callbacks import Callback
from onlinecde.training.loop import CALIBRATED, Training
from onlinecde.training.recalibration import fit_map, mapped, recalibrate, rescale


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(120, seed=3, hours=24).task


class Notes(Callback):
    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


def overconfident(task, kind="gru", **sizes):
    """A model that was trained a little, and says everything far more strongly than it should."""
    at_rows = {"at": "task", "validate_at": "task"}
    how = {"epochs": 4, "lr": 1e-2, "monitor": "loss", "seed": 1, **at_rows}
    how["trees"] = "readout_ramps" in sizes
    done = fit(task, kind, model_settings=sizes, **how)
    outputs = predict_task(done.model, task.split("validation")[0], task.per).double()
    scale = 6.0 / outputs.std().reshape(1)
    rescale(done.model, scale, (1 - scale) * outputs.mean() + 0.5)
    return done.model


def test_the_map_finds_the_scale_and_shift_that_made_the_labels():
    random = np.random.default_rng(8)
    print("seed 8")
    logits = random.normal(0, 2.0, (20000, 2))
    labels = random.random(logits.shape) < 1 / (1 + np.exp(-(0.4 * logits + [0.3, -1.0])))
    head = Readout(1, 2, "multilabel")
    scale, shift = fit_map(head, torch.tensor(logits), torch.tensor(labels).float())
    assert scale.tolist() == pytest.approx([0.4, 0.4], abs=0.03)
    assert shift.tolist() == pytest.approx([0.3, -1.0], abs=0.06)


def test_few_labels_change_little_and_none_change_nothing():
    head = Readout(1, 1, "binary")
    logits = torch.tensor([[-3.0], [-2.0], [3.0], [2.0]])
    for labels in ([1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]):
        scale, shift = fit_map(head, logits, torch.tensor(labels))
        assert 0.7 < float(scale) < 1.4
        assert abs(float(shift)) < 0.25
    scale, shift = fit_map(head, logits, torch.full((4,), torch.nan))
    assert (float(scale), float(shift)) == (1.0, 0.0)


def test_classes_share_a_scale_so_that_the_most_likely_one_stays():
    random = torch.Generator().manual_seed(2)
    logits = 5 * torch.randn(300, 3, generator=random)
    labels = torch.randint(3, (300,), generator=random)
    scale, shift = fit_map(Readout(1, 3, "multiclass"), logits, labels)
    assert scale.unique().numel() == 1
    assert 0 < float(scale[0]) < 0.5
    assert not shift.any()


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("gru", {"hidden": 6}),
        ("neural-cde", {"hidden": 6, "width": 12, "readout_width": 8, "readout_dropout": 0.0}),
        ("neural-cde", {"hidden": 4, "width": 8, "readout_width": 8, "readout_ramps": 3}),
    ],
)
def test_recalibration_is_exact_keeps_ranks_and_lowers_the_loss(ward, kind, sizes):
    model = overconfident(ward, kind, **sizes)
    if "readout_ramps" in sizes:
        assert model.trees is not None, "no tree was grown: the claim would be empty"
    series, labels = ward.split("validation")
    before = predict_task(model, series, "row")
    done = recalibrate(model, ward, FitSettings(), Callback())
    after = predict_task(model, series, "row")
    expected = mapped(before, torch.tensor(done["scale"]), torch.tensor(done["shift"]))
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-4)
    assert done["scale"][0] < 0.9
    loss, old = (
        score("binary", "log_loss", outputs, labels, model.readout) for outputs in (after, before)
    )
    assert loss < old
    assert done["validation_loss"] == pytest.approx(loss, abs=1e-5)
    auc, old = (
        score("binary", "auc", outputs, labels, model.readout) for outputs in (after, before)
    )
    assert auc == pytest.approx(old, abs=2e-3)


def test_live_answers_and_a_saved_model_are_recalibrated_too(ward, tmp_path):
    model = overconfident(ward, hidden=6)
    recalibrate(model, ward, FitSettings(), Callback())
    oc.save(model, tmp_path / "model", channels=ward.series.channels)
    loaded, patient = oc.load(tmp_path / "model"), ward.series[:1]
    with torch.no_grad():
        state = loaded.init_state(streams=1, static=patient.static)
        for row in range(int(patient.rows)):
            state = loaded.observe(state, float(patient.times[0, row]), patient.values[:, row])
        torch.testing.assert_close(
            loaded.predict(state), model(patient, final=True), atol=1e-4, rtol=1e-4
        )


def test_a_readout_whose_outputs_are_changed_afterwards_stays_as_it_is(ward):
    model = overconfident(ward, hidden=6)
    model.readout.register_forward_hook(lambda _, inputs, outputs: outputs.tanh())
    before, notes = {n: t.clone() for n, t in model.state_dict().items()}, Notes()
    assert recalibrate(model, ward, FitSettings(), notes) is None
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert "not recalibrated" in notes.texts[0]


def test_the_epoch_kept_has_the_lowest_loss_after_recalibration(ward):
    done = fit(ward, "gru", epochs=8, lr=3e-2, model_settings={"hidden": 6})
    assert done.best[CALIBRATED] == min(entry[CALIBRATED] for entry in done.history)
    asked = fit(ward, "gru", epochs=2, model_settings={"hidden": 6}, monitor="loss")
    assert CALIBRATED not in asked.history[0]


def test_a_run_says_what_recalibration_did(ward, tmp_path):
    fit(ward, "gru", tmp_path / "run", epochs=2, model_settings={"hidden": 6})
    done = read_manifest(tmp_path / "run" / "model").extra["recalibrated"]
    assert done["scale"][0] > 0
    assert np.isfinite(done["shift"][0])
    assert "scaled and shifted" in (tmp_path / "run" / "model" / "README.md").read_text()
    fit(ward, "gru", tmp_path / "off", epochs=2, model_settings={"hidden": 6}, monitor="loss")
    assert "recalibrated" not in read_manifest(tmp_path / "off" / "model").extra


def test_a_run_from_before_recalibration_goes_on_as_it_began(ward, tmp_path, monkeypatch):
    """The metric chose in version 0.1, and its records say so."""
    sizes = {"hidden": 6}
    old = {"monitor": "metric", "epochs": 3, "model_settings": sizes}
    straight = fit(ward, "gru", tmp_path / "straight", **old)

    def die(self, started):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(Training, "_validate", die)
        fit(ward, "gru", tmp_path / "run", **old)
    again = fit(ward, "gru", tmp_path / "run", epochs=3, model_settings=sizes)
    for name, weight in straight.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name


def test_a_model_of_ones_own_in_a_regression_is_not_recalibrated(ward):
    numbers = torch.randn(len(ward.series), generator=torch.Generator().manual_seed(0))
    task = Task.build("numbers", ward.series, numbers, kind="regression")
    model = build_model(task, "gru", {"hidden": 4})
    assert recalibrate(model, task, FitSettings(), Callback()) is None


def test_balanced_classes_stay_balanced(ward):
    """The map is fitted to the weighted loss: what was asked for is not undone."""
    model = fit(
        replace(ward),
        "gru",
        epochs=3,
        lr=1e-2,
        model_settings={"hidden": 6},
        class_weights="balanced",
    ).model
    series, labels = ward.split("validation")
    share = float(labels[~labels.isnan()].mean())
    said = predict_task(model, series, "row").sigmoid()[~labels.isnan()].mean()
    assert float(said) > share + 0.05
