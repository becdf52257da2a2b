"""A cluster trains by the recipe of one process, and goes on with what a run began with. No cluster is started."""

import json
import shutil

import pytest

from onlinecde.data import simulate_ward
from onlinecde.training import fit
from onlinecde.training.defaults import resolve

pytest.importorskip("ray")
from onlinecde.scale import ray_fitting


class ClusterAskedError(Exception):
    """All was resolved and checked, and the cluster would be asked."""


@pytest.fixture
def no_cluster(monkeypatch):
    def asked(_):
        raise ClusterAskedError

    monkeypatch.setattr(ray_fitting, "connected", asked)


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(60, seed=0).task


@pytest.mark.parametrize("model", ["neural-cde", "gru-d"])
def test_without_settings_a_cluster_trains_what_one_process_does(
    model, ward, tmp_path, no_cluster, monkeypatch
):
    # From 1 label on, so that this small ward has the recipe of a large one: members and horizons.
    monkeypatch.setattr("onlinecde.training.defaults.MANY", 1)
    settings = resolve(ward, model, changes={"epochs": 1}).training
    assert bool(settings.horizons) == (model == "neural-cde")
    with pytest.raises(ClusterAskedError):
        ray_fitting.fit(ward, model, tmp_path / "ours", epochs=1)
    fit(ward, model, tmp_path / "theirs", epochs=1, device="cpu")
    ours, theirs = (tmp_path / name / "run.json" for name in ("ours", "theirs"))
    assert json.loads(ours.read_text()) == json.loads(theirs.read_text())


def test_a_run_begun_with_other_defaults_goes_on_by_several(ward, tmp_path, no_cluster):
    begun = {"counts": True, "bounded": False, "count_gain": 0.2778}  # since then others
    settings = {"epochs": 1, "device": "cpu", "monitor": "metric"}
    fit(ward, "neural-cde", tmp_path / "run", model_settings=begun, **settings)
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.raises(ClusterAskedError):
        ray_fitting.fit(ward, "neural-cde", tmp_path / "run", epochs=1)
