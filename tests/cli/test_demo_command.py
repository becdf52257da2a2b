"""`onlinecde demo` from end to end, on a small ward."""

import json

from typer.testing import CliRunner

from onlinecde.cli.app import app


def test_the_demo_leaves_two_models_and_a_report(tmp_path, monkeypatch):
    monkeypatch.setenv("ONLINECDE_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "demo"
    result = CliRunner().invoke(
        app, ["demo", "--out", str(out), "--streams", "120", "--epochs", "2", "--no-live"]
    )
    assert result.exit_code == 0, result.output
    page = (out / "report.html").read_text()
    assert "GRUD" in page
    assert "best possible" in page
    told = json.loads((out / "evaluation.json").read_text())
    assert 0 <= told["evaluation"]["metrics"]["auc"]["value"] <= 1
    assert "report.html" in result.output
