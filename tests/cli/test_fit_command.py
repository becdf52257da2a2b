"""`onlinecde fit` from end to end: a prepared task, tables of one's own, and what it refuses."""

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import onlinecde as oc
from onlinecde.cli.app import app, main
from onlinecde.training.task_source import load_task


def run(*arguments):
    return CliRunner().invoke(app, ["fit", *map(str, arguments)])


def test_a_prepared_task_from_name_to_model(tmp_path, monkeypatch):
    monkeypatch.setenv("ONLINECDE_CACHE", str(tmp_path / "cache"))
    result = run(
        "--task", "simulated-ward", "--task-setting", "streams=80", "--out", tmp_path / "run",
        "--epochs", 2, "--hidden", 8, "--width", 8, "--control", "rectilinear", "--no-counts",
        "--solver", "heun", "--precision", "high", "--setting", "average=0.5",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "validation auc" in result.output
    assert "onlinecde evaluate" in result.output
    model = oc.load(tmp_path / "run" / "model")
    assert (model.counts, model.hidden, model.config["solver"]["method"]) == (False, 8, "heun")
    assert model.solver.precision == "high"
    manifest = json.loads((tmp_path / "run/model/manifest.json").read_text())
    assert manifest["extra"]["settings"]["average"] == 0.5
    task = load_task(manifest["extra"]["task"])
    assert len(task.series) == 80


@pytest.fixture
def tables(tmp_path):
    random = np.random.default_rng(0)
    lines = [
        {
            "stay": s,
            "hours": float(h),
            "name": name,
            "value": float(random.normal(70 + 9 * (s % 2), 2)),
        }
        for s in range(40)
        for h in range(4)
        for name in ("pulse", "pressure")
        if random.random() < 0.8
    ]
    pl.DataFrame(lines).write_parquet(tmp_path / "vitals.parquet")
    stays = pl.DataFrame({"stay": range(40), "age": [50 + s % 7 for s in range(40)]})
    stays.write_csv(tmp_path / "stays.csv")
    pl.DataFrame({"stay": range(40), "died": [s % 2 for s in range(40)]}).write_csv(
        tmp_path / "outcome.csv"
    )
    return tmp_path


def test_tables_of_ones_own(tables):
    result = run(
        "--events", tables / "vitals.parquet", "--labels", tables / "outcome.csv", "--stream", "stay",
        "--time", "hours", "--channel", "name", "--value", "value", "--label", "died",
        "--static", tables / "stays.csv", "--out", tables / "run", "--epochs", 40, "--lr", 0.01,
        "--hidden", 8, "--width", 8,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "kept epoch" in result.output
    model = oc.load(tables / "run/model")
    manifest = json.loads((tables / "run/model/manifest.json").read_text())
    task = load_task(manifest["extra"]["task"])
    series, labels = task.split("test")
    said = model(series, final=True)[:, 0] > 0
    assert (said == labels.bool()).all()


OWN = ["--events", "x.csv", "--stream", "s", "--time", "t"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --task NAME, or --events"),
        (["--task", "nowhere"], "there is no data set 'nowhere'"),
        (["--task", "simulated-ward/mortality"], "has no task 'mortality'"),
        (["--events", "x.csv"], "--stream is missing"),
        (["--task", "simulated-ward", "--setting", "nonsense"], "not NAME=VALUE"),
        (["--task", "simulated-ward", "--recipe", "grandma"], "choose 'default' or 'paper'"),
        (
            ["--task", "simulated-ward", "--precision", "low"],
            "precision of NeuralCDE is 'low'",
        ),
        (
            ["--task", "simulated-ward", "--model", "gru", "--precision", "high"],
            "GRU has no setting 'precision'",
        ),
        (["--task", "simulated-ward", "--task-setting", "streams=abc"], "give a whole number"),
        (["--events", "x.csv", "--split-seed", "-1"], "--split-seed"),
        (
            ["--events", "none.csv", "--stream", "s", "--time", "t", "--label", "y"],
            "none.csv",
        ),
        (
            ["--task", "simulated-ward", "--horizon", "6h"],
            "--horizon is for tables of your own (--events): a prepared task has its labels",
        ),
        (
            [*OWN, "--label", "y", "--horizon", "6h"],
            "--horizon is for labels per event, and these are per stream",
        ),
        ([*OWN, "--label", "y", "--event-time", "y"], "--label is for labels per stream or row"),
        ([*OWN, "--label-per", "event"], "--event-time is missing: labels per event need"),
        ([*OWN, "--label", "y", "--label-per", "time"], "--label-times is missing"),
        (
            [*OWN, "--label", "y", "--label-per", "row", "--label-times", "at"],
            "--label-times is for labels per time, and these are per row",
        ),
        ([*OWN, "--label", "y", "--label-stands", "1h"], "--label-stands is for labels per row or"),
        (
            [*OWN, "--label", "y", "--label-per", "day"],
            "--label-per is 'day': choose one of stream, row, time",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--out", str(tmp_path / "run"), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run" / "model").exists()


def test_columns_of_ones_own_take_the_roles_they_are_given(tables, capsys):
    wide = pl.read_parquet(tables / "vitals.parquet").pivot(
        "name", index=["stay", "hours"], values="value"
    )
    wide.with_columns(ward=pl.lit("A")).write_csv(tables / "wide.csv")
    stays = pl.read_csv(tables / "stays.csv").with_columns(note=pl.lit("well"))
    stays.write_csv(tables / "stays.csv")
    common = [
        "--events", tables / "wide.csv", "--labels", tables / "outcome.csv", "--stream", "stay",
        "--time", "hours", "--label", "died", "--static", tables / "stays.csv", "--epochs", 1,
        "--out", tables / "run", "--model", "gru",
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        main(["fit", *map(str, common)])
    assert "'ward' holds text" in capsys.readouterr().err.replace("\n", " ")
    result = run(*common, "--channel-column", "pulse", "--static-column", "age")
    assert result.exit_code == 0, result.output
    manifest = json.loads((tables / "run/model/manifest.json").read_text())
    series = load_task(manifest["extra"]["task"]).series
    assert (series.channels, series.features) == (("pulse",), ("age",))
    with pytest.raises(SystemExit):
        main(["fit", *map(str, common), "--channel", "x", "--value", "y", "--channel-column", "z"])
    assert "--channel-column is for wide tables" in capsys.readouterr().err.replace("\n", " ")


def test_who_was_left_out_is_said_before_training(tables):
    more = pl.DataFrame({"stay": range(45), "died": [s % 2 for s in range(45)]})
    more.write_csv(tables / "outcome.csv")
    pl.read_csv(tables / "stays.csv").head(30).write_csv(tables / "stays.csv")
    result = run(
        "--events", tables / "vitals.parquet", "--labels", tables / "outcome.csv", "--stream", "stay",
        "--time", "hours", "--channel", "name", "--value", "value", "--label", "died",
        "--static", tables / "stays.csv", "--out", tables / "run", "--epochs", 1, "--model", "gru",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "labelled streams 45, with events 40" in result.output
    assert "10 of 40 streams have no line in" in result.output


def test_data_that_changed_since_the_fit_is_not_judged_in_silence(tables, capsys):
    common = [
        "--events", tables / "vitals.parquet", "--labels", tables / "outcome.csv", "--stream", "stay",
        "--time", "hours", "--channel", "name", "--value", "value", "--label", "died",
    ]  # fmt: skip
    assert run(*common, "--out", tables / "run", "--epochs", 1, "--model", "gru").exit_code == 0
    frame = pl.read_parquet(tables / "vitals.parquet")
    frame.with_columns(pl.col("value") + 1).write_parquet(tables / "vitals.parquet")
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(tables / "run"), "--bootstrap", "0"])
    assert stop.value.code == 2
    assert "not what the model was fitted on" in capsys.readouterr().err.replace("\n", " ")


def test_a_model_saved_by_fit_is_a_plain_folder_without_pickle(tables):
    common = [
        "--events", tables / "vitals.parquet", "--labels", tables / "outcome.csv", "--stream", "stay",
        "--time", "hours", "--channel", "name", "--value", "value", "--label", "died",
    ]  # fmt: skip
    assert run(*common, "--out", tables / "run", "--epochs", 1, "--model", "gru").exit_code == 0
    names = {p.name for p in (tables / "run/model").iterdir()}
    assert names == {"model.safetensors", "manifest.json", "README.md"}
    for file in (tables / "run").rglob("*"):
        if file.is_file():
            assert not file.read_bytes()[:2].startswith((b"\x80\x04", b"\x80\x02", b"PK"))


def test_a_label_column_that_is_not_there_is_named(tables, capsys):
    with pytest.raises(SystemExit) as stop:
        main([
            "fit", "--events", str(tables / "vitals.parquet"), "--labels", str(tables / "outcome.csv"),
            "--stream", "stay", "--time", "hours", "--channel", "name", "--value", "value",
            "--label", "survived", "--out", str(tables / "run"),
        ])  # fmt: skip
    assert stop.value.code == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert "survived" in told
    assert "outcome.csv" in told
    assert not (tables / "run").exists()


def test_one_declaration_of_an_event_serves_fit_and_evaluate(tables):
    random = np.random.default_rng(1)
    ends = [
        {"stay": s, "sepsis": 2.0 + random.random() if s % 2 else None, "left": 4.0}
        for s in range(40)
    ]
    pl.DataFrame(ends).write_csv(tables / "ends.csv")
    result = run(
        "--events", tables / "vitals.parquet", "--labels", tables / "ends.csv", "--stream", "stay",
        "--time", "hours", "--channel", "name", "--value", "value", "--event-time", "sepsis",
        "--followed-until", "left", "--horizon", "90min", "--model", "gru", "--hidden", 4,
        "--epochs", 2, "--out", tables / "run",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "event within 1.5 hours, which 20 of 40 streams have" in result.output
    manifest = json.loads((tables / "run/model/manifest.json").read_text())
    task = load_task(manifest["extra"]["task"])
    assert task.truth.horizon == 1.5
    judged = CliRunner().invoke(app, ["evaluate", str(tables / "run"), "--bootstrap", "0"])
    assert judged.exit_code == 0, judged.output
    # Another event is another task: streams trained on may be tested now.
    pl.DataFrame(ends).with_columns(left=pl.lit(4.5)).write_csv(tables / "ends.csv")
    changed = CliRunner().invoke(app, ["evaluate", str(tables / "run"), "--bootstrap", "0"])
    assert changed.exit_code != 0
    assert "is not what the model was fitted on" in str(changed.exception)


def test_forecasts_need_no_labels_and_are_judged_and_scored_from_the_run(tables, capsys):
    out = tables / "run"
    events = ["--events", tables / "vitals.parquet", "--stream", "stay", "--time", "hours"]
    long = ["--channel", "name", "--value", "value"]
    ahead = ["--forecast", "pulse, pressure", "--horizons", "1,120min"]
    result = run(*events, *long, *ahead, "--out", out, "--epochs", 1, "--model", "gru")
    assert result.exit_code == 0, result.output
    manifest = json.loads((out / "model/manifest.json").read_text())["extra"]
    assert manifest["forecast"]["horizons"] == [1.0, 2.0]
    assert manifest["classes"][0] == "pulse in 1 h"
    for arguments in (
        ["evaluate", out, "--bootstrap", 0],
        ["evaluate", out, "--bootstrap", 0, "--events", tables / "vitals.parquet"],
        ["predict", out, "--events", tables / "vitals.parquet", "--out", tables / "scores.parquet"],
    ):
        with pytest.raises(SystemExit) as end:
            main([str(one) for one in arguments])
        assert end.value.code == 0
    assert "pressure in 2 h" in capsys.readouterr().out
    scores = pl.read_parquet(tables / "scores.parquet")
    assert scores.columns[2:4] == ["pulse in 1 h q0.05", "pulse in 1 h q0.1"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--forecast", "pulse"], "give both"),
        (["--horizons", "6"], "give both"),
        (["--forecast", "sodium", "--horizons", "1"], "no channel 'sodium' to forecast"),
        (["--forecast", "pulse", "--horizons", "1,1"], "horizon 1 hours is given twice"),
        (["--forecast", "pulse", "--horizons=-1"], "'-1' is no length of time"),
        (["--forecast", "pulse", "--horizons", "3cycles"], "cannot be turned into it"),
        (
            ["--forecast", "pulse", "--horizons", "1", "--label", "died"],
            "--label is for labels per",
        ),
        (["--forecast", "pulse", "--horizons", "1", "--kind", "binary"], "kind is 'binary'"),
    ],
)
def test_forecasts_that_cannot_be_are_refused_before_anything_is_written(more, message, tables):
    events = ["--events", tables / "vitals.parquet", "--stream", "stay", "--time", "hours"]
    long = ["--channel", "name", "--value", "value"]
    result = run(*events, *long, *more, "--out", tables / "run")
    assert result.exit_code != 0
    assert message in " ".join(f"{result.output} {result.exception}".split())
    assert not (tables / "run").exists()
