"""Streams -> train, validation and test: seeded, stratified, no subject in two of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from onlinecde.data.errors import DataError

FRACTIONS: Mapping[str, float] = {"train": 0.7, "validation": 0.15, "test": 0.15}
"""The paper's split."""


def split_streams(
    subjects: Sequence[Hashable],
    strata: Tensor | None = None,
    *,
    seed: int = 0,
    fractions: Mapping[str, float] = FRACTIONS,
) -> dict[str, Tensor]:
    """Deal streams out to splits, whole subjects at a time: positions (stream in split,), sorted.

    `subjects` says for each stream whose it is; `strata` (stream,) int64 gives classes whose shares
    are kept alike in every split (a subject counts as the largest class of its streams). The same
    arguments give the same splits on every machine.

    >>> {name: len(at) for name, at in split_streams(range(100)).items()}
    {'train': 70, 'validation': 15, 'test': 15}
    """
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise DataError(f"the seed of the splits is {seed!r}: give a whole number, 0 or more.")
    shares = np.array(list(fractions.values()), float)
    if (shares < 0).any() or not np.isclose(shares.sum(), 1.0):
        raise DataError(
            f"the fractions {dict(fractions)} must not be negative and must add up to 1."
        )
    codes: dict[Hashable, int] = {}
    owner = np.array([codes.setdefault(subject, len(codes)) for subject in subjects], np.int64)
    sizes = np.bincount(owner, minlength=len(codes))
    stratum = np.zeros(len(codes), np.int64)
    if strata is not None:
        classes = np.asarray(strata, np.int64)
        stratum = np.full(len(codes), classes.min())
        np.maximum.at(stratum, owner, classes)
    shuffled = np.random.default_rng(seed).permutation(len(codes))
    order = shuffled[np.argsort(stratum[shuffled], kind="stable")]
    home = np.empty(len(codes), np.int64)
    dealt = np.zeros(len(shares))
    for subject in order.tolist():
        # Whichever split lacks most takes the next: every stratum gets its share to within one.
        target = shares * (dealt.sum() + sizes[subject])
        home[subject] = split = int(np.argmax(target - dealt))
        dealt[split] += sizes[subject]
    empty = [
        name
        for name, share, many in zip(fractions, shares, dealt, strict=True)
        if share and not many
    ]
    if empty and len(codes) < (shares > 0).sum():
        raise DataError(
            f"{len(codes)} subject{'s' * (len(codes) != 1)} cannot fill the splits "
            f"{list(fractions)}: '{empty[0]}' stays empty. Give more (a long series may be cut into pieces, "
            "a week each, say, that are streams of their own), or your own `splits`."
        )
    for name in empty:
        _fill(list(fractions).index(name), home, order)
    return {
        name: torch.from_numpy(np.flatnonzero(home[owner] == number))
        for number, name in enumerate(fractions)
    }


def _fill(split: int, home: np.ndarray, order: np.ndarray) -> None:
    """Give an empty split the subject that came last to the split with most of them."""
    largest = np.bincount(home).argmax()
    home[order[home[order] == largest][-1]] = split


def check_splits(splits: Mapping[str, Tensor], subjects: Sequence[Hashable]) -> None:
    """Refuse positions out of range or in two splits, and subjects in two splits."""
    place: dict[int, str] = {}
    home: dict[Hashable, str] = {}
    for name, positions in splits.items():
        if positions.ndim != 1 or positions.dtype != torch.int64:
            raise DataError(
                f"split '{name}' has shape {tuple(positions.shape)} and dtype {positions.dtype}: "
                "give the positions of its streams, (stream in split,) int64."
            )
        for at in positions.tolist():
            if not 0 <= at < len(subjects):
                raise DataError(
                    f"split '{name}' holds position {at}: there are {len(subjects)} streams."
                )
            if at in place:
                raise DataError(f"stream position {at} is in split '{place[at]}' and in '{name}'.")
            place[at] = name
            if home.setdefault(subjects[at], name) != name:
                raise DataError(
                    f"subject {subjects[at]!r} is in split '{home[subjects[at]]}' and in '{name}': "
                    "put all streams of a subject into one split."
                )
