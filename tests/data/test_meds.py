"""MEDS data sets: shards, labels, choice of codes, static events, and what is refused."""

import os
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
import torch

from onlinecde.data.errors import DataError
from onlinecde.data.meds import load

START = datetime(2100, 1, 1)
SUBJECTS = range(1, 13)


def hours(number: float) -> datetime:
    return START + timedelta(hours=number)


def made_events() -> pl.DataFrame:
    rows = []
    for subject in SUBJECTS:
        rows += [
            (subject, None, f"GENDER//{'FM'[subject % 2]}", None),
            (subject, None, "HEIGHT", 160.0 + subject),
            (subject, None, "DONOR", None) if subject == 3 else (subject, None, "HEIGHT", None),
            (subject, hours(0), "ADMISSION", None),
            (subject, hours(1), "LAB//heart", 60.0 + subject),
            (subject, hours(1), "LAB//heart", 62.0 + subject),
            (subject, hours(2), "LAB//heart", None),
            (subject, hours(2), "LAB//sodium", 140.0),
            (subject, hours(10), "LAB//heart", 999.0),
        ]
    rows.append((1, hours(0.5), "RARE", 7.0))
    return pl.DataFrame(
        rows,
        schema={
            "subject_id": pl.Int64,
            "time": pl.Datetime("us"),
            "code": pl.String,
            "numeric_value": pl.Float32,
        },
        orient="row",
    )


def made_labels(**columns: object) -> pl.DataFrame:
    frame = pl.DataFrame(
        {"subject_id": list(SUBJECTS), "prediction_time": [hours(5)] * len(SUBJECTS)}
    ).with_columns(pl.col("prediction_time").cast(pl.Datetime("us")))
    columns = columns or {"boolean_value": [subject % 3 == 0 for subject in SUBJECTS]}
    return frame.with_columns(**{k: pl.Series(v) for k, v in columns.items()})


@pytest.fixture
def folder(tmp_path) -> Path:
    """A data set in two shards, with labels."""
    events = made_events()
    for name, part in (
        ("train/0", pl.col("subject_id") < 9),
        ("test/0", pl.col("subject_id") >= 9),
    ):
        path = tmp_path / "data" / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        events.filter(part).write_parquet(path)
    (tmp_path / "labels").mkdir()
    made_labels().write_parquet(tmp_path / "labels" / "death.parquet")
    return tmp_path


def test_a_line_of_labels_is_a_stream_of_what_came_before(folder):
    task = load([folder])
    assert (task.kind, task.per, task.time_unit) == ("binary", "stream", "hours")
    assert task.series.streams[0] == "1@2100-01-01T05:00:00"
    assert task.subjects == tuple(SUBJECTS)
    assert set(task.series.channels) == {"ADMISSION", "LAB//heart", "LAB//sodium", "RARE"}
    assert task.labels.tolist() == [float(subject % 3 == 0) for subject in SUBJECTS]
    # Hour 10 is after the prediction time.
    assert float(task.series.times.max()) == 2.0
    assert float(task.series.values.nan_to_num(0).max()) < 999


def test_values_of_one_time_are_averaged_and_events_without_numbers_are_1(folder):
    task = load([folder], codes=["LAB//heart", "ADMISSION"])
    assert task.series.channels == ("LAB//heart", "ADMISSION")
    assert task.series.times[1].tolist() == [0.0, 1.0]
    values = task.series.values[1].nan_to_num(-1).tolist()
    # At hour 2 the heart rate has no number: it is not observed, not 1.
    assert values == [[-1.0, 1.0], [63.0, -1.0]]


def test_codes_are_chosen_by_list_by_prefix_or_by_frequency(folder):
    assert load([folder], codes="LAB//sodium,RARE").series.channels == ("LAB//sodium", "RARE")
    assert load([folder], prefixes="LAB//").series.channels == ("LAB//heart", "LAB//sodium")
    assert "RARE" not in load([folder], most_frequent=3).series.channels


def test_events_without_a_time_are_static(folder):
    task = load([folder])
    facts = {name: task.series.static[:, i].tolist() for i, name in enumerate(task.series.features)}
    assert facts["GENDER=F"] == [float(subject % 2 == 0) for subject in SUBJECTS]
    assert facts["HEIGHT"] == [160.0 + subject for subject in SUBJECTS]
    assert facts["DONOR=present"] == [float(subject == 3) for subject in SUBJECTS]


def test_a_window_starts_before_the_prediction_and_leaves_out_who_has_nothing_in_it(folder):
    task = load([folder], window_hours=4.0, codes="LAB//heart")
    assert task.series.times[0].tolist() == [0.0]
    task = load([folder], window_hours=4.75, codes="RARE,LAB//sodium")
    assert task.series.times[0].tolist() == [0.25, 1.75]
    labels = made_labels().with_columns(
        prediction_time=pl.when(pl.col("subject_id") == 5)
        .then(pl.lit(hours(-1)))
        .otherwise("prediction_time")
    )
    labels.write_parquet(folder / "labels" / "death.parquet")
    task = load([folder])
    assert 5 not in task.subjects
    assert task.settings["labels_without_events"] == 1


def test_several_predictions_of_a_subject_are_streams_that_stay_together(folder):
    later = made_labels().with_columns(pl.lit(hours(11)).alias("prediction_time"))
    pl.concat([made_labels(), later]).write_parquet(folder / "labels" / "death.parquet")
    task = load([folder])
    assert len(task.series) == 24
    assert float(task.series.times.max()) == 10.0
    homes = {
        (task.subjects[at], name) for name, split in task.splits.items() for at in split.tolist()
    }
    assert len(homes) == 12


def test_the_data_sets_own_splits_are_kept(folder):
    (folder / "metadata").mkdir()
    names = ["train"] * 6 + ["tuning"] * 3 + ["held_out"] * 3
    pl.DataFrame({"subject_id": list(SUBJECTS), "split": names}).write_parquet(
        folder / "metadata" / "subject_splits.parquet"
    )
    task = load([folder])
    assert task.splits["validation"].tolist() == [6, 7, 8]
    assert task.splits["test"].tolist() == [9, 10, 11]


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("float_value", [0.5 * subject for subject in SUBJECTS], "regression"),
        ("integer_value", list(SUBJECTS), "regression"),
        ("categorical_value", ["home" if s % 2 else "ward" for s in SUBJECTS], "multiclass"),
    ],
)
def test_every_label_column_makes_its_kind_of_task(folder, column, values, kind):
    made_labels(**{column: values}).write_parquet(folder / "labels" / "death.parquet")
    task = load([folder])
    assert task.kind == kind
    if kind == "multiclass":
        assert task.classes == ("home", "ward")
        assert task.labels.tolist() == [(subject + 1) % 2 for subject in SUBJECTS]
    else:
        assert task.labels.tolist() == values


def test_one_file_with_labels_beside_it_gives_the_same_task(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("single")
    made_events().write_parquet(place / "all.parquet")
    made_labels().write_parquet(place / "labels.parquet")
    one, many = load([place / "all.parquet"]), load([folder])
    assert torch.equal(one.series.values.nan_to_num(-1), many.series.values.nan_to_num(-1))
    assert load([place / "all.parquet"], labels=str(folder / "labels")).labels.equal(one.labels)


def spoil(path: Path, frame: pl.DataFrame) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    frame.write_parquet(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: e.drop("code"), r"0\.parquet has no column 'code': it has \['subject_id'"),
        (
            lambda e: e.with_columns(pl.col("time").cast(pl.String)),
            r"0\.parquet, column 'time' has type VARCHAR: MEDS wants TIMESTAMP",
        ),
        (
            lambda e: e.with_columns(pl.col("numeric_value").cast(pl.String)),
            "column 'numeric_value' has type VARCHAR",
        ),
    ],
)
def test_events_that_are_not_meds_are_refused(folder, change, words):
    spoil(folder / "data" / "train" / "0.parquet", change(made_events()))
    with pytest.raises(DataError, match=words):
        load([folder])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.drop("prediction_time"), "has no column 'prediction_time'"),
        (lambda f: f.drop("boolean_value"), "has labels in no column"),
        (lambda f: f.with_columns(float_value=1.5), "labels in .'boolean_value', 'float_value'."),
        (
            lambda f: pl.concat([f, f.with_columns(~pl.col("boolean_value"))]),
            "subject .*: prediction_time 2100-01-01 05:00:00 is missing or has two labels",
        ),
        (
            lambda f: f.with_columns(pl.col("subject_id") + 100),
            "codes, such as|no label has an event",
        ),
    ],
)
def test_labels_that_do_not_fit_are_refused(folder, change, words):
    spoil(folder / "labels" / "death.parquet", change(made_labels()))
    with pytest.raises(DataError, match=words):
        load([folder])


def test_two_label_columns_are_told_apart_by_name(folder):
    spoil(folder / "labels" / "death.parquet", made_labels().with_columns(float_value=1.5))
    assert load([folder], label_column="boolean_value").kind == "binary"
    with pytest.raises(DataError, match="not 'integer_value'"):
        load([folder], label_column="integer_value")


def test_what_cannot_be_found_is_said(folder, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(DataError, match="holds no MEDS data"):
        load([empty])
    with pytest.raises(DataError, match="give a Parquet file or a folder"):
        load([])
    with pytest.raises(DataError, match="code 'LAB//x' is in no event"):
        load([folder], codes="LAB//x")
    with pytest.raises(DataError, match="a code that begins with"):
        load([folder], prefixes="XYZ")
    with pytest.raises(DataError, match="window_hours is -1"):
        load([folder], window_hours=-1.0)
    (folder / "labels" / "death.parquet").unlink()
    with pytest.raises(DataError, match="holds no labels: name a Parquet file"):
        load([folder])


def test_a_broken_shard_is_named(folder):
    shard = folder / "data" / "train" / "0.parquet"
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(DataError, match=r"0\.parquet cannot be read as Parquet"):
        load([folder])


def test_the_demo_in_meds(tmp_path):
    data = os.environ.get("ONLINECDE_DATA")
    path = Path(data or "") / "mimic-iv-demo-meds.parquet"
    if not data or not path.is_file():
        pytest.skip("mimic-iv-demo-meds.parquet is looked for in $ONLINECDE_DATA: it is not there")
    events = pl.read_parquet(path)
    admissions = events.filter(pl.col("code").str.starts_with("HOSPITAL_ADMISSION"))
    dead = events.filter(pl.col("code") == "MEDS_DEATH")["subject_id"].unique().to_list()
    labels = admissions.select(
        "subject_id",
        (pl.col("time") + pl.duration(hours=24)).alias("prediction_time"),
        pl.col("subject_id").is_in(dead).alias("boolean_value"),
    ).unique(["subject_id", "prediction_time"])
    labels.write_parquet(tmp_path / "labels.parquet")
    task = load(
        [path], labels=str(tmp_path / "labels.parquet"), prefixes="LAB//22", window_hours=24
    )
    assert len(task.series) + task.settings["labels_without_events"] == labels.height
    assert all(name.startswith("LAB//22") for name in task.series.channels)
    assert float(task.series.times.max()) <= 24
    assert {"GENDER=F", "GENDER=M"} <= set(task.series.features)
