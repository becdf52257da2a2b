"""What `fit` builds for a task when it is told little."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.data import Task, simulate_ward
from onlinecde.models.flat_settings import flat_of
from onlinecde.training import FitError, build_model
from onlinecde.training import defaults as building
from onlinecde.training.defaults import PULL, RESTORING, model_class, model_settings, resolve


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(60, seed=2).task


@pytest.fixture(scope="module")
def complete():
    random = np.random.default_rng(0)
    series = oc.SeriesBatch.from_arrays(
        [np.arange(6.0)] * 20, [random.normal(size=(6, 2)) for _ in range(20)]
    )
    return Task.build("complete", series, np.arange(20) % 2, kind="binary")


def test_series_with_gaps_get_counts_and_a_z_that_forgets_within_a_stable_step(ward):
    chosen = model_settings(ward, "neural-cde")
    most = float(ward.series.observed[ward.series.real].sum(1).max())
    assert (chosen["control"], chosen["counts"]) == ("rectilinear", True)
    assert 0 < chosen["restoring"] <= RESTORING
    assert chosen["restoring"] * chosen["count_gain"] * most <= PULL * 1.001
    assert chosen["width"] == 2 * chosen["hidden"]


def test_complete_series_need_no_counts(complete):
    chosen = model_settings(complete, "neural-cde")
    assert chosen["counts"] is False
    assert "restoring" not in chosen


def test_what_is_given_is_kept_and_what_no_longer_fits_is_left_out(ward):
    chosen = model_settings(ward, "neural-cde", {"hidden": 20, "width": 24, "count_gain": 1.0})
    assert (chosen["hidden"], chosen["width"], chosen["count_gain"]) == (20, 24, 1.0)
    assert "restoring" not in chosen
    assert model_settings(ward, "neural-cde", {"hidden": 20})["width"] == 40
    slow = model_settings(ward, "neural-cde", {"count_gain": 1.0})
    assert slow["restoring"] < RESTORING


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, (3, 32, 0.5)),
        ({"readout_ramps": 4}, (4, 32, 0.5)),
        ({"readout_width": None}, (6, None, 0.0)),
        ({"readout_sees_path": False}, (0, None, 0.0)),
    ],
)
def test_the_readout_of_series_with_gaps_sees_ramps_unless_told_otherwise(ward, given, wanted):
    config = flat_of(build_model(ward, "neural-cde", given).config)
    found = tuple(config[f"readout_{name}"] for name in ("ramps", "width", "dropout"))
    assert found == wanted


def test_with_many_labels_at_rows_the_readout_has_several_members(ward, monkeypatch):
    there = int((~ward.split("train")[1].isnan()).sum())
    for many, wanted in ((there + 1, (32, 1, 0)), (there, (256, 16, 256))):
        monkeypatch.setattr(building, "MANY", many)
        config = flat_of(build_model(ward, "neural-cde").config)
        assert tuple(config[f"readout_{name}"] for name in ("width", "members", "steps")) == wanted
    for given in ({"readout_width": None}, {"readout_members": 1}):
        other = flat_of(build_model(ward, "neural-cde", given).config)
        assert (other["readout_members"], other["readout_steps"]) == (1, 0)
    once = replace(ward, per="stream", labels=ward.labels[:, 0])
    assert flat_of(build_model(once, "neural-cde").config)["readout_members"] == 1


def test_a_state_is_pulled_back_at_first(ward):
    torch.manual_seed(0)
    model = build_model(ward, "neural-cde").eval()
    z = torch.randn(5, model.hidden)
    x = torch.zeros(5, model.encoding.path_channels)
    with torch.no_grad():
        columns = model.field.matrix(z, model.field.drive(x))
    for channel in (0, 1 + model.encoding.value_channels, model.encoding.path_channels - 1):
        along = (columns[:, :, channel] * z).sum(1)
        assert (along < 0).all()


@pytest.mark.parametrize(
    ("name", "cls"),
    [("neural-cde", "NeuralCDE"), ("NCDE", "NeuralCDE"), ("GRU_D", "GRUD"), ("ode-rnn", "ODERNN")],
)
def test_names_are_read_kindly(name, cls):
    assert model_class(name).__name__ == cls


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(FitError, match="choose one of neural-cde, gru"):
        model_class("transformer")


def test_every_setting_says_who_set_it_and_why(ward, tmp_path):
    found = resolve(ward, "neural-cde", {"hidden": 8}, changes={"epochs": 2})
    model, training = found.chosen["model"], found.chosen["training"]
    assert (model["hidden"].value, model["hidden"].by) == (8, "user")
    assert (model["control"].by, model["rank"].by, model["method"].by) == (
        "data",
        "recipe",
        "default",
    )
    assert model["outputs"].by == "task"
    assert (training["epochs"].by, training["lr"].by) == ("user", "default")
    assert found.model == model_settings(ward, "neural-cde", {"hidden": 8})
    assert {name: model[name].value for name in found.model} == found.model
    assert all(one.why for part in found.chosen.values() for one in part.values())
    assert set(model) == set(building.parameters_of("neural-cde"))
    whole = resolve(ward, "gru", settings=oc.training.PAPER, changes={"lr": 0.1})
    assert whole.training == oc.training.PAPER.changed({"lr": 0.1})
    assert (whole.chosen["training"]["epochs"].by, whole.chosen["training"]["lr"].by) == (
        "recipe",
        "user",
    )


def test_a_run_keeps_who_set_its_settings_and_goes_on_with_its_own_defaults(
    ward, tmp_path, monkeypatch
):
    sizes = {"hidden": 4}
    oc.fit(ward, "neural-cde", tmp_path / "run", model_settings=sizes, epochs=1)
    kept = (tmp_path / "run" / "settings.json").read_text()
    told = json.loads(kept)
    assert told["model"]["hidden"] == {"value": 4, "by": "user", "why": "given"}
    assert told["training"]["epochs"]["by"] == "user"
    monkeypatch.setattr(building, "RESTORING", 0.1)
    again = resolve(ward, "neural-cde", sizes, changes={"epochs": 1}, run=tmp_path / "run")
    assert again.model["restoring"] == told["model"]["restoring"]["value"]
    assert again.chosen["model"]["restoring"].by == "run"
    oc.fit(ward, "neural-cde", tmp_path / "run", model_settings=sizes, epochs=1)
    assert (tmp_path / "run" / "settings.json").read_text() == kept
