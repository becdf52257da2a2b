"""Runs that 0.1.0 left behind: finished ones are loaded and judged, interrupted ones go on to the same end."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from golden_answers import GOLDEN, HERE, agree, json_agrees, read_weights, same_machine

from onlinecde.cli import main
from onlinecde.experiments import cells_of, load_table
from onlinecde.experiments.running import read_result
from onlinecde.training import FitSettings, fit, read_log
from onlinecde.training.callbacks import Callback
from onlinecde.training.task_source import content_of, load_task
from onlinecde.tuning import SearchSpace, Span, read_study, tune

FINISHED = ("own-tables", "own-wide", "ward-gru-d", "ward-neural-cde")
OF_THE_TASK = ("name", "channels", "static", "outputs", "kind")


@pytest.fixture
def runs(tmp_path):
    """A copy of all runs and their tables, which say that the tables are here."""
    home = tmp_path / "runs"
    shutil.copytree(GOLDEN / "runs", home)
    for file in home.rglob("*.json"):
        file.write_text(file.read_text().replace(HERE, str(home / "tables")))
    return home


@pytest.fixture(autouse=True)
def one_thread():
    """As they were made."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def about(run: Path):
    """What a run says of itself, as arguments of `fit`: every setting is named, so that none is a default."""
    told = json.loads((run / "run.json").read_text())
    model = {k: v for k, v in told["model"].items() if k not in OF_THE_TASK}
    source = {k: v for k, v in told["task"].items() if k != "content"}
    task = load_task(source)
    if content_of(task) != told["task"]["content"]:
        # The ward's risks go through exp and log, which other instructions round another way.
        assert source["name"] == "simulated-ward"
        assert not same_machine()
        pytest.skip("the simulated ward has other last bits on this kind of machine")
    arguments = {
        "model": told["model"]["name"],
        "model_settings": model,
        "settings": FitSettings(**told["settings"]),
        "source": source,
        "device": "cpu",
    }
    return task, arguments


class NotTrained(Callback):
    """Fails where a run is trained that need not be."""

    def batch(self, *_):
        raise AssertionError("it trains again")

    epoch = batch


def log_of(run: Path):
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in read_log(run)]


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_loaded_and_not_trained_again(name, runs):
    task, arguments = about(runs / name)
    done = fit(task, out=runs / name, callback=NotTrained(), **arguments)
    assert done.history == tuple(read_log(GOLDEN / "runs" / name))
    weights = read_weights(GOLDEN / "runs" / name / "model" / "model.safetensors")
    for key, tensor in done.model.state_dict().items():
        agree(tensor, weights[key], key, exact=True)


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_judged_as_it_was(name, runs, capsys):
    about(runs / name)  # which skips where the data cannot be the same
    file = runs / "judged.json"
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(runs / name), "--bootstrap", "40", "--json", str(file)])
    assert not ended.value.code, capsys.readouterr()
    found = json.loads(file.read_text())["evaluation"]
    wanted = json.loads((GOLDEN / "runs" / f"{name}.json").read_text())
    for part in ("metric", "metrics", "streams", "subjects", "labels_given", "confusion"):
        json_agrees(found[part], wanted[part], within=0.0 if same_machine() else 1e-4, where=part)


def test_a_run_killed_by_0_1_goes_on_and_ends_with_the_same_weights(runs):
    run = runs / "interrupted"
    assert (run / "checkpoint").exists()
    assert not (run / "model").exists()
    task, arguments = about(run)
    notes = []

    class Heard(Callback):
        def note(self, text):
            notes.append(text)

    done = fit(task, out=run, callback=Heard(), **arguments)
    assert any("at epoch 3, batch" in note for note in notes), notes
    weights = read_weights(GOLDEN / "runs" / "interrupted.safetensors")
    assert done.model.state_dict().keys() == weights.keys()
    for key, tensor in done.model.state_dict().items():
        # Training carries rounding on: what is left of it is a hundred times that of one forward pass.
        agree(tensor, weights[key], key, exact=same_machine(), within=1e-3)
    kept = (GOLDEN / "runs" / "interrupted.log.jsonl").read_text().splitlines()
    wanted = [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in kept]
    json_agrees(log_of(run), wanted, within=0.0 if same_machine() else 1e-3)


def test_a_search_killed_by_0_1_is_taken_up(runs):
    home = runs / "search"
    assert [one.state for one in read_study(home).trials] == ["complete", "complete", "running"]
    task, arguments = about(home / "trials" / "0002")
    settings = arguments["settings"].changed({"lr": 1e-3})
    space = SearchSpace({"hidden": Span(2, 5), "lr": Span(1e-3, 1e-1, log=True)})
    again = {"settings": settings, "source": arguments["source"], "device": "cpu"}
    found = tune(task, "gru", home, trials=4, space=space, **again)
    wanted = json.loads((GOLDEN / "runs" / "search.json").read_text())
    within = 0.0 if same_machine() else 1e-3
    for one, kept in zip(found.trials, wanted, strict=False):
        json_agrees(
            {"state": one.state, "settings": one.settings, "value": one.value}, kept, within=within
        )
    assert [one.state for one in found.trials[:3]] == ["complete"] * 3
    assert len(found.trials) == 4


def test_a_finished_cell_is_read_and_not_run_again(runs):
    (file,) = (runs / "cells").rglob("result.json")
    kept = json.loads(file.read_text())
    (cell,) = cells_of(load_table("simulated-ward"), budget="smoke", only=["*/GRU"])
    # With the settings it had: what a protocol says today is another matter.
    told = {part: dict(kept["settings"][part]) for part in ("data", "model", "fit")}
    del told["data"]["name"], told["model"]["name"]
    same = replace(cell, **told)
    assert runs / "cells" / "clean-smoke" / same.place.relative_to("clean-smoke") == file.parent
    assert read_result(file.parent, same) == kept
