"""`reproduce --ray` and `tune --ray`: cells and trials on workers, through the death of any of them."""

import json
import os
import random
import signal
import subprocess
import sys
import threading

import pytest
import torch
from ray_here import holder, kill, need_ray, two_processors, until

from onlinecde.artifacts import load
from onlinecde.cli.app import main
from onlinecde.data import simulate_ward
from onlinecde.experiments import reproduce
from onlinecde.training import read_log
from onlinecde.training.callbacks import Callback
from onlinecde.tuning import SearchSpace, Span, read_best, read_study, tune

need_ray()
cluster = pytest.fixture(scope="module", autouse=True)(two_processors)

TABLE = """
title = "A small ward"
about = "Two columns and two seeds."
down = "data set"
across = "model"
seeds = [0, 1]

[[columns]]
name = "GRU"
model = "gru"
settings = { hidden = 6 }
fit = { epochs = 3 }

[[columns]]
name = "Online NCDE"
model = "neural-cde"
settings = { control = "rectilinear", counts = true, hidden = 6, width = 6, depth = 1 }
fit = { epochs = 40, stop = 40, batch_size = 8 }

[[rows]]
name = "Deterioration"
data = "simulated-ward"
metric = "auc"
data_settings = { streams = 60 }
"""


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ONLINECDE_CACHE", str(tmp_path / "cache"))


class Notes(Callback):
    def __init__(self):
        self.notes, self.ended = [], []

    def note(self, text):
        self.notes.append(text)

    def end(self, cell, result):
        self.ended.append((cell.column.name, cell.seed, result["status"]))


def numbers(home):
    """Of every cell, all that must not depend on who ran it."""
    found = {}
    for file in sorted(home.rglob("result.json")):
        told = json.loads(file.read_text())
        losses = told["log"]["train_loss"], told["log"]["validation_loss"]
        found[str(file.relative_to(home))] = told["test"], told["best_epoch"], *losses
    return found


def kill_a_cell(home, killed):
    """Kill the worker of a cell of many epochs when three are done."""
    cell = home / f"clean-full/ward/deterioration/online-ncde/seed-{random.choice([0, 1])}"
    until(lambda: len(read_log(cell / "run")) >= 3)
    pid = holder(cell / ".claim", "_work")
    assert pid is not None
    kill(pid)
    killed.append((len(read_log(cell / "run")), (cell / "result.json").exists()))


def test_a_killed_worker_leaves_the_table_as_it_would_have_been(tmp_path, one_thread):
    from onlinecde.scale.ray import reproduce as reproduce_on_ray

    (tmp_path / "ward.toml").write_text(TABLE)
    table, killed, callback = str(tmp_path / "ward.toml"), [], Notes()
    killer = threading.Thread(target=kill_a_cell, args=(tmp_path / "ray", killed))
    killer.start()
    ours = reproduce_on_ray(table, tmp_path / "ray", device="cpu", callback=callback)
    killer.join()
    ((epochs, done),) = killed
    assert 3 <= epochs < 40, "no cell was in the middle"
    assert not done
    (note,) = [note for note in callback.notes if "its worker died; it is run again" in note]
    assert note.startswith("Deterioration/Online NCDE, seed ")
    assert sorted(callback.ended) == [
        (name, seed, "done") for name in ("GRU", "Online NCDE") for seed in (0, 1)
    ]
    calm = reproduce(table, tmp_path / "calm", device="cpu")
    assert len(numbers(tmp_path / "ray")) == 4
    assert numbers(tmp_path / "ray") == numbers(tmp_path / "calm")
    for column in ("GRU", "Online NCDE"):
        entries = [done.entry("Deterioration", column) for done in (ours, calm)]
        assert entries[0].mean() == entries[1].mean()
    # All is done: nobody is asked again, and a failure would be written down as by one process.
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "ray").rglob("result.json")}
    reproduce_on_ray(table, tmp_path / "ray", device="cpu", address="local")
    assert all(file.stat().st_mtime_ns == then for file, then in files.items())


def test_a_cell_that_fails_is_written_down_in_plain_words(tmp_path, capsys):
    (tmp_path / "ward.toml").write_text(TABLE.replace("hidden = 6 }", "hidden = -6 }"))
    with pytest.raises(SystemExit) as ended:
        words = ["--out", str(tmp_path / "a"), "--only", "*/GRU", "--device", "cpu"]
        main(["reproduce", "--ray", str(tmp_path / "ward.toml"), *words])
    assert ended.value.code == 1
    (file,) = (tmp_path / "a").rglob("seed-0/result.json")
    told = json.loads(file.read_text())
    assert told["status"] == "failed"
    assert "hidden is -6" in told["reason"]
    said = "".join(capsys.readouterr())
    assert "hidden is -6" in " ".join(said.split())
    assert "Traceback" not in said
    assert "ray::" not in said


SPACE = SearchSpace({"hidden": Span(2, 9), "lr": Span(1e-5, 1e-1, log=True)})


def told(found):
    """All a study knows of its trials, but for the time they took."""
    return [(t.number, t.state, t.settings, t.value, t.epochs) for t in found.trials]


def test_a_search_on_workers_keeps_the_books_of_one_process(tmp_path, one_thread):
    from onlinecde.scale.ray import tune as tune_on_ray

    task, seed = simulate_ward(50, seed=4).task, 7
    how = {"trials": 8, "space": SPACE, "device": "cpu", "epochs": 6, "seed": seed}
    alone = tune(task, "gru", tmp_path / "alone", **how)
    # One at a time: what is tried next depends on what came of all before it.
    spread = tune_on_ray(task, "gru", tmp_path / "ray", workers=1, **how)
    assert told(spread) == told(alone)
    assert any(trial.state == "pruned" for trial in alone.trials), "none was pruned: another seed"
    assert read_best(tmp_path / "ray/best.json") == read_best(tmp_path / "alone/best.json")
    best = read_best(tmp_path / "ray/best.json")
    models = [folder.parent.name for folder in (tmp_path / "ray/trials").glob("*/model")]
    assert models == [f"{best['trial']:04d}"]
    assert not list((tmp_path / "ray").rglob("checkpoint"))
    assert load(tmp_path / "ray" / best["model_folder"]).hidden == best["model_settings"]["hidden"]


def test_trials_that_fail_say_why_on_the_command_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        words = ["--task", "simulated-ward", "--task-setting", "streams=40", "--device", "cpu"]
        words += ["--out", str(tmp_path), "--model", "gru", "--span", "hidden=2:9"]
        words += ["--model-setting", "channels=3", "--trials", "2"]
        main(["tune", *words, "--ray", "--workers", "2"])
    assert ended.value.code == 1
    said = "".join(capsys.readouterr())
    assert "channels is 3, but the task" in " ".join(said.split())
    assert "Traceback" not in said


PROGRAM = """
import sys
from onlinecde.data import simulate_ward
from onlinecde.scale.ray import tune
from onlinecde.tuning import SearchSpace, Span

if __name__ == "__main__":
    space = SearchSpace({"hidden": Span(2, 9), "lr": Span(1e-5, 1e-1, log=True)})
    tune(simulate_ward(50, seed=4).task, "gru", sys.argv[1], trials=3, space=space, device="cpu",
         epochs=40, stop=40, batch_size=4, prune=False, workers=2, address="local")
"""


def test_a_search_goes_on_when_its_own_process_was_killed(tmp_path, one_thread):
    out = tmp_path / "ray"
    command = [sys.executable, "-c", PROGRAM, str(out)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: len(read_log(out / "trials/0000")) >= 2 or first.poll() is not None)
    assert first.poll() is None, first.communicate()[0]
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    before = read_study(out).trials
    assert any(trial.state == "running" for trial in before), "the kill hit no trial"
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    how = {"space": SPACE, "device": "cpu", "epochs": 40, "stop": 40, "batch_size": 4}
    task = simulate_ward(50, seed=4).task
    calm = tune(task, "gru", tmp_path / "calm", trials=3, prune=False, **how)
    assert told(read_study(out)) == told(calm)
