"""Prepared data: stored whole or not at all, and never used for what it was not made of."""

import os
from dataclasses import is_dataclass, replace

import numpy as np
import pytest
import torch

from onlinecde.data import DataError, Task, load, simulate_ward
from onlinecde.data.cache import cached_task, load_task, save_task
from onlinecde.data.sets.physionet_2019 import challenge_utility
from onlinecde.series import SeriesBatch


def assert_same(first: Task, second: Task) -> None:
    for what in ("times", "values", "rows", "static"):
        ours, theirs = getattr(first.series, what), getattr(second.series, what)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(first.labels, second.labels, rtol=0, atol=0, equal_nan=True)
    for what in ("streams", "channels", "features"):
        assert getattr(first.series, what) == getattr(second.series, what)
    for what in (
        "name",
        "kind",
        "per",
        "subjects",
        "metric",
        "classes",
        "time_unit",
        "flow",
        "notes",
        "label_lead",
    ):
        assert getattr(first, what) == getattr(second, what)
    for what in ("utility", "known_risk", "truth", "queries"):
        assert_same_part(getattr(first, what), getattr(second, what))
    assert list(first.splits) == list(second.splits)
    assert all(torch.equal(first.splits[n], second.splits[n]) for n in first.splits)


def assert_same_part(ours, theirs) -> None:
    assert type(ours) is type(theirs)
    if is_dataclass(ours):
        for name, table in vars(ours).items():
            assert_same_part(table, getattr(theirs, name))
    else:
        np.testing.assert_array_equal(ours, theirs)
        assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)


def test_a_task_comes_back_bit_for_bit(tmp_path):
    rows = simulate_ward(30, seed=3).task
    worth = challenge_utility(rows.labels.numpy(), rows.series.times.numpy())
    rows = replace(rows, utility=worth)
    series = SeriesBatch.from_arrays([[0.0]] * 9, [[[1.0]]] * 9, streams=list("abcdefghi"))
    classes = Task.build(
        "c",
        series,
        [0, 1, 2] * 3,
        kind="multiclass",
        classes="xyz",
        flow=[("stays", 9)],
        notes=["a"],
    )
    clock = rows.asked("every=2h")
    for number, task in enumerate((rows, classes, clock)):
        save_task(task, tmp_path / f"{number}.npz")
        assert_same(load_task(tmp_path / f"{number}.npz"), task)


@pytest.fixture
def counted(tmp_path):
    """A source, and a loader through the cache that counts how often it had to prepare."""
    source = tmp_path / "source.txt"
    source.write_text("one")
    task = simulate_ward(20).task
    calls = []

    def through(**settings):
        def prepare():
            calls.append(settings)
            return task

        return cached_task("toy", [source], settings, prepare, tmp_path / "cache")

    return source, through, calls


def test_the_second_call_does_not_prepare_again(counted):
    _, through, calls = counted
    assert_same(through(a=1), through(a=1))
    assert len(calls) == 1


def test_a_changed_setting_or_source_is_noticed(counted):
    source, through, calls = counted
    through(a=1)
    through(a=2)
    assert len(calls) == 2
    source.write_text("other")
    through(a=1)
    assert len(calls) == 3
    state = source.stat()
    source.write_text("OTHER")
    os.utime(source, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    through(a=1)
    assert len(calls) == 4


def test_a_file_added_to_a_folder_is_noticed(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    task, calls = simulate_ward(20).task, []

    def through():
        return cached_task("toy", [folder], {}, lambda: calls.append(1) or task, tmp_path / "cache")

    through()
    through()
    assert len(calls) == 1
    (folder / "more.csv").write_text("x")
    through()
    assert len(calls) == 2


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_half_written_cache_is_noticed_and_mended(keep, counted, tmp_path):
    _, through, calls = counted
    task = through(a=1)
    (file,) = (tmp_path / "cache").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    with pytest.raises(DataError, match="damaged"):
        load_task(file)
    assert_same(through(a=1), task)
    assert len(calls) == 2
    assert_same(through(a=1), task)
    assert len(calls) == 2


def test_a_flipped_byte_is_noticed(counted, tmp_path):
    _, through, calls = counted
    through(a=1)
    (file,) = (tmp_path / "cache").iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    through(a=1)
    assert len(calls) == 2


def test_a_cache_file_under_the_wrong_name_is_not_used(counted, tmp_path):
    _, through, calls = counted
    through(a=1)
    (first,) = (tmp_path / "cache").iterdir()
    through(a=2)
    (second,) = set((tmp_path / "cache").iterdir()) - {first}
    second.write_bytes(first.read_bytes())
    through(a=2)
    assert len(calls) == 3


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    task = simulate_ward(20).task
    happened = []

    def broken(handle):
        happened.append(handle)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space"):
        save_task(task, tmp_path / "cache" / "t.npz")
    assert happened
    assert list((tmp_path / "cache").iterdir()) == []
    again = cached_task("toy", [], {}, lambda: task, tmp_path / "cache")
    assert again is task
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_pickle_is_ever_read(tmp_path):
    import numpy as np

    np.savez(tmp_path / "evil.npz", facts=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="damaged"):
        load_task(tmp_path / "evil.npz")


def test_loading_writes_only_into_the_cache_folder(packed, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    packed("physionet-2012", "zip").rename(data / "physionet2012_set-a.zip")
    before = sorted(tmp_path.rglob("*"))
    first = load("physionet-2012", data_dir=data, cache_dir=tmp_path / "cache")
    new = set(tmp_path.rglob("*")) - set(before)
    assert {path.parent for path in new} == {tmp_path, tmp_path / "cache"}
    assert_same(load("physionet-2012", data_dir=data, cache_dir=tmp_path / "cache"), first)
