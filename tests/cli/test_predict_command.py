"""`onlinecde predict`: columns as the run was fitted with, or said otherwise; scores in a file or on the output."""

import numpy as np
import polars as pl
import pytest
import torch

import onlinecde as oc
from onlinecde.cli.app import main


def ward(streams, seed):
    random = np.random.default_rng(seed)
    lines = [
        (f"{stay}", float(hour), name, float(random.normal(stay % 2)))
        for stay in streams
        for hour in range(5)
        for name in ("pulse", "pressure")
    ]
    return pl.DataFrame(lines, schema=["stay", "hours", "name", "value"], orient="row")


def facts(streams):
    kinds = [("mild", "severe", "fatal")[stay % 3] for stay in streams]
    return pl.DataFrame({"stay": streams, "age": [40 + s % 30 for s in streams], "outcome": kinds})


def onlinecde(capfd, *arguments):
    """What a command says, on its output and besides, and ends with."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in arguments])
    out = capfd.readouterr()
    return ended.value.code or 0, out.out, " ".join(out.err.split())


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run of three classes on own tables, and tables of another month."""
    home = tmp_path_factory.mktemp("own")
    ward(range(42), 0).write_csv(home / "vitals.csv")
    facts(range(42)).write_csv(home / "stays.csv")
    with pytest.raises(SystemExit) as ended:
        main(
            ["fit", "--events", str(home / "vitals.csv"), "--labels", str(home / "stays.csv"),
             "--static", str(home / "stays.csv"), "--stream", "stay", "--time", "hours", "--channel", "name",
             "--value", "value", "--label", "outcome", "--model", "gru", "--hidden", "4", "--epochs", "1",
             "--device", "cpu", "--out", str(home / "run")]
        )  # fmt: skip
    assert not ended.value.code
    ward(range(100, 120), 1).write_parquet(home / "march.parquet")
    facts(range(100, 120)).drop("outcome").write_csv(home / "march-stays.csv")
    return home


def test_a_run_scores_another_table_by_the_columns_it_was_fitted_with(home, capfd, tmp_path):
    out = tmp_path / "scores.parquet"
    words = ("predict", home / "run", "--events", home / "march.parquet", "--out", out,
             "--static", home / "march-stays.csv")  # fmt: skip
    code, said, besides = onlinecde(capfd, *words)
    assert (code, besides) == (0, "")
    assert said == f"20 scores of 20 streams, in {out}\n"
    scores = pl.read_parquet(out)
    classes = ["probability_fatal", "probability_mild", "probability_severe"]
    assert scores.columns == ["stream", "time", *classes]
    assert scores["stream"].to_list() == list(range(100, 120))
    assert scores["time"].to_list() == [4.0] * 20
    model = oc.load(home / "run" / "model")
    batch = oc.SeriesBatch.from_long(
        ward(range(100, 120), 1), stream="stay", time="hours", channel="name", value="value",
        static=facts(range(100, 120)).drop("outcome").cast({"stay": pl.String}),
    )  # fmt: skip
    with torch.no_grad():
        wanted = model(batch, final=True).softmax(-1)
    np.testing.assert_allclose(scores.select(classes).to_numpy(), wanted, atol=1e-6)
    code, _, besides = onlinecde(capfd, *words)
    assert code == 2
    assert "is there already: give another name, or --overwrite" in besides
    assert onlinecde(capfd, *words, "--overwrite", "--at", "rows")[0] == 0
    assert pl.read_parquet(out).height == 100


def test_scores_on_the_output_are_csv_and_nothing_else(home, capfd, tmp_path):
    wide = ward(range(100, 103), 1).pivot("name", index=["stay", "hours"], values="value")
    wide.rename({"stay": "bed"}).write_csv(tmp_path / "wide.csv")
    code, said, besides = onlinecde(
        capfd, "predict", home / "run", "--events", tmp_path / "wide.csv", "--stream", "bed",
        "--at", "every=2h", "--until", "+3h", "--out", "-",
    )  # fmt: skip
    assert code == 0
    lines = said.splitlines()
    assert lines[0] == "stream,time,probability_fatal,probability_mild,probability_severe"
    assert [line.split(",")[:2] for line in lines[1:5]] == [["100", f"{t}.0"] for t in (0, 2, 4, 6)]
    assert len(lines) == 1 + 3 * 4
    for note in ("read as a wide table", "'age' is absent", "its last answer stands", "12 scores"):
        assert note in besides


def test_what_is_wrong_is_said_in_a_line(home, capfd, tmp_path):
    events = ("--events", home / "march.parquet")
    out = ("--out", tmp_path / "s.csv")
    wrong = {
        ("predict", home / "run", *events, "--out", tmp_path / "s.txt"): "ends in .parquet or .csv",
        ("predict", home / "run", *events, *out, "--at", "hourly"): "give rows, end, every=1h",
        ("predict", home / "run", *events, *out, "--stream", "bed"): "there are stay, hours, name",
        ("predict", home / "nowhere", *events, *out): "is not a folder",
        ("predict", home / "run", "--events", home / "april.csv", *out): "april.csv does not exist",
        ("predict", home / "run", "--events", home / "stays.csv", *out): "no column 'hours'",
        ("predict", home / "run", *events, "--static", home / "march.parquet", *out): "two lines",
    }
    for words, message in wrong.items():
        code, said, besides = onlinecde(capfd, *words)
        assert (code, said) == (2, "")
        assert message in besides, besides
    assert not list(tmp_path.iterdir())
