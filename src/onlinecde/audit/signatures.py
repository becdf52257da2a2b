"""Truncated signatures of paths, by Chen's relation; many streams at once."""

import torch
from torch import Tensor

from onlinecde.audit.paths import ControlPath, knots_per_stream, points_in_pieces


def signature(points: Tensor, depth: int) -> tuple[Tensor, ...]:
    """The signature of the straight-line path through points (stream, point, channel), to a level.

    Level k is (stream, channel ** k): the iterated integrals of dX_{i1} ... dX_{ik} over
    s_1 < ... < s_k, in the order of `itertools.product`. A straight line has the levels
    v^(x)k / k!, and lines are joined by Chen's relation, S(a * b) = S(a) (x) S(b).

    >>> [level.tolist() for level in signature(torch.tensor([[[0.0], [2.0]]]), depth=3)]
    [[[2.0]], [[2.0]], [[1.3333333730697632]]]
    """
    if points.ndim != 3:
        raise ValueError(f"points has shape {tuple(points.shape)}: give (stream, point, channel).")
    if depth < 1:
        raise ValueError(f"depth is {depth}: give at least 1.")
    streams, _, channels = points.shape
    levels = [points.new_zeros(streams, channels**k) for k in range(1, depth + 1)]
    for step in points.diff(dim=1).unbind(1):
        levels = [_joined(levels, step, k) for k in range(1, depth + 1)]
    return tuple(levels)


def _joined(levels: list[Tensor], step: Tensor, k: int) -> Tensor:
    """Level k of a path with the line `step` (stream, channel) put behind it.

    sum_j S_{k-j} (x) step^(x)j / j!, nested as ((step/k + S_1) (x) step/(k-1) + S_2) (x) ... + S_k.
    """
    total = step / k
    for j in range(1, k):
        total = ((total + levels[j - 1])[:, :, None] * (step / (k - j))[:, None, :]).flatten(1)
    return total + levels[k - 1]


def path_signature(
    path: ControlPath, streams: int, depth: int = 4, points_per_piece: int = 4
) -> tuple[Tensor, ...]:
    """The signature of a path whose pieces may be curved; exact where they are straight.

    The path is read as straight lines between points of its pieces: as many as asked for, and two
    and four times that. The error is a series in even powers of the spacing, so the three
    together leave its sixth power (Romberg's extrapolation).
    """
    knots = knots_per_stream(path, streams)

    def through(number: int) -> tuple[Tensor, ...]:
        s = torch.cat([points_in_pieces(knots, number).flatten(1), knots[:, -1:]], 1)
        return signature(path.evaluate(s), depth)

    coarse, middle, fine = (through(times * points_per_piece) for times in (1, 2, 4))
    # 64/45, -20/45, 1/45: two rounds of (4 fine - coarse) / 3, then (16 fine - coarse) / 15.
    levels = zip(coarse, middle, fine, strict=True)
    return tuple((64 * c - 20 * b + a) / 45 for a, b, c in levels)
