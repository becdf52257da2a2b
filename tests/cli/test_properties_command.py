"""`onlinecde properties` from end to end."""

import json

import pytest
import torch
from typer.testing import CliRunner

from onlinecde import audit, controls
from onlinecde.cli.app import app, main


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_table(monkeypatch):
    """Two controls measured briefly, in place of the whole table."""

    def measured(build):
        batch = audit.trial_batch(rows=5)
        online = audit.path_measurability(build, batch, cuts_per_stream=2)
        return audit.PathProperties(
            online,
            online,
            audit.path_smoothness(build, batch),
            audit.path_boundedness(build, rows=(4, 8, 16)),
            audit.path_uniqueness(build, pairs_of_a_kind=1),
        )

    rows = (
        audit.PropertiesRow("linear", measured(controls.linear), {"smoothness": "smooth"}),
        audit.PropertiesRow("quadratic spline", measured(audit.quadratic), {"bounded": "no"}),
    )
    monkeypatch.setattr(audit, "properties_table", lambda seed: rows)
    return rows


def test_prints_the_table_and_writes_what_showed_it(tmp_path):
    file = tmp_path / "new" / "properties.json"
    ran = CliRunner().invoke(app, ["properties", "--seed", "1", "--json", str(file)])
    assert ran.exit_code == 0, ran.output
    for word in ("natural cubic", "rectilinear", "quadratic spline", "paper", "with counts"):
        assert word in ran.output
    assert "Every cell agrees with the paper." in ran.output
    told = json.loads(file.read_text())
    assert told["command"] == "onlinecde properties --seed 1"
    linear = told["controls"][1]
    assert linear["control"] == "linear"
    missing = linear["conditions"]["values missing"]
    assert (missing["measured"], missing["paper"], missing["agrees"]) == (
        "offline",
        "offline",
        True,
    )
    assert "moved the path" in missing["reason"]


def test_fits_80_columns(small_table, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = CliRunner().invoke(app, ["properties"])
    assert all(len(line) <= 80 for line in ran.output.splitlines())
    assert "…" not in ran.output


def test_markdown_is_the_table_alone(small_table):
    ran = CliRunner().invoke(app, ["properties", "--markdown"])
    assert ran.output.splitlines() == [
        "| control | nothing missing | values missing | smoothness | bounded | unique |",
        "|---|---|---|---|---|---|",
        "| linear | **discrete** | **discrete** | **piecewise** (smooth) | **yes** | **never** |",
        "| quadratic spline | **discrete** | **discrete** | **C1** | **no** (no) | **never** |",
    ]


def test_a_cell_that_differs_is_told_with_its_reason(small_table):
    ran = CliRunner().invoke(app, ["properties"])
    flat = " ".join(ran.output.split())
    assert "Not as the paper says: linear, smoothness: the slope jumps at a knot" in flat


def test_a_folder_for_a_file_is_refused_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(audit, "properties_table", lambda seed: pytest.fail("measured"))
    with pytest.raises(SystemExit) as stopped:
        main(["properties", "--json", str(tmp_path)])
    assert stopped.value.code == 2
    assert "is a folder: give the name of a file" in " ".join(capsys.readouterr().err.split())
