"""A table is run where it is missing, kept where it is done, and survives failure and kill -9."""

import signal
import subprocess
import sys
import time

import pytest
import torch
from made_tables import numbers, results, ward_table

from onlinecde.data import simulate_ward
from onlinecde.experiments import ExperimentError, cells_of, load_table, reproduce, running
from onlinecde.experiments.grid import forget_failures
from onlinecde.experiments.samples import sample_task
from onlinecde.experiments.sources import MissingDataError, cell_task


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ONLINECDE_CACHE", str(tmp_path / "cache"))


def test_runs_what_is_missing_and_leaves_what_is_done(tmp_path):
    table = ward_table(tmp_path)
    first = reproduce(table, tmp_path / "a", device="cpu", only=["*/GRU"])
    assert first.entry("Deterioration", "GRU-D").state == "not run"
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "a").rglob("result.json")}
    assert len(files) == 1
    whole = reproduce(table, tmp_path / "a", device="cpu")
    assert all(file.stat().st_mtime_ns == then for file, then in files.items())
    assert {entry.state for entry in whole.entries.values()} == {""}
    found = results(tmp_path / "a")
    assert set(found) == {"gru", "online-ncde", "gru-d"}
    told = found["online-ncde"]
    # 14 rows or more, two legs a row, four stages a leg, in training and validation.
    assert told["nfe_per_epoch"] > 100
    assert found["gru"]["nfe_per_epoch"] == 0
    assert told["settings"]["fit"]["epochs"] == 2
    assert {"commit", "versions", "hardware", "peak_memory_bytes", "seconds_per_epoch"} <= set(told)
    assert len(told["log"]["train_loss"]) == told["epochs"] == 2
    assert not list((tmp_path / "a").rglob("checkpoint"))


def test_the_same_seed_gives_the_same_numbers_and_another_gives_others(tmp_path):
    table = ward_table(tmp_path)
    for name, seeds in (("a", [7]), ("b", [7]), ("c", [8])):
        reproduce(table, tmp_path / name, seeds=seeds, only=["*/Online NCDE"], device="cpu")
    a, b, c = (results(tmp_path / name)["online-ncde"] for name in "abc")
    assert numbers(a) == numbers(b)
    assert numbers(a) != numbers(c)


def test_a_cell_with_other_settings_is_run_anew(tmp_path):
    reproduce(ward_table(tmp_path, epochs=1), tmp_path / "a", only=["*/GRU"], device="cpu")
    assert results(tmp_path / "a")["gru"]["epochs"] == 1
    reproduce(ward_table(tmp_path, epochs=2), tmp_path / "a", only=["*/GRU"], device="cpu")
    assert results(tmp_path / "a")["gru"]["epochs"] == 2


def test_a_cell_that_fails_is_written_down_and_the_others_run(tmp_path, monkeypatch):
    table, real = ward_table(tmp_path), running.slipped_model

    def breaks(task, name, settings, slips):
        if name == "neural-cde":
            raise RuntimeError("out of memory, for instance")
        return real(task, name, settings, slips)

    monkeypatch.setattr(running, "slipped_model", breaks)
    done = reproduce(table, tmp_path / "a", device="cpu")
    assert done.entry("Deterioration", "Online NCDE").state == "failed"
    assert done.entry("Deterioration", "GRU-D").state == ""
    assert results(tmp_path / "a")["online-ncde"]["reason"].startswith("RuntimeError: out of mem")
    assert any("out of memory" in note for note in done.notes)
    monkeypatch.setattr(running, "slipped_model", real)
    again = reproduce(table, tmp_path / "a", device="cpu")
    assert again.entry("Deterioration", "Online NCDE").state == "failed"
    cells = cells_of(load_table(table))
    forget_failures(cells, tmp_path / "a")
    assert set(results(tmp_path / "a")) == {"gru", "gru-d"}, "only what failed is forgotten"
    monkeypatch.setattr(running, "slipped_model", breaks)
    reproduce(table, tmp_path / "a", device="cpu")
    monkeypatch.setattr(running, "slipped_model", real)
    mended = reproduce(table, tmp_path / "a", device="cpu", retry=True)
    assert mended.entry("Deterioration", "Online NCDE").state == ""


RUN = """
import sys, torch
torch.set_num_threads(1)
from onlinecde.experiments import reproduce
reproduce(sys.argv[1], sys.argv[2], device="cpu")
"""


def test_killed_in_the_middle_it_goes_on_to_the_same_table(tmp_path):
    table, epochs = ward_table(tmp_path, epochs=40), 40
    process = subprocess.Popen([sys.executable, "-c", RUN, table, str(tmp_path / "killed")])
    middle = tmp_path / "killed" / "clean-full" / "ward" / "deterioration" / "online-ncde"
    log = middle / "seed-0" / "run" / "log.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and len(log.read_text().splitlines()) >= 3):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert set(results(tmp_path / "killed")) == {"gru"}, "the kill came at another place"
    assert (middle / "seed-0" / "run" / "checkpoint").exists()
    assert len(log.read_text().splitlines()) < epochs
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        resumed = reproduce(table, tmp_path / "killed", device="cpu")
        whole = reproduce(table, tmp_path / "whole", device="cpu")
    finally:
        torch.set_num_threads(threads)
    mine, other = results(tmp_path / "killed"), results(tmp_path / "whole")
    assert {name: numbers(r) for name, r in mine.items()} == {
        name: numbers(r) for name, r in other.items()
    }
    for column in ("GRU", "Online NCDE", "GRU-D"):
        same = [s.entry("Deterioration", column).mean() for s in (resumed, whole)]
        assert same[0] == same[1]


def test_killed_after_training_it_reads_the_model_and_finishes(tmp_path, monkeypatch):
    table = ward_table(tmp_path)
    whole = reproduce(table, tmp_path / "whole", only=["*/Online NCDE"], device="cpu")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_measured", killed)
    with pytest.raises(KeyboardInterrupt):
        reproduce(table, tmp_path / "a", only=["*/Online NCDE"], device="cpu")
    assert not results(tmp_path / "a")
    assert list((tmp_path / "a").rglob("manifest.json"))
    monkeypatch.undo()

    def no_training(*_, **__):
        raise AssertionError("it was trained already")

    monkeypatch.setattr(running, "fit", no_training)
    done = reproduce(table, tmp_path / "a", only=["*/Online NCDE"], device="cpu")
    place = "Deterioration", "Online NCDE"
    assert done.entry(*place).mean() == whole.entry(*place).mean()


def test_a_cell_another_process_is_at_is_left_alone(tmp_path):
    from onlinecde.files import claim

    table = ward_table(tmp_path)
    cell = cells_of(load_table(table), only=["*/GRU-D"])[0]
    held = claim(tmp_path / "a" / cell.place / ".claim")
    assert held is not None
    done = reproduce(table, tmp_path / "a", device="cpu")
    assert done.entry("Deterioration", "GRU-D").state == "not run"
    assert done.entry("Deterioration", "GRU").state == ""
    held.release()
    assert reproduce(table, tmp_path / "a", device="cpu").entry("Deterioration", "GRU-D").mean()


def test_data_that_is_not_there_is_said_and_nothing_is_written_down(tmp_path):
    done = reproduce("mimic-iv", tmp_path / "a", data_dir=tmp_path / "none", budget="smoke")
    assert {entry.state for entry in done.entries.values()} == {"no data"}
    assert not results(tmp_path / "a")
    (note,) = [note for note in done.notes if note.startswith("No data")]
    assert "PhysioNet account" in note
    assert "--demo" in note
    (tmp_path / "data" / "mimic-iv-demo").mkdir(parents=True)
    cell = cells_of(load_table("mimic-iv"), budget="smoke")[0]
    with pytest.raises(MissingDataError, match=r"only the demo .* add --demo"):
        cell_task(cell, tmp_path / "data")


def test_what_a_command_makes_is_refused(tmp_path):
    with pytest.raises(ExperimentError, match="onlinecde properties"):
        reproduce("properties", tmp_path)


def test_a_small_sample_holds_every_class_and_the_task_s_splits():
    task = simulate_ward(300, seed=2).task
    small = sample_task(task, 40, 12)
    assert 38 <= len(small.series) <= 42
    assert int(small.series.rows.max()) <= 12
    for split in ("train", "validation", "test"):
        _, labels = small.split(split)
        assert bool((labels == 1).any())
        assert bool((labels == 0).any())
        whole = {task.series.streams[i] for i in task.splits[split].tolist()}
        assert {small.series.streams[i] for i in small.splits[split].tolist()} <= whole
    assert small.known_risk.risk.shape == small.labels.shape
    assert torch.equal(small.known_risk.risk.isnan(), small.labels.isnan())
    assert len(small.known_risk.event_times) == len(small.series)
    again = sample_task(task, 40, 12)
    assert torch.equal(small.labels.nan_to_num(9), again.labels.nan_to_num(9))
    assert sample_task(task, 1000, None) is task
