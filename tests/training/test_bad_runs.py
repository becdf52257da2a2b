"""What cannot be trained on is refused before training; a full disk leaves nothing half-written."""

import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

import onlinecde as oc
from onlinecde.data import Task
from onlinecde.training import FitError, fit


def task_of(values, labels):
    times = [np.arange(3.0)] * len(values)
    return Task.build("made", oc.SeriesBatch.from_arrays(times, values), labels, kind="binary")


def noted(task):
    notes = []

    class Notes:
        def batch(self, *told):
            pass

        epoch = batch

        def note(self, text):
            notes.append(text)

    fit(task, "gru", epochs=1, model_settings={"hidden": 4}, callback=Notes())
    return notes


def test_one_class_alone_is_refused():
    values = np.random.default_rng(0).normal(size=(20, 3, 2))
    with pytest.raises(FitError, match=r"one class alone \(1\).*another class"):
        fit(task_of(list(values), np.ones(20)), epochs=1)


def test_series_without_a_value_are_refused_and_an_empty_channel_is_named():
    values = np.random.default_rng(0).normal(size=(20, 3, 2))
    labels = np.arange(20) % 2
    with pytest.raises(FitError, match="no channel of 'made' is ever observed"):
        fit(task_of(list(np.full_like(values, np.nan)), labels), epochs=1)
    values[:, :, 1] = np.nan
    assert any(
        "never observed" in text and "1" in text for text in noted(task_of(list(values), labels))
    )


PROGRAM = """
import sys
from onlinecde.cli.app import main
main(["fit", "--task", "simulated-ward", "--task-setting", "streams=60", "--out", sys.argv[1], "--epochs", "3",
      "--model", "gru", "--hidden", "32"])
"""


def run(folder, cache, limit=None):
    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "ONLINECDE_CACHE": str(cache), "HOME": str(cache)},
        preexec_fn=small_files if limit else None,
        timeout=120,
        check=False,
    )


def test_no_room_for_a_checkpoint_is_an_error_and_the_run_goes_on_once_there_is(tmp_path):
    cache = tmp_path / "cache"
    assert run(tmp_path / "first", cache).returncode == 0
    full = run(tmp_path / "run", cache, limit=20_000)
    assert full.returncode == 2, full.stderr
    assert "cannot be written" in full.stderr
    assert "make room" in full.stderr
    assert "Traceback" not in full.stderr
    left = {p.name for p in (tmp_path / "run").iterdir()}
    assert "model" not in left
    assert not [name for name in left if name.endswith(".partial")]
    again = run(tmp_path / "run", cache)
    assert again.returncode == 0, again.stderr
    weights = "model/model.safetensors"
    assert (tmp_path / "run" / weights).read_bytes() == (tmp_path / "first" / weights).read_bytes()
