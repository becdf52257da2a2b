"""Growing: trees beside a trained readout, as LightGBM grew them, with the share that serves the validation split."""

from dataclasses import replace

import lightgbm
import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.artifacts import read_manifest
from onlinecde.evaluation.metrics import score
from onlinecde.evaluation.predictions import predict_split
from onlinecde.training import defaults, fit, growing
from onlinecde.training.callbacks import Callback
from onlinecde.training.growing import planted

SMALL = {"hidden": 4, "width": 8, "rank": None, "restoring": 0.0, "readout_width": 8}


class Notes(Callback):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


def task_of(kind="binary", streams=160):
    """Whether a channel ever was above 0.5, which its last value does not say."""
    random = np.random.default_rng(5)
    times = np.arange(8.0) + random.uniform(0, 0.5, (streams, 8))
    values = random.normal(size=(streams, 8, 3))
    values[random.random(values.shape) < 0.5] = np.nan
    ever = np.fmax.accumulate(values[:, :, 1], 1)
    labels = np.where(np.isnan(ever), 0.0, ever > 0.5)
    if kind == "regression":
        labels = 10 + 5 * np.nan_to_num(ever)
    series = oc.SeriesBatch.from_arrays(list(times), list(values))
    labels = torch.tensor(labels, dtype=torch.float32)
    return oc.data.Task.build("ever", series, labels, kind=kind, per="row", seed=0)


def test_a_forest_says_what_lightgbm_says(rng):
    lines = rng.normal(size=(600, 5)).astype(np.float32)
    lines[rng.random(lines.shape) < 0.3] = np.nan
    lines[:, 4] = rng.integers(0, 4, 600)  # never missing, where LightGBM takes NaN for 0
    labels = (np.nan_to_num(lines[:, 0]) + lines[:, 4] > 1).astype(float)
    boosters = [
        lightgbm.train(
            {"objective": "binary", "num_leaves": 7, "verbosity": -1, "num_threads": 1, "seed": seed},
            lightgbm.Dataset(lines, label=labels), 20,
        )
        for seed in (1, 2)
    ]  # fmt: skip
    lines[::7, 4] = np.nan
    forest = planted([one.dump_model() for one in boosters])
    wanted = np.stack([one.predict(lines, raw_score=True) for one in boosters], 1)
    found = forest(torch.from_numpy(lines)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["binary", "regression"])
def test_fit_grows_trees_that_serve_the_validation_split(tmp_path, kind):
    task, notes = task_of(kind), Notes()
    arguments = {"model_settings": SMALL, "epochs": 1, "trees": True, "device": "cpu"}
    done = fit(task, "neural-cde", tmp_path / "run", callback=notes, **arguments)
    grown = read_manifest(tmp_path / "run" / "model").extra["with_trees"]
    assert grown["trees"] == done.model.trees.trees
    assert float(done.model.trees.share) == grown["share"] > 0.3
    (said,) = [text for text in notes.said if "trees are grown" in text]
    assert f"validation loss {grown['validation_loss']:.4f}" in said
    metric = f"validation_{task.metric}"
    assert (grown[metric] > done.best[metric]) == (kind == "binary"), "AUROC rises, RMSE falls"
    outputs = predict_split(done.model, task, "validation")
    found = score(kind, task.metric, outputs, task.split("validation")[1], done.model.readout)
    assert grown[metric] == pytest.approx(found, rel=1e-5), (
        "recalibration moves trees and readout alike"
    )
    assert (
        f"{grown['trees']} boosted trees" in (tmp_path / "run" / "model" / "README.md").read_text()
    )
    # A run that is over is loaded, trees and all; without a folder the same are grown.
    again = fit(task, "neural-cde", tmp_path / "run", **arguments).model
    alone = fit(task, "neural-cde", **arguments).model
    for name, tensor in done.model.trees.state_dict().items():
        assert torch.equal(again.trees.state_dict()[name], tensor)
        assert torch.equal(alone.trees.state_dict()[name], tensor)


def test_trees_that_serve_nobody_else_are_not_kept(monkeypatch):
    def opposite(boosters):
        forest = planted(boosters)
        forest.rescale(
            torch.tensor([-5.0], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        )
        return forest

    monkeypatch.setattr(growing, "planted", opposite)
    notes = Notes()
    done = fit(task_of(), "neural-cde", model_settings=SMALL, epochs=1, trees=True, callback=notes)
    assert done.model.trees is None
    assert any("none are kept" in text for text in notes.said)


def test_without_lightgbm_it_is_said_and_nothing_grows(monkeypatch):
    def missing(*_, **__):
        raise ModuleNotFoundError("boosted trees need LightGBM: pip install 'onlinecde[trees]'.")

    monkeypatch.setattr(growing, "fit_trees", missing)
    notes = Notes()
    done = fit(task_of(), "neural-cde", model_settings=SMALL, epochs=1, trees=True, callback=notes)
    assert done.model.trees is None
    assert any("pip install 'onlinecde[trees]'" in text for text in notes.said)


def test_trees_are_the_default_of_large_tasks_that_have_room(monkeypatch):
    rows = task_of()
    task = replace(rows, per="stream", labels=rows.labels[:, -1])
    monkeypatch.setattr(defaults, "GROWN", len(task.splits["train"]))
    for name, given, wanted in (
        ("neural-cde", {}, True), ("neural-cde", {"control": "linear"}, False), ("gru", {}, False),
    ):  # fmt: skip
        assert defaults.resolve(task, name, given, None, {}).training.trees is wanted
    assert not defaults.resolve(rows, "neural-cde", {}, None, {}).training.trees
    monkeypatch.setattr(defaults, "GROWN", len(task.splits["train"]) + 1)
    assert not defaults.resolve(task, "neural-cde", {}, None, {}).training.trees
