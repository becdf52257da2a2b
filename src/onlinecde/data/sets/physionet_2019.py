"""PhysioNet Challenge 2019: is this patient becoming septic? A label at every hour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NoReturn

import numpy as np
import torch

from onlinecde.data.alarm_utility import Utility, UtilityCurve
from onlinecde.data.archives import Member, by_pattern, read_members
from onlinecde.data.errors import DataError
from onlinecde.data.ragged import pad, pad_rows
from onlinecde.data.splits import split_streams
from onlinecde.data.static_features import with_static
from onlinecde.data.task import Task, strata_of
from onlinecde.data.truth import ListedLabels
from onlinecde.series import SeriesBatch

VITAL_SIGNS = ("HR", "O2Sat", "Temp", "SBP", "MAP", "DBP", "Resp", "EtCO2")
LABORATORY = (
    *("BaseExcess", "HCO3", "FiO2", "pH", "PaCO2", "SaO2", "AST", "BUN", "Alkalinephos", "Calcium"),
    *("Chloride", "Creatinine", "Bilirubin_direct", "Glucose", "Lactate", "Magnesium", "Phosphate"),
    *("Potassium", "Bilirubin_total", "TroponinI", "Hct", "Hgb", "PTT", "WBC", "Fibrinogen"),
    "Platelets",
)
CHANNELS = VITAL_SIGNS + LABORATORY
STATIC = ("Age", "Gender", "Unit1", "Unit2", "HospAdmTime")
COLUMNS = (*CHANNELS, *STATIC, "ICULOS", "SepsisLabel")
EARLY, OPTIMAL, LATE = -12.0, -6.0, 3.0
"""Hours from the onset of sepsis: when an alarm begins to be worth something, is worth most, ends."""
TRUE_POSITIVE, FALSE_NEGATIVE, FALSE_POSITIVE = 1.0, -2.0, -0.05


def load(
    paths: Sequence[Path],
    *,
    task: str = "sepsis",
    seed: int = 0,
    sets: Literal["A", "B", "AB"] = "A",
    thin: float = 1.0,
    thin_seed: int = 0,
) -> Task:
    """Load a training set (A, B or both): hours in intensive care, 34 channels, label at each row.

    The label is the challenge's: 1 from 6 hours before sepsis on. Splits are by patient.

    With `thin`, only that share of the rows is seen, drawn by lot (`thin_seed`); the first of each patient always
    is. Labels and utility stay known at every hour: `task.asked("every=1h")` judges them all. Splits stay what
    they are.
    """
    if sets not in ("A", "B", "AB"):
        raise DataError(f"sets is {sets!r}: choose 'A', 'B' or 'AB'.")
    if not 0 < thin <= 1:
        raise DataError(f"thin is {thin}: give the share of rows that is kept, above 0, at most 1.")
    wanted = by_pattern("p[0-9]*.psv")
    # Patients of set A are p0xxxxx, those of set B p1xxxxx, whatever folder they lie in.
    ours = tuple("p" + {"A": "0", "B": "1"}[part] for part in sets)
    members = sorted(
        read_members(paths, lambda name: wanted(name) and _file(name).startswith(ours)),
        key=lambda member: _file(member.name),
    )
    if not members:
        raise DataError(
            f"{', '.join(str(p) for p in paths)}: there is no patient file "
            f"({' or '.join(f'{start}nnnnn.psv' for start in ours)}) of set {sets}."
        )
    lines, table = read_psv(members)
    streams = [_file(member.name).removesuffix(".psv") for member in members]
    truth = _hourly(streams, lines, table)
    series, labels = _seen(streams, lines, table, thin, thin_seed)
    first = np.cumsum(lines) - lines
    at_rows = series.times.masked_fill(~series.real, torch.nan)
    built = Task.build(
        "physionet-2019",
        series,
        labels,
        kind="binary",
        per="row",
        classes=("no sepsis", "sepsis"),
        splits=split_streams(streams, strata_of(truth.listed, "binary"), seed=seed),
        source=", ".join(str(path) for path in paths),
        settings={"task": task, "sets": sets, "seed": seed}
        | ({"thin": thin, "thin_seed": thin_seed} if thin < 1 else {}),
        label_lead=-OPTIMAL,
        utility=challenge_curve(truth.listed.numpy(), truth.times.numpy()).at(at_rows),
        truth=truth,
    )
    return with_static(built, {name: table[first, COLUMNS.index(name)] for name in STATIC})


def challenge_curve(labels: np.ndarray, times: np.ndarray) -> UtilityCurve:
    """The worth of any hour by the challenge's definition (Reyna et al. 2020).

    An alarm is worth most six hours before sepsis, something from twelve hours before to three hours
    after it, and costs a little anywhere else; silence costs the more the later, up to three hours after.
    Labels and times are (stream, row), times in hours; labels are 1 from six hours before the onset on,
    NaN where there is no row.
    """
    positive = labels == 1
    first = times[np.arange(len(times)), positive.argmax(1)]
    onset = np.where(positive.any(1), first - OPTIMAL, np.inf)
    return UtilityCurve(
        torch.from_numpy(onset),
        # From where an alarm costs less than anywhere else.
        (EARLY + FALSE_POSITIVE / TRUE_POSITIVE * (OPTIMAL - EARLY), OPTIMAL, LATE),
        (FALSE_POSITIVE, TRUE_POSITIVE, 0.0),
        (0.0, 0.0, FALSE_NEGATIVE),
    )


def challenge_utility(labels: np.ndarray, times: np.ndarray) -> Utility:
    """The worth of each row by the challenge's definition: see `challenge_curve`.

    >>> worth = challenge_utility(np.array([[0.0, 1.0]]), np.array([[1.0, 2.0]]))
    >>> worth.alarm.round(3).tolist(), worth.silence.round(3).tolist()
    ([[0.833, 1.0]], [[0.0, 0.0]])
    """
    real = torch.from_numpy(np.where(np.isnan(labels), np.nan, times))
    return challenge_curve(labels, times).at(real)


def read_psv(members: Sequence[Member]) -> tuple[np.ndarray, np.ndarray]:
    """Parse patient files all at once: lines of each (member,) and cells (line, column) float64.

    One parse of all bytes is some thirty times faster than a parse for each of 20,000 files.
    """
    import io

    import polars as pl

    header = "|".join(COLUMNS).encode()
    bodies, counts = [], []
    for member in members:
        first, _, body = member.data.replace(b"\r\n", b"\n").partition(b"\n")
        if first.strip() != header:
            _refuse_header(first, member)
        if not body.strip():
            raise DataError(f"{member.origin}: no line after the header: the file is cut short.")
        bodies.append(body if body.endswith(b"\n") else body + b"\n")
        counts.append(bodies[-1].count(b"\n"))
    try:
        frame = pl.read_csv(
            io.BytesIO(b"".join(bodies)),
            has_header=False,
            separator="|",
            quote_char=None,
            schema=dict.fromkeys(COLUMNS, pl.Float64),
        )
    except pl.exceptions.PolarsError as error:
        _refuse_cells(members, error)
    known = frame["SepsisLabel"].is_in([0.0, 1.0]).fill_null(False)
    if frame.height != sum(counts) or not known.all():
        _refuse_cells(members, None)
    return np.array(counts), frame.fill_null(np.nan).to_numpy()


def _hourly(streams: Sequence[str], lines: np.ndarray, table: np.ndarray) -> ListedLabels:
    """The label of every hour; each stands for its hour."""
    hours, labels = (table[:, COLUMNS.index(name)] for name in ("ICULOS", "SepsisLabel"))
    whole = pad_rows(lines, hours, table[:, :1], channels=CHANNELS[:1], streams=streams)
    return ListedLabels(
        whole.times[:, -1],
        whole.times.masked_fill(~whole.real, torch.inf),
        torch.from_numpy(pad(lines, labels.astype(np.float32), np.nan)),
        stands=1.0,
    )


def _seen(
    streams: Sequence[str], lines: np.ndarray, table: np.ndarray, share: float, seed: int
) -> tuple[SeriesBatch, torch.Tensor]:
    """Series and labels of the rows that are seen: each by lot, the first of each patient always."""
    starts = np.cumsum(lines) - lines
    seen = np.random.default_rng(seed).random(len(table)) < share
    seen[starts] = True
    rows = np.add.reduceat(seen.astype(np.int64), starts)
    table = table if seen.all() else table[seen]
    values = table[:, : len(CHANNELS)].astype(np.float32)
    hours, labels = (table[:, COLUMNS.index(name)] for name in ("ICULOS", "SepsisLabel"))
    series = pad_rows(rows, hours, values, channels=CHANNELS, streams=streams)
    return series, torch.from_numpy(pad(rows, labels.astype(np.float32), np.nan))


def _file(name: str) -> str:
    return PurePosixPath(name).name


def _refuse_header(first: bytes, member: Member) -> NoReturn:
    found = first.decode("utf-8", "replace").strip().split("|")
    absent = [name for name in COLUMNS if name not in found]
    other = [name for name in found if name not in COLUMNS]
    what = (
        f"column '{absent[0]}' is missing"
        if absent
        else f"column '{other[0]}' is unknown"
        if other
        else "the columns are in another order"
    )
    raise DataError(f"{member.origin}, line 1: {what}: this is no file of the challenge.")


def _refuse_cells(members: Sequence[Member], error: Exception | None) -> NoReturn:
    """Find what the parser stumbled over and name file, line and column."""
    for member in members:
        text = member.data.decode("utf-8", "replace").replace("\r\n", "\n").removesuffix("\n")
        for number, line in enumerate(text.split("\n")[1:], start=2):
            where = f"{member.origin}, line {number}"
            cells = line.split("|")
            if len(cells) != len(COLUMNS):
                raise DataError(
                    f"{where}: {len(cells)} cells for {len(COLUMNS)} columns: the line is cut "
                    "short or damaged."
                )
            for name, cell in zip(COLUMNS, cells, strict=True):
                try:
                    float(cell or "nan")
                except ValueError:
                    raise DataError(
                        f"{where}, column '{name}': {cell[:40]!r} is not a number: write NaN for "
                        "what is missing."
                    ) from None
            if float(cells[-1] or "nan") not in (0.0, 1.0):
                raise DataError(f"{where}, column 'SepsisLabel': {cells[-1][:40]!r} is not 0 or 1.")
    raise DataError(
        f"{members[0].origin} and the {len(members) - 1} other patient files cannot be read as "
        f"one table ({error or 'lines were lost'}): fetch them again."
    ) from error
