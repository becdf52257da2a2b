"""`onlinecde alarms` chooses a policy for a budget, gives it to the model, and refuses what it cannot promise."""

import json
import shutil

import pytest

import onlinecde as oc
from onlinecde.artifacts import ArtifactError, read_manifest
from onlinecde.cli.app import main

WARD = ["--task", "simulated-ward", "--task-setting", "streams=600"]


def onlinecde(capsys, *arguments):
    """What a command says and ends with."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in arguments])
    out = capsys.readouterr()
    return ended.value.code or 0, " ".join((out.out + out.err).split())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    home = tmp_path_factory.mktemp("alarms") / "run"
    with pytest.raises(SystemExit) as ended:
        main(
            ["fit", *WARD, "--model", "gru", "--hidden", "8", "--epochs", "2", "--lr", "0.01",
             "--device", "cpu", "--out", str(home)]
        )  # fmt: skip
    assert not ended.value.code
    return home


@pytest.fixture
def run(fitted, tmp_path):
    return shutil.copytree(fitted, tmp_path / "run")


def test_a_table_of_budgets_and_nothing_written(run, capsys, tmp_path):
    before = (run / "model" / "manifest.json").read_bytes()
    code, text = onlinecde(
        capsys, "alarms", run, "--budget", 1, "--budget", 2, "--bootstrap", 50,
        "--json", tmp_path / "alarms.json",
    )  # fmt: skip
    assert code == 0
    assert "Chosen on 90 subjects" in text
    assert "conformal risk control" in text
    found = json.loads((tmp_path / "alarms.json").read_text())
    assert [one["budget"] for one in found["policies"]] == [1, 2]
    for one in found["policies"]:
        assert one["policy"]["chosen"]["validation"]["false_a_day"]["value"] <= one["budget"]
        assert one["judged"]["false_a_day"]["low"] <= one["budget"]
    assert found["command"].startswith("onlinecde alarms")
    assert (run / "model" / "manifest.json").read_bytes() == before


def test_the_model_carries_the_policy_and_the_run_the_earlier_ones(run, capsys):
    code, text = onlinecde(capsys, "alarms", run, "--budget", 2, "--quiet", "6h", "--write")
    assert code == 0
    assert "serve` follows the new one" in text
    first = oc.load(run / "model").alarm_policy
    assert (first.quiet, first.every, first.chosen["budget"]) == (6.0, 1.0, 2)
    assert first.chosen["judged"]["streams"] == 90
    onlinecde(capsys, "alarms", run, "--budget", 1, "--every", "30min", "--write")
    second = oc.load(run / "model").alarm_policy
    assert (second.every, second.chosen["budget"]) == (0.5, 1)
    history = [json.loads(line) for line in (run / "alarm_policies.jsonl").read_text().splitlines()]
    assert [one["chosen"]["budget"] for one in history] == [2, 1]
    assert history[1] == read_manifest(run / "model").alarm_policy
    code, text = onlinecde(capsys, "evaluate", run, "--bootstrap", 20)
    assert code == 0
    assert "of 1 allowed" in text


def test_a_policy_is_written_whole_or_not_at_all(run, capsys, monkeypatch):
    before = (run / "model" / "manifest.json").read_bytes()

    def full(*_):
        raise ArtifactError("the disk is full.")

    monkeypatch.setattr("onlinecde.artifacts.saved_model.replace_file", full)
    code, text = onlinecde(capsys, "alarms", run, "--budget", 2, "--write")
    assert (code, "the disk is full" in text) == (2, True)
    assert (run / "model" / "manifest.json").read_bytes() == before
    assert oc.load(run / "model").alarm_policy is None


def test_another_place_is_judged_and_may_choose_for_itself(run, capsys):
    other = [
        "--task",
        "simulated-ward",
        "--task-setting",
        "streams=300",
        "--task-setting",
        "simulation_seed=9",
    ]
    code, text = onlinecde(
        capsys, "alarms", run, "--budget", 2, "--bootstrap", 20, *other, "--local"
    )
    assert code == 0
    assert "Chosen on 150 subjects" in text
    assert "150 subjects" in text.split("judged on")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "0.001"], "validation subjects are too few for a budget of 0.001"),
        (["--budget", "0"], "the budget is 0.0: give a number"),
        (["--budget", "1", "--budget", "2", "--write"], "--write keeps one policy"),
        (["--budget", "1", "--local"], "--local is for streams of another place"),
        (["--budget", "1", "--split", "validation"], "chosen on validation: judge it on another"),
        (["--budget", "1", "--quiet", "soon"], "'soon' is no length of time"),
        (["--budget", "1", "--output", "sepsis"], "there is no output 'sepsis'"),
        (["--budget", "1", "--confidence", "2"], "confidence is 2.0"),
        (["--budget", "1", "--split", "final"], "no split 'final'"),
    ],
)
def test_what_cannot_be_chosen_is_refused(fitted, words, message, capsys):
    code, text = onlinecde(capsys, "alarms", fitted, *words)
    assert code == 2
    assert message in text
