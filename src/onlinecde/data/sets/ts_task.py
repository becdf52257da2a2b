"""What the data sets in `.ts` files share: a TRAIN and a TEST file, joined into one series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from onlinecde.data.archives import read_one
from onlinecde.data.errors import DataError
from onlinecde.data.splits import split_streams
from onlinecde.data.ts_format import TsFile, read_ts
from onlinecde.series import SeriesBatch


def read_parts(paths: Sequence[Path], name: str) -> dict[str, TsFile]:
    """Read NAME_TRAIN.ts and NAME_TEST.ts from wherever they lie; both must have targets."""
    parts = {}
    for part in ("TRAIN", "TEST"):
        member = read_one(paths, f"{name}_{part}.ts")
        parts[part] = read_ts(member.data, member.origin)
        if parts[part].targets is None:
            raise DataError(f"{member.origin}: there is no @classlabel or @targetlabel to predict.")
    return parts


def joined_series(parts: Mapping[str, TsFile], channels: Sequence[str]) -> SeriesBatch:
    """One batch of all cases, called `TRAIN/0`, `TRAIN/1`, ..."""
    values = [torch.from_numpy(table).float() for part in parts.values() for table in part.values]
    if values[0].shape[1] != len(channels):
        raise DataError(
            f"the .ts files have {values[0].shape[1]} dimensions: they must be "
            f"{', '.join(channels)}."
        )
    return SeriesBatch.from_arrays(
        [torch.from_numpy(clock) for part in parts.values() for clock in part.times],
        values,
        channels=channels,
        streams=[f"{name}/{i}" for name, part in parts.items() for i in range(len(part.values))],
    )


def official_or_random(
    split: str, parts: Mapping[str, TsFile], classes: np.ndarray | None, seed: int
) -> dict[str, Tensor] | None:
    """Splits that keep the TEST file apart, or None for a random deal of all cases.

    Of the TRAIN file, 15 in 85 are held back for validation, as in the random deal.
    """
    if split == "random":
        return None
    if split != "official":
        raise DataError(f"split is {split!r}: choose 'random' or 'official'.")
    train = len(parts["TRAIN"].values)
    strata = None if classes is None else torch.from_numpy(classes[:train])
    dealt = split_streams(
        range(train), strata, seed=seed, fractions={"train": 0.7 / 0.85, "validation": 0.15 / 0.85}
    )
    return {**dealt, "test": torch.arange(train, train + len(parts["TEST"].values))}
