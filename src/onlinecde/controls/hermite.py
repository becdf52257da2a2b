"""Hermite cubic control with backward differences: smooth, and discretely online."""

from dataclasses import replace

import torch

from onlinecde.controls.encoding import Encoding
from onlinecde.controls.linear import linear
from onlinecde.controls.path import PolynomialPath
from onlinecde.series import SeriesBatch


def hermite(
    batch: SeriesBatch, counts: bool = False, *, encoding: Encoding | None = None
) -> PolynomialPath:
    """The cubic Hermite control whose slope at a row is the difference from the row before.

    The first slope is the first difference, so the first piece is straight. Smooth (C1), and
    discretely online where nothing is missing. Arguments as for `rectilinear`.
    """
    straight = linear(batch, counts, encoding=encoding)
    rise = straight.rows.diff(dim=1)
    slopes = torch.cat([rise[:, :1], rise], 1) if rise.shape[1] else torch.zeros_like(straight.rows)
    return replace(straight, scheme="hermite", slopes=slopes)
