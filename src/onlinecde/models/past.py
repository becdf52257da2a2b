"""Running statistics of each channel: a small exact state, taken forward a row at a time, that trees are told of.

Sums are of differences to a channel's first value and time, in float64, one row after the other: what comes later
leaves every bit of what was before, and a history gives the same numbers as its rows one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onlinecde.kernels import cpu_unavailable

KEPT = 12
"""Numbers kept of a channel: how often it was observed; its first value and time; its last; its least and greatest
value; sums of d, d d, a, a a and a d, where d and a are how far values and times are from its first"""
STATISTICS = ("last", "mean", "min", "max", "deviation", "slope", "first", "count", "since")
"""What is said of each channel: values; the slope of the line of least squares, in units a unit of time; how often it
was observed; and how long ago it was last"""


def nothing_yet(streams: int, channels: int, device: torch.device | str = "cpu") -> Tensor:
    """The statistics of streams of which nothing was observed yet, (stream, channel, `KEPT`) float64."""
    return torch.zeros(streams, channels, KEPT, dtype=torch.float64, device=device)


def take_row(past: Tensor, time: Tensor, values: Tensor, observed: Tensor) -> Tensor:
    """Statistics (stream, channel, `KEPT`) after one more row, given those before it.

    time (stream,), values and observed (stream, channel): what was observed at that time; other values are not read.
    """
    if _compiled(past, values):
        from onlinecde.kernels.cpu.past import take_rows

        after = past.numpy().copy()
        take_rows(after, time.numpy(), values.detach().numpy(), observed.numpy())
        return torch.from_numpy(after)
    count, first, began, _, _, low, high, *sums = past.unbind(-1)
    x, t = values.double(), time[:, None].expand(values.shape)
    new = count == 0
    first, began = torch.where(new, x, first), torch.where(new, t, began)
    low, high = (
        torch.where(new, x, more(x, one))
        for more, one in ((torch.minimum, low), (torch.maximum, high))
    )
    d, a = x - first, t - began
    added = [total + one for total, one in zip(sums, (d, d * d, a, a * a, a * d), strict=True)]
    after = torch.stack([count + 1, first, began, x, t, low, high, *added], -1)
    return torch.where(observed[..., None], after, past)


def numbers_of(past: Tensor, clock: Tensor, also: Tensor) -> Tensor:
    """What is said at `clock` (stream,) of statistics (stream, channel, `KEPT`), (stream, number) float32.

    Each of `STATISTICS` for all channels, NaN where one was never observed; then `also` (stream, number) as it is.
    """
    if _compiled(past, past):
        from onlinecde.kernels.cpu.past import describe_each

        wide = len(STATISTICS) * past.shape[1] + also.shape[1]
        said = torch.empty(len(past), wide)
        describe_each(past.numpy(), clock.numpy(), said.numpy())
        said[:, -also.shape[1] :] = also
        return said
    count, first, _, last, ended, low, high, d, dd, a, aa, ad = past.unbind(-1)
    n = count.clamp(min=1)
    mean, middle = d / n, a / n
    variance = dd / n - mean * mean
    spread = aa / n - middle * middle
    known = (count > 1) & (spread > 0)
    slope = torch.where(
        known, (ad / n - mean * middle) / torch.where(known, spread, 1.0), torch.nan
    )
    deviation = torch.where(variance > 0, variance, 0.0).sqrt()
    each = [last, mean + first, low, high, deviation, slope, first, count, clock[:, None] - ended]
    said = [
        one if name == "count" else torch.where(count > 0, one, torch.nan)
        for name, one in zip(STATISTICS, each, strict=True)
    ]
    return torch.cat([one.float() for one in (*said, also)], 1)


def numbers_along(
    times: Tensor, values: Tensor, observed: Tensor, row: Tensor, clock: Tensor, also: Tensor
) -> Tensor:
    """`numbers_of` whole histories at query times, (stream, query, number).

    times (stream, row) float64, values and observed (stream, row, channel); clock (stream, query) float64, the last
    row before it, and what else is said then, also (stream, query, number).
    """
    streams, channels = len(times), values.shape[2]
    past = nothing_yet(streams, channels, times.device)
    if _compiled(past, values):
        from onlinecde.kernels.cpu.past import describe_along

        said = torch.empty(*row.shape, len(STATISTICS) * channels + also.shape[2])
        said[..., -also.shape[2] :] = also
        given = (past, times, values.detach(), observed, row, row.argsort(1), clock, said)
        describe_along(*(one.numpy() for one in given))
        return said
    said = None
    for number in range(int(row.max()) + 1 if row.numel() else 0):
        past = take_row(past, times[:, number], values[:, number], observed[:, number])
        stream, query = (row == number).nonzero(as_tuple=True)
        here = numbers_of(past[stream], clock[stream, query], also[stream, query])
        if said is None:
            said = here.new_zeros(*row.shape, here.shape[1])
        said[stream, query] = here
    return torch.zeros(*row.shape, 0) if said is None else said


def _compiled(*tensors: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and all(one.device.type == "cpu" and one.dtype in _KNOWN for one in tensors)
        and cpu_unavailable() is None
    )


_KNOWN = (torch.float32, torch.float64)
