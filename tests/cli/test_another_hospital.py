"""Preprocessing travels in the model: another hospital's table, a live client and a fold are read as training was."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import polars as pl
import pytest
import torch

import onlinecde as oc
from onlinecde.artifacts import read_manifest
from onlinecde.cli.app import main
from onlinecde.data import StreamLabels, fold_task, task_from_table
from onlinecde.data.cache import load_task, save_task
from onlinecde.evaluation import evaluate
from onlinecde.serving import ServeSettings
from onlinecde.serving.app import create_app
from onlinecde.serving.opening import open_engine
from onlinecde.serving.running import in_background
from onlinecde.training.task_source import as_fitted, content_of
from onlinecde.training.task_source import load_task as load_fitted

OLD = Path(__file__).parent / "run_0_1"
"""A run of version 0.1.0: categories and gaps that only streams outside its training split have count there"""


def vitals(streams, seed, channels=("pulse", "pressure")):
    print("seed", seed)
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        [
            {"stay": s, "hours": float(h), **{c: float(random.normal(s % 2)) for c in channels}}
            for s in streams
            for h in range(4)
        ]
    )


def stays(streams, **changes):
    """One line a stay: age with a gap, weight without, sex f or m."""
    facts = {
        "stay": list(streams),
        "age": [None if s % 9 == 4 else 40.0 + s % 30 for s in streams],
        "weight": [60.0 + s % 20 for s in streams],
        "sex": ["fm"[s // 2 % 2] for s in streams],
        "died": [s % 2 for s in streams],
    }
    return pl.DataFrame(facts | changes)


def task_of(events, facts, **options):
    return task_from_table(
        events, stream="stay", time="hours", labels=StreamLabels("died", facts), static=facts, **options
    )  # fmt: skip


def onlinecde(capsys, *arguments):
    """What a command says and ends with."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in arguments])
    out = capsys.readouterr()
    return ended.value.code or 0, " ".join((out.out + out.err).split())


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run on own tables."""
    home = tmp_path_factory.mktemp("own")
    vitals(range(40), 0).write_csv(home / "vitals.csv")
    stays(range(40)).write_csv(home / "stays.csv")
    with pytest.raises(SystemExit) as ended:
        main(
            ["fit", "--events", str(home / "vitals.csv"), "--labels", str(home / "stays.csv"),
             "--static", str(home / "stays.csv"), "--stream", "stay", "--time", "hours",
             "--label", "died", "--model", "gru", "--hidden", "4", "--epochs", "1",
             "--device", "cpu", "--out", str(home / "run")]
        )  # fmt: skip
    assert not ended.value.code
    return home


@pytest.fixture(scope="module")
def model(home):
    return oc.load(home / "run" / "model")


def test_the_manifest_has_names_categories_and_fills_of_the_training_split(home, model):
    schema = read_manifest(home / "run" / "model").schema
    assert schema["channels"] == ["pulse", "pressure"]
    assert schema["time_unit"] == "hours"
    task = task_of(vitals(range(40), 0), stays(range(40)))
    ages = stays(range(40))["age"].to_numpy()[task.splits["train"].numpy()]
    age, weight, sex = schema["static"]
    assert age["fill"] == pytest.approx(np.nanmean(ages))
    assert (age["kind"], age["missing_indicator"]) == ("number", True)
    assert weight["missing_indicator"] is False
    assert sex == {"name": "sex", "kind": "category", "categories": ["f", "m"]}
    assert model.schema == task.schema


def test_a_table_with_another_category_order_and_company_is_judged(home, capsys):
    others = range(100, 112)
    facts = stays(others, sex=["x"] * 2 + ["m"] * 10, age=[50.0] * 12, nurse=["Ann"] * 12)
    facts.select(reversed(facts.columns)).write_csv(home / "their_stays.csv")
    events = vitals(others, 5, ("lactate", "pressure", "pulse")).with_columns(remark=pl.lit("calm"))
    events.write_csv(home / "theirs.csv")
    tables = ("--events", home / "theirs.csv", "--labels", home / "their_stays.csv")
    tables = (*tables, "--static", home / "their_stays.csv")
    code, text = onlinecde(capsys, "evaluate", home / "run", *tables, "--bootstrap", 0)
    assert code == 0, text
    assert "test: 12 streams" in text
    assert "note: the model does not know lactate, remark: not read" in text
    assert (
        "'sex' is 'x' in 2 streams, first 100, and the model knows f, m: taken as missing" in text
    )
    drop = ["pulse"]
    events.drop(drop).write_csv(home / "theirs.csv")
    facts.drop("age").write_csv(home / "their_stays.csv")
    code, text = onlinecde(capsys, "evaluate", home / "run", *tables, "--bootstrap", 0)
    assert code == 0, text
    assert "note: channel 'pulse' is absent: taken as never observed" in text
    assert "note: static feature 'age' is absent: taken as missing" in text


@pytest.mark.parametrize("how", ["by the model's schema", "by its own"])
def test_one_patients_answer_does_not_depend_on_who_else_is_in_the_file(model, how):
    options = {"schema": model.schema} if how == "by the model's schema" else {}
    options["splits"] = {"test": [0]}
    crowd = range(100, 120)
    facts = stays(crowd, age=[None, *[95.0] * 19], weight=[None, *[140.0] * 19])
    events = vitals(crowd, 5)
    together = task_of(events, facts, **options)
    alone = task_of(events.filter(pl.col("stay") == 100), facts[:1], **options)
    with torch.no_grad():
        risks = [model(one.series[0], final=True) for one in (together, alone)]
    assert torch.equal(*risks)
    filled = model.prepare(together.series).static[0].tolist()
    fills = [column.fill for column in model.schema.static[:2]]
    assert filled[:3] == pytest.approx([fills[0], 1.0, fills[1]])


def test_categories_and_marks_are_learned_from_the_training_split_of_each_fold(tmp_path):
    sexes = ["x" if s == 3 else "f" for s in range(40)]
    ages = [None if s == 3 else 40.0 + s for s in range(40)]
    facts = stays(range(40), sex=sexes, age=ages)
    for fold in (1, 2, 3):
        task = fold_task(task_of(vitals(range(40), 0), facts), fold, 3)
        train = task.splits["train"].tolist()
        known = [ages[s] for s in train if ages[s] is not None]
        column = {c.name: c for c in task.schema.static}
        assert column["age"].fill == pytest.approx(np.mean(known))
        assert column["age"].indicator == (3 in train)
        assert column["sex"].categories == (("f", "x") if 3 in train else ("f",))
        assert len(task.series.features) == task.series.static.shape[1]
        save_task(task, tmp_path / "task.npz")
        again = load_task(tmp_path / "task.npz")
        assert again.schema == task.schema
        for name, cells in task.series.raw_static.columns.items():
            assert np.array_equal(again.series.raw_static.columns[name], cells) or name == "age"
        assert content_of(again) == content_of(task)


def test_a_fold_is_encoded_as_the_run_on_it_was():
    """0.1 filled the gaps of every fold by the data set's own training split."""
    whole = task_of(vitals(range(40), 0), stays(range(40)))
    fold = fold_task(whole, 1, 3)
    former = replace(fold, series=whole.series)
    assert not torch.equal(former.series.static, fold.series.static)
    assert as_fitted(fold, {"content": content_of(former)}, whole).schema == former.schema
    for content in (content_of(fold), "of other data", None):
        assert as_fitted(fold, {"content": content}, whole) is fold


def test_a_live_client_sends_raw_values(home, model, tmp_path):
    engine, settings = open_engine(home / "run", tmp_path / "live.db", ServeSettings(port=0))
    app = create_app(engine, settings)
    with in_background(app, settings) as url, httpx.Client(base_url=url, timeout=30) as client:
        about = client.get("/v1/model").json()
        assert about["static"] == ["age", "age_missing", "weight", "sex=f", "sex=m"]
        assert about["static_features"] == [
            {"name": "age", "kind": "number", "categories": None},
            {"name": "weight", "kind": "number", "categories": None},
            {"name": "sex", "kind": "category", "categories": ["f", "m"]},
        ]

        def risk(stream, facts):
            row = {"stream": stream, "time": 0.0, "values": {"pressure": 0.5, "pulse": 1.5}}
            told = client.post("/v1/events?answers=true", json={**row, "static": facts})
            assert told.status_code == 200, told.text
            return told.json()["answers"][0]["outputs"], told.json().get("notes")

        frame = stays([7], age=[71.0], weight=[66.0], sex=["m"])
        one = vitals([7], 0)[:1].with_columns(pulse=pl.lit(1.5), pressure=pl.lit(0.5))
        task = task_of(one, frame, schema=model.schema, splits={"test": [0]})
        with torch.no_grad():
            wanted = model(task.series, final=True)[0].tolist()
        assert risk("raw", {"sex": "m", "weight": 66, "age": 71}) == (wanted, None)
        encoded = {"age": 71, "age_missing": 0, "weight": 66, "sex=f": 0, "sex=m": 1}
        assert risk("encoded", encoded) == (wanted, None)
        assert risk("listed", [71, 0, 66, 0, 1]) == (wanted, None)
        unknown, notes = risk("unknown", {"sex": "x", "weight": 66, "age": 71})
        assert (
            "'sex' is 'x' in stream 'unknown', and the model knows f, m: taken as missing"
            in notes[0]
        )
        assert risk("absent", {"weight": 66, "age": 71}) == (unknown, None)
        assert risk("null", {"weight": 66, "age": 71, "sex": None})[0] == unknown
        told = client.put("/v1/streams/put", json={"static": {"sex": "x", "weight": 66}})
        assert told.json()["static"][1:] == [1, 66, 0, 0]
        assert "taken as missing" in told.json()["notes"][0]
        for wrong in ({"shoe": 44}, {"age": "old"}, {"sex": "m", "sex=m": 1}, {"age": [1]}):
            refused = client.put("/v1/streams/new", json={"static": wrong})
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "static_bad")
        for wrong, code, words in (
            (
                None,
                "static_needed",
                r"takes static features: give .* by name \(age, weight, sex; ",
            ),
            ([71, 66], "static_bad", "by name .* or 5 finite numbers in the model's order"),
            ({"age": 1e300}, "static_bad", r"a static feature is beyond 3\.4e\+38"),
        ):
            row = {"stream": "new", "time": 1.0, "values": {"pulse": 80.0}, "static": wrong}
            error = client.post("/v1/events", json=row).json()["error"]
            assert error["code"] == code
            assert re.search(words, error["message"])


def test_a_model_that_counts_milliseconds_is_served(home, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(home / "run", folder)
    file = folder / "model" / "manifest.json"
    told = json.loads(file.read_text())
    told["extra"]["time_unit"] = told["schema"]["time_unit"] = "milliseconds"
    file.write_text(json.dumps(told))
    engine, settings = open_engine(folder, None, ServeSettings(clock_speed=0.001))
    engine.close()
    assert settings.time_unit == "milliseconds"
    assert settings.units_per_second == pytest.approx(1.0)


@pytest.fixture
def old(tmp_path):
    """A run of 0.1.0 and its tables."""
    home = tmp_path / "old"
    shutil.copytree(OLD, home)
    for file in (home / "run" / "run.json", home / "run" / "model" / "manifest.json"):
        file.write_text(file.read_text().replace("/home/of/tables", str(home)))
    return home


def test_a_run_of_0_1_gives_the_same_outputs_on_the_tables_it_was_fitted_on(old, capsys):
    code, text = onlinecde(capsys, "evaluate", old / "run", "--bootstrap", 0)
    assert code == 0, text
    assert "note:" not in text
    model, manifest = oc.load(old / "run" / "model"), read_manifest(old / "run" / "model")
    assert manifest.schema is None
    task = load_fitted(manifest.extra["task"])
    assert list(task.series.features) == manifest.extra["static"]
    wanted = torch.tensor(json.loads((old / "outputs.json").read_text())["outputs"])
    with torch.no_grad():
        torch.testing.assert_close(model(task.series, final=True), wanted, atol=1e-6, rtol=0)
    # The training split has neither the category x nor a gap in weight: a new run learns neither.
    new = load_fitted({**manifest.extra["task"], "content": None})
    assert new.series.features == ("age", "age_missing", "weight", "sex=f", "sex=m")
    assert evaluate(model, new, bootstrap=0).value == evaluate(model, task, bootstrap=0).value


def test_a_run_of_0_1_that_is_finished_is_loaded(old, capsys):
    told = json.loads((old / "run" / "run.json").read_text())
    given = told["task"]["arguments"]
    code, text = onlinecde(
        capsys, "fit", "--events", given["events"], "--labels", given["labels"], "--static", given["static"],
        "--stream", "stay", "--time", "hours", "--label", "died", "--model", "gru", "--hidden", 2,
        "--epochs", 1, "--device", "cpu", "--out", old / "run",
    )  # fmt: skip
    assert code == 0, text


def test_a_model_of_0_1_judges_another_hospital_by_name(old, capsys):
    facts = pl.read_csv(old / "stays.csv").filter(pl.col("sex") == "f").drop_nulls()
    facts = facts.with_columns(nurse=pl.lit("Ann"))
    facts.select(reversed(facts.columns)).write_csv(old / "theirs.csv")
    events = pl.read_csv(old / "vitals.csv").join(facts.select("stay"), on="stay")
    events.select("pressure", "stay", "pulse", "hours").write_csv(old / "events.csv")
    tables = (
        "--events",
        old / "events.csv",
        "--labels",
        old / "theirs.csv",
        "--static",
        old / "theirs.csv",
    )
    code, text = onlinecde(capsys, "evaluate", old / "run", *tables, "--bootstrap", 0)
    assert code == 0, text
    model = oc.load(old / "run" / "model")
    task = task_of(
        pl.read_csv(old / "events.csv"), facts, schema=model.schema, splits={"test": [0]}
    )
    wanted = torch.tensor(json.loads((old / "outputs.json").read_text())["outputs"])
    with torch.no_grad():
        found = model(task.series, final=True)
    torch.testing.assert_close(found, wanted[facts["stay"].to_list()], atol=1e-6, rtol=0)
