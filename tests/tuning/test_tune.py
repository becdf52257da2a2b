"""A search finds, remembers and goes on: by one process or several, through failure and kill -9."""

import json
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from onlinecde.artifacts import load
from onlinecde.data import simulate_ward
from onlinecde.training import FitError, FitSettings, fit
from onlinecde.tuning import (
    SearchSpace,
    Span,
    TuneError,
    paper_space,
    read_best,
    read_study,
    study,
    tune,
)
from onlinecde.tuning import search as tuning

SMALL = SearchSpace({"hidden": Span(2, 9), "lr": Span(1e-4, 1e-1, log=True)})


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(40, seed=3).task


def search(task, out, **more):
    how = {"trials": 4, "space": SMALL, "device": "cpu", "epochs": 2} | more
    return tune(task, "gru", out, **how)


@pytest.mark.parametrize(
    ("model", "task", "spans"),
    [
        ("neural-cde", "beijing-pm25", {"hidden": (32, 256), "width": (32, 196), "depth": (1, 4)}),
        ("neural-cde", "mimic-iv/los", {"hidden": (32, 128), "width": (32, 128), "depth": (1, 4)}),
        ("gru", "x", {"hidden": (32, 512), "lr": (1e-4, 1e-1)}),
        ("gru-dt-intensity", "x", {"hidden": (32, 512), "lr": (1e-4, 1e-1)}),
        (
            "ode-rnn",
            "x",
            {"hidden": (32, 256), "width": (32, 196), "depth": (1, 4), "lr": (1e-4, 1e-2)},
        ),
    ],
)
def test_the_spaces_are_the_papers(model, task, spans):
    space = paper_space(model, task)
    assert {name: (span.low, span.high) for name, span in space.spans.items()} == spans
    assert all(span.log == (name == "lr") for name, span in space.spans.items())
    if model == "neural-cde":
        assert space.fixed == {"lr": 0.005}
        assert space.final_lr == (0.1 if task.startswith("mimic") else 1.0)


def test_finds_keeps_the_best_model_and_writes_settings_fit_takes(ward, tmp_path):
    found = search(ward, tmp_path / "s", prune=False)
    assert [trial.state for trial in found.trials] == ["complete"] * 4
    best = max(found.trials, key=lambda trial: trial.value)
    told = read_best(tmp_path / "s" / "best.json")
    assert (told["trial"], told["validation"]) == (best.number, best.value)
    assert told["model_settings"] == {"hidden": best.settings["hidden"]}
    assert told["settings"]["lr"] == best.settings["lr"]
    assert told["searched"] == ["hidden", "lr"]
    model = load(tmp_path / "s" / told["model_folder"])
    assert model.hidden == best.settings["hidden"]
    models = [folder.parent.name for folder in (tmp_path / "s" / "trials").glob("*/model")]
    assert models == [f"{best.number:04d}"]
    assert not list((tmp_path / "s").rglob("checkpoint"))
    again = fit(
        ward,
        told["model"],
        model_settings=told["model_settings"],
        settings=FitSettings(**told["settings"]),
        device="cpu",
    )
    assert again.best["validation_auc"] == pytest.approx(best.value, abs=1e-12)


def test_goes_on_and_does_as_if_it_had_never_stopped(ward, tmp_path, monkeypatch):
    how = {"trials": 7, "epochs": 1, "prune": False}
    whole = search(ward, tmp_path / "whole", **how).trials
    real, calls = tuning.fit, []

    def stopped(*told, **more):
        calls.append(told)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*told, **more)

    monkeypatch.setattr(tuning, "fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        search(ward, tmp_path / "parts", **how)
    states = [trial.state for trial in read_study(tmp_path / "parts").trials]
    assert states == ["complete", "complete", "running"]
    parts = search(ward, tmp_path / "parts", **how).trials
    assert [(t.settings, t.value) for t in parts] == [(t.settings, t.value) for t in whole]
    assert len({json.dumps(t.settings) for t in whole}) == 7
    # All are done: nothing is left to do, and a larger number goes on.
    assert len(search(ward, tmp_path / "parts", **how).trials) == 7
    assert len(search(ward, tmp_path / "parts", **how | {"trials": 8}).trials) == 8


def test_a_trial_that_fails_is_recorded_and_not_tried_again(ward, tmp_path, monkeypatch):
    real = tuning.fit

    def breaks(task, model, out, *, model_settings, settings, **more):
        if settings.lr > 3e-3:
            raise FitError(f"the loss is nan at lr {settings.lr:g}")
        return real(task, model, out, model_settings=model_settings, settings=settings, **more)

    monkeypatch.setattr(tuning, "fit", breaks)
    found = search(ward, tmp_path / "s", trials=10, epochs=1)
    failed = [trial for trial in found.trials if trial.state == "failed"]
    assert failed, "the fault never happened"
    assert all(trial.reason.startswith("FitError: the loss is nan") for trial in failed)
    assert any(trial.state == "complete" for trial in found.trials)
    assert found.best is not None
    assert found.best["settings"]["lr"] <= 3e-3
    settings = [json.dumps(trial.settings) for trial in found.trials]
    assert len(set(settings)) == len(settings)


def test_hopeless_trials_are_pruned_and_not_tried_again(ward, tmp_path, monkeypatch):
    real = tuning.fit

    class Worse:
        """Makes every trial after the fourth look much worse than it is."""

        def __init__(self, callback):
            self.callback = callback

        def batch(self, *told):
            pass

        def note(self, text):
            pass

        def epoch(self, entry, best):
            value = entry["validation_auc"] * (0.01 if self.callback.number >= 4 else 1)
            self.callback.epoch({**entry, "validation_auc": value}, best)

    def disguised(*told, callback, **more):
        return real(*told, callback=Worse(callback), **more)

    monkeypatch.setattr(tuning, "fit", disguised)
    found = search(ward, tmp_path / "s", trials=8, epochs=6)
    states = [trial.state for trial in found.trials]
    assert states == ["complete"] * 4 + ["pruned"] * 4
    assert all(trial.epochs < 6 for trial in found.trials[4:])
    settings = [json.dumps(trial.settings) for trial in found.trials]
    assert len(set(settings)) == len(settings)
    assert found.best is not None
    assert found.best["trial"] < 4


WORKER = """
import pathlib, sys, time, torch
torch.set_num_threads(1)
from onlinecde.data import simulate_ward
from onlinecde.tuning import SearchSpace, Span, tune
pathlib.Path(sys.argv[2]).touch()
while not pathlib.Path(sys.argv[3]).exists():  # both begin together, however slowly one starts
    time.sleep(0.01)
space = SearchSpace({"hidden": Span(2, 9), "lr": Span(1e-4, 1e-1, log=True)})
tune(simulate_ward(60, seed=3).task, "gru", sys.argv[1], trials=4, space=space, device="cpu",
     epochs=30, stop=30, prune=False)
"""


def test_two_workers_share_a_study_and_one_takes_up_what_the_killed_other_left(tmp_path):
    out = tmp_path / "s"
    ready, start = [tmp_path / f"ready-{i}" for i in range(2)], tmp_path / "start"
    crew = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(out), str(mark), str(start)])
        for mark in ready
    ]
    deadline = time.monotonic() + 150
    while not all(mark.exists() for mark in ready):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    start.touch()

    def logged():
        logs = sorted(out.glob("trials/*/log.jsonl"))
        return {log.parent.name: len(log.read_text().splitlines()) for log in logs}

    while sum(0 < many < 25 for many in logged().values()) < 2:
        assert all(process.poll() is None for process in crew), "one ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    crew[0].send_signal(signal.SIGKILL)
    assert crew[0].wait() == -signal.SIGKILL
    assert crew[1].wait(timeout=150) == 0
    found = read_study(out)
    assert [trial.state for trial in found.trials] == ["complete"] * 4
    with sqlite3.connect(out / "study.db") as connection:
        told = connection.execute(
            "select value_json from trial_user_attributes where key = 'attempts'"
        ).fetchall()
    connection.close()
    assert sorted(int(value) for (value,) in told) == [1, 1, 1, 2]
    # Taken up, not begun again: every trial has one whole log.
    assert set(logged().values()) == {30}


def test_a_trial_that_keeps_killing_its_process_is_given_up(ward, tmp_path, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "fit", killed)
    for _ in range(study.ATTEMPTS):
        with pytest.raises(KeyboardInterrupt):
            search(ward, tmp_path / "s", trials=1)
    found = search(ward, tmp_path / "s", trials=1)
    assert [trial.state for trial in found.trials] == ["failed"]
    assert "died 3 times" in found.trials[0].reason
    assert found.best is None


def test_another_search_in_the_same_folder_is_refused(ward, tmp_path):
    search(ward, tmp_path / "s", trials=1)
    with pytest.raises(TuneError, match="another `settings`"):
        search(ward, tmp_path / "s", trials=1, epochs=3)
    with pytest.raises(TuneError, match="holds no search"):
        read_study(tmp_path)
    with pytest.raises(TuneError, match="at least 1"):
        search(ward, tmp_path / "t", trials=0)


def test_without_optuna_it_says_how_to_get_it(ward, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(TuneError, match=r"pip install 'onlinecde\[tune\]'"):
        search(ward, tmp_path / "s")


@pytest.mark.parametrize("text", ["32", "a:b", "9:2", "1:2:lin", "-1:2:log"])
def test_spans_that_make_no_sense_are_refused(text):
    with pytest.raises(TuneError):
        Span.parse(text)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("{", "not JSON"),
        ("[]", "no settings of a search"),
        ('{"format": "onlinecde best settings 1", "task": 3}', "`task` is missing"),
        (
            '{"format": "onlinecde best settings 1", "task": "x", "model": "gru", '
            '"model_settings": {}, "settings": {"lrr": 1}, "searched": []}',
            "did you mean 'lr'",
        ),
    ],
)
def test_settings_that_are_damaged_are_refused(told, message, tmp_path):
    file = tmp_path / "best.json"
    file.write_text(told)
    with pytest.raises(TuneError, match=message):
        read_best(file)
    with pytest.raises(TuneError, match="cannot be read"):
        read_best(tmp_path / "none.json")
