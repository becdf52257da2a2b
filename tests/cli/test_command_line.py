"""Options are declared once: commands share them, and a worker's command line is written from their values."""

import dataclasses
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from onlinecde.cli.app import app
from onlinecde.cli.command_line import command_words, grouped
from onlinecde.cli.fit import fit
from onlinecde.cli.options import ModelOptions, TaskOptions, TrainingOptions
from onlinecde.cli.reproduce import reproduce
from onlinecde.cli.tune import tune


def words_of(command, words):
    """What a command writes of the options it was given with these words."""
    heard = {}

    def listening(**given):
        heard.update(given)

    listening.__signature__ = command.__signature__
    listening.__annotations__ = command.__annotations__
    one = typer.Typer()
    one.command()(listening)
    ran = CliRunner().invoke(one, [str(word) for word in words])
    assert ran.exit_code == 0, ran.output
    return command_words(command, heard)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (tune, ["--out", "a b", "--events", "x.csv", "--label", "y", "--label", "z", "--no-prune"]),
        (tune, ["--out", "a", "--task", "w", "--no-counts", "--lr", "0.001", "--span", "hidden=2:9"]),
        (fit, ["--out", "a", "--task", "w", "--explain-settings", "--fresh", "--counts"]),
        (reproduce, ["one", "two", "--out", "a", "--only", "*/GRU", "--demo", "--retry"]),
    ],
)  # fmt: skip
def test_a_command_line_is_written_again_from_its_values(command, words):
    found = words_of(command, words)
    assert sorted(found) == sorted(words)
    assert words_of(command, found) == found


def test_fit_and_tune_take_the_same_options_of_task_model_and_training():
    for group in (TaskOptions, ModelOptions, TrainingOptions):
        for field in dataclasses.fields(group):
            assert field.name in fit.__signature__.parameters
            assert field.name in tune.__signature__.parameters


def test_a_grouped_command_is_called_from_python_by_its_options():
    @grouped
    def command(*, out: Path, training: TrainingOptions):
        return out, training

    out, training = command(out=Path("x"), epochs=3, setting=["stop=2"])
    assert (out, training.changes()) == (Path("x"), {"epochs": 3, "stop": 2})
    with pytest.raises(TypeError, match="out"):
        command(epochs=3)
    with pytest.raises(TypeError, match="epoch"):
        command(out=Path("x"), epoch=3)


@pytest.fixture
def table(tmp_path, monkeypatch, rng):
    monkeypatch.setenv("COLUMNS", "200")
    lines = ["who,t,name,value,sick"]
    for who in range(40):
        for t in range(4):
            lines.append(f"{who},{t},pulse,{70 + 9 * (who % 2) + rng.normal():.3f},{who % 2}")
    (tmp_path / "events.csv").write_text("\n".join(lines) + "\n")
    return [
        *("--events", tmp_path / "events.csv", "--stream", "who", "--time", "t", "--channel", "name"),
        *("--value", "value", "--label", "sick"),
    ]  # fmt: skip


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_search_on_tables_of_ones_own_gives_settings_that_fit_takes(table, tmp_path):
    ran = run(
        "tune", *table, "--out", tmp_path / "s", "--model", "gru", "--span", "hidden=2:9",
        "--trials", 2, "--epochs", 1, "--device", "cpu", "--workers", 2,
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    best = tmp_path / "s" / "best.json"
    fitted = run("fit", *table, "--settings", best, "--out", tmp_path / "run", "--batch-size", 8)
    assert fitted.exit_code == 0, fitted.output
    told = run("fit", *table, "--settings", best, "--out", tmp_path / "new", "--explain-settings")
    assert told.exit_code == 0, told.output
    lines = {line.split()[0]: line for line in told.output.splitlines() if "." in line}
    assert "found by a search" in lines["model.hidden"]
    assert "file" in lines["training.epochs"]
    assert not (tmp_path / "new").exists()
    for more, message in (
        (["--model", "gru-d"], "is for gru, not for gru-d"),
        (["--recipe", "paper"], "drop one of them"),
    ):
        refused = run("fit", *table, "--settings", best, "--out", tmp_path / "x", *more)
        assert message in str(refused.exception)
