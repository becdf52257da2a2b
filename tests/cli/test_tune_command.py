"""`onlinecde tune` from end to end."""

import json

import pytest
from typer.testing import CliRunner

from onlinecde.cli.app import app, main


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ONLINECDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")


def words(out, *more):
    return [
        *("tune", "--task", "simulated-ward", "--task-setting", "streams=40", "--out", str(out)),
        *("--model", "gru", "--span", "hidden=2:9", "--setting", "epochs=1", "--device", "cpu"),
        *more,
    ]


def test_searches_prints_all_trials_and_writes_the_best(tmp_path):
    ran = CliRunner().invoke(app, words(tmp_path / "s", "--trials", "3"))
    assert ran.exit_code == 0, ran.output
    assert "3 trials in" in ran.output
    assert "best" in ran.output
    assert "[I 20" not in ran.output, "Optuna's own log is not for our users"
    told = json.loads((tmp_path / "s" / "best.json").read_text())
    assert told["task"] == "simulated-ward"
    assert (tmp_path / "s" / told["model_folder"] / "manifest.json").is_file()


def test_two_workers_share_the_trials(tmp_path):
    ran = CliRunner().invoke(app, words(tmp_path / "s", "--trials", "3", "--workers", "2"))
    assert ran.exit_code == 0, ran.output
    assert "3 trials in" in ran.output
    logs = [(tmp_path / "s" / f"worker-{i}.log").read_text() for i in range(2)]
    begun = [log.count("hidden") for log in logs]
    assert sum(begun) >= 3
    assert all("3 trials in" in log for log in logs)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--span", "hidden"], "write NAME=LOW:HIGH"),
        (["--span", "hidden=9:2"], "give low < high"),
        (["--span", "hiden=4:8"], "GRU has no setting 'hiden': did you mean 'hidden'?"),
        (["--span", "hiden=4:8", "--workers", "2"], "GRU has no setting 'hiden'"),
        (
            ["--span", "hidden=2.5:8"],
            "hidden is searched from 2.5 to 8, and must be a whole number",
        ),
        (["--model-setting", "no_such_setting=1"], "has no setting 'no_such_setting'"),
        (["--recipe", "mine"], "choose one of default"),
        (["--setting", "epoch=3"], "did you mean 'epochs'"),
        (["--model", "lstm"], "there is no model 'lstm'"),
        (["--task", "nowhere"], "there is no data set"),
    ],
)
def test_bad_input_ends_with_one_message(tmp_path, capsys, more, message):
    with pytest.raises(SystemExit) as ended:
        main(words(tmp_path / "s", *more))
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert message in " ".join(told.split())
    assert "Traceback" not in told


def test_when_every_trial_fails_it_says_why_and_exits_with_1(tmp_path):
    broken = CliRunner().invoke(
        app, words(tmp_path / "t", "--trials", "2", "--model-setting", "channels=3")
    )
    assert broken.exit_code == 1
    under = broken.output[broken.output.index("2 trials in") :].split("\n\n")[-1]
    assert "trials 0, 1 failed: FitError: channels is 3, but the task" in under
