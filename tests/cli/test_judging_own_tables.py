"""A model of one's own tables is judged where its files moved, grew, or are another ward's, or says why not."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
import torch

import onlinecde as oc
from onlinecde.cli.app import main


def ward(streams, seed, channels=("pulse", "pressure")):
    random = np.random.default_rng(seed)
    lines = [
        {"stay": s, "hours": float(h), **{c: float(random.normal(s % 2)) for c in channels}}
        for s in streams
        for h in range(5)
    ]
    return pl.DataFrame(lines)


def outcomes(streams):
    return pl.DataFrame(
        {"stay": streams, "age": [40 + s % 30 for s in streams], "died": [s % 2 for s in streams]}
    )


def onlinecde(capsys, *arguments):
    """What a command says and ends with."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in arguments])
    out = capsys.readouterr()
    return ended.value.code or 0, " ".join((out.out + out.err).split())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    home = tmp_path_factory.mktemp("own")
    ward(range(40), 0).write_csv(home / "vitals.csv")
    outcomes(range(40)).write_csv(home / "stays.csv")
    with pytest.raises(SystemExit) as ended:
        main(
            ["fit", "--events", str(home / "vitals.csv"), "--labels", str(home / "stays.csv"),
             "--static", str(home / "stays.csv"), "--stream", "stay", "--time", "hours",
             "--label", "died", "--hidden", "4", "--width", "4", "--epochs", "2",
             "--device", "cpu", "--out", str(home / "run")]
        )  # fmt: skip
    assert not ended.value.code
    return home


@pytest.fixture
def own(fitted, tmp_path):
    """The run with files of its own; the manifest names them where they were fitted on."""
    home = tmp_path / "own"
    shutil.copytree(fitted, home)
    manifest = home / "run" / "model" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(fitted), str(home)))
    return home


def scores(file):
    return {n: m["value"] for n, m in json.loads(file.read_text())["evaluation"]["metrics"].items()}


def judge(capsys, own, *options):
    file = own / "found.json"
    words = ("evaluate", own / "run", "--bootstrap", 20, "--json", file, *options)
    code, text = onlinecde(capsys, *words)
    return code, text, file


def test_files_that_moved_are_found_by_their_options(own, capsys, tmp_path):
    before = scores(judge(capsys, own)[2])
    for name in ("vitals.csv", "stays.csv"):
        shutil.move(own / name, tmp_path / name)
    code, text, _ = judge(capsys, own)
    assert code == 2
    assert "vitals.csv not found" in text
    assert "--events FILE" in text
    moved = ("--events", tmp_path / "vitals.csv", "--labels", tmp_path / "stays.csv")
    code, text, _ = judge(capsys, own, *moved)
    assert code == 2
    assert "stays.csv not found" in text
    assert "--static FILE" in text
    code, text, file = judge(capsys, own, *moved, "--static", tmp_path / "stays.csv")
    assert code == 0, text
    assert scores(file) == before
    assert "not what the model was fitted on" not in text
    command = json.loads(file.read_text())["command"]
    assert f"--events {tmp_path / 'vitals.csv'} --labels {tmp_path / 'stays.csv'}" in command


def test_a_table_that_grew_is_refused_until_it_is_named(own, capsys):
    ward(range(60), 0).write_csv(own / "vitals.csv")
    outcomes(range(60)).write_csv(own / "stays.csv")
    code, text, _ = judge(capsys, own)
    assert code == 2
    assert "is not what the model was fitted on" in text
    assert "give the table with --events to judge all its streams" in text
    code, text, _ = judge(capsys, own, "--events", own / "vitals.csv")
    assert code == 0, text
    assert "all its 60 streams are judged, and none of them should have been trained on" in text
    assert "table vitals.csv, test: 60 streams" in text


def test_another_ward_is_judged_whole_by_the_models_channels(own, capsys):
    # In another order, with one channel more, and too few streams for three splits.
    other = ward(range(100, 104), 5, ("lactate", "pressure", "pulse"))
    other.write_parquet(own / "other.parquet")
    outcomes(range(100, 104)).write_csv(own / "other.csv")
    tables = ("--events", own / "other.parquet", "--labels", own / "other.csv")
    tables = (*tables, "--static", own / "other.csv")
    code, text, _ = judge(capsys, own, *tables, "--report", own / "page.html")
    assert code == 0, text
    assert "table other.parquet, test: 4 streams" in text
    assert "<h1>NeuralCDE on table other.parquet</h1>" in (own / "page.html").read_text()
    code, text = onlinecde(
        capsys, "plot", "streams", own / "run", *tables, "--out", own / "pictures"
    )
    assert code == 0, text
    assert (own / "pictures" / "streams.png").exists()
    code, text, _ = judge(capsys, own, *tables, "--split", "train")
    assert code == 2
    assert "has no split 'train': it has ['test']" in text


def test_a_ward_the_model_cannot_read_is_refused(own, capsys):
    ward(range(30), 5, ("puls", "lactate")).write_csv(own / "other.csv")
    code, text, _ = judge(capsys, own, "--events", own / "other.csv")
    assert code == 2
    assert "none of the model's channels, pulse, pressure: it has the columns puls, lactate" in text
    words = outcomes(range(40)).with_columns(age=pl.lit("old"))
    words.write_csv(own / "words.csv")
    code, text, _ = judge(
        capsys, own, "--events", own / "vitals.csv", "--static", own / "words.csv"
    )
    assert code == 2
    assert "line 2, column 'age' (static feature): 'old' is not a number, as in training" in text


def test_what_a_ward_lacks_is_missing_and_what_it_has_besides_is_not_read(own, capsys):
    ward(range(100, 130), 5, ("pulse", "lactate")).write_csv(own / "other.csv")
    stays = outcomes(range(100, 130)).with_columns(nurse=pl.lit("Ann"), height=170)
    stays.write_csv(own / "tall.csv")
    tables = ("--events", own / "other.csv", "--labels", own / "tall.csv")
    code, text, _ = judge(capsys, own, *tables, "--static", own / "tall.csv")
    assert code == 0, text
    assert "note: the model does not know lactate: not read" in text
    assert "note: channel 'pressure' is absent: taken as never observed" in text
    long = ward(range(100, 130), 5).unpivot(
        index=["stay", "hours"], variable_name="what", value_name="number"
    )
    words = pl.DataFrame({"stay": [100], "hours": [9.0], "what": ["note"], "number": ["asleep"]})
    long = pl.concat([long.with_columns(pl.col("number").cast(pl.String)), words])
    model = oc.load(own / "run" / "model")
    labels = oc.data.StreamLabels("died", stays)
    task = oc.data.task_from_table(
        long, stream="stay", time="hours", channel="what", value="number", labels=labels,
        static=stays, schema=model.schema,
    )  # fmt: skip
    assert task.series.channels == ("pulse", "pressure")
    assert "the model does not know note: not read" in task.notes
    # That there was a row is kept.
    assert task.series.rows[0] == 6
    with pytest.raises(oc.data.DataError, match="none of the model's channels, pulse, pressure"):
        oc.data.task_from_table(
            words.with_columns(number=1.0), stream="stay", time="hours", channel="what",
            value="number", labels=labels, schema=model.schema,
        )  # fmt: skip


def test_tables_are_for_models_of_tables(own, capsys):
    model = oc.GRU(channels=2, hidden=4, kind="binary")
    told = {"task": {"source": "registry", "name": "simulated-ward"}}
    oc.save(model, own / "other", extra=told, channels=("a", "b"))
    code, text = onlinecde(capsys, "evaluate", own / "other", "--events", own / "vitals.csv")
    assert code == 2
    assert "--events is for models of own tables" in text
    tables = ("--events", own / "vitals.csv", "--task", "simulated-ward")
    code, text = onlinecde(capsys, "evaluate", own / "run", *tables)
    assert code == 2
    assert "--task and tables of your own: give one of them" in text


@pytest.mark.parametrize("command", [("evaluate",), ("plot", "streams")])
def test_a_run_that_is_not_finished_says_so(own, capsys, command):
    shutil.rmtree(own / "run" / "model")
    log = own / "run" / "log.jsonl"
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    code, text = onlinecde(capsys, *command, own / "run")
    assert code == 2
    assert "run that is not finished (1 epoch done)" in text
    assert "start the same fit command again" in text


@pytest.mark.parametrize("command", [("evaluate",), ("plot", "streams")])
def test_a_split_there_is_not_is_named_with_those_there_are(own, capsys, command):
    lines = ward(range(40), 0).with_columns(worse=pl.col("stay") % 2)
    lines.write_csv(own / "rows.csv")
    code, text = onlinecde(
        capsys, "fit", "--events", own / "rows.csv", "--stream", "stay", "--time", "hours",
        "--label", "worse", "--label-per", "row", "--hidden", 4, "--width", 4, "--epochs", 1,
        "--device", "cpu", "--out", own / "rows",
    )  # fmt: skip
    assert code == 0, text
    code, text = onlinecde(capsys, *command, own / "rows", "--split", "foo")
    assert code == 2
    assert "has no split 'foo': it has ['train', 'validation', 'test']" in text


@pytest.mark.parametrize("option", ["--report", "--json"])
def test_a_place_that_cannot_be_written_to_is_refused_before_any_work(
    own, capsys, option, monkeypatch
):
    monkeypatch.setattr("onlinecde.artifacts.load", None)  # nothing is loaded
    code, text = onlinecde(capsys, "evaluate", own / "run", option, own)
    assert code == 2
    assert f"{option} {own} is a folder. Give the name of a file." in text
    code, text = onlinecde(capsys, "evaluate", own / "run", option, own / "stays.csv" / "page")
    assert code == 2
    assert "stays.csv is a file. Give the name of a folder." in text


@pytest.mark.parametrize(
    "command",
    [
        ("fit", "--task", "simulated-ward"),
        ("tune", "--task", "simulated-ward"),
        ("plot", "controls"),
        ("plot", "streams", "nowhere"),
    ],
)
def test_a_folder_to_write_to_that_is_a_file_is_refused(own, capsys, command):
    code, text = onlinecde(capsys, *command, "--out", own / "stays.csv")
    assert code == 2
    assert "stays.csv is a file. Give the name of a folder." in text
    assert "--out" in text


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_number_is_cut_off_beside_four_models(own, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    others = [own / f"again-{number}" for number in range(4)]
    for other in others:
        shutil.copytree(own / "run", other)
    words = [word for other in others for word in ("--against", other)]
    code, text, file = judge(capsys, own, *words)
    assert code == 0, text
    assert "…" not in text
    for metric in json.loads(file.read_text())["evaluation"]["metrics"].values():
        if metric["value"] is not None and metric["value"] >= 0.01:
            assert text.count(f"{metric['value']:.4f}") >= 5
    assert text.count("difference") == 4
    assert (text.count("metric ") == 1) == (columns == 200)


def test_boosted_trees_are_fitted_on_the_runs_own_training_split(
    own, capsys, tmp_path, monkeypatch
):
    pytest.importorskip("lightgbm")
    monkeypatch.chdir(tmp_path)
    code, text, file = judge(capsys, own, "--against", "trees")
    assert code == 0, text
    assert "fitted on 28 labels of the training split of table vitals.csv" in text
    found = json.loads(file.read_text())
    (trees,), (gap,) = found["against"], found["differences"]
    assert trees["model"] == "boosted trees"
    assert trees["streams"] == found["evaluation"]["streams"] == 6
    assert gap["auc"]["low"] is not None
    assert "--against trees" in found["command"]
    # Another ward's streams are judged; the trees are still those of the run's own.
    ward(range(100, 130), 1).write_csv(own / "other.csv")
    outcomes(range(100, 130)).write_csv(own / "others.csv")
    tables = (
        "--events",
        own / "other.csv",
        "--labels",
        own / "others.csv",
        "--static",
        own / "others.csv",
    )
    code, text, file = judge(capsys, own, *tables, "--against", "trees")
    assert code == 0, text
    assert "fitted on 28 labels of the training split of table vitals.csv" in text
    assert json.loads(file.read_text())["against"][0]["streams"] == 30
    # A folder of that name is a folder.
    (tmp_path / "trees").mkdir()
    code, text, _ = judge(capsys, own, "--against", "trees")
    assert code == 2
    assert "trees" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_devices_are_those_of_fit(own, capsys):
    code, text, _ = judge(capsys, own, "--device", "auto")
    assert code == 0, text
    code, text, _ = judge(capsys, own, "--device", "cuda")
    assert code == 2
    assert "torch sees no GPU here" in text
    code, text, _ = judge(capsys, own, "--device", "abacus")
    assert code == 2
    assert "choose 'auto', 'cpu' or 'cuda'" in text
