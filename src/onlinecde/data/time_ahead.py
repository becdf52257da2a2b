"""Bins of time ahead of a time-to-event task: finer where events are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np
from torch import Tensor

from onlinecde.data.errors import DataError

BINS = 16
"""How many bins there are where times to events have as many quantiles"""


def time_bins(
    labels: Tensor,
    splits: Mapping[str, Tensor],
    edges: Sequence[float] | None = None,
    horizon: float | None = None,
) -> tuple[tuple[float, ...], float]:
    """Where bins of time ahead end, and the horizon of the first answer.

    Args:
        labels: (stream, ..., 2), how long it took and whether to the event.
        splits: positions of the streams; those of "train" say where events are, or all where there is none.
        edges: given ones, which stay as they are.
        horizon: default: the median time to an event.

    Returns:
        Quantiles of the times to events, to three figures, the last the longest of them; the edge nearest to the
        horizon is moved there.

    >>> import torch
    >>> labels = torch.tensor([[1.0, 1.0], [2.0, 1.0], [40.0, 0.0], [4.0, 1.0], [8.0, 1.0]])
    >>> time_bins(labels, {}, horizon=2.5)
    ((1.0, 2.5, 4.0, 8.0), 2.5)
    """
    some = labels[splits["train"].to(labels.device)] if len(splits.get("train", ())) else labels
    some = some.reshape(-1, 2).double().cpu().numpy()
    waited = some[some[:, 1] == 1, 0]
    if horizon is not None and not (isfinite(horizon) and horizon > 0):
        raise DataError(f"horizon is {horizon}: give a time above 0.")
    if edges is not None:
        ends = tuple(float(edge) for edge in edges)
        if not ends or not all(b > a for a, b in zip((0.0, *ends), ends, strict=False)):
            raise DataError(f"edges are {list(edges)}: give times above 0, each above the last.")
        first = horizon or (_middle(waited, ends[-1]) if len(waited) else ends[0])
        if first > ends[-1]:
            raise DataError(
                f"horizon is {first:g}, beyond the last of the edges, {ends[-1]:g}: give one within them."
            )
        return ends, first
    if not len(waited):
        raise DataError(
            "no event follows a label of the training split, so that nothing says where bins of time ahead should "
            "lie: give streams with events, or `edges`."
        )
    quantiles = np.quantile(waited, np.arange(1, BINS + 1) / BINS, method="inverted_cdf")
    found = sorted({_three_figures(one) for one in quantiles})
    first = horizon or _middle(waited, found[-1])
    if first > found[-1]:
        return (*found, first), first
    if first not in found:
        inner = found[:-1]
        found = [*set(found) - {*sorted(inner, key=lambda end: abs(end - first))[:1]}, first]
    return tuple(sorted(found)), first


def _middle(waited: np.ndarray, last: float) -> float:
    """The median time to an event, to two figures, no longer than the last edge."""
    return min(float(f"{np.median(waited):.2g}"), last)


def _three_figures(time: float) -> float:
    """A time to three figures, and above 0."""
    return float(f"{time:.3g}")
