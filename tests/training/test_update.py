"""A fitted model goes on learning from new streams: no worse on the old ones, or it is not published."""

import shutil

import numpy as np
import polars as pl
import pytest
import torch

import onlinecde as oc
from onlinecde.artifacts import read_manifest
from onlinecde.cli.app import main
from onlinecde.models import AlarmPolicy
from onlinecde.streaming import Engine, Event, SQLiteStore
from onlinecde.training import FitError, update

COLUMNS = ["--stream", "stay", "--time", "hours", "--channel", "name", "--value", "value"]


def write(folder, stays, *, seed=0, flip=False, names=("pulse", "pressure"), outcome=(0, 1)):
    """Events and outcomes of stays whose pulse tells the outcome (or, flipped, the other one)."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    labels = [int(random.random() < 0.5) for _ in stays]
    lines = [
        {
            "stay": s,
            "hours": float(h),
            "name": name,
            "value": float(random.normal(70 + 9 * (y ^ flip), 8)),
        }
        for s, y in zip(stays, labels, strict=True)
        for h in range(3)
        for name in names
    ]
    pl.DataFrame(lines).write_parquet(folder / "events.parquet")
    told = pl.DataFrame({"stay": list(stays), "died": [outcome[y] for y in labels]})
    told.write_csv(folder / "outcomes.csv")
    return {"events": folder / "events.parquet", "labels": folder / "outcomes.csv"}


def run(*words):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run of 160 stays, and its files."""
    home = tmp_path_factory.mktemp("update")
    files = write(home / "old", range(160))
    code = run(
        "fit", "--events", files["events"], "--labels", files["labels"], "--label", "died", *COLUMNS,
        "--out", home / "run", "--model", "gru", "--epochs", 15, "--lr", 0.01, "--hidden", 8,
    )  # fmt: skip
    assert code == 0
    oc.artifacts.save_alarm_policy(home / "run/model", AlarmPolicy(0.5))
    return home


@pytest.fixture(scope="module")
def updated(home):
    """The same, updated from the command line on 40 more."""
    files = write(home / "new", range(200, 240), seed=1)
    words = ["--events", files["events"], "--labels", files["labels"], "--out", home / "next"]
    assert run("fit", "--from", home / "run", *words, "--epochs", 3) == 0
    return home / "next"


def test_scales_stay_and_the_card_has_the_lineage(home, updated):
    before, after = oc.load(home / "run/model"), oc.load(updated / "model")
    for name in ("shift", "scale", "time_shift", "time_scale"):
        assert torch.equal(getattr(before.encoding, name), getattr(after.encoding, name))
    assert not torch.equal(before.readout.layers.weight, after.readout.layers.weight)
    assert after.alarm_policy is None
    manifest = read_manifest(updated / "model")
    parent = manifest.extra["parent"]
    assert parent["sha256"] == read_manifest(home / "run/model").sha256
    assert (parent["streams"]["old"], parent["streams"]["new"]) == (160, 40)
    assert parent["streams"]["taught again"] == 56
    assert manifest.extra["settings"]["lr"] == pytest.approx(0.002)
    difference = parent["validation"]["old"]["difference"]
    assert difference["low"] < difference["value"] < difference["high"]
    card = (updated / "model/README.md").read_text()
    assert parent["sha256"][:12] in card
    assert "On old validation streams Log loss" in " ".join(card.split())


def test_it_is_evaluated_and_updated_again_from_its_record(home, updated, capsys):
    assert run("evaluate", updated, "--bootstrap", 0) == 0
    assert "30 streams" in " ".join(capsys.readouterr().out.split())  # 24 old, 6 new
    files = write(home / "third", range(1200, 1230), seed=3)
    done = update(updated, files, home / "third-run", epochs=1)
    parent = read_manifest(done.folder / "model").extra["parent"]
    assert parent["before"]["streams"]["old"] == 160
    assert parent["streams"]["old"] == 200


def test_a_model_that_is_worse_on_the_old_streams_is_not_published(home, capsys):
    files = write(home / "flipped", range(300, 460), seed=2, flip=True)
    words = ["--events", files["events"], "--labels", files["labels"], "--out", home / "worse"]
    fast = ["--epochs", 20, "--lr", 0.03, "--rehearsal", 0, "--setting", "stop=20"]
    assert run("fit", "--from", home / "run", *words, *fast) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "worse on the old validation streams and is not published: Log loss" in said
    assert "on 24 streams" in said
    assert not (home / "worse/model").exists()


def test_a_store_changes_to_the_updated_model_without_losing_a_stream(home, updated, tmp_path):
    events = [Event(f"s{n}", float(t), "pulse", 60.0 + n + t) for t in range(3) for n in range(5)]
    with Engine(home / "run/model", SQLiteStore(tmp_path / "live.db")) as engine:
        engine.apply(events)
    with Engine(updated / "model", SQLiteStore(tmp_path / "live.db"), rebuild=True) as engine:
        now = [engine.predict(f"s{n}") for n in range(5)]
    with Engine(updated / "model") as fresh:
        fresh.apply(events)
        np.testing.assert_array_equal(now, [fresh.predict(f"s{n}") for n in range(5)])


def test_files_that_moved_are_named_with_the_option_that_helps(home, tmp_path):
    shutil.copytree(home / "run", tmp_path / "run")
    manifest = tmp_path / "run/model/manifest.json"
    text = manifest.read_text().replace(str(home / "old"), str(tmp_path / "gone"))
    manifest.write_text(text)
    files = write(tmp_path / "more", range(500, 520))
    with pytest.raises(FitError, match=r"gone/events.parquet is not found.*--old-events FILE"):
        update(tmp_path / "run", files, tmp_path / "out")
    old = {"events": home / "old/events.parquet", "labels": home / "old/outcomes.csv"}
    assert update(tmp_path / "run", files, tmp_path / "out", old_files=old, epochs=1).folder


OTHER_DATA = [
    ({"names": ("pulse", "sodium")}, "has the channels sodium, which the model does not know"),
    ({"names": ("pulse",)}, "has no value of channel 'pressure'"),
    ({"outcome": (1.5, 2.5)}, "the label is 1.5|has kind 'regression'"),
]


@pytest.mark.parametrize(("changes", "message"), OTHER_DATA)
def test_other_channels_and_labels_are_refused_before_anything_is_written(
    home, tmp_path, changes, message
):
    files = write(tmp_path / "more", range(600, 640), **changes)
    with pytest.raises(ValueError, match=message):
        update(home / "run", files, tmp_path / "out", epochs=1)
    assert not (tmp_path / "out").exists()


def test_the_same_streams_and_missing_files_are_refused(home, tmp_path):
    with pytest.raises(FitError, match="160 streams that the old data has too, such as"):
        update(home / "run", write(tmp_path / "more", range(160)), tmp_path / "out")
    with pytest.raises(FitError, match=r"table of its own for labels.*--labels"):
        update(home / "run", {"events": tmp_path / "more/events.parquet"}, tmp_path / "out")
    with pytest.raises(FitError, match="holds the model that is updated"):
        update(home / "run", {"events": tmp_path / "more/events.parquet"}, home / "run")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--label", "died"], "--label is as the run of --from was fitted with it"),
        (["--model", "gru"], "leave --model"),
        (["--rehearsal", "2"], "rehearsal is 2.0: give a share from 0 to 1"),
    ],
)
def test_options_that_are_the_runs_are_refused(home, tmp_path, capsys, words, message):
    given = [
        "--from",
        home / "run",
        "--events",
        home / "old/events.parquet",
        "--out",
        tmp_path / "out",
    ]
    assert run("fit", *given, *words) != 0
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_unfolding_is_the_inverse_of_folding():
    from onlinecde.training.objectives import Scales, fold, unfold

    torch.manual_seed(0)
    model = oc.GRU(channels=1, hidden=4, outputs=1, static=2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    two = torch.tensor([3.0, -1.0]).double(), torch.tensor([2.0, 0.5]).double()
    scales = Scales(*two, torch.tensor([50.0]).double(), torch.tensor([7.0]).double())
    unfold(model, scales)
    assert not torch.equal(model.readout.layers.bias, before["readout.layers.bias"])
    fold(model, scales)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=1e-5, atol=1e-5)
