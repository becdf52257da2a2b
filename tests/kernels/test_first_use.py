"""Who compiles on the first use of a machine: each group once, whoever comes second waits for it."""

import logging
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("numba")

from typer.testing import CliRunner

from onlinecde.cli.app import app
from onlinecde.kernels.cpu import first_use

SLOW = """
import sys, time, pathlib, numpy as np
from onlinecde.kernels.cpu import first_use
folder = pathlib.Path(sys.argv[1])
first_use._mark = lambda group, dtype: folder / f"{group}-{dtype}.compiled"
def compile_it(dtype):
    with (folder / "times").open("a") as file:
        file.write("x")
    time.sleep(1)
first_use.GROUPS = {"step": compile_it, "forward": compile_it}
first_use._start_helper = lambda dtype: None
first_use.ready("step", np.dtype("float32"))
assert (folder / "step-float32.compiled").exists()
"""


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A machine on which nothing is compiled, with groups that only say that they were."""
    done: list[str] = []
    monkeypatch.setattr(first_use, "_compiled", set())
    monkeypatch.setattr(first_use, "_alone", True)
    monkeypatch.setattr(first_use, "_mark", lambda group, dtype: tmp_path / f"{group}-{dtype}.x")
    groups = {name: lambda dtype, name=name: done.append(name) for name in first_use.GROUPS}
    monkeypatch.setattr(first_use, "GROUPS", groups)
    return done


def test_a_group_is_compiled_once_and_said_once(fresh, monkeypatch, caplog):
    helpers = []
    monkeypatch.setattr(first_use, "_start_helper", helpers.append)
    with caplog.at_level(logging.WARNING):
        for group in ("step", "forward", "step", "backward"):
            first_use.ready(group, np.dtype("float32"))
    assert fresh == ["step", "forward", "backward"]
    assert helpers == ["float32"]
    assert [record.getMessage()[:20] for record in caplog.records] == ["compiling the solver"]


def test_what_is_kept_is_not_compiled_again(fresh, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(first_use, "_start_helper", lambda dtype: pytest.fail("a helper"))
    (tmp_path / "step-float32.x").touch()
    first_use.ready("step", np.dtype("float32"))
    assert fresh == []
    assert not caplog.records


def test_processes_wait_for_whoever_compiles(tmp_path):
    command = [sys.executable, "-c", SLOW, str(tmp_path)]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [one.wait(timeout=60) for one in both] == [0, 0]
    assert (tmp_path / "times").read_text() == "x"


def test_every_group_is_marked_once_it_is_ready():
    """The real groups, compiled here or found: both precisions have marks of their own."""
    groups = {dtype: first_use._mark("backward", dtype) for dtype in ("float32", "float64")}
    assert len(set(groups.values())) == 2
    before = time.monotonic()
    for dtype in groups:
        for group in first_use.GROUPS:
            first_use.ready(group, np.dtype(dtype))
    for mark in groups.values():
        assert mark is None or mark.exists(), time.monotonic() - before


def test_warmup_says_what_is_ready(fresh, monkeypatch):
    monkeypatch.setattr(first_use, "_start_helper", lambda dtype: None)
    result = CliRunner().invoke(app, ["warmup", "--float64"])
    assert result.exit_code == 0
    assert fresh == list(first_use.GROUPS) * 2
    assert "float64 backward: ready" in result.output
