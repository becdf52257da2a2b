"""Natural cubic control: the smoothest path through the rows, known only in hindsight."""

from typing import Any

import torch
from torch import Tensor

from onlinecde.controls.encoding import Encoding
from onlinecde.controls.fill import hold_ends, is_complete
from onlinecde.controls.path import Measurability, PolynomialPath
from onlinecde.controls.rows import encode, join_channels
from onlinecde.series import SeriesBatch


def natural_cubic(
    batch: SeriesBatch, counts: bool = False, *, encoding: Encoding | None = None
) -> PolynomialPath:
    """The natural cubic spline control: offline, since every row bends the whole path.

    A channel with gaps is the spline through its observed rows alone; rows before its first
    observation are taken to be 0, rows after the last one that value. Arguments as for
    `rectilinear`.
    """
    series = encode(batch, counts, encoding)
    rows = join_channels(series, hold_ends(series.values))
    values, slopes = _spline(rows, series.lengths)
    return PolynomialPath(
        scheme="natural_cubic",
        rows=values,
        times=series.times,
        lengths=series.lengths,
        streams=series.streams,
        measurability=Measurability.OFFLINE,
        slopes=slopes,
    )


def _spline(rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Values and slopes (stream, row, channel) at all rows of the splines through the known ones.

    Works in a layout (row, stream * channel) in which every column is one spline. Its known rows,
    the first and the last among them, are moved to the front, so that missing rows cost nothing;
    rows between two known ones are then read off the cubic that spans them.
    """
    streams, most, channels = rows.shape
    if most == 1:
        return rows, torch.zeros_like(rows)
    columns = rows.permute(1, 0, 2).reshape(most, -1)

    def back(array: Tensor) -> Tensor:
        return array.reshape(most, streams, channels).permute(1, 0, 2)

    if bool((lengths == most).all()) and is_complete(rows):
        gaps = torch.ones(most - 1, 1, dtype=rows.dtype, device=rows.device)
        return rows, back(_slopes(columns, gaps))
    last = (lengths - 1).repeat_interleave(channels)
    row = torch.arange(most, device=rows.device)[:, None].expand_as(columns)
    missing = columns.isnan()
    known = ~missing & (row <= last)
    rank = known.cumsum(0)
    count = rank[-1]
    # Known rows go to the front in order, a last, unused line takes the rest; behind the known
    # ones stands the last of them again, so that nothing moves there.
    target = torch.where(known, rank - 1, most)
    at = last.expand(most + 1, -1).scatter(0, target, row)[:most]
    knots = columns.gather(0, at)
    at = at.to(rows.dtype)
    slopes = _slopes(knots, at.diff(dim=0))

    left, right = rank - 1, torch.minimum(rank, count - 1)
    start, m0 = knots.gather(0, left), slopes.gather(0, left)
    begin = at.gather(0, left)
    width = (at.gather(0, right) - begin).clamp(min=1)
    u = (row - begin) / width
    rise = knots.gather(0, right) - start
    left_rise, right_rise = m0 * width, slopes.gather(0, right) * width
    second, third = 3 * rise - 2 * left_rise - right_rise, left_rise + right_rise - 2 * rise
    between = start + u * (left_rise + u * (second + u * third))
    slope = (left_rise + u * (2 * second + 3 * u * third)) / width
    value = torch.where(missing, between, columns)
    return back(value), back(torch.where(missing, slope, torch.where(known, m0, 0.0)))


def _slopes(knots: Tensor, gaps: Tensor) -> Tensor:
    """Slopes (knot, spline) of natural splines with the given gaps (knot - 1, spline).

    A gap of 0 ends a spline: what follows is uncoupled and gets slope 0. The system, symmetric and
    tridiagonal, says that second derivatives agree at inner knots and vanish at the ends.
    """
    inverse = torch.where(gaps > 0, 1 / gaps.clamp(min=1), 0.0)
    pull = 3 * knots.diff(dim=0) * inverse.square()
    diagonal = 2 * _sum_at_knots(inverse)
    diagonal = torch.where(diagonal > 0, diagonal, 1.0)
    return _TridiagonalSolve.apply(*_factorise(diagonal, inverse), _sum_at_knots(pull))


def _sum_at_knots(between: Tensor) -> Tensor:
    """What stands on both sides of each knot, added: (knot - 1, ...) -> (knot, ...)."""
    nothing = torch.zeros_like(between[:1])
    return torch.cat([between, nothing]) + torch.cat([nothing, between])


def _factorise(diagonal: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    """L and D of L D L' = A, tridiagonal: diagonal (row, system), beside (row - 1, system)."""
    pivot, factor = diagonal.clone(), torch.empty_like(beside)
    pivots, factors, besides = pivot.unbind(), factor.unbind(), beside.unbind()
    for row in range(len(factors)):
        torch.div(besides[row], pivots[row], out=factors[row])
        pivots[row + 1].sub_(factors[row] * besides[row])
    return factor, pivot


class _TridiagonalSolve(torch.autograd.Function):
    """Solve L D L' m = target for many systems at once; L and D do not depend on the values.

    factor (row - 1, system), pivot and target (row, system). The matrix is symmetric, so the
    gradient of the target is another solve with it.
    """

    @staticmethod
    def forward(ctx: Any, factor: Tensor, pivot: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(factor, pivot)
        solution = target.clone()
        factors, lines = factor.unbind(), solution.unbind()
        # Products are rounded before they are subtracted: fused, they would round by where in the
        # batch a stream stands, and padding would not be inert to the last bit.
        product = torch.empty_like(lines[0])
        for row in range(1, len(lines)):
            torch.mul(factors[row - 1], lines[row - 1], out=product)
            lines[row].sub_(product)
        solution.div_(pivot)
        for row in range(len(lines) - 2, -1, -1):
            torch.mul(factors[row], lines[row + 1], out=product)
            lines[row].sub_(product)
        return solution

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor]:
        factor, pivot = ctx.saved_tensors
        return None, None, _TridiagonalSolve.apply(factor, pivot, grads[0])
