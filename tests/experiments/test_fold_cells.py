"""A table whose split turns: a cell a fold, each with its own test streams, run once, published with its fold."""

import json

import pytest
import torch
from made_tables import results, ward_table

from onlinecde.experiments import ExperimentError, cells_of, load_table, reproduce, summarise
from onlinecde.experiments.publishing import publish, read_published
from onlinecde.experiments.rendering import as_markdown
from onlinecde.experiments.sources import cell_task
from onlinecde.experiments.table import parse_table
from onlinecde.training.task_source import load_task


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ONLINECDE_CACHE", str(tmp_path / "cache"))


def test_the_sepsis_folds_are_the_sepsis_table_with_another_split():
    own, turned = load_table("physionet-2019"), load_table("physionet-2019-folds")
    assert (turned.columns, turned.rows, turned.solver) == (own.columns, own.rows, own.solver)
    assert (turned.folds, turned.seeds, own.folds) == (6, (0,), 0)
    assert turned.title != own.title
    cells = cells_of(turned)
    assert len(cells) == 6 * len(own.columns)
    assert [cell.fold for cell in cells] == sorted(cell.fold for cell in cells), "fold by fold"
    alone = {cell.column.name: cell for cell in cells_of(own, seeds=[0])}
    for cell in cells:
        there, here = alone[cell.column.name].settings, cell.settings
        told = here.pop("data"), there.pop("data")
        assert here == there, "models and training are the same"
        assert told[0] == told[1] | {"fold": cell.fold, "folds": 6}
        assert cell.digest != alone[cell.column.name].digest
    best = {"task": "physionet-2019", "model": "gru-d", "model_settings": {"hidden": 77}}
    found = cells_of(turned, found=[best | {"settings": {}, "searched": ["hidden"]}])
    assert sum(cell.model["hidden"] == 77 for cell in found) == 6


def test_cells_of_a_fold_can_be_chosen():
    table = load_table("physionet-2019-folds")
    assert {cell.fold for cell in cells_of(table, only=["*/fold-3"])} == {3}
    (cell,) = cells_of(table, only=["Sepsis, hourly/GRU/fold-2"])
    assert (cell.column.name, cell.fold, cell.seed) == ("GRU", 2, 0)
    assert cell.title == "Sepsis, hourly/GRU, fold 2, seed 0"
    assert len(cells_of(table, only=["GRU"], seeds=[4, 5])) == 12
    assert all(cell.fold is None for cell in cells_of(load_table("physionet-2019")))


def test_a_table_like_another_says_what_differs():
    table = parse_table("mine", 'like = "controls"\nseeds = [9]\ntitle = "Mine"')
    model = load_table("controls")
    assert (table.rows, table.columns, table.about) == (model.rows, model.columns, model.about)
    assert (table.name, table.title, table.seeds) == ("mine", "Mine", (9,))
    with pytest.raises(ExperimentError, match=r"no table 'control'.*Did you mean 'controls'"):
        parse_table("mine", 'like = "control"')
    for wrong in ("1", "-2", '"six"', "2.5", "true"):
        with pytest.raises(ExperimentError, match="give 2 or more, or none"):
            parse_table("mine", f'like = "controls"\nfolds = {wrong}')


def test_each_fold_is_run_once_on_its_own_streams(tmp_path):
    table, out, only = ward_table(tmp_path, epochs=1, folds=3), tmp_path / "out", ["*/GRU"]
    first = reproduce(table, out, device="cpu", budget="smoke", only=["*/GRU/fold-2"])
    assert set(results(out, by="run")) == {"fold-2-seed-0"}
    assert [cell.fold for cell in first.entry("Deterioration", "GRU").cells] == [2]
    files = {file: file.stat().st_mtime_ns for file in out.rglob("result.json")}
    done = reproduce(table, out, device="cpu", budget="smoke", only=only)
    assert all(file.stat().st_mtime_ns == then for file, then in files.items()), "left as it was"
    found = results(out, by="run")
    assert set(found) == {f"fold-{number}-seed-0" for number in (1, 2, 3)}
    assert [one["cell"]["fold"] for one in found.values()] == [1, 2, 3]
    assert len({one["digest"] for one in found.values()}) == 3
    assert done.entry("Deterioration", "GRU").values() == [one["test"] for one in found.values()]
    assert any("one of 3 folds" in note for note in done.notes)


def test_a_run_says_its_fold_and_its_task_is_found_again(tmp_path):
    table = ward_table(tmp_path, epochs=1, folds=3)
    reproduce(table, tmp_path / "out", device="cpu", only=["*/GRU"])
    cells = cells_of(load_table(table), only=["*/GRU"])
    for cell in cells:
        manifest = tmp_path / "out" / cell.place / "run" / "model" / "manifest.json"
        told = json.loads(manifest.read_text())["extra"]["task"]
        assert (told["arguments"]["fold"], told["arguments"]["folds"]) == (cell.fold, 3)
        task, again = cell_task(cell), load_task(told)
        assert torch.equal(task.splits["test"], again.splits["test"])
        assert again.settings["fold"] == cell.fold
    summary = summarise(load_table(table), cells, tmp_path / "out")
    file = publish(summary, tmp_path / "results", "the command")
    published = json.loads(file.read_text())
    assert published["folds"] == 3
    (place,) = published["places"]
    assert [(run["fold"], run["seed"]) for run in place["runs"]] == [(1, 0), (2, 0), (3, 0)]
    assert place["settings"]["data"]["folds"] == 3
    assert "fold" not in place["settings"]["data"], "the fold is the run's"
    assert [n for n in as_markdown(read_published(file)).splitlines() if "one of 3 folds" in n]
