"""The tables of `benchmarks.strangers`, made of public data as someone would who knows nothing of this package."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

LONG = ("--stream", "id", "--time", "hours", "--channel", "name", "--value", "value")


@dataclass(frozen=True)
class OwnTable:
    """How a table is made, and what is said of it to `onlinecde fit`."""

    what: str
    make: Callable[[Path, Path], None]
    words: tuple[str, ...]
    """Options of `fit`; a name of a file in the table's folder becomes its path."""
    splits: int = 1
    """By how many seeds it is split: small tables by several"""


def hospital_c(data: Path, out: Path, stays: int = 300) -> None:
    """Stays of PhysioNet 2012, set c: rows rounded to the hour, death in hospital."""
    with zipfile.ZipFile(data / "physionet2012_set-c.zip") as archive:
        outcomes = pl.read_csv(io.BytesIO(archive.read("Outcomes-c.txt"))).head(stays)
        events, facts = [], []
        for record in outcomes["RecordID"].to_list():
            text = archive.read(f"set-c/{record}.txt").decode()
            static = {"id": record}
            for line in text.splitlines()[1:]:
                clock, name, value = line.split(",")
                number = float(value)
                if name in ("Age", "Gender", "Height", "ICUType"):
                    if number >= 0:
                        static.setdefault(name, number)
                elif name != "RecordID" and number >= 0:
                    hours, minutes = clock.split(":")
                    events.append((record, round(int(hours) + int(minutes) / 60), name, number))
            facts.append(static)
    table = pl.DataFrame(events, schema=["id", "hours", "name", "value"], orient="row")
    table.unique(["id", "hours", "name"], keep="last", maintain_order=True).write_csv(
        out / "events.csv"
    )
    pl.DataFrame(facts).write_csv(out / "stays.csv")
    died = outcomes.select(pl.col("RecordID").alias("id"), died="In-hospital_death")
    died.filter(pl.col("id").is_in(table["id"].unique().to_list())).write_csv(out / "outcomes.csv")


def _icu(data: Path) -> pl.DataFrame:
    """Charted numbers of the MIMIC-IV demo, the 30 most charted, with hours since admission to the ICU."""
    home = data / "mimic-iv-demo"
    stays = pl.read_csv(home / "icu/icustays.csv.gz", try_parse_dates=True)
    chart = pl.read_csv(
        home / "icu/chartevents.csv.gz", infer_schema_length=0, try_parse_dates=False
    )
    chart = chart.select(
        pl.col("stay_id").cast(pl.Int64),
        pl.col("charttime").str.to_datetime("%Y-%m-%d %H:%M:%S"),
        name=pl.format("item {}", pl.col("itemid")),
        value=pl.col("valuenum").cast(pl.Float64, strict=False),
    ).drop_nulls()
    most = chart["name"].value_counts(sort=True)["name"].head(30).to_list()
    joined = chart.filter(pl.col("name").is_in(most)).join(stays, on="stay_id")
    hours = (pl.col("charttime") - pl.col("intime")).dt.total_minutes() / 60
    left = (pl.col("outtime") - pl.col("charttime")).dt.total_minutes() / 60
    joined = joined.with_columns(hours=hours.floor(), left=left)
    return joined.filter(pl.col("hours") >= 0, pl.col("left") > 0).unique(
        ["stay_id", "hours", "name"], keep="last", maintain_order=True
    )


def icu_death(data: Path, out: Path) -> None:
    """The first 24 hours of ICU stays: death in hospital."""
    chart = _icu(data).filter(pl.col("hours") < 24)
    ends = pl.read_csv(data / "mimic-iv-demo/hosp/admissions.csv.gz", infer_schema_length=None)
    chart.select(pl.col("stay_id").alias("id"), "hours", "name", "value").write_parquet(
        out / "events.parquet"
    )
    stays = chart.unique("stay_id", maintain_order=True).join(ends, on="hadm_id")
    stays.select(
        pl.col("stay_id").alias("id"),
        pl.col("subject_id").alias("patient"),
        died="hospital_expire_flag",
    ).write_csv(out / "outcomes.csv")


def icu_stay(data: Path, out: Path) -> None:
    """Hours a patient will stay on the ICU from each row on, of the first two days."""
    chart = _icu(data).filter(pl.col("hours") < 48)
    chart.select(pl.col("stay_id").alias("id"), "hours", "name", "value").write_parquet(
        out / "events.parquet"
    )
    left = chart.group_by("stay_id", "hours", maintain_order=True).agg(pl.col("left").last())
    left.rename({"stay_id": "id"}).write_csv(out / "left.csv")
    chart.unique("stay_id", maintain_order=True).select(
        pl.col("stay_id").alias("id"), pl.col("subject_id").alias("patient")
    ).write_csv(out / "stays.csv")


def kidney(data: Path, out: Path) -> None:
    """Laboratory values of admissions: the next creatinine, at every one but the last."""
    labs = pl.read_csv(data / "mimic-iv-demo/hosp/labevents.csv.gz", infer_schema_length=0)
    labs = labs.select(
        pl.col("hadm_id").cast(pl.Int64, strict=False).alias("id"),
        pl.col("subject_id").alias("patient"),
        pl.col("charttime").str.to_datetime("%Y-%m-%d %H:%M:%S").alias("when"),
        name=pl.col("itemid"),
        value=pl.col("valuenum").cast(pl.Float64, strict=False),
    ).drop_nulls()
    most = labs["name"].value_counts(sort=True)["name"].head(25).to_list()
    labs = labs.filter(pl.col("name").is_in([*most, "50912"])).unique(
        ["id", "when", "name"], keep="last", maintain_order=True
    )
    labs = labs.with_columns(
        pl.when(pl.col("name") == "50912")
        .then(pl.lit("creatinine"))
        .otherwise(pl.format("lab {}", pl.col("name")))
        .alias("name")
    ).sort("id", "when")
    creatinine = labs.filter(pl.col("name") == "creatinine")
    coming = creatinine.with_columns(pl.col("value").shift(-1).over("id").alias("next")).drop_nulls(
        "next"
    )
    labs = labs.filter(pl.col("id").is_in(coming["id"].unique().to_list()))
    labs.select("id", "when", "name", "value").write_parquet(out / "labs.parquet")
    coming.select("id", "when", "next").write_csv(out / "next.csv")
    labs.unique("id", maintain_order=True).select("id", "patient").write_csv(out / "stays.csv")


def air(data: Path, out: Path, weeks: int = 8) -> None:
    """Weeks of hourly air of three of Beijing's stations: carbon monoxide in six hours, in mg/m3."""
    names = ("SO2", "NO2", "CO", "O3", "temperature", "pressure", "dewpoint", "rain", "wind")
    with zipfile.ZipFile(data / "BeijingPM25Quality.zip") as archive:
        text = archive.read("BeijingPM25Quality_TRAIN.ts").decode().partition("@data")[2]
    days = [line.split(":")[:-1] for line in text.splitlines() if line.strip()]
    # Days stand station by station, one behind the other.
    stations = np.array_split(np.arange(len(days)), 12)[::4]
    frames = []
    for number, station in enumerate(stations):
        for week in range(weeks):
            piece = station[week * 42 :][:7]
            parts = [[cells.split(",") for cells in days[day]] for day in piece]
            numbers = np.array(
                [
                    [float(c) if c != "?" else np.nan for day in parts for c in day[k]]
                    for k in range(9)
                ]
            )
            ahead = np.append(numbers[2, 6:], np.full(6, np.nan)) / 1000
            frame = pl.DataFrame(numbers.T, schema=list(names)).with_columns(
                pl.lit(f"station {number}, week {week}").alias("id"),
                pl.lit(week).alias("week"),
                hours=pl.int_range(pl.len()).cast(pl.Float64),
                CO_in_6h=pl.Series(ahead),
            )
            frames.append(frame)
    pl.concat(frames).fill_nan(None).write_csv(out / "air.csv")


def sepsis(data: Path, out: Path, patients: int = 200) -> None:
    """Patients of PhysioNet 2019, set A: sepsis within six hours, at every hour."""
    frames = []
    with zipfile.ZipFile(data / "physionet2019_training_setA.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".psv"))
        for name in names[:: len(names) // patients][:patients]:
            frame = pl.read_csv(
                io.BytesIO(archive.read(name)),
                separator="|",
                null_values=["NaN"],
                n_rows=48,
                infer_schema_length=0,
            )
            frames.append(frame.with_columns(pl.all().cast(pl.Float64), id=pl.lit(Path(name).stem)))
    table = pl.concat(frames)
    empty = [c for c in table.columns if table[c].null_count() == table.height]
    table.drop(empty, "HospAdmTime", "Unit1", "Unit2").write_csv(out / "patients.csv")


def activity(data: Path, out: Path, streams: int = 60) -> None:
    """What a hand is doing now: characters written one after the other, a third missing."""
    with zipfile.ZipFile(data / "CharacterTrajectories.zip") as archive:
        text = archive.read("CharacterTrajectories_TRAIN.ts").decode().partition("@data")[2]
    random = np.random.default_rng(0)
    pieces: dict[str, list[np.ndarray]] = {}
    for line in text.splitlines():
        if line.strip():
            *channels, label = line.split(":")
            rows = np.array(
                [[float(c) if c != "?" else np.nan for c in one.split(",")] for one in channels]
            ).T
            pieces.setdefault(label, []).append(rows[~np.isnan(rows).all(1)][::4])
    labels = sorted(pieces)[:10]
    frames = []
    for stream in range(streams):
        chosen = [labels[i] for i in random.integers(len(labels), size=4)]
        parts = [pieces[label][random.integers(len(pieces[label]))] for label in chosen]
        rows = np.concatenate(parts)
        rows[random.random(rows.shape) < 1 / 3] = np.nan
        frame = pl.DataFrame(rows, schema=["x", "y", "force"]).with_columns(
            id=pl.lit(stream),
            seconds=pl.Series(np.cumsum(random.uniform(0.5, 1.5, len(rows)))),
            doing=pl.Series(
                np.repeat([f"character {label}" for label in chosen], [len(p) for p in parts])
            ),
        )
        frames.append(frame)
    pl.concat(frames).fill_nan(None).write_csv(out / "hands.csv")


def engines(data: Path, out: Path, engines: int = 50) -> None:
    """Simulated engines run to failure: wear that grows ever faster, noisy sensors, three settings of flight."""
    random = np.random.default_rng(0)
    slope = random.normal(size=(14, 2))
    setting_effect = random.normal(size=(3, 14)) * 2
    frames = []
    for engine in range(engines):
        life = int(random.integers(90, 260))
        cycle = np.arange(life)
        onset = random.uniform(0.3, 0.7) * life
        wear = np.clip((cycle - onset) / (life - onset), 0, 1) ** random.uniform(1.5, 2.5)
        other = np.cumsum(random.normal(0, 0.02, life))
        flight = random.integers(0, 3, life)
        made = random.normal(0, 0.3, 14)
        sensors = wear[:, None] * slope[:, 0] * 2 + other[:, None] * slope[:, 1]
        sensors = sensors + made + setting_effect[flight] + random.normal(0, 0.5, (life, 14))
        left = life - cycle
        frames.append(
            pl.DataFrame(sensors, schema=[f"sensor {k}" for k in range(1, 15)]).with_columns(
                *(pl.Series(f"setting {k}", (flight == k).astype(float)) for k in range(3)),
                engine=pl.lit(engine),
                cycle=pl.Series(cycle.astype(float)),
                fails_within_30=pl.Series((left <= 30).astype(int)),
                left=pl.Series(np.minimum(left, 125).astype(float)),
            )
        )
    table = pl.concat(frames)
    table.drop("left").write_parquet(out / "fails.parquet")
    table.drop("fails_within_30").write_parquet(out / "life.parquet")


_ENGINE = ("--stream", "engine", "--time", "cycle", "--time-unit", "cycles", "--label-per", "row")

TABLES = {
    "hospital-c": OwnTable(
        "PhysioNet 2012 set c, 300 stays: death in hospital",
        hospital_c,
        ("--events", "events.csv", *LONG, "--labels", "outcomes.csv", "--label", "died", "--static", "stays.csv"),
    ),
    "icu-death": OwnTable(
        "MIMIC-IV demo, first 24 h of ICU stays: death in hospital",
        icu_death,
        ("--events", "events.parquet", *LONG, "--labels", "outcomes.csv", "--label", "died",
         "--static", "outcomes.csv", "--subject", "patient"),
        splits=1,
    ),
    "icu-stay": OwnTable(
        "MIMIC-IV demo: hours left on the ICU, per row",
        icu_stay,
        ("--events", "events.parquet", *LONG, "--labels", "left.csv", "--label", "left", "--label-per", "row",
         "--static", "stays.csv", "--subject", "patient"),
        splits=1,
    ),
    "kidney": OwnTable(
        "MIMIC-IV demo: the next creatinine",
        kidney,
        ("--events", "labs.parquet", "--stream", "id", "--time", "when", "--channel", "name", "--value", "value",
         "--labels", "next.csv", "--label", "next", "--label-per", "row",
         "--static", "stays.csv", "--subject", "patient"),
        splits=1,
    ),
    "air": OwnTable(
        "Beijing, 3 stations x 8 weeks of 168 hours: carbon monoxide in 6 h",
        air,
        ("--events", "air.csv", "--stream", "id", "--time", "hours", "--label", "CO_in_6h", "--label-per", "row",
         "--subject", "week"),
    ),
    "sepsis": OwnTable(
        "PhysioNet 2019 set A, 200 patients: sepsis at every hour",
        sepsis,
        ("--events", "patients.csv", "--stream", "id", "--time", "ICULOS", "--label", "SepsisLabel",
         "--label-per", "row"),
    ),
    "activity": OwnTable(
        "four characters behind one another, a third missing: which one, per row",
        activity,
        ("--events", "hands.csv", "--stream", "id", "--time", "seconds", "--time-unit", "seconds", "--label", "doing",
         "--label-per", "row"),
    ),
    "engine-fails": OwnTable(
        "50 simulated engines: fails within 30 cycles",
        engines,
        ("--events", "fails.parquet", *_ENGINE, "--label", "fails_within_30"),
    ),
    "engine-life": OwnTable(
        "50 simulated engines: cycles left, at most 125",
        engines,
        ("--events", "life.parquet", *_ENGINE, "--label", "left"),
    ),
}  # fmt: skip
