"""Random causal callables, random series, and random leaks of one future event, for the audit to judge."""

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from onlinecde import SeriesBatch


def random_batch(numbers):
    """Two to four streams of unequal length, some values missing, in any units."""
    streams, channels = numbers.integers(2, 5), numbers.integers(1, 4)
    missing, unit = numbers.choice([0.0, 0.3, 0.7]), 10 ** numbers.uniform(-2, 2)
    times, values = [], []
    for rows in numbers.integers(3, 8, streams):
        times.append(numbers.uniform(-9, 9) + (10 ** numbers.uniform(-2, 2, rows)).cumsum())
        table = unit * (numbers.normal(size=(rows, channels)) + numbers.uniform(-2, 2))
        table[numbers.random(table.shape) < missing] = np.nan
        values.append(table)
    dtype = torch.float32 if numbers.random() < 0.5 else torch.float64
    return SeriesBatch.from_arrays(times, values).to(dtype=dtype)


def inputs(batch):
    """Values, mask and time since the row before, as (stream, row, feature)."""
    gaps = batch.times.diff(dim=1, prepend=batch.times[:, :1])[:, :, None].to(batch.dtype)
    return torch.cat([batch.values.nan_to_num(), batch.observed.to(batch.dtype), gaps.log1p()], 2)


def causal_callable(batch, numbers):
    """One of seven kinds of causal model, with random weights, from series to (stream, row, 2)."""
    features = inputs(batch).shape[2]
    torch.manual_seed(int(numbers.integers(2**31)))
    kind = CAUSAL[int(numbers.integers(len(CAUSAL)))]
    return kind(features, batch.dtype)


def packed_gru(features, dtype):
    cells, head = nn.GRU(features, 5, batch_first=True).to(dtype), nn.Linear(5, 2).to(dtype)

    def call(batch):
        packed = pack_padded_sequence(
            inputs(batch), batch.rows, batch_first=True, enforce_sorted=False
        )
        return head(pad_packed_sequence(cells(packed)[0], batch_first=True)[0])

    return call


def two_layer_gru(features, dtype):
    cells = nn.GRU(features, 2, num_layers=2, batch_first=True).to(dtype)
    return lambda batch: cells(inputs(batch))[0]


def running_sum(features, dtype):
    head = nn.Linear(features, 2).to(dtype)
    return lambda batch: head(inputs(batch).cumsum(1))


def causal_convolution(features, dtype):
    layer = nn.Conv1d(features, 2, 3).to(dtype)
    return lambda batch: layer(nn.functional.pad(inputs(batch).mT, (2, 0))).mT.tanh()


def causal_attention(features, dtype):
    query, key, value = (nn.Linear(features, 2).to(dtype) for _ in range(3))

    def call(batch):
        x = inputs(batch)
        return nn.functional.scaled_dot_product_attention(
            query(x)[:, None], key(x)[:, None], value(x)[:, None], is_causal=True
        )[:, 0]

    return call


def events_as_a_set(features, dtype):
    """Each event through an MLP, summed up to each row: products as long as there are events."""
    layer = nn.Linear(2, 2).to(dtype)

    def call(batch):
        places = batch.observed.nonzero()
        x = torch.stack([batch.values[batch.observed], places[:, 2].to(dtype)], 1)
        sums = torch.zeros(*batch.times.shape, 2, dtype=dtype)
        return sums.index_put((places[:, 0], places[:, 1]), layer(x).tanh(), True).cumsum(1)

    return call


def fading_memory(features, dtype):
    """Continuously online: takes query times, and forgets as time goes by."""
    head = nn.Linear(features, 2).to(dtype)

    def call(batch, at=None):
        after = head(inputs(batch).cumsum(1))
        if at is None:
            return after
        row = (torch.searchsorted(batch.times, at.contiguous(), right=True) - 1).clamp(min=0)
        row = row.minimum(batch.rows[:, None] - 1)
        gap = at - batch.times.gather(1, row)
        held = after.gather(1, row[:, :, None].expand(-1, -1, 2))
        return held * torch.exp(-gap / 10)[:, :, None].to(dtype)

    return call


CAUSAL = (
    packed_gru, two_layer_gru, running_sum, causal_convolution, causal_attention, events_as_a_set,
    fading_memory,
)  # fmt: skip


def leaky_callable(batch, numbers, weight=1e-3):
    """A causal callable whose output at one row is told, by a little, of one later event.

    Returns it with the rows of the output and of the event, the channel, and what was told.
    """
    call = causal_callable(batch, numbers)
    shortest = int(batch.rows.min())
    event = int(numbers.integers(1, shortest))
    row, channel = int(numbers.integers(event)), int(numbers.integers(batch.values.shape[2]))
    what = str(numbers.choice(["value", "square", "time", "mask", "length"]))
    with torch.no_grad():
        size = float(call(batch).abs().max())
    unit = float(batch.values.nan_to_num().abs().max())

    def told(series):
        if what == "length":
            return (series.rows > event).to(series.dtype)
        here = series.rows > event
        event_ = min(event, series.times.shape[1] - 1)
        x = series.values[:, event_, channel]
        if what == "time":
            found = (series.times[:, event_] - series.times[:, 0]).tanh().to(series.dtype)
        elif what == "mask":
            found = (~x.isnan()).to(series.dtype)
        else:
            found = x.nan_to_num() / unit
            found = found.square() if what == "square" else found
        return torch.where(here, found, 0.0)

    def leaky(series):
        out = call(series).clone()
        out[:, row, 0] += weight * size * told(series)
        return out

    return leaky, row, event, channel, what
