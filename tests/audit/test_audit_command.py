"""`onlinecde audit` from end to end: verdict, first leak, exit status."""

import polars as pl
import pytest
import torch
from typer.testing import CliRunner

import onlinecde as oc
from onlinecde.cli.app import app, main
from onlinecde.models.flat_settings import neural_cde

CHANNELS = ["heart", "breath"]


@pytest.fixture
def wide(tmp_path):
    """Four streams of six rows with gaps, as a CSV with a column a channel."""
    batch = oc.audit.trial_batch(streams=4, rows=6, missing=0.3)
    lines = ["stay,hours,heart,breath,note"]
    for stream in range(4):
        for row in range(6):
            cells = ["" if x.isnan() else f"{float(x):.4f}" for x in batch.values[stream, row]]
            lines.append(f"s{stream},{float(batch.times[stream, row])!r},{','.join(cells)},1")
    file = tmp_path / "wide.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def long(wide, tmp_path):
    frame = pl.read_csv(wide).unpivot(CHANNELS, index=["stay", "hours"]).drop_nulls()
    frame.write_parquet(tmp_path / "long.parquet")
    return tmp_path / "long.parquet"


def saved(tmp_path, **settings):
    torch.manual_seed(0)
    model = neural_cde(channels=2, hidden=4, width=6, **settings)
    return str(oc.save(model, tmp_path / "model", channels=CHANNELS))


def run(*arguments):
    return CliRunner().invoke(app, ["audit", *(str(a) for a in arguments)])


def test_a_model_that_is_what_it_says_exits_with_0(tmp_path, wide, long):
    folder = saved(tmp_path)
    ran = run(folder, "--data", wide, "--stream", "stay", "--time", "hours")
    assert ran.exit_code == 0, ran.output
    assert "CONTINUOUS: " in ran.output
    assert "NeuralCDE on SeriesBatch(4 streams, 6 rows, 2 channels" in ran.output
    columns = ["--stream", "stay", "--time", "hours", "--channel", "variable", "--value", "value"]
    ran = run(folder, "--data", long, *columns, "--contracts", "--streams", 2)
    assert ran.exit_code == 0, ran.output
    assert "8 of 8 contracts hold" in ran.output


def test_a_leak_is_told_and_exits_with_1(tmp_path, wide):
    folder = saved(tmp_path, control="linear")
    ran = run(folder, "--data", wide, "--stream", "stay", "--time", "hours")
    assert ran.exit_code == 1
    assert "OFFLINE: outputs at rows depend on what comes after them." in ran.output
    assert "first leak: stream 's" in ran.output
    assert "WORSE than declared: DISCRETE" in ran.output


def test_static_features_come_from_a_table_of_their_own(tmp_path, wide):
    folder = saved(tmp_path, static=1)
    facts = tmp_path / "facts.csv"
    facts.write_text("stay,age\n" + "".join(f"s{i},{40 + i}\n" for i in range(4)))
    columns = ["--data", wide, "--stream", "stay", "--time", "hours"]
    assert run(folder, *columns, "--static", facts).exit_code == 0
    ran = run(folder, *columns)
    assert isinstance(ran.exception, ValueError)
    assert "made for 1" in str(ran.exception)


def test_bad_input_is_one_clear_message(tmp_path, wide, capsys):
    folder = saved(tmp_path)
    columns = ["--stream", "stay", "--time", "hours"]
    for arguments, told in (
        (
            [folder, "--data", str(wide), *columns, "--channel", "note"],
            "both --channel and --value",
        ),
        ([folder, "--data", str(tmp_path / "no.csv"), *columns], "does not exist"),
        ([str(tmp_path), "--data", str(wide), *columns], "manifest.json is missing"),
        ([folder, "--data", str(wide), "--stream", "stay", "--time", "noon"], "'noon'"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["audit", *arguments])
        assert stopped.value.code == 2
        assert told in " ".join(capsys.readouterr().err.split())
