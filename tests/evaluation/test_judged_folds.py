"""Folds are judged each on its own streams, as one mean; what does not belong together is refused."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.artifacts import read_manifest
from onlinecde.cli import main
from onlinecde.data import fold_task, simulate_ward
from onlinecde.data.sets.physionet_2019 import challenge_utility
from onlinecde.evaluation import compare
from onlinecde.evaluation.bootstrap import draws
from onlinecde.evaluation.evaluating import evaluate
from onlinecde.evaluation.predictions import as_probabilities, predict_task
from onlinecde.evaluation.results import mean_metrics, over_folds
from onlinecde.evaluation.runs import (
    FoldsError,
    comparison,
    fold_seed,
    joined,
    judge_runs,
    runs_by_fold,
)
from onlinecde.evaluation.utility import best_threshold, utility_of
from onlinecde.experiments import cells_of, reproduce
from onlinecde.experiments.table import parse_table
from onlinecde.models.flat_settings import maker

FOLDS, RESAMPLES = 3, 50


def small(task, cls, seed):
    torch.manual_seed(seed)
    series = task.series
    model = maker(cls.__name__)(
        channels=len(series.channels),
        hidden=6,
        outputs=1,
        static=len(series.features),
        kind="binary",
    )
    model.fit_scales(series)
    return model.eval()


@pytest.fixture(scope="module")
def task():
    """A ward that is taken for the challenge's, so that it has the challenge's utility."""
    task = simulate_ward(150, seed=4).task
    worth = challenge_utility(task.labels.numpy(), task.series.times.numpy())
    return replace(task, name="physionet-2019", utility=worth)


@pytest.fixture(scope="module")
def models(task):
    """Two models, two runs of each on each fold: [model][fold] -> runs."""
    seeds = iter(range(100))
    return {
        name: [[small(task, cls, next(seeds)) for _ in range(2)] for _ in range(FOLDS)]
        for name, cls in (("first", oc.GRU), ("second", oc.GRUdt))
    }


@pytest.fixture(scope="module")
def judged(task, models):
    turned = [fold_task(task, number, FOLDS) for number in range(1, FOLDS + 1)]
    wanted = ("auc", "auprc", "utility")
    found = []
    for name, folds in models.items():
        each = [
            judge_runs(
                name,
                runs,
                one,
                bootstrap=RESAMPLES,
                seed=fold_seed(7, number, FOLDS),
                metrics=wanted,
            )
            for number, (runs, one) in enumerate(zip(folds, turned, strict=True), 1)
        ]
        found.append(joined(each, seed=7))
    return found


def area(p, y):
    """AUROC by pairs."""
    above = p[y == 1][:, None] - p[y == 0][None]
    return float((above > 0).mean() + (above == 0).mean() / 2)


def precision(p, y):
    """Average precision by its definition, one threshold after the other."""
    total = 0.0
    for level in np.unique(p[y == 1]):
        total += (y[p == level] == 1).sum() * (y[p >= level] == 1).mean()
    return total / (y == 1).sum()


def by_hand(task, folds, which):
    """Metrics of one run over all folds, and on each resample: everything written out, patients copied."""
    plain, drawn = [], []
    for number, runs in enumerate(folds, 1):
        one = fold_task(task, number, FOLDS)

        def risk(of, model=runs[which], one=one):
            series, labels = one.split(of)
            said = as_probabilities(model.readout, predict_task(model, series, "row"))
            return said[..., 0].numpy(), labels.numpy(), series.times.numpy()

        said, labels, times = risk("validation")
        threshold = best_threshold(said, ~np.isnan(labels), challenge_utility(labels, times))
        said, labels, times = risk("test")

        def measured(at, said=said, labels=labels, times=times, threshold=threshold):
            known = ~np.isnan(labels[at])
            p, y = said[at][known], labels[at][known]
            worth = utility_of(said[at] >= threshold, challenge_utility(labels[at], times[at]))
            return area(p, y), precision(p, y), worth

        (weights,) = draws(len(labels), RESAMPLES, 7 * FOLDS + number - 1)
        plain.append(measured(np.arange(len(labels))))
        copies = [np.repeat(np.arange(len(labels)), row.astype(int)) for row in weights]
        drawn.append([measured(at) for at in copies])
    return np.mean(plain, 0), np.mean(drawn, 0)  # (metric,), (resample, metric)


def test_metric_difference_and_intervals_are_those_worked_out_by_hand(task, models, judged):
    hand = {
        name: [by_hand(task, folds, which) for which in range(2)] for name, folds in models.items()
    }
    means = {name: np.mean([run[0] for run in runs], 0) for name, runs in hand.items()}
    drawn = {name: np.mean([run[1] for run in runs], 0) for name, runs in hand.items()}
    told = json.loads(json.dumps(comparison(judged[0], judged[1:]), allow_nan=False))
    assert len(means) == 2
    for column, metric in enumerate(("auc", "auprc", "utility")):
        for one, name in zip(told["runs"], means, strict=True):
            found = one["mean"][metric]
            low, high = np.quantile(drawn[name][:, column], [0.025, 0.975])
            expected = means[name][column], low, high
            assert (found["value"], found["low"], found["high"]) == pytest.approx(
                expected, abs=2e-6
            ), (name, metric)
        gap = told["mean_differences"][0][metric]
        apart = drawn["first"][:, column] - drawn["second"][:, column]
        expected = (means["first"] - means["second"])[column], *np.quantile(apart, [0.025, 0.975])
        assert (gap["value"], gap["low"], gap["high"]) == pytest.approx(expected, abs=2e-6)
        assert gap["above_zero"] == (apart > 0).mean()


def test_the_folds_are_told(task, judged):
    told = judged[0].together.to_json()
    assert (told["task"], told["fold"], told["seed"]) == ("physionet-2019", "all 3 folds", 7)
    assert [one["fold"] for one in told["folds"]] == [f"fold {n} of 3" for n in (1, 2, 3)]
    others = len(task.series) - len(task.splits["validation"])
    assert told["streams"] == sum(one["streams"] for one in told["folds"]) == others
    known = ~task.labels.isnan()
    known[task.splits["validation"]] = False
    assert (told["labels_given"], told["positive"]) == (
        known.sum(),
        (task.labels[known] == 1).sum(),
    )
    assert told["metrics"]["auc"]["value"] == pytest.approx(
        np.mean([one["metrics"]["auc"] for one in told["folds"]])
    )
    assert len({one["utility_threshold"] for one in told["folds"]}) > 1, "a threshold a fold"
    assert "all 3 folds" in str(judged[0].together)


def test_a_fold_is_never_taken_for_a_seed(task, models, judged):
    turned = [fold_task(task, number, FOLDS) for number in (1, 2, 3)]
    each = [
        evaluate(runs[0], one, bootstrap=5, seed=number, name="first", metrics=["auc"])
        for number, (runs, one) in enumerate(zip(models["first"], turned, strict=True))
    ]
    own = evaluate(models["first"][0][0], task, bootstrap=5, metrics=["auc"])
    whole = over_folds(each)
    with pytest.raises(ValueError, match="fold is 'fold 1 of 3' in the first"):
        mean_metrics([each[0], replace(each[1], seed=0)])
    for other in (own, each[0]):
        with pytest.raises(ValueError, match="fold is 'all 3 folds' in the first"):
            compare(whole, other)
    with pytest.raises(ValueError, match="fold is None in the first"):
        compare(own, each[0])
    for wrong in ([each[0], each[2]], [each[0], each[0], each[2]], each[::-1], [own] * 3):
        with pytest.raises(ValueError, match="every fold of a task once"):
            over_folds(wrong)
    with pytest.raises(ValueError, match="give each fold its own"):
        over_folds([replace(one, seed=3) for one in each])
    with pytest.raises(ValueError, match="bootstrap is 5 in the first evaluation, 6"):
        over_folds([*each[:2], replace(each[2], bootstrap=6)])
    with pytest.raises(ValueError, match="folds share all other streams"):
        over_folds([replace(one, split="validation") for one in each])
    moved = replace(each[2], labels=1 - each[2].labels)
    with pytest.raises(ValueError, match="other labels"):
        compare(whole, over_folds([*each[:2], moved]))
    lone = replace(
        each[1], metrics={"auc": replace(each[1].metrics["auc"], value=None, reason="r")}
    )
    missing = over_folds([each[0], lone, each[2]]).metrics["auc"]
    assert (missing.value, missing.reason) == (None, "r")


TABLE = """
like = "simulated-ward"
title = "Two small models"
seeds = [0]
[[columns]]
name = "GRU"
model = "gru"
settings = { hidden = 4 }
fit = { epochs = 1 }
[[columns]]
name = "GRU-dt"
model = "gru-dt"
settings = { hidden = 4 }
fit = { epochs = 1 }
[[rows]]
name = "Deterioration"
data = "simulated-ward"
metric = "auc"
data_settings = { streams = 60 }
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """A table run with folds and without: the folder of each column."""
    home = tmp_path_factory.mktemp("cells")
    places = {}
    for name, more in (("turned", "folds = 3"), ("own", "")):
        table = parse_table(name, f"{more}\n{TABLE}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ONLINECDE_CACHE", str(home / "cache"))
            reproduce(table, home, device="cpu")
        for cell in cells_of(table):
            places[name, cell.column.name] = (home / cell.place).parent
    return places


@pytest.fixture
def run(tmp_path, cells, monkeypatch, capsys):
    monkeypatch.setenv("ONLINECDE_CACHE", str(next(iter(cells.values())).parents[3] / "cache"))

    def ran(*words):
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", *map(str, words), "--bootstrap", "20"])
        out = capsys.readouterr()
        return ended.value.code, " ".join((out.out + out.err).split())

    return ran


def scores(cell):
    files = sorted(cell.glob("*/result.json"))
    return [json.loads(file.read_text())["test"] for file in files]


def test_the_command_judges_all_folds_of_cells(run, cells, tmp_path):
    mine, other = cells["turned", "GRU"], cells["turned", "GRU-dt"]
    file, page = tmp_path / "found.json", tmp_path / "page.html"
    code, text = run(mine, "--against", other, "--json", file, "--report", page)
    assert code == 0, text
    assert "simulated-ward, all 3 folds, test: 51 streams" in text
    told = json.loads(file.read_text())
    gru, dt = scores(mine), scores(other)
    assert len(set(gru)) == 3
    assert [one["metrics"]["auc"] for one in told["evaluation"]["folds"]] == pytest.approx(gru)
    assert [one["metrics"]["auc"] for one in told["against"][0]["folds"]] == pytest.approx(dt)
    assert told["evaluation"]["metrics"]["auc"]["value"] == pytest.approx(np.mean(gru))
    gap = told["differences"][0]["auc"]
    assert gap["value"] == pytest.approx(np.mean(gru) - np.mean(dt))
    assert gap["low"] <= gap["value"] <= gap["high"]
    assert (told["evaluation"]["model"], told["against"][0]["model"]) == ("GRU", "GRU-dt")
    assert "runs" not in told
    for words in ("By fold", "Test split of all 3 folds", "Fold 2 of 3", "AUROC, GRU-dt"):
        assert words in page.read_text()


def test_boosted_trees_are_fitted_on_each_fold(run, cells, tmp_path, monkeypatch):
    pytest.importorskip("lightgbm")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "found.json"
    code, text = run(cells["turned", "GRU"], "--against", "trees", "--json", file)
    assert code == 0, text
    (trees,) = json.loads(file.read_text())["against"]
    assert (trees["model"], trees["fold"]) == ("boosted trees", "all 3 folds")
    assert len({fold["metrics"]["log_loss"] for fold in trees["folds"]}) == 3


def test_one_fold_alone_is_judged_on_its_own_streams(run, cells, tmp_path):
    mine, other = (cells["turned", name] / "fold-2-seed-0" for name in ("GRU", "GRU-dt"))
    file = tmp_path / "found.json"
    words = (mine / "run", "--against", other / "run", "--json", file)
    code, text = run(*words, "--report", tmp_path / "page.html")
    assert code == 0, text
    assert "simulated-ward, fold 2 of 3, test: 17 streams" in text
    value = json.loads(file.read_text())["evaluation"]["metrics"]["auc"]["value"]
    assert value == pytest.approx(scores(cells["turned", "GRU"])[1])


def test_what_does_not_belong_together_is_refused(run, cells, tmp_path):
    mine, other, own = cells["turned", "GRU"], cells["turned", "GRU-dt"], cells["own", "GRU-dt"]
    for words in ((mine, "--against", own), (own, "--against", mine)):
        code, text = run(*words)
        assert (code, "do not have the same split" in text) == (2, True), text
    mixed = tmp_path / "mixed"
    shutil.copytree(mine, mixed)
    shutil.copytree(own / "seed-0", mixed / "seed-0")
    code, text = run(mixed)
    assert (code, "do not have the same split" in text) == (2, True), text
    code, text = run(mine, "--task", "simulated-ward", "--task-setting", "streams=60")
    assert (code, "Leave out --task" in text) == (2, True), text
    two = (mine / "fold-1-seed-0" / "run", "--against", other / "fold-2-seed-0" / "run")
    code, text = run(*two)
    assert (code, "has a run of fold 1 of 3, GRU-dt has none" in text) == (2, True), text


def homes(cell):
    return sorted(cell.glob("*/run/model"))


def test_folds_that_are_missing_or_differ_are_refused(cells, tmp_path):
    mine, other = homes(cells["turned", "GRU"]), homes(cells["turned", "GRU-dt"])
    folds = runs_by_fold({"a": mine, "b": other})
    assert [list(fold.values()) for fold in folds] == [
        [[one], [two]] for one, two in zip(mine, other, strict=True)
    ]
    assert runs_by_fold({"a": mine[:1], "b": other[:1]}) == []
    with pytest.raises(FoldsError, match="a has a run of fold 3 of 3, b has none"):
        runs_by_fold({"a": mine, "b": other[:2]})
    with pytest.raises(FoldsError, match="a has 0 runs of fold 2 of 3"):
        runs_by_fold({"a": [mine[0], mine[2]], "b": [other[0], other[2]]})
    twice = tmp_path / "twice"
    shutil.copytree(mine[1], twice)
    with pytest.raises(FoldsError, match="a has 1 run of fold 1 of 3 and more of others"):
        runs_by_fold({"a": [*mine, twice]})


@pytest.mark.parametrize("number", [1, 3])
def test_other_streams_in_the_same_fold_are_refused(cells, tmp_path, number):
    mine, other = homes(cells["turned", "GRU"]), homes(cells["turned", "GRU-dt"])
    told = read_manifest(other[number - 1])
    extra = {**told.extra, "task": {**told.extra["task"], "content": "of other streams"}}
    changed = tmp_path / "model"
    oc.save(oc.load(other[number - 1]), changed, extra=extra, channels=told.channels)
    with pytest.raises(FoldsError, match="fitted on other streams, labels or splits"):
        runs_by_fold({"a": mine, "b": [*other[: number - 1], changed, *other[number:]]})
    extra["task"]["arguments"] = {**told.extra["task"]["arguments"], "folds": 4}
    oc.save(oc.load(other[0]), tmp_path / "four", extra=extra, channels=told.channels)
    with pytest.raises(FoldsError, match=r"of 4.* do not have the same split"):
        runs_by_fold({"a": mine, "b": [tmp_path / "four"]})


def test_no_two_folds_or_seeds_are_drawn_again_alike():
    seeds = [fold_seed(seed, number, 6) for seed in range(5) for number in range(1, 7)]
    assert len(set(seeds)) == 30
