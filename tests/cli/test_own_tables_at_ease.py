"""What spares a stranger's table work: splits, windows, categories, names, groups, features compared, time limits."""

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import onlinecde as oc
from onlinecde.cli.app import app
from onlinecde.training.journal import read_log

SMALL = ("--hidden", 4, "--width", 4, "--epochs", 1)


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, f"{result.output}\n{result.exception}"
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty patients in a wide table with a rhythm in words; outcomes under another name of the id."""
    home, random = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    lines = [
        {
            "stay": stay,
            "hours": float(hour),
            "pulse": random.normal(70 + 9 * (stay % 2), 2),
            "noise": random.normal(),
            "rhythm": random.choice(["AF", "sinus"]) if hour else None,
        }
        for stay in range(40)
        for hour in range(5)
    ]
    pl.DataFrame(lines).write_csv(home / "vitals.csv")
    pl.DataFrame(
        {
            "patient": range(40),
            "died": [stay % 2 for stay in range(40)],
            "admitted": [f"20{10 + stay}-03-01" for stay in reversed(range(40))],
            "ward": ["east" if stay % 3 else "west" for stay in range(40)],
            "use": ["train"] * 24 + ["val"] * 8 + ["test"] * 8,
        }
    ).write_csv(home / "stays.csv")
    return home


def words(folder, *more, sizes=SMALL):
    return (
        "fit", "--events", folder / "vitals.csv", "--stream", "stay", "--time", "hours",
        "--labels", folder / "stays.csv", "--label", "died", "--labels-stream", "patient",
        "--category", "rhythm", *sizes, *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def fitted(folder):
    splits = ("--split-by", "use", "--splits", folder / "splits.csv")
    pl.read_csv(folder / "stays.csv").rename({"patient": "stay"}).write_csv(folder / "splits.csv")
    run(*words(folder, "--out", folder / "run", *splits))
    return folder / "run"


def test_splits_are_those_of_a_table_and_stand_in_the_run(fitted):
    listed = pl.read_csv(fitted / "splits.csv")
    assert listed.columns == ["stream", "subject", "split"]
    at = dict(listed.select("stream", "split").iter_rows())
    assert [at[stay] for stay in (0, 23, 24, 31, 32, 39)] == [
        *("train", "train", "validation", "validation", "test", "test")
    ]


def test_texts_are_categories_for_predict_too(fitted, folder):
    model = oc.load(fitted / "model")
    assert model.schema.channels == ("pulse", "noise", "rhythm=AF", "rhythm=sinus")
    run("predict", fitted, "--events", folder / "vitals.csv", "--out", folder / "scores.csv")
    table = pl.read_csv(folder / "vitals.csv").with_columns(
        (pl.col("rhythm") == text).cast(pl.Float64).alias(f"rhythm={text}")
        for text in ("AF", "sinus")
    )
    spelled = oc.predict(fitted, table.drop("rhythm"))
    given = pl.read_csv(folder / "scores.csv")
    assert np.allclose(spelled["probability"], given["probability"], atol=1e-6)
    long = pl.read_csv(folder / "vitals.csv", infer_schema_length=0).unpivot(
        index=["stay", "hours"], variable_name="name", value_name="is"
    )
    said = oc.predict(fitted, long, channel="name", value="is").sort("stream")
    assert np.allclose(said["probability"], given.sort("stream")["probability"], atol=1e-6)


def test_mid_stream_answers_of_one_label_a_stream_are_noted(fitted, folder):
    result = run("predict", fitted, "--events", folder / "vitals.csv", "--at", "rows", "--out", "-")
    assert "one label a stream" in result.stderr


def test_groups_importance_and_other_features_on_the_same_patients(fitted, folder):
    splits = ("--split-by", "use", "--splits", folder / "splits.csv")
    run(*words(folder, "--out", folder / "few", *splits, "--channel-column", "pulse"))
    result = run(
        "evaluate", fitted, "--against", folder / "few", "--by", "ward", "--bootstrap", 20,
        "--report", folder / "report.html", "--json", folder / "found.json",
    )  # fmt: skip
    assert "ward: west" in result.output
    found = json.loads((folder / "found.json").read_text())
    groups = {one["group"]: one for one in found["evaluation"]["groups"]}
    assert groups["east"]["streams"] + groups["west"]["streams"] == 8
    assert groups["east"]["metrics"]["log_loss"]["value"] > 0
    channels = [one["channel"] for one in found["evaluation"]["importance"]]
    assert sorted(channels) == [
        "noise",
        "pulse",
        "rhythm=AF",
        "rhythm=sinus",
        "the passing of time",
    ]
    moved = [one["moved"]["value"] for one in found["evaluation"]["importance"]]
    assert moved == sorted(moved, reverse=True)
    assert found["against"][0]["streams"] == 8
    assert found["differences"][0]["auc"]["value"] is not None
    page = (folder / "report.html").read_text()
    assert "What the model goes by" in page
    assert "By group" in page


def test_the_oldest_train_and_the_newest_test(folder):
    run(*words(folder, "--out", folder / "dated", "--static", folder / "stays.csv",
               "--static-stream", "patient", "--static-column", "ward", "--split-by", "admitted"))  # fmt: skip
    listed = pl.read_csv(folder / "dated/splits.csv")
    by = {name: group["stream"].to_list() for (name,), group in listed.group_by("split")}
    # Stay 39 was admitted first.
    assert min(by["train"]) > max(by["validation"])
    assert min(by["validation"]) > max(by["test"])


def test_one_long_stream_in_windows_of_cycles(folder):
    random = np.random.default_rng(1)
    pl.DataFrame(
        {
            "engine": ["A"] * 400,
            "cycle": np.arange(400.0),
            "x": random.normal(size=400),
            "worn": (np.arange(400) % 40 > 20).astype(int),
        }
    ).write_csv(folder / "engine.csv")
    result = run(
        "fit", "--events", folder / "engine.csv", "--stream", "engine", "--time", "cycle", "--time-unit", "cycles",
        "--label", "worn", "--label-per", "row", "--windows", 40, "--out", folder / "engine", *SMALL,
    )  # fmt: skip
    assert "10 of 10 subjects; train 7, validation 1, test 2" in result.output
    last = pl.read_csv(folder / "engine/splits.csv").filter(pl.col("split") == "test")
    assert last["stream"].to_list() == ["A, window 9", "A, window 10"]


def test_more_epochs_go_on_and_end_as_if_they_had_been_asked_for_at_once(folder):
    plan = words(folder, "--model", "gru", "--setting", "plateau=1", sizes=("--hidden", 4))
    run(*plan, "--epochs", 6, "--out", folder / "once")
    run(*plan, "--epochs", 2, "--out", folder / "twice")
    run(*plan, "--epochs", 6, "--out", folder / "twice")
    assert len(read_log(folder / "twice")) == len(read_log(folder / "once"))
    names = ("once", "twice")
    weights = [(folder / name / "model/model.safetensors").read_bytes() for name in names]
    assert weights[0] == weights[1]
    fewer = [*map(str, plan), "--epochs", "3", "--out", str(folder / "twice")]
    assert "epochs was 6, is 3" in str(CliRunner().invoke(app, fewer).exception)


def test_a_time_limit_keeps_the_best_and_a_longer_one_goes_on(folder):
    plan = words(folder, "--model", "gru", sizes=("--hidden", 4))
    plan = (*plan, "--epochs", 400, "--out", folder / "timed")
    short = run(*plan, "--max-time", "0.001s")
    assert "its time is over" in short.output
    assert "still improving when it ended" in short.output
    assert (folder / "timed/model/manifest.json").exists()
    done = len(read_log(folder / "timed"))
    run(*plan, "--max-time", "2s")
    assert done < len(read_log(folder / "timed")) <= 400


def test_a_seed_beside_a_settings_file_counts():
    from onlinecde.cli.options import TrainingOptions

    assert TrainingOptions(seed=0).changes() == {"seed": 0}
    assert TrainingOptions().changes() == {}


def test_it_says_its_version():
    assert run("--version").output.strip() == f"onlinecde {oc.__version__}"
