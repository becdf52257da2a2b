"""docs/results.md and docs/index.md say what the committed results say, and nothing edited by hand."""

import json
import re
import shutil

import pytest
from benchmarks.epoch_picture import epoch_figure, epoch_table
from benchmarks.results_page import (
    HOME,
    IMAGES,
    PAGE,
    RESULTS,
    page,
    pictures,
    read_all,
    with_results,
)

from onlinecde.experiments.publishing import FORMAT

MARKS = "<!-- results -->\n<!-- /results -->"


def test_the_page_is_made_from_the_results():
    assert PAGE.read_text() == page(), "run: python -m benchmarks.results_page"


def test_the_home_page_shows_the_results():
    text = HOME.read_text()
    assert text == with_results(text), "run: python -m benchmarks.results_page"


def test_the_home_page_sets_no_published_number_beside_ours(folder):
    """The page says of each data set how the paper's differs; the home page has no room to."""
    assert "(98.6 ± 0.5)" in page(folder)
    shown = with_results(MARKS, folder)
    assert "CharacterTrajectories" in shown
    rows = [line for line in shown.splitlines() if line.startswith("| CharacterTrajectories")]
    assert all("±" in row and "(" not in row.split("|", 2)[2] for row in rows), rows


def test_the_pictures_of_the_page_are_there():
    for name in re.findall(r"images/(results-\S+)\.png", PAGE.read_text()):
        assert (IMAGES / f"{name}.png").exists()
        assert (IMAGES / f"{name}.svg").exists()


def place(row, column, tests, *, metric="accuracy", published=None, **more):
    runs = [
        {
            "seed": seed,
            "test": test,
            "validation": test,
            "test_metrics": test and {"auprc": test / 2, "utility": test / 3},
            "epochs": 7,
            "best_epoch": 4,
            "nfe_per_epoch": 1200,
            "nfe_counted": "one epoch of the trained model",
            "seconds_per_epoch": 1.5,
            "seconds": 10.5,
            "seconds_this_start": 11.0,
            "peak_memory_bytes": 2**21,
            "finished": "2026-11-15T00:00:00+00:00",
            "made": 0,
        }
        for seed, test in enumerate(tests)
    ]
    return {
        "row": row,
        "column": column,
        "metric": metric,
        "data": "made",
        "model": "neural-cde",
        "settings": {"fit": {"epochs": 60, "stop": 3}},
        "streams": {"train": 70, "validation": 15, "test": 15},
        "weights": 1234,
        "published": published,
        "runs": runs,
        "failures": [],
        **more,
    }


def published(folder, name, places, **more):
    content = {
        "format": FORMAT,
        "table": name,
        "command": f"onlinecde reproduce {name}",
        "protocol": "clean",
        "budget": "full",
        "demo": False,
        "title": "made",
        "about": "made",
        "down": "data set",
        "across": "control",
        "transposed": False,
        "solver": {"method": "dopri5"},
        "made": [
            {
                "commit": "0123456789abcdef+",
                "source": "x",
                "versions": {"onlinecde": "1", "torch": "2"},
                "hardware": {"processor": "one", "threads": 2, "gpu": "a GPU", "side_by_side": 4},
            }
        ],
        "places": places,
        **more,
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(content))
    return file


@pytest.fixture
def folder(tmp_path):
    paper = {"mean": 98.6, "std": 0.5, "nfe": 7.9}
    published(
        tmp_path,
        "controls",
        [
            place("CharacterTrajectories", "linear", [0.97, 0.98, 0.96]),
            place("CharacterTrajectories", "rectilinear", [0.99, 0.98, 0.97], published=paper),
            place("BeijingPM10", "linear", [77.0, 78.0], metric="rmse"),
            place("BeijingPM10", "rectilinear", [79.0, 76.5], metric="rmse"),
        ],
    )
    published(
        tmp_path,
        "physionet-2019",
        [
            place("Sepsis, hourly", "GRU", [0.71, 0.72], metric="auc"),
            place("Sepsis, hourly", "Online NCDE", [0.75, 0.76], metric="auc"),
        ],
    )
    return tmp_path


def test_numbers_come_from_the_files_and_change_with_them(folder):
    text = page(folder)
    assert "| 97.0 ± 1.0 | **98.0 ± 1.0** (98.6 ± 0.5) |" in text
    assert "| **77.5 ± 0.7** | 77.8 ± 1.8 |" in text, "less RMSE is better"
    assert "| Online NCDE | **0.755 ± 0.007** | 0.378 ± 0.004 | 0.252 ± 0.002 |" in text
    assert "1.2 (7.9)" in text
    assert "commit 0123456789ab+" in text.lower()
    assert "a GPU" in text
    assert "4 runs at a time" in text
    file = folder / "controls.json"
    told = json.loads(file.read_text())
    told["places"][0]["runs"][0]["test"] = 0.94
    file.write_text(json.dumps(told))
    assert page(folder) != text
    assert "| 96.0 ± 2.0 |" in page(folder)


def test_runs_that_were_cut_short_are_told_of(folder):
    assert "Ended early" not in page(folder)
    file = folder / "controls.json"
    told = json.loads(file.read_text())
    told["places"][2]["runs"][1]["best_epoch"] = 6
    file.write_text(json.dumps(told))
    assert "- **Ended early.** 1 of the 4 runs of BeijingPM10 were ended by the clock" in page(
        folder
    )
    told["places"][2]["settings"]["fit"]["epochs"] = 7
    file.write_text(json.dumps(told))
    assert "Ended early" not in page(folder), "all its epochs are done"


def test_what_was_not_measured_is_left_out(folder):
    text = page(folder)
    for absent in ("SpeechCommands", "BeijingPM2.5", "Death in hospital", "What the slips"):
        assert absent not in re.sub(r"\(#.*?\)", "", text)
    assert "TODO" not in text
    assert "not run" not in text
    empty = folder / "empty"
    empty.mkdir()
    assert "## Four control paths" not in page(empty)
    assert "|" not in with_results(MARKS, empty)


def test_a_place_that_was_not_run_is_empty_and_one_that_failed_says_so(folder):
    failed = place("BeijingPM10", "Hermite", [], metric="rmse", failures=["ValueError: too wide"])
    told = json.loads((folder / "controls.json").read_text())
    published(folder, "controls", [*told["places"], failed])
    row = next(line for line in page(folder).splitlines() if line.startswith("| BeijingPM10 (RMSE"))
    assert row.endswith("| failed |")
    row = next(line for line in page(folder).splitlines() if line.startswith("| Character"))
    assert row.endswith("|  |")


def estimate(value, low, high):
    return {"value": value, "low": low, "high": high, "reason": None}


def compared(folder, name, **folds):
    """A file of three models; `folds` are AUROCs by fold of those named a, b and c."""

    def one(letter, model):
        metrics = {"auc": estimate(0.75, 0.74, 0.76), "auprc": estimate(0.1, None, None)}
        scores = folds.get(letter, [])
        return {
            "model": model,
            "metrics": metrics,
            "subjects": 3050,
            "labels_given": 118310,
            "positive": 2572,
            "bootstrap": 1000,
            "folds": [
                {"fold": f"fold {number} of {len(scores)}", "metrics": {"auc": score}}
                for number, score in enumerate(scores, 1)
            ],
        }

    near, far = {"auc": estimate(0.01, 0.002, 0.02)}, {"auc": estimate(0.05, 0.03, 0.07)}
    told = {
        "format": "onlinecde evaluation 1",
        "command": "onlinecde evaluate a --against b --against c",
        "commit": None,
        "hardware": {"processor": "one"},
        "evaluation": one("a", "Online NCDE"),
        "against": [one("b", "GRU"), one("c", "GRU-D")],
        "differences": [far, near],
    }
    (folder / f"{name}.json").write_text(json.dumps(told))


def test_the_home_page_names_the_best_of_the_others(folder):
    compared(folder, "sepsis")
    text = with_results(MARKS, folder)
    assert "+0.010 beside GRU-D, the best of the others (+0.002 to +0.020" in text
    assert "| GRU | 0.750 (0.740 to 0.760) | 0.100 | +0.050 (+0.030 to +0.070) |" in page(folder)
    assert "3,050 test patients): Online NCDE" in text
    compared(folder, "sepsis-folds", a=[0.8, 0.81], b=[0.7, 0.71], c=[0.75, None])
    assert "3,050 patients, each tested once): Online NCDE" in with_results(MARKS, folder)


def test_folds_are_shown_where_they_were_judged(folder):
    title = "### Every patient tested once"
    assert title not in page(folder)
    compared(folder, "sepsis-folds", a=[0.8, 0.81], b=[0.7, 0.71], c=[0.75, None])
    text = page(folder)
    part = text[text.index(title) :].partition("\n## ")[0]
    assert text.index("## Sepsis at every hour") < text.index(title)
    assert "the 3,050 others are dealt by lot into 2 folds" in part
    assert "| GRU | 0.750 (0.740 to 0.760) | 0.100 | +0.050 (+0.030 to +0.070) |" in part
    assert "fold by fold" not in part
    recipe, others = "Online NCDE, fit's recipe", {"GRU": [0.7, 0.73], "ODE-RNN": [None, 0.75]}
    places = []
    for model, scores in {**others, recipe: [0.8, 0.79]}.items():
        one = place("Sepsis, hourly", model, scores, metric="auc")
        runs = [{**run, "seed": 0, "fold": n} for n, run in enumerate(one["runs"], 1)]
        places.append({**one, "runs": [run for run in runs if run["test"] is not None]})
    published(folder, "physionet-2019-folds", places, folds=2)
    lines = page(folder).splitlines()
    assert f"| model | fold 1 | fold 2 | mean | {recipe} less this |" in lines
    assert "| GRU | 0.700 | 0.730 | 0.715 | +0.080 ± 0.028 |" in lines
    assert "| ODE-RNN |  | 0.750 | 0.750 | +0.040 |" in lines
    assert f"| {recipe} | 0.800 | 0.790 | 0.795 |  |" in lines
    assert any("`onlinecde reproduce physionet-2019-folds`; 5 runs" in line for line in lines)


def test_a_file_of_one_split_is_not_shown_as_folds(folder):
    compared(folder, "sepsis-folds")
    with pytest.raises(SystemExit, match=r"sepsis-folds\.json is of one split"):
        page(folder)


def slips_of(text):
    """The section of the slips."""
    return text[text.index("## What the slips are worth\n") :].partition("\n## ")[0]


def lines_from(text, start):
    return [line for line in text.splitlines() if line.startswith(start)]


def test_a_slip_is_shown_with_its_difference_from_the_clean_by_seed(folder):
    mortality = place("Mortality", "GRU-D", [0.8, 0.81], metric="auc")
    published(folder, "physionet-2012", [mortality])
    paper = {"mean": 97.6, "std": 1.5, "nfe": 2.2}
    places = [
        place("linear", "test file twice", [0.99, 0.98, 0.985], published=paper),
        place("linear", "clean", [0.97, 0.975, 0.98]),
        place("Hermite", "test file twice", [0.97, 0.98]),
        place("Hermite", "clean", [0.98, 0.971]),
    ]
    published(folder, "slip-test-file-twice", places, about="Made so.", down="control")
    text = page(folder)
    part = slips_of(text)
    titles = ["## Death in hospital", "## What the slips", "## Seconds an epoch"]
    assert sorted(titles, key=text.index) == titles
    assert "### The test file read twice\n\nMade so.\n" in part
    assert "[below](#the-test-file-read-twice)" in text
    assert lines_from(part, "|") == [
        "| control | test file twice | clean | difference |",
        "|---|---:|---:|---:|",
        "| linear (accuracy, %) | 98.5 ± 0.5 (97.6 ± 1.5) | 97.5 ± 0.5 | +1.0 ± 0.9 |",
        "| Hermite (accuracy, %) | 97.5 ± 0.7 | 97.5 ± 0.6 | +0.0 ± 1.3 |",
    ], "Hermite's difference is -0.05, and no number is bold"
    assert "larger than their deviation: 1 of 2. The test file read twice (linear: +1.0" in part
    assert "`onlinecde reproduce slip-test-file-twice`; 10 runs (seeds 0, 1, 2)" in part
    assert "commit 0123456789ab+" in part.lower()
    assert "a GPU" in part


def test_slips_without_a_file_are_named_and_nothing_else(folder):
    assert "What the slips are worth" not in page(folder)
    assert "[below]" not in page(folder)
    runs = [
        place("BeijingPM2.5", "all streams", [77.0]),
        place("BeijingPM2.5", "training split", []),
    ]
    published(folder, "slip-scaling", runs)
    part = slips_of(page(folder))
    assert lines_from(part, "###") == ["### Scaled before the split"]
    told = "`slip-test-file-twice`, `slip-left-slope`, `slip-padding` and `slip-static`"
    assert f"No results yet: {told}." in part
    assert "larger than their deviation:" not in part


def test_a_slip_shows_what_is_there_of_it(folder):
    places = [
        place("clean alone", "training split", [80.0], metric="rmse"),
        place("nothing", "all streams", [], metric="rmse"),
        place("one seed of both", "all streams", [80.0, 90.0, 70.0], metric="rmse"),
        place("one seed of both", "training split", [80.5], metric="rmse"),
        place("failed", "all streams", [], metric="rmse", failures=["ValueError: too wide"]),
        place("failed", "training split", [80.5], metric="rmse"),
    ]
    published(folder, "slip-scaling", places)
    assert lines_from(slips_of(page(folder)), "|") == [
        "| data set | all streams | training split | difference |",
        "|---|---:|---:|---:|",
        "| clean alone (RMSE) |  | 80.0 |  |",
        "| one seed of both (RMSE) | 80.0 ± 10.0 | 80.5 | -0.5 |",
        "| failed (RMSE) | failed | 80.5 |  |",
    ], "the slip stands left, whichever the file names first"


def test_static_features_make_a_difference_for_each_model(folder):
    places = [
        place("PhysioNet 2012", "GRU-D without static", [0.80, 0.81], metric="auc"),
        place("PhysioNet 2012", "GRU-D with static", [0.82, 0.84], metric="auc"),
        place("PhysioNet 2012", "Online NCDE with static", [0.83, None], metric="auc"),
        place("PhysioNet 2012", "Online NCDE without static", [0.82, 0.85], metric="auc"),
    ]
    published(folder, "slip-static", places)
    part = slips_of(page(folder))
    row = lines_from(part, "| PhysioNet 2012 (AUC)")[0]
    assert (
        "| 0.805 ± 0.007 | 0.830 ± 0.014 | -0.025 ± 0.007 | 0.835 ± 0.021 | 0.830 | -0.010 |" in row
    )
    assert "(PhysioNet 2012, GRU-D without static: -0.025 ± 0.007)" in part


def test_slip_runs_that_were_cut_short_are_told_of(folder):
    runs = place("BeijingPM2.5", "all streams", [77.0, 78.0], metric="rmse")
    published(folder, "slip-scaling", [runs])
    assert "ended by the clock" not in page(folder)
    runs["runs"][0]["best_epoch"] = 6
    published(folder, "slip-scaling", [runs])
    assert "1 of the 2 runs of BeijingPM2.5 were ended by the clock" in slips_of(page(folder))


def test_a_slip_of_columns_the_table_has_not_is_refused(folder):
    published(folder, "slip-scaling", [place("BeijingPM2.5", "some streams", [77.0])])
    with pytest.raises(
        SystemExit, match=r"a column 'some streams', which the table 'slip-scaling'"
    ):
        page(folder)


def test_pictures_are_drawn_of_what_is_there(folder):
    drawn = pictures(folder)
    assert "results-controls" in drawn
    assert "results-patients" not in drawn
    titles = [axis.get_title(loc="left") for axis in drawn["results-controls"].axes]
    assert titles[:2] == ["CharacterTrajectories", "BeijingPM10"]


def test_a_file_of_another_kind_is_refused(tmp_path):
    shutil.copy(RESULTS.parent / "benchmarks" / "results" / "live.json", tmp_path)
    with pytest.raises(SystemExit, match=r"live\.json is none of"):
        read_all(tmp_path)


def test_an_epoch_is_the_best_step_times_the_batches():
    told = {
        "settings": {
            "batches": 50,
            "stays": 50_538,
            "rows": 72,
            "channels": 37,
            "observed": 0.15,
            "streams": 1024,
        },
        "hardware": {"gpu": None, "cpu": "one", "threads": 2},
        "results": [
            {"library": "a peer", "step_best_s": 0.4, "memory": 2**31},
            {"library": "onlinecde NeuralCDE", "step_best_s": 0.02, "memory": None},
        ],
    }
    lines = epoch_table(told).splitlines()
    assert lines[2] == "| onlinecde NeuralCDE | 20.0 ms | 1.00 s | 1.0x |  |"
    assert lines[3] == "| a peer | 400.0 ms | 20.00 s | 20.0x | 2.00 GiB |"
    labels = [text.get_text() for text in epoch_figure(told).axes[0].texts]
    assert labels == ["1.00 s", "20 s"]


def test_what_others_gain_from_the_steps_is_said(folder):
    assert "Whose the lead is" not in page(folder)
    told = {
        "format": "onlinecde steps 1",
        "command": "python -m benchmarks.results_steps out/reproduce --out results/sepsis-steps.json",
        "commit": "0123456789abcdef",
        "models": {
            "Online NCDE": {"without": [0.81, 0.82], "with": [0.83, 0.82]},
            "GRU": {"without": [0.8, 0.81], "with": [0.82, 0.84]},
        },
        "steps": [0.79, 0.8],
    }
    (folder / "sepsis-steps.json").write_text(json.dumps(told))
    part = page(folder).split("### Whose the lead is")[1]
    assert lines_from(part, "|")[:5] == [
        "| model | without steps | with steps | folds |",
        "|---|---:|---:|---:|",
        "| Online NCDE | 0.8150 | 0.8250 | 0.830, 0.820 |",
        "| GRU | 0.8050 | 0.8300 | 0.820, 0.840 |",
        "| steps alone |  | 0.7950 | 0.790, 0.800 |",
    ]
    assert "commit 0123456789ab." in part
