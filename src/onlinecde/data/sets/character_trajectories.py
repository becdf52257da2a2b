"""CharacterTrajectories (UEA): which of 20 characters is being written, from the pen's velocity."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from onlinecde.data.errors import DataError
from onlinecde.data.sets.ts_task import joined_series, official_or_random, read_parts
from onlinecde.data.task import Task

CHANNELS = ("x_velocity", "y_velocity", "pen_force")


def load(
    paths: Sequence[Path],
    *,
    task: str = "character",
    seed: int = 0,
    protocol: Literal["clean", "paper"] = "clean",
    split: Literal["random", "official"] = "random",
) -> Task:
    """Load both files and deal the 2858 series out anew, stratified by character.

    `protocol="paper"` repeats a slip of the paper's code: the TEST file read twice, 2872 series of
    which most have a twin in another split. `split="official"` keeps the archive's test file.
    """
    if protocol not in ("clean", "paper"):
        raise DataError(f"protocol is {protocol!r}: choose 'clean' or 'paper'.")
    parts = read_parts(paths, "CharacterTrajectories")
    if protocol == "paper":
        if split != "random":
            raise DataError(
                "protocol 'paper' read the test file twice: it has only the random split."
            )
        parts = {"TEST": parts["TEST"], "TEST-again": parts["TEST"]}
    series = joined_series(parts, CHANNELS)
    first = next(iter(parts.values()))
    if any(part.classes != first.classes for part in parts.values()):
        raise DataError(f"{paths[0]}: the train and test files do not name the same classes.")
    labels = np.concatenate([part.targets for part in parts.values() if part.targets is not None])
    return Task.build(
        "character-trajectories",
        series,
        labels,
        kind="multiclass",
        classes=first.classes,
        splits=official_or_random(split, parts, labels, seed),
        seed=seed,
        time_unit="samples",
        source=", ".join(str(path) for path in paths),
        settings={"task": task, "protocol": protocol, "split": split, "seed": seed},
    )
