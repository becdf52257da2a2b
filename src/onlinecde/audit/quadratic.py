"""Quadratic spline control: the negative control of the boundedness test, for no other use."""

from dataclasses import replace

import torch

from onlinecde.controls import PolynomialPath, linear
from onlinecde.series import SeriesBatch


def quadratic(batch: SeriesBatch, counts: bool = False) -> PolynomialPath:
    """The C1 path of quadratic pieces through the rows: it resonates, so it is not bounded.

    One piece's end slope is the next one's first: m_{i+1} = 2 (x_{i+1} - x_i) - m_i, and the first
    piece is straight. Nothing damps m: values that alternate make it grow with every row.
    """
    straight = linear(batch, counts)
    rise = straight.rows.diff(dim=1)
    if not rise.shape[1]:
        return replace(straight, scheme="quadratic", slopes=torch.zeros_like(straight.rows))
    # (-1)^i m_i is a running sum of (-1)^i 2 rise_{i-1}, started at the first difference.
    sign = (-1.0) ** torch.arange(straight.rows.shape[1], dtype=rise.dtype, device=rise.device)
    terms = torch.cat([rise[:, :1], 2 * rise], 1) * sign[:, None]
    slopes = sign[:, None] * terms.cumsum(1)
    real = torch.arange(slopes.shape[1], device=rise.device) < straight.lengths[:, None]
    return replace(straight, scheme="quadratic", slopes=torch.where(real[..., None], slopes, 0.0))
