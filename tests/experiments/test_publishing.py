"""What is published is what was run: every seed, read back to the same table, the same bytes always."""

import json
import random
import shutil
import statistics
from dataclasses import replace

import pytest
from made_tables import ward_table
from typer.testing import CliRunner

from onlinecde.cli.app import app
from onlinecde.experiments import ExperimentError, cells_of, load_table, publishing, summarise
from onlinecde.experiments.machine import commit, source
from onlinecde.experiments.publishing import command_for, publish, read_published
from onlinecde.experiments.rendering import as_csv, as_latex, as_markdown
from onlinecde.experiments.running import write_result

SEEDS = [3, 1, 2]


def made_results(home, table, *, only=(), **circumstances):
    """Random results of the cells of a table; those of the column GRU-D failed."""
    for cell in cells_of(table, seeds=SEEDS, only=only):
        result = {
            "cell": {"seed": cell.seed},
            "status": "done",
            "digest": cell.digest,
            "settings": cell.settings,
            "test": round(random.random(), 4),
            "validation": round(random.random(), 4),
            "test_metrics": {"auprc": round(random.random(), 4), "brier": None},
            "streams": {"train": 42, "validation": 9, "test": 9},
            "weights": 585,
            "epochs": 5,
            "best_epoch": 3,
            "nfe_per_epoch": 0 if cell.column.model == "gru" else random.randrange(1000, 2000),
            "nfe_counted": "in training",
            "seconds_per_epoch": 2.5,
            "seconds": 12.5,
            "seconds_this_start": 14.0,
            "peak_memory_bytes": 3 * 2**20,
            "finished": "2026-11-15T00:00:00+00:00",
            "log": {"train_loss": [0.5] * 5},
            "commit": "0123456789abcdef",
            "source": "somewhere else",
            "versions": {"onlinecde": "1", "torch": "2"},
            "hardware": {"processor": "one", "threads": 2},
            **circumstances,
        }
        if cell.column.name == "GRU-D":
            result = {"status": "failed", "digest": cell.digest, "reason": "ValueError: no more"}
        write_result(home / cell.place, result)


def summary_of(home, table, only=()):
    return summarise(table, cells_of(table, seeds=SEEDS, only=only), home)


@pytest.fixture
def ward(tmp_path):
    return load_table(ward_table(tmp_path))


def test_the_file_gives_the_table_that_was_run(tmp_path, ward):
    only = ["*/GRU", "*/Online NCDE"]
    made_results(tmp_path / "out", ward, only=only)
    summary = summary_of(tmp_path / "out", ward, only)
    file = publish(summary, tmp_path / "results", "onlinecde reproduce ward.toml")
    assert file == tmp_path / "results" / "ward.json"
    again = read_published(file)
    for column in ("GRU", "Online NCDE"):
        mine, other = (s.entry("Deterioration", column) for s in (summary, again))
        assert other.values() == mine.values()
        assert other.published == mine.published
        assert (other.nfe, other.deviation()) == (mine.nfe, mine.deviation())
    lines = [line for line in as_markdown(summary).splitlines() if "GRU-D" not in line]
    shown = as_markdown(again).splitlines()
    assert [line for line in lines if line.startswith(("- ", "#"))] == [
        line for line in shown if line.startswith(("- ", "#"))
    ]
    assert as_csv(again).splitlines() == as_csv(summary).splitlines()[:3]
    assert as_latex(again).count("pm") == as_latex(summary).count("pm")


def test_every_seed_its_settings_and_its_machine_are_in_the_file(tmp_path, ward):
    made_results(tmp_path / "out", ward)
    summary = summary_of(tmp_path / "out", ward)
    told = json.loads(publish(summary, tmp_path, "the command").read_text())
    assert told["command"] == "the command"
    (made,) = told["made"]
    assert made["commit"] == "0123456789abcdef"
    assert set(made) == {"commit", "source", "versions", "hardware"}
    place = told["places"][1]
    assert [run["seed"] for run in place["runs"]] == SEEDS
    values = [run["test"] for run in place["runs"]]
    assert statistics.fmean(values) == summary.entry("Deterioration", "Online NCDE").mean()
    assert "seed" not in place["settings"]["fit"], "the seed is the run's"
    assert place["settings"]["model"]["counts"] is True
    assert place["published"] == {"mean": 0.8, "std": 0.02, "nfe": 1.5}
    assert "log" not in place["runs"][0]
    assert [place["column"] for place in told["places"]] == ["GRU", "Online NCDE", "GRU-D"]
    failed = told["places"][2]
    assert (failed["runs"], failed["failures"]) == ([], ["ValueError: no more"])
    again = read_published(tmp_path / "ward.json")
    assert again.entry("Deterioration", "GRU-D").state == "failed"


def test_the_same_results_give_the_same_bytes(tmp_path, ward):
    made_results(tmp_path / "out", ward)
    files = [publish(summary_of(tmp_path / "out", ward), tmp_path / n, "c") for n in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].stat().st_size < 12_000


@pytest.mark.parametrize(
    ("told", "same", "published"),
    [
        (None, True, "feedbeef"),
        (None, False, None),
        ("0123+", True, "feedbeef"),
        ("0123+", False, "0123+"),
        ("0123", True, "0123"),
    ],
)
def test_a_run_of_files_not_committed_yet_gets_the_commit_of_the_same_files(
    tmp_path, ward, monkeypatch, told, same, published
):
    monkeypatch.setattr(publishing, "commit", lambda: "feedbeef")
    made_results(tmp_path, ward, commit=told, source=source() if same else "of another day")
    file = publish(summary_of(tmp_path, ward), tmp_path / "results", "c")
    assert {made["commit"] for made in json.loads(file.read_text())["made"]} == {published}


def test_a_commit_is_named_in_full():
    assert commit() is None or len(commit().rstrip("+")) == 40


def test_runs_published_before_are_kept_where_they_are_not_at_hand(tmp_path, ward):
    made_results(tmp_path / "there", ward, commit="made there")
    file = publish(summary_of(tmp_path / "there", ward), tmp_path / "results", "c")
    before = {
        column: read_published(file).entry("Deterioration", column)
        for column in ("GRU", "Online NCDE")
    }
    here = tmp_path / "here"
    made_results(here, ward, only=["*/Online NCDE"], commit="made here")
    cells = cells_of(ward, seeds=SEEDS, only=["*/Online NCDE"])
    (here / cells[1].place / "result.json").unlink()
    publish(summary_of(here, ward), tmp_path / "results", "c")
    after = read_published(file)
    assert after.entry("Deterioration", "GRU") == before["GRU"]
    mine = after.entry("Deterioration", "Online NCDE").results
    assert [run["seed"] for run in mine] == SEEDS
    assert [run["commit"] for run in mine] == ["made here", "made there", "made here"]
    assert mine[1] == before["Online NCDE"].results[1]
    twice = file.read_bytes()
    publish(summary_of(here, ward), tmp_path / "results", "c")
    assert file.read_bytes() == twice


def test_runs_published_before_with_other_settings_are_not_kept(tmp_path, ward):
    made_results(tmp_path / "there", ward)
    file = publish(summary_of(tmp_path / "there", ward), tmp_path / "results", "c")
    gru, *others = ward.columns
    changed = replace(ward, columns=(replace(gru, settings={**gru.settings, "hidden": 5}), *others))
    made_results(tmp_path / "here", changed, only=["*/Online NCDE"])
    publish(summary_of(tmp_path / "here", changed), tmp_path / "results", "c")
    assert [place["column"] for place in json.loads(file.read_text())["places"]] == ["Online NCDE"]


def test_what_is_not_done_cannot_be_published(tmp_path, ward):
    with pytest.raises(ExperimentError, match=r"no cell of 'ward' is done .* run `c` first"):
        publish(summary_of(tmp_path / "out", ward), tmp_path, "c")
    (tmp_path / "other.json").write_text('{"format": "else"}')
    with pytest.raises(ExperimentError, match="no published results"):
        read_published(tmp_path / "other.json")
    (tmp_path / "torn.json").write_text('{"format": ')
    with pytest.raises(ExperimentError, match="not JSON"):
        read_published(tmp_path / "torn.json")
    with pytest.raises(ExperimentError, match="cannot be read"):
        read_published(tmp_path / "none.json")


def test_the_name_and_the_command_tell_protocol_budget_and_demo(tmp_path):
    table = load_table("mimic-iv")
    cells = cells_of(table, protocol="paper", budget="smoke", demo=True)
    summary = summarise(table, cells, tmp_path)
    assert publishing.published_name(summary) == "mimic-iv-paper-smoke-demo"
    told = command_for(
        "mimic-iv", protocol="paper", budget="smoke", found=["results/search/a b.json"], demo=True
    )
    assert told == (
        "onlinecde reproduce mimic-iv --protocol paper --budget smoke "
        "--found 'results/search/a b.json' --demo"
    )


def test_two_workers_share_the_cells_and_publishing_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ONLINECDE_CACHE", str(tmp_path / "cache"))
    out, target = tmp_path / "out", tmp_path / "results"

    def ran(*words):
        only = ("--only", "*/GRU", "--only", "*/GRU-D")
        words = (ward_table(tmp_path), *only, "--out", str(out), "--device", "cpu", *words)
        return CliRunner().invoke(app, ["reproduce", *words])

    assert ran("--publish", str(target)).exit_code != 0
    assert not out.exists(), "publishing runs nothing"
    done = ran("--workers", "2")
    assert done.exit_code == 0, done.output
    assert "2 cells, 2 at a time" in done.output
    found = {file.parts[-3]: json.loads(file.read_text()) for file in out.rglob("result.json")}
    assert set(found) == {"gru", "gru-d"}
    logs = [(out / f"worker-{number}.log").read_text() for number in range(2)]
    for column in ("GRU", "GRU-D"):
        by = [f"/{column}, seed 0: auc" in log for log in logs]
        assert sum(by) == 1, "each cell is run by one of them"
        assert found[column.lower()]["hardware"]["side_by_side"] == 2
        assert found[column.lower()]["test_metrics"]["auc"] == found[column.lower()]["test"]
    told = ran("--publish", str(target))
    assert told.exit_code == 0, told.output
    published = json.loads((target / "ward.json").read_text())
    assert published["command"] == "onlinecde reproduce ward.toml"
    tests = {place["column"].lower(): place["runs"][0]["test"] for place in published["places"]}
    assert tests == pytest.approx({name: one["test"] for name, one in found.items()}, rel=1e-5)
    # One column again, as if it alone were at hand: the other stays published.
    shutil.rmtree(next(out.rglob("gru-d")))
    only = ("--only", "*/GRU", "--seeds", "0", "--publish", str(target), "--out", str(out))
    told = CliRunner().invoke(app, ["reproduce", ward_table(tmp_path), *only])
    assert "1 runs, and 1 published before" in told.output
    assert json.loads((target / "ward.json").read_text()) == published
