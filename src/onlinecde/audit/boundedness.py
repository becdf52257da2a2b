"""Boundedness of a path, found by letting series of bounded data grow and looking for the worst."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from onlinecde.audit.paths import (
    ControlPath,
    PathBuilder,
    build_path,
    knots_per_stream,
    points_in_pieces,
)
from onlinecde.audit.trial_series import LONGEST_GAP, SHORTEST_GAP
from onlinecde.series import SeriesBatch

_POINTS = 4
_GROWTH = 0.1
_QUANTITIES = ("|X|", "|dX/ds|", "variation of dX/ds")


@dataclass(frozen=True)
class PathBoundedness:
    """The worst a path was seen to do as series grew, and whether that kept growing."""

    bounded: bool
    reason: str
    rows: tuple[int, ...]
    """The lengths of series tried."""
    values: tuple[float, ...]
    """The largest |X| of a value channel at each length; data lie within [-1, 1]."""
    slopes: tuple[float, ...]
    """The largest |dX/ds| of any channel at each length."""
    variations: tuple[float, ...]
    """The largest variation of dX/ds along one piece, the jump at its first knot included."""


def path_boundedness(
    build: PathBuilder,
    *,
    rows: Sequence[int] = (4, 8, 16, 32, 64, 128, 256, 512),
    seed: int = 0,
) -> PathBoundedness:
    """Find by experiment whether X, dX/ds and its variation stay bounded however long the series.

    Values lie within [-1, 1] and gaps within [0.5, 1.5]. At each length the path is tried on
    square waves (alternating and slower, to find resonance), random signs, and on what hurts it
    most: its answer to a single 1 at each row tells which signs add up, and where (for a path
    linear in its values, the worst there is). A quantity is taken to be unbounded if it grows
    faster than `rows ** 0.1` over the last three doublings; even a logarithm grows like
    `rows ** 0.17` there.

    Only value channels count for |X|: time and counts grow by design.
    """
    lengths = tuple(rows)
    if len(lengths) < 2 or any(b <= a for a, b in pairwise(lengths)):
        raise ValueError(f"rows is {lengths}: give at least two increasing lengths.")
    if lengths[0] < 2:
        raise ValueError(f"rows is {lengths}: a path needs at least 2 rows.")
    worst = torch.stack([_worst(build, length, seed) for length in lengths])
    growth = _exponents(worst, lengths)
    bounded = all(exponent < _GROWTH for exponent in growth)
    ends = zip(_QUANTITIES, worst[0].tolist(), worst[-1].tolist(), strict=True)
    seen = [
        f"{name} {first:.3g} at {lengths[0]} rows, {last:.3g} at {lengths[-1]}"
        for name, first, last in ends
    ]
    head = "settles" if bounded else "keeps growing"
    columns = [tuple(column) for column in worst.T.tolist()]
    return PathBoundedness(bounded, f"the worst case {head}: {'; '.join(seen)}.", lengths, *columns)


def _exponents(worst: Tensor, lengths: tuple[int, ...]) -> list[float]:
    """The power of the length with which each quantity (length, 3) grew over the last doublings."""
    count = min(4, len(lengths))
    size = torch.tensor(lengths[-count:], dtype=torch.float64).log()
    size = size - size.mean()
    height = worst[-count:].clamp(min=1e-12).log()
    slope = (size[:, None] * height).sum(0) / size.square().sum()
    return slope.nan_to_num(nan=torch.inf, posinf=torch.inf).tolist()


def _worst(build: PathBuilder, rows: int, seed: int) -> Tensor:
    """The largest of the three quantities (3,) over all data of that many rows."""
    worst = []
    for times, seen in _layouts(rows, seed):
        silence = torch.zeros(1, rows, dtype=torch.float64)
        impulses = torch.cat([silence, torch.eye(rows, dtype=torch.float64)[seen]])
        answers = build_path(build, _batch(times, impulses, seen))
        hurtful = torch.zeros(3, rows, dtype=torch.float64)
        hurtful[:, seen] = _worst_signs(answers, len(impulses))
        data = torch.cat([hurtful, *_waves(rows), _random_signs(rows, seed)])
        path = build_path(build, _batch(times, data, seen))
        values, slopes = _along(path, knots_per_stream(path, len(data)))
        variation = slopes.diff(dim=2).abs().sum(2)
        worst.append(torch.stack([values.abs().max(), slopes.abs().max(), variation.max()]))
    return torch.stack(worst).amax(0)


def _worst_signs(path: ControlPath, streams: int) -> Tensor:
    """Signs (3, row) that drive X, dX/ds or one step of dX/ds furthest.

    The path is that of silence, then of a 1 at each row; it is looked at on some pieces at the
    start, in the middle and at the end.
    """
    knots = knots_per_stream(path, streams)
    values, slopes = _along(path, knots, _some_pieces(knots.shape[1] - 1))
    chosen = []
    for quantity in (values, slopes[..., 1], slopes[..., 1].diff(dim=2)):
        response = (quantity[1:] - quantity[:1]).flatten(1)
        place = int(response.abs().sum(0).nan_to_num().argmax())
        chosen.append(response[:, place].sign())
    return torch.stack(chosen)


def _some_pieces(pieces: int) -> Tensor:
    every = torch.arange(pieces)
    middle = pieces // 2
    return (
        every
        if pieces <= 48
        else every[[*range(8), *range(middle - 8, middle + 8), *range(-24, 0)]]
    )


def _along(path: ControlPath, knots: Tensor, pieces: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The value channel of X (stream, piece, point) and dX/ds (stream, piece, point + 2, channel).

    Slopes are also taken just before a piece and just before its end, so that their steps make up
    the variation of dX/ds along the piece, with the jump at its first knot.
    """
    points = points_in_pieces(knots, _POINTS)
    nearly = 1e-9 * knots.diff(dim=1)
    end = knots[:, 1:] - nearly
    before = torch.cat([knots[:, :1], end[:, :-1]], 1)
    s = torch.cat([before[:, :, None], points, end[:, :, None]], 2)
    if pieces is not None:
        points, s = points[:, pieces], s[:, pieces]
    values = path.evaluate(points.flatten(1))[:, :, 1].unflatten(1, points.shape[1:])
    return values, path.derivative(s.flatten(1)).unflatten(1, s.shape[1:])


def _layouts(rows: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Times (row,) and where a value is observed (row,) bool: even, short and long, with gaps."""
    number = torch.arange(rows, dtype=torch.float64)
    all_seen = torch.ones(rows, dtype=torch.bool)
    yield number, all_seen
    gaps = torch.where(number % 2 == 0, SHORTEST_GAP, LONGEST_GAP).double()
    yield gaps.cumsum(0), all_seen
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(rows, generator=generator, dtype=torch.float64)
    gaps = SHORTEST_GAP + (LONGEST_GAP - SHORTEST_GAP) * share
    yield gaps.cumsum(0), number % 3 != 1


def _waves(rows: int) -> Iterator[Tensor]:
    """Square waves (1, row) that change sign every 1, 2, 3 and 4 rows."""
    for period in (1, 2, 3, 4):
        turn = torch.arange(rows, dtype=torch.float64).div(period, rounding_mode="floor") % 2
        yield (1 - 2 * turn)[None]


def _random_signs(rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 1.0 - 2.0 * torch.randint(0, 2, (8, rows), generator=generator).double()


def _batch(times: Tensor, values: Tensor, seen: Tensor) -> SeriesBatch:
    """One-channel series (stream, row) at the same times."""
    observed = values.masked_fill(~seen, torch.nan)
    return SeriesBatch.from_padded(times.repeat(len(values), 1), observed[:, :, None])
