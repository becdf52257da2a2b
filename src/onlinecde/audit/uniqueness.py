"""Uniqueness of a path: do different series give different (X(0), signature)?"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from onlinecde.audit.paths import PathBuilder, build_path
from onlinecde.audit.signatures import path_signature
from onlinecde.series import SeriesBatch

_TOLERANCE = 1e-6
_DEPTH = 4
_ROWS, _CHANNELS = 5, 2


class Uniqueness(enum.Enum):
    """Whether different series were seen to give different paths; a measurement can only refute."""

    ALWAYS = "always"
    """No two different series that were tried gave one path."""
    WITH_COUNTS = "with counts"
    """Some did without observation counts, none with them."""
    NEVER = "never"
    """Some did, with counts too where those were tried."""


@dataclass(frozen=True)
class PathUniqueness:
    """How many pairs of different series were tried, and which kinds gave the same path."""

    uniqueness: Uniqueness
    reason: str
    pairs: int
    """How many pairs were tried on each builder."""
    collisions: tuple[str, ...]
    """The kinds of pairs that gave the same path without counts."""
    collisions_with_counts: tuple[str, ...] | None
    """The same with counts; None where no builder with counts was given."""


def path_uniqueness(
    build: PathBuilder,
    build_with_counts: PathBuilder | None = None,
    *,
    pairs_of_a_kind: int = 12,
    seed: int = 0,
) -> PathUniqueness:
    """Look for different series with the same starting point and signature (to level 4).

    A CDE sees its control through those two alone, so series that share them are one to it. The
    pairs tried: the paper's counterexample, a repeated value moved in time, a row added where
    the path passes anyway, a missing value observed where the path passes anyway, a value
    changed, a time moved, and unrelated series.
    """
    if pairs_of_a_kind < 1:
        raise ValueError(f"pairs_of_a_kind is {pairs_of_a_kind}: give at least 1.")
    plain = _collisions(build, pairs_of_a_kind, seed)
    counted = None
    if build_with_counts is not None:
        counted = _collisions(build_with_counts, pairs_of_a_kind, seed)
    kinds = len(plain)
    same = tuple(kind for kind, number in plain.items() if number)
    still = None if counted is None else tuple(kind for kind, number in counted.items() if number)
    if not same and not still:
        uniqueness = Uniqueness.ALWAYS
    elif still == ():
        uniqueness = Uniqueness.WITH_COUNTS
    else:
        uniqueness = Uniqueness.NEVER
    pairs = kinds * pairs_of_a_kind
    return PathUniqueness(uniqueness, _reason(plain, counted, pairs), pairs, same, still)


def _reason(plain: dict[str, int], counted: dict[str, int] | None, pairs: int) -> str:
    def in_words(collisions: dict[str, int]) -> str:
        kinds = [f"{kind} ({number})" for kind, number in collisions.items() if number]
        total = sum(collisions.values())
        return f"{total} of {pairs} pairs collided" + (f": {', '.join(kinds)}" if kinds else "")

    parts = (
        [in_words(plain)]
        if counted is None
        else [f"without counts {in_words(plain)}", f"with counts {in_words(counted)}"]
    )
    return "; ".join(parts) + ". More pairs may collide: a measurement can refute, not prove."


def _collisions(build: PathBuilder, number: int, seed: int) -> dict[str, int]:
    """How many pairs of each kind share starting point and signature."""
    collisions = {}
    for kind, first, second in _pairs(build, number, seed):
        apart = _distance(_seen_by_a_cde(build, first), _seen_by_a_cde(build, second))
        collisions[kind] = int((apart < _TOLERANCE).sum())
    return collisions


def _seen_by_a_cde(build: PathBuilder, batch: SeriesBatch) -> tuple[Tensor, ...]:
    """X(0) and the levels of the signature, each (stream, entry)."""
    path = build_path(build, batch)
    start = path.evaluate(path.s_of_time(batch.times[:, :1]))[:, 0]
    return start, *path_signature(path, len(batch), _DEPTH)


def _distance(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> Tensor:
    """The largest difference (stream,) of any level, over the level's size where that exceeds 1."""
    apart = []
    for a, b in zip(one, other, strict=True):
        size = torch.maximum(a.abs().amax(1), b.abs().amax(1)).clamp(min=1.0)
        apart.append((a - b).abs().amax(1) / size)
    return torch.stack(apart).amax(0)


def _pairs(
    build: PathBuilder, number: int, seed: int
) -> Iterator[tuple[str, SeriesBatch, SeriesBatch]]:
    """Kinds of pairs of different series, `number` pairs each."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    start, stop = torch.zeros(number, 1), 1 + uniform(number, 1)
    early, late = (0.1 + 0.3 * uniform(number, 1)) * stop, (0.5 + 0.4 * uniform(number, 1)) * stop
    value = (2 * uniform(number, 1, _CHANNELS) - 1).expand(-1, 3, -1)
    twice = _series([start, stop], value[:, :2])
    again = _series([start, early, stop], value)
    yield "a value repeated (the paper's counterexample)", twice, again
    yield "a repeated value moved in time", again, _series([start, late, stop], value)

    times = (0.5 + uniform(number, _ROWS)).cumsum(1)
    values = 2 * uniform(number, _ROWS, _CHANNELS) - 1
    series = _series([times], values)
    middle = (times[:, 2:3] + times[:, 3:4]) / 2
    passing = _on_the_path(build, series, middle)
    longer = torch.cat([values[:, :3], passing, values[:, 3:]], 1)
    yield (
        "a row added where the path passes",
        series,
        _series([times[:, :3], middle, times[:, 3:]], longer),
    )

    gap = values.clone()
    gap[:, 2, 0] = torch.nan
    known = gap.clone()
    known[:, 2, 0] = _on_the_path(build, _series([times], gap), times[:, 2:3])[:, 0, 0]
    yield (
        "a missing value observed where the path passes",
        _series([times], gap),
        _series([times], known),
    )

    changed = values.clone()
    changed[:, 2, 1] += 0.1 + 0.2 * uniform(number)
    yield "a value changed", series, _series([times], changed)
    moved = times.clone()
    moved[:, 2] += 0.3 * (times[:, 3] - times[:, 2])
    yield "a time moved", series, _series([moved], values)
    other = (0.5 + uniform(number, _ROWS)).cumsum(1)
    yield "unrelated series", series, _series([other], 2 * uniform(number, _ROWS, _CHANNELS) - 1)


def _on_the_path(build: PathBuilder, batch: SeriesBatch, times: Tensor) -> Tensor:
    """The values of a series at `times` (stream, query), read from its path."""
    path = build_path(build, batch)
    return path.evaluate(path.s_of_time(times))[:, :, 1 : 1 + _CHANNELS]


def _series(times: list[Tensor], values: Tensor) -> SeriesBatch:
    return SeriesBatch.from_padded(torch.cat(times, 1), values)
