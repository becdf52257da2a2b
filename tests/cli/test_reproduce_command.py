"""`onlinecde reproduce` from end to end: the smoke run, what is missing, what fails."""

import csv
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onlinecde.cli.app import app, main
from onlinecde.experiments import load_table, running

DATA = os.environ.get("ONLINECDE_DATA")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ONLINECDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "150")


def table(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def ran(*words):
    return CliRunner().invoke(app, ["reproduce", *words])


def test_smoke_runs_a_whole_table_and_writes_it(tmp_path):
    out = tmp_path / "o"
    done = ran("simulated-ward", "--budget", "smoke", "--out", str(out), "--device", "cpu")
    assert done.exit_code == 0, done.output
    for word in ("Online NCDE with counts", "protocol clean, budget smoke", "NFE"):
        assert word in done.output
    folder = out / "clean-smoke"
    assert {file.suffix for file in folder.glob("simulated-ward*.*")} == {
        ".md",
        ".csv",
        ".tex",
        ".png",
        ".svg",
    }
    lines = table(folder / "simulated-ward.csv")
    assert [line["state"] for line in lines] == ["done"] * 5
    assert all(0 <= float(line["test_mean"]) <= 1 for line in lines)
    again = ran("simulated-ward", "--budget", "smoke", "--out", str(out), "--device", "cpu")
    assert "seed 0: auc" in done.output
    assert "seed 0: auc" not in again.output, "what is done is not run again"


@pytest.mark.skipif(
    not DATA or not (Path(DATA) / "CharacterTrajectories.zip").exists(),
    reason="needs CharacterTrajectories.zip in $ONLINECDE_DATA",
)
@pytest.mark.parametrize("protocol", ["clean", "paper"])
def test_smoke_of_the_papers_controls_on_real_data(tmp_path, protocol):
    only = "CharacterTrajectories/*"
    words = ("--budget", "smoke", "--protocol", protocol, "--only", only, "--device", "cpu")
    done = ran("controls", "--out", str(tmp_path / "o"), *words)
    assert done.exit_code == 0, done.output
    lines = table(tmp_path / "o" / f"{protocol}-smoke" / "controls.csv")
    ours = [line for line in lines if line["row"] == "CharacterTrajectories"]
    assert [line["state"] for line in ours] == ["done"] * 4
    assert [line["published_mean"] for line in ours] == ["83.6", "97.6", "99.3", "98.6"]
    assert all(float(line["nfe_thousands"]) > 0 for line in ours)
    counted = {
        json.loads(file.read_text())["nfe_counted"]
        for file in (tmp_path / "o").rglob("result.json")
    }
    assert counted == {"in training" if protocol == "paper" else "one epoch of the trained model"}


@pytest.mark.skipif(
    not DATA or not (Path(DATA) / "mimic-iv-demo").exists(),
    reason="needs mimic-iv-demo in $ONLINECDE_DATA",
)
def test_the_mimic_table_runs_on_the_demo_alone_when_asked(tmp_path):
    words = ("mimic-iv", "--budget", "smoke", "--out", str(tmp_path / "o"), "--only", "Mortality/*")
    told = ran(*words, "--device", "cpu")
    assert told.exit_code == 0
    assert "only the demo of MIMIC-IV is in" in told.output
    assert not list((tmp_path / "o").rglob("result.json"))
    done = ran(*words, "--demo", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "the numbers mean nothing" in done.output
    results = list((tmp_path / "o" / "clean-smoke-demo").rglob("result.json"))
    assert len(results) == len(load_table("mimic-iv").columns)


def test_a_failed_cell_ends_in_exit_code_1_and_its_reason(tmp_path, monkeypatch):
    def breaks(*_):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(running, "slipped_model", breaks)
    words = ("simulated-ward", "--budget", "smoke", "--out", str(tmp_path / "o"))
    done = ran(*words, "--only", "*/GRU", "--device", "cpu")
    assert done.exit_code == 1
    assert "RuntimeError: the disk is full" in done.output
    assert "--retry" in done.output


def test_the_list_names_every_table_protocol_and_budget():
    listed = ran("list")
    assert listed.exit_code == 0
    assert listed.output == ran("--list").output
    for word in ("controls", "slip-left-slope", "physionet-2019", "--protocol paper", "--budget"):
        assert word in listed.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a table"),
        (["control"], "Did you mean 'controls'"),
        (["controls", "--budget", "huge"], "choose one of smoke"),
        (["controls", "--protocol", "mine"], "choose one of paper"),
        (["controls", "--only", "Mars/*"], "matches no cell"),
        (["none.toml"], "there is no file"),
        (["controls", "--seeds", "1,x"], "write whole numbers"),
        (["controls", "--found", "none.json"], "cannot be read"),
        (["controls", "--publish", "results"], "nothing to publish"),
        (["properties", "--publish", "results"], "made by `onlinecde properties`"),
    ],
)
def test_bad_input_ends_with_one_message(tmp_path, capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *words, "--out", str(tmp_path)])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert message in " ".join(told.split())
    assert "Traceback" not in told


def test_the_properties_are_measured_by_their_own_command(tmp_path, monkeypatch):
    from onlinecde.cli import properties as command

    asked = []
    monkeypatch.setattr(command, "properties", lambda json_file: asked.append(json_file))
    assert ran("properties", "--out", str(tmp_path)).exit_code == 0
    assert asked == [tmp_path / "properties.json"]
