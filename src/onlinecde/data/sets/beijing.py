"""BeijingPM2.5 and PM10 (Monash TSER): the day's pollution from 24 hours of air and weather."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from onlinecde.data.errors import DataError
from onlinecde.data.sets.ts_task import joined_series, official_or_random, read_parts
from onlinecde.data.task import Task

CHANNELS = ("SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM")
FILES = {"pm25": "BeijingPM25Quality", "pm10": "BeijingPM10Quality"}


def load(
    paths: Sequence[Path],
    *,
    task: str = "pm25",
    seed: int = 0,
    protocol: Literal["clean", "paper"] = "clean",
    split: Literal["random", "official"] = "random",
) -> Task:
    """Load both files, raw targets, and deal the days out anew as the paper did.

    The protocols agree here. `split="official"` keeps the archive's test file (2016 on) apart;
    days carry no date or station, so a random split has days of one week on both sides.
    """
    if protocol not in ("clean", "paper"):
        raise DataError(f"protocol is {protocol!r}: choose 'clean' or 'paper'.")
    parts = read_parts(paths, FILES[task])
    labels = np.concatenate([part.targets for part in parts.values() if part.targets is not None])
    return Task.build(
        f"beijing-{task}",
        joined_series(parts, CHANNELS),
        labels,
        kind="regression",
        classes=(task,),
        splits=official_or_random(split, parts, None, seed),
        seed=seed,
        source=", ".join(str(path) for path in paths),
        settings={"task": task, "protocol": protocol, "split": split, "seed": seed},
    )
