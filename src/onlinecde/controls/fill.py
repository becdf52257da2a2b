"""Forward fill, counts, interpolation across missing values; all streams and channels at once."""

import torch
from torch import Tensor

NEVER = 0.0
"""What stands for a channel before it is first observed: the training mean, once values are scaled."""


def is_complete(values: Tensor) -> bool:
    """Whether nothing is missing, padding included; cheap where that is so."""
    # A sum meets every NaN at the cost of one fast pass; only then is the mask worth building.
    return not bool(values.sum().isnan()) or not bool(values.isnan().any())


def observations_in_order(values: Tensor, observed: Tensor, rank: Tensor) -> Tensor:
    """Each channel's k-th observation at place k, (stream, row + 1, channel); `NEVER` at place 0.

    `rank` counts the observations of each channel so far, so reading the result at `rank` gives
    what was observed last, and `NEVER` where that is nothing yet.
    """
    streams, most, channels = values.shape
    # Missing values all go to one more place, behind everything that is ever read.
    target = torch.where(observed, rank, most + 1)
    in_order = values.new_full((streams, most + 2, channels), NEVER)
    return in_order.scatter(1, target, values)[:, :-1]


def forward_fill(values: Tensor) -> Tensor:
    """Carry each channel's last observed value (stream, row, channel) forward; `NEVER` before the first.

    Nothing is ever filled from the future.
    """
    if is_complete(values):
        return values
    observed = ~values.isnan()
    rank = observed.cumsum(1)
    return observations_in_order(values, observed, rank).gather(1, rank)


def count_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for the counts of a series: half precision would soon stop counting."""
    return torch.promote_types(dtype, torch.float32)


def observation_counts(observed: Tensor, dtype: torch.dtype) -> Tensor:
    """How often each channel was observed so far, (stream, row, channel), this row included."""
    return observed.cumsum(1).to(count_dtype(dtype))


def last_observed(observed: Tensor, times: Tensor) -> Tensor:
    """When each channel was last observed, (stream, row, channel), this row included; NaN where never.

    >>> last_observed(torch.tensor([[[False], [True], [False]]]), torch.tensor([[1.0, 2.0, 5.0]]))[0, :, 0]
    tensor([nan, 2., 2.])
    """
    rank = observed.cumsum(1)
    at = times[:, :, None].expand(observed.shape)
    last = observations_in_order(at, observed, rank).gather(1, rank)
    return torch.where(rank > 0, last, torch.nan)


def hold_ends(values: Tensor) -> Tensor:
    """Fill (stream, row, channel): 0 before a channel is first observed, its last value at the end.

    What is left missing lies between two observations of its channel.
    """
    if is_complete(values):
        return values
    observed = ~values.isnan()
    rank = observed.cumsum(1)
    latest = observations_in_order(values, observed, rank).gather(1, rank)
    inside = (rank > 0) & (rank < rank[:, -1:])
    return torch.where(inside, values, latest)


def interpolate_linearly(values: Tensor) -> Tensor:
    """Fill gaps (stream, row, channel) on the straight line, in the row number, between neighbours.

    Before the first observation stands 0, after the last one that value (see `hold_ends`).
    """
    if is_complete(values):
        return values
    observed = ~values.isnan()
    rank = observed.cumsum(1)
    # At both ends there is only one neighbour, and the line to itself is what should stand there.
    following = torch.minimum(rank + (rank > 0), rank[:, -1:])
    in_order = observations_in_order(values, observed, rank)
    row = torch.arange(values.shape[1], dtype=values.dtype, device=values.device)[None, :, None]
    row_of = observations_in_order(row.expand_as(values), observed, rank)
    start, stop = in_order.gather(1, rank), in_order.gather(1, following)
    before, after = row_of.gather(1, rank), row_of.gather(1, following)
    weight = (row - before) / (after - before).clamp(min=1)
    return torch.where(observed, values, start + weight * (stop - start))


def has_gaps(values: Tensor, lengths: Tensor) -> bool:
    """Whether any channel of (stream, row, channel) is missing at a row after it was observed."""
    if is_complete(values):
        return False
    missing = values.isnan()
    real = torch.arange(1, values.shape[1], device=values.device) < lengths[:, None]
    return bool((missing[:, 1:] & ~missing[:, :-1] & real[:, :, None]).any())
