"""Boosted trees on features of the past: fitted on the training split alone, for tasks of any kind."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.data import DataError, Task, simulate_ward
from onlinecde.evaluation.trees import MOST, WITHOUT_VALIDATION, fit_trees

pytest.importorskip("lightgbm")


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(300, seed=2).task


@pytest.fixture(scope="module")
def trees(ward):
    return fit_trees(ward, threads=1)


@pytest.fixture(scope="module")
def series():
    """120 streams in which channel x0 moves around a level of the stream's own."""
    rng = np.random.default_rng(3)
    times = [np.sort(rng.uniform(0, 10, rng.integers(4, 9))) for _ in range(120)]
    level = rng.normal(size=120)
    values = [
        np.stack([level[i] + 0.3 * rng.normal(size=len(t)), rng.normal(size=len(t))], 1)
        for i, t in enumerate(times)
    ]
    return oc.SeriesBatch.from_arrays(times, values), torch.from_numpy(level)


def test_labels_at_rows(ward, trees):
    found = oc.evaluation.evaluate(trees, ward, bootstrap=0)
    assert found.metrics["auc"].value > 0.6
    assert not found.warnings
    assert 0 < trees.trees < MOST
    assert trees.labels == int((~ward.split("train")[1].isnan()).sum())


def test_labels_at_any_times(ward):
    asked = ward.asked("every=2h")
    trees = fit_trees(asked, threads=1)
    by_the_clock = oc.evaluation.evaluate(
        trees, ward, at="every=2h", bootstrap=0, name="boosted trees"
    )
    assert by_the_clock.model == "boosted trees"
    assert by_the_clock.metrics["excess"].value > 0
    found, labels = trees.predict_split(asked, "test"), asked.split("test")[1]
    assert found.shape == (*labels.shape, 1)
    known = ~labels.isnan()
    risk = found[..., 0][known]
    assert float(risk[labels[known] == 1].mean()) > 1.3 * float(risk[labels[known] == 0].mean())


@pytest.mark.parametrize("kind", ["binary", "multiclass", "multilabel", "regression", "several"])
def test_labels_of_streams(series, kind):
    batch, level = series
    labels = {
        "binary": (level > 0).double(),
        "multiclass": (level > -0.5).long() + (level > 0.5).long(),
        "multilabel": torch.stack([level > 0, level > 1], 1).double(),
        "regression": 3 + level,
        "several": torch.stack([level, -level], 1),
    }[kind]
    if kind == "multilabel":
        labels[::7, 0] = torch.nan
    several = {"several": "regression"}.get(kind, kind)
    classes = ("low", "middle", "high") if kind == "multiclass" else ()
    task = Task.build("made", batch, labels, kind=several, classes=classes)
    trees = fit_trees(task, threads=1)
    assert trees.predict_split(task, "test").shape == (18, task.outputs)
    found = oc.evaluation.evaluate(trees, task, bootstrap=20, name="boosted trees")
    assert found.naive
    assert all(one.beaten for one in found.naive if "last value" not in one.name)
    assert found.model == "boosted trees"
    if kind == "multiclass":
        np.testing.assert_allclose(found.probabilities.sum(1), 1.0, atol=1e-9)


def test_time_to_an_event(series):
    batch, level = series
    rng = np.random.default_rng(4)
    time = torch.from_numpy(rng.exponential(5 * np.exp(-level.numpy())))
    lost = torch.from_numpy(rng.exponential(10, 120))
    labels = torch.stack([torch.minimum(time, lost), (time <= lost).double()], 1)
    task = Task.build("made", batch, labels, kind="time-to-event", edges=[1.0, 4.0, 12.0])
    trees = fit_trees(task, threads=1)
    risk = trees.predict_split(task, "test")
    assert risk.shape == (18, 3)
    assert bool((risk.diff(dim=1) >= 0).all())
    assert (
        oc.evaluation.evaluate(trees, task, bootstrap=0, horizons=[4.0]).metrics["auc@4"].value
        > 0.7
    )


def test_nothing_but_training_and_validation_is_seen(ward, trees):
    at = ward.splits["test"]
    series, labels = ward.series, ward.labels.clone()
    labels[at] = 1 - labels[at]
    values = series.values.clone()
    values[at] = 1e6
    other = replace(ward, series=replace(series, values=values), labels=labels)
    models = [
        [b.model_to_string() for b in each.boosters]
        for each in (trees, fit_trees(other, threads=1))
    ]
    assert models[0] == models[1]


def test_the_future_is_never_asked(ward, trees):
    found = oc.audit.measurability(trees, ward.split("test")[0], streams=4, cuts=6)
    assert found.measurability is oc.Measurability.CONTINUOUS
    assert found.edits > 100


def test_channels_go_by_name(ward, trees):
    series = ward.series
    order = list(reversed(range(len(series.channels))))
    names = tuple(series.channels[i] for i in order)
    other = replace(series, values=series.values[:, :, order], channels=names)
    assert torch.equal(trees(other[:5]), trees(series[:5]))


def test_padding_and_gaps_among_queries_say_nothing(ward, trees):
    series = ward.series[:3]
    queries = torch.tensor([[30.0, torch.nan]]).expand(3, -1)
    found = trees(series, queries)
    assert found.shape == (3, 2, 1)
    assert (found[:, 1] == 0).all()
    assert (found[:, 0] > 0).all()


def test_without_validation_labels_the_number_of_trees_is_fixed(series):
    batch, level = series
    splits = {"train": range(100), "test": range(100, 120)}
    splits = {name: torch.tensor(list(at)) for name, at in splits.items()}
    task = Task.build("made", batch, level, kind="regression", splits=splits)
    assert fit_trees(task, threads=1).trees == WITHOUT_VALIDATION


def test_what_cannot_be_judged_is_refused(series, trees):
    batch, level = series
    regression = Task.build("made", batch, level, kind="regression")
    with pytest.raises(
        ValueError, match="made' is regression with 1 outputs, the trees were fitted for binary"
    ):
        oc.evaluation.evaluate(trees, regression)
    alone = replace(regression, splits={"test": torch.arange(120)})
    with pytest.raises(DataError, match="no training split: there is nothing to fit trees on"):
        fit_trees(alone)


def test_without_lightgbm_the_extra_is_named(series, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    batch, level = series
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'onlinecde\[trees\]'"):
        fit_trees(Task.build("made", batch, level, kind="regression"))
