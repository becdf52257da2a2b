"""Killed with -9 at any moment and started again, a run ends as if it had never been stopped."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from onlinecde.data import simulate_ward
from onlinecde.training import FitError, fit
from onlinecde.training.journal import read_checkpoint, write_checkpoint

PROGRAM = """
import sys, time, torch
torch.set_num_threads(1)
import onlinecde.training.fitting as home
from onlinecde.data import simulate_ward
home.SAVE_SECONDS = 0.0
class Slow:
    def batch(self, *told): time.sleep(0.004); print("batch", flush=True)
    def epoch(self, *told): pass
    def note(self, text): print(text, flush=True)
home.fit(simulate_ward(60, seed=1, hours=12).task, out=sys.argv[1], epochs=8, batch_size=8, average=0.9,
         horizons=(4.0, float("inf")),
         model_settings={"hidden": 6, "width": 6, "channel_dropout": 0.2}, callback=Slow())
print("done", flush=True)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True
    )


def test_killed_again_and_again_it_ends_with_the_same_weights(tmp_path):
    calm = start(tmp_path / "calm")
    chance = random.Random(0)
    kills, resumed = 0, 0
    for _ in range(40):
        process = start(tmp_path / "wild")
        assert process.stdout is not None
        said = []
        # Anywhere in a batch, a checkpoint or the end of an epoch.
        for _ in range(chance.randint(2, 16)):
            said.append(process.stdout.readline().strip())
        time.sleep(chance.random() * 0.02)
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        assert process.wait() == -signal.SIGKILL or "done" in [*said, *rest.split()]
        resumed += any(line.startswith("going on in") for line in said)
        if "done" in said or "done" in rest:
            break
        kills += 1
        if kills == 6:  # then let it end
            last = start(tmp_path / "wild")
            told, _ = last.communicate(timeout=120)
            assert "done" in told
            resumed += "going on in" in told
            break
    calm.communicate(timeout=120)
    assert kills >= 3
    assert resumed >= 3
    ours = (tmp_path / "wild/model/model.safetensors").read_bytes()
    assert ours == (tmp_path / "calm/model/model.safetensors").read_bytes()

    def log(name):
        import json

        lines = (tmp_path / name / "log.jsonl").read_text().splitlines()
        return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]

    assert log("wild") == log("calm")


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    first = start(tmp_path)
    try:
        assert first.stdout is not None
        first.stdout.readline()
        with pytest.raises(FitError, match="another process is training"):
            fit(simulate_ward(60, seed=1, hours=12).task, out=tmp_path)
    finally:
        first.kill()
        first.communicate()


def test_a_damaged_checkpoint_is_refused_with_a_remedy(tmp_path):
    task = simulate_ward(40, seed=1, hours=12).task
    fit(task, "gru", tmp_path, model_settings={"hidden": 4}, epochs=1)
    file = tmp_path / "checkpoint"
    whole = file.read_bytes()
    for damage in (
        whole[:40],
        b"",
        random.randbytes(200),
        whole.replace(b"training 1", b"training 9"),
    ):
        file.write_bytes(damage)
        with pytest.raises(FitError, match="delete it to start anew"):
            fit(task, "gru", tmp_path, model_settings={"hidden": 4}, epochs=1)


def test_a_checkpoint_keeps_numbers_exactly(tmp_path):
    held = {"a": torch.rand(3, dtype=torch.float64), "b": torch.tensor([1 << 40])}
    facts = {"x": 0.1 + 0.2, "infinite": float("inf"), "list": [1, "two", None]}
    write_checkpoint(tmp_path / "c", held, facts)
    tensors, told = read_checkpoint(tmp_path / "c") or ({}, {})
    assert told == facts
    assert all(torch.equal(tensors[name], held[name]) for name in held)
    assert read_checkpoint(tmp_path / "none") is None
