"""PhysioNet Challenge 2012: will this patient die in hospital? 48 hours at irregular times."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from onlinecde.data.archives import Member, by_pattern, read_members, read_one
from onlinecde.data.errors import DataError
from onlinecde.data.ragged import pad_rows
from onlinecde.data.static_features import with_static
from onlinecde.data.task import Task

if TYPE_CHECKING:
    import polars as pl

CHANNELS = (
    *("Albumin", "ALP", "ALT", "AST", "Bilirubin", "BUN", "Cholesterol", "Creatinine", "DiasABP"),
    *("FiO2", "GCS", "Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "MAP", "MechVent", "Mg", "Na"),
    *("NIDiasABP", "NIMAP", "NISysABP", "PaCO2", "PaO2", "pH", "Platelets", "RespRate", "SaO2"),
    *("SysABP", "Temp", "TroponinI", "TroponinT", "Urine", "WBC", "Weight"),
)
STATIC = ("Age", "Gender", "Height", "ICUType", "Weight")
ICU_TYPES = (1, 2, 3, 4)
"""Coronary care, cardiac surgery recovery, medical, surgical."""
OUTCOME = "In-hospital_death"
SPLITS = ("train", "validation", "test")
FIELD_SPLITS = "physionet2012_field_splits.json"
"""Record ids of the five splits that published comparisons share: {"splits": {"1": {"train": [...], ...}, ...}}"""


def load(
    paths: Sequence[Path],
    *,
    task: str = "mortality",
    seed: int = 0,
    sets: str = "a",
    splits: str = "seeded",
) -> Task:
    """Load sets of the challenge (`"a"`, `"b"`, `"c"` or several, as `"ab"`): hours, 37 channels.

    Descriptors of -1 are missing. Where a parameter stands twice at one minute, the later line
    counts. A patient with descriptors only has one empty row at hour 0. `splits` is "seeded", or "field-1" to
    "field-5": those of published comparisons, 11,988 patients of `sets="abc"`, from the file `FIELD_SPLITS`.
    """
    sets = sets.lower()
    if not sets or set(sets) - set("abc"):
        raise DataError(f"sets is {sets!r}: choose from 'a', 'b' and 'c', as in 'ab'.")
    patterns = [p for s in sets for p in (f"set-{s}/[0-9]*.txt", f"Outcomes-{s}.txt")]
    found = list(read_members(paths, by_pattern(*patterns)))
    outcomes = _read_outcomes([m for m in found if "Outcomes-" in m.name])
    records = sorted((m for m in found if "Outcomes-" not in m.name), key=lambda m: _record(m.name))
    if not records:
        raise DataError(
            f"{', '.join(str(p) for p in paths)}: there is no patient file "
            f"({' or '.join(f'set-{s}/nnnnnn.txt' for s in sets)})."
        )
    dealt, flow = None, ()
    if splits != "seeded":
        there = len(records)
        dealt, records = _field_split(paths, splits, records)
        flow = (("patients", there), ("in the field's splits", len(records)))
    streams = [_record(member.name) for member in records]
    for member, stream in zip(records, streams, strict=True):
        if stream not in outcomes:
            raise DataError(
                f"{member.origin}: patient {stream} has no line in Outcomes-{'/'.join(sets)}.txt: "
                "put that file beside the set."
            )
    events = read_records(records)
    lengths, times, values = _rows(events, len(records))
    series = pad_rows(lengths, times, values, channels=CHANNELS, streams=streams)
    built = Task.build(
        "physionet-2012",
        series,
        [outcomes[stream] for stream in streams],
        kind="binary",
        classes=("survived", "died"),
        seed=seed,
        splits=dealt,
        source=", ".join(str(path) for path in paths),
        settings={"task": task, "sets": sets, "splits": splits, "seed": seed},
        flow=flow,
    )
    return with_static(built, _static(events, len(records)), {"ICUType": ICU_TYPES})


def _field_split(
    paths: Sequence[Path], name: str, records: Sequence[Member]
) -> tuple[dict[str, list[int]], list[Member]]:
    """Positions of train, validation and test of a named split, and the records it divides."""
    file = read_one(paths, FIELD_SPLITS)
    try:
        known = {f"field-{number}": ids for number, ids in json.loads(file.data)["splits"].items()}
        parts = {part: list(map(int, known[name][part])) for part in SPLITS if name in known}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file.origin} cannot be read ({error!r}): it must be JSON, "
            '{"splits": {"1": {"train": [record ids], "validation": [...], "test": [...]}, ...}}.'
        ) from error
    if not parts:
        raise DataError(f"splits is {name!r}: choose seeded, {', '.join(known)}.")
    place = {_record(member.name): member for member in records}
    ids = sorted(record for part in parts.values() for record in part)
    if missing := [record for record in ids if record not in place]:
        raise DataError(
            f"splits={name!r} divides {len(ids):,} patients, of whom {len(missing):,} are not in the sets given "
            f"(patient {missing[0]}, say): give sets='abc', and the files of all three."
        )
    position = {record: number for number, record in enumerate(ids)}
    dealt = {part: sorted(position[record] for record in own) for part, own in parts.items()}
    return dealt, [place[record] for record in ids]


def read_records(members: Sequence[Member]) -> pl.DataFrame:
    """Parse patient files all at once into events: code of the member, minute, parameter, value.

    `descriptor` is true for what the challenge states of a patient at 00:00 on admission.
    """
    import polars as pl

    bodies, counts = [], []
    for member in members:
        first, _, body = member.data.replace(b"\r\n", b"\n").partition(b"\n")
        if first.strip() != b"Time,Parameter,Value":
            raise DataError(
                f"{member.origin}, line 1: the header must be Time,Parameter,Value, not "
                f"{first[:60].decode('utf-8', 'replace')!r}."
            )
        bodies.append(body if body.endswith(b"\n") or not body else body + b"\n")
        counts.append(bodies[-1].count(b"\n"))
    origin = np.repeat(np.arange(len(members)), counts)
    line = np.arange(len(origin)) - np.repeat(np.cumsum(counts) - counts, counts) + 2
    lines = pl.DataFrame({"code": origin, "line": line}).with_columns(
        pl.Series("text", b"".join(bodies).decode("utf-8", "replace").split("\n")[: len(origin)])
    )
    cells = lines.with_columns(
        pl.col("text")
        .str.extract_groups(
            r"^(?P<hour>\d{1,3}):(?P<minute>[0-5]\d),(?P<name>\w*),(?P<value>[^,]*)$"
        )
        .alias("cells")
    ).unnest("cells")
    cells = cells.select(
        "code",
        "line",
        "text",
        (pl.col("hour").cast(pl.Int64) * 60 + pl.col("minute").cast(pl.Int64)).alias("minute"),
        "name",
        pl.col("value").str.strip_chars().cast(pl.Float64, strict=False).alias("value"),
    )
    known = [*CHANNELS, *STATIC, "RecordID"]
    # A line without a parameter's name says nothing; a few of the later sets have one.
    cells = cells.filter(pl.col("name").is_null() | (pl.col("name") != ""))
    bad = cells.filter(
        pl.col("minute").is_null()
        | pl.col("value").is_null()
        | ~pl.col("value").is_finite()
        | ~pl.col("name").is_in(known)
    )
    if bad.height:
        first = bad.row(0, named=True)
        what = (
            "is not TIME,PARAMETER,VALUE with a time HH:MM"
            if first["minute"] is None
            else f"has the unknown parameter '{first['name']}' in column 'Parameter'"
            if first["name"] not in known
            else "has no number in column 'Value'"
        )
        origin_name = members[first["code"]].origin
        raise DataError(f"{origin_name}, line {first['line']}: {first['text'][:60]!r} {what}.")
    first_weight = (
        (pl.col("name") == "Weight")
        & (pl.col("minute") == 0)
        & (pl.col("line") == pl.col("line").filter(pl.col("name") == "Weight").min().over("code"))
    )
    described = pl.col("name").is_in(["RecordID", *STATIC[:-1]]) | first_weight.fill_null(False)
    return cells.drop("text").with_columns(described.alias("descriptor"))


def _rows(events: pl.DataFrame, patients: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths (stream,), times (line,) in hours and values (line, channel) of the series."""
    import polars as pl

    measured = events.filter(
        ~pl.col("descriptor") & ~((pl.col("name") == "Weight") & (pl.col("value") < 0))
    )
    instants = measured.select("code", "minute").unique()
    silent = np.setdiff1d(np.arange(patients), instants["code"].to_numpy())
    empty = pl.DataFrame({"code": silent, "minute": np.zeros(len(silent), np.int64)})
    instants = pl.concat([instants, empty]).sort("code", "minute").with_row_index("at")
    placed = measured.join(instants, on=["code", "minute"], maintain_order="left")
    column = {name: number for number, name in enumerate(CHANNELS)}
    values = np.full((instants.height, len(CHANNELS)), np.nan, np.float32)
    # numpy keeps the last of several values for one cell: the later line.
    values[
        placed["at"].to_numpy(),
        placed["name"].replace_strict(column, return_dtype=pl.Int64).to_numpy(),
    ] = placed["value"].to_numpy()
    lengths = np.bincount(instants["code"].to_numpy(), minlength=patients)
    return lengths, instants["minute"].to_numpy() / 60.0, values


def _static(events: pl.DataFrame, patients: int) -> dict[str, np.ndarray]:
    import polars as pl

    described = events.filter(pl.col("descriptor"))
    columns = {}
    for name in STATIC:
        lines = described.filter(pl.col("name") == name)
        column = np.full(patients, np.nan)
        column[lines["code"].to_numpy()] = lines["value"].to_numpy()
        columns[name] = np.where(column == -1, np.nan, column)
    columns["ICUType"] = [None if np.isnan(kind) else int(kind) for kind in columns["ICUType"]]
    return columns


def _read_outcomes(members: Sequence[Member]) -> dict[int, int]:
    import polars as pl

    outcomes: dict[int, int] = {}
    for member in members:
        try:
            frame = pl.read_csv(io.BytesIO(member.data))
        except pl.exceptions.PolarsError as error:
            raise DataError(f"{member.origin}: not a table of outcomes ({error}).") from error
        for column in ("RecordID", OUTCOME):
            if column not in frame.columns or not frame.schema[column].is_integer():
                raise DataError(
                    f"{member.origin}: column '{column}' is missing or not whole numbers."
                )
        outcomes.update(zip(frame["RecordID"].to_list(), frame[OUTCOME].to_list(), strict=True))
    return outcomes


def _record(name: str) -> int:
    return int(PurePosixPath(name).stem)
