"""What the recurrent baselines share: rows as they see them, the state of a stream, the contract."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onlinecde.controls import Encoding
from onlinecde.controls.fill import NEVER
from onlinecde.controls.path import query_times, rows_at
from onlinecde.models.base import OnlineModel, check_asked
from onlinecde.models.channel_dropout import drop_channels
from onlinecde.models.readout import Kind, Readout
from onlinecde.models.recurrent.recurrences import carry_on_
from onlinecde.models.recurrent.row_blocks import in_blocks
from onlinecde.models.state import (
    StateError,
    StreamState,
    as_numbers,
    check_merge,
    check_observation,
    check_question,
    merge,
    per_stream,
)
from onlinecde.series import SeriesBatch

LONG = 1e20
"""Times as far apart as this may be too far for a model's dtype."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What may be seen at some rows, from the past alone: (row, stream, ...), or (stream, ...)."""

    clock: Tensor
    """(row, stream) float64: time as observed"""
    values: Tensor
    """(row, stream, channel): scaled values, the last one carried forward; 0 before the first"""
    mask: Tensor
    """(row, stream, channel): 1 where observed, else 0"""
    elapsed: Tensor
    """(row, stream, channel): scaled time since each channel was last observed before the row
    (whether or not it is at the row); since the stream's first row while it never was"""

    def as_batch(self) -> Rows:
        """One row (stream, ...) as (1, stream, ...)."""
        return Rows(self.clock[None], self.values[None], self.mask[None], self.elapsed[None])


@dataclass(frozen=True, eq=False)
class RecurrentState(StreamState):
    """Everything kept of a stream's past: h, its last values, and when each channel was last observed.

    What stood before the last row is kept too, so that more events of the same instant can be
    taken in as if they had come together.
    """

    h: Tensor
    """(stream, layer, hidden) after the last row; before the first, what the static features say"""
    before: Tensor
    """(stream, layer, hidden): h as the last row's time came, before its values were taken in"""
    time: Tensor
    """(stream,) float64: time of the last row, NaN before the first"""
    values: Tensor
    """(stream, channel): last values in the model's units, 0 where never observed"""
    observed: Tensor
    """(stream, channel) bool: what was observed at the last row's instant"""
    previous: Tensor
    """(stream, channel): values before the last row"""
    since: Tensor
    """(stream, channel) float64: when each channel was last observed before the last row; the
    stream's first row where it never was"""
    last: Tensor | None = None
    """(stream, forecast): what was last observed of each channel that is forecast, as it was given"""


class RecurrentModel(OnlineModel[RecurrentState]):
    """A model whose hidden state is updated at rows: `h_i = update(carry(h_{i-1}), row_i)`.

    Before its first row a stream's h is a linear map of its static features, 0 where the model
    takes none. A subclass gives the update and, where h changes between rows, `carry`.
    """

    weights_alone = ("encoding",)

    def __init__(
        self,
        channels: int,
        hidden: int,
        outputs: int,
        static: int,
        layers: int,
        kind: Kind,
        readout_width: int | None,
        channel_dropout: float,
        gain: float,
        clip: float | None,
    ) -> None:
        super().__init__()
        for name, size, least in (
            ("hidden", hidden, 1),
            ("layers", layers, 1),
            ("static", static, 0),
        ):
            if size < least:
                raise ValueError(f"{name} is {size}: give at least {least}.")
        if not 0 <= channel_dropout < 1:
            raise ValueError(f"channel_dropout is {channel_dropout}: give a share from 0 up to 1.")
        self.channels, self.hidden, self.layers = channels, hidden, layers
        self.outputs, self.static, self.channel_dropout = outputs, static, channel_dropout
        self.encoding = Encoding(channels, gain=gain, clip=clip)
        self.initial = nn.Linear(static, layers * hidden) if static else None
        self.readout = Readout(hidden, outputs, kind, readout_width)

    @abstractmethod
    def trajectory(self, rows: Rows, h0: Tensor, streams: Sequence[Any]) -> Tensor:
        """The top layer's h after each row, (row, stream, hidden), from h0 (stream, layer, hidden)."""

    @abstractmethod
    def update(self, row: Rows, h: Tensor) -> Tensor:
        """h (stream, layer, hidden) after taking in one row."""

    def carry(self, h: Tensor, since: Tensor, clock: Tensor, streams: Sequence[Any]) -> Tensor:
        """h (stream, layer, hidden) at `clock` (stream,) if nothing is observed from `since` on."""
        return h

    def scale_gap(self, gaps: Tensor) -> Tensor:
        """Differences of time in the model's units, float64."""
        return gaps / self.encoding.time_scale

    def rows(self, batch: SeriesBatch) -> Rows:
        """The rows of a batch as the model sees them."""
        values = self.encoding.scale_values(batch.values.transpose(0, 1).contiguous())
        known = values.detach()
        # NaN alone is not equal to itself; by way of a bool the mask would take ten times as long.
        mask = torch.eq(known, known, out=torch.empty_like(known))
        missing = 1 - mask
        clock = batch.times.T
        gaps = self.scale_gap(clock.diff(dim=0, prepend=clock[:1]))[:, :, None]
        # A channel that is observed starts anew; one that is missing stays as it is, and ages.
        held = carry_on_(values.nan_to_num(NEVER), missing)
        ages = gaps.expand(-1, -1, self.channels).clone(memory_format=torch.contiguous_format)
        ages = carry_on_(ages, missing.roll(1, 0).double())
        return Rows(clock, held, mask, ages.to(mask.dtype))

    def start(self, streams: int, static: Tensor | None) -> Tensor:
        """h before the first row, (stream, layer, hidden)."""
        if self.initial is None or static is None:
            shape = (streams, self.layers, self.hidden)
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        return self.initial(static).view(streams, self.layers, self.hidden)

    def forward(self, batch: SeriesBatch, at: Any = None, *, final: bool = False) -> Tensor:
        check_asked(at, final)
        batch = self.prepare(batch)
        last = self.last_values(batch)
        self._check_gaps(batch.times[:, 0], batch.times[:, -1], batch.streams)
        self.encoding.warn_if_unfitted(batch.times, batch.values)
        if self.training and self.channel_dropout:
            batch = drop_channels(batch, self.channel_dropout)
        h = self.trajectory(self.rows(batch), self.start(len(batch), batch.static), batch.streams)
        if last is not None:
            last = last.transpose(0, 1)
        if at is not None:
            return self._at_times(batch, h, at, last)
        return self.read(h, batch.rows, final, last)

    def answer(self, h: Tensor, last: Tensor | None) -> Tensor:
        """Outputs (..., output) of h (..., hidden) and, where it forecasts, last values (..., forecast)."""
        return self.readout(h) if last is None else self.readout(h, last)

    def read(self, h: Tensor, rows: Tensor, final: bool, latest: Tensor | None = None) -> Tensor:
        """Outputs (stream, row, output) of h (row, stream, hidden), those after `rows` (stream,) the last.

        With `final` the last alone, (stream, output). No number is looked at: a CUDA graph may hold it. latest (row,
        stream, forecast): last values, of forecasts.
        """
        last = rows[:, None] - 1
        both = h if latest is None else torch.cat([h, latest], 2)
        size = h.shape[2]

        def one(x: Tensor) -> Tensor:
            return self.answer(x[..., :size], None if latest is None else x[..., size:])

        if final:
            return one(both.gather(0, last.expand(-1, both.shape[2])[None])[0])
        outputs = in_blocks(one, both).transpose(0, 1)
        row = torch.arange(len(h), device=h.device).minimum(last)
        return outputs.gather(1, row[:, :, None].expand(-1, -1, outputs.shape[2]))

    def _at_times(self, batch: SeriesBatch, h: Tensor, at: Any, last: Tensor | None) -> Tensor:
        """Outputs (stream, query, output), each carried on from the row before its time."""
        clock = query_times(at, len(batch), self.device)
        if not clock.numel():
            return h.new_zeros(len(batch), 0, self.outputs)
        row = rows_at(batch.times, batch.rows, clock, batch.streams)
        stream = torch.arange(len(batch), device=h.device)[:, None].expand_as(row)
        since = batch.times.gather(1, row).flatten()
        names = [name for name in batch.streams for _ in range(clock.shape[1])]
        found = self.carry(h[row, stream].flatten(0, 1)[:, None], since, clock.flatten(), names)
        latest = None if last is None else last[row, stream].flatten(0, 1)
        return self.answer(found[:, 0], latest).unflatten(0, clock.shape)

    def init_state(self, streams: int = 1, static: Any = None) -> RecurrentState:
        return self.first_state(streams, self.prepare_static(streams, static))

    def first_state(self, streams: int, static: Tensor | None) -> RecurrentState:
        """`init_state` for checked static features (stream, feature)."""
        h = self.start(streams, static)
        x = torch.full((streams, self.channels), NEVER, dtype=self.dtype, device=self.device)
        seen = torch.zeros_like(x, dtype=torch.bool)
        never = torch.full((streams,), torch.nan, dtype=torch.float64, device=self.device)
        since = torch.full_like(x, torch.nan).double()
        return RecurrentState(h, h, never, x, seen, x, since, self.first_last(streams))

    def observe(self, state: RecurrentState, t: Any, x: Any) -> RecurrentState:
        clock = per_stream(t, len(state), self.device)
        x = self.row_of(x, len(state))
        values = as_numbers(x, "x", self.dtype, self.device)
        check_observation(state.time, clock, values, self.channels)
        self._check_gaps(state.time, clock, range(len(state)))
        scaled = self.encoding.scale_values(values)
        check_merge(state, clock, scaled)
        return replace(self.take(state, clock, scaled), last=self.last_after(state.last, values))

    def _check_gaps(self, since: Tensor, clock: Tensor, streams: Sequence[Any]) -> None:
        """Refuse times (stream,) so far apart that their distance is infinite in the model's dtype.

        Not on a GPU, where every step would have to wait for the answer.
        """
        if clock.is_cuda:
            return
        since, clock = since.detach(), clock.detach()
        # By numpy, which takes a tenth of the time for a few numbers; what is shorter fits any scale.
        if np.fmax.reduce(clock.numpy() - since.numpy()) < LONG and self.dtype != torch.float16:
            return
        far = self.scale_gap(clock - since) > torch.finfo(self.dtype).max
        if bool(far.any()):
            stream = int(far.nonzero()[0])
            raise StateError(
                f"stream {streams[stream]!r}: from time {float(since[stream]):g} to "
                f"{float(clock[stream]):g} it is too far for {self.dtype}: fit the model's encoding, "
                "or give times in larger units."
            )

    def take(self, state: RecurrentState, clock: Tensor, scaled: Tensor) -> RecurrentState:
        """`observe` for checked times (stream,) and scaled values (stream, channel)."""
        new = state.time.isnan()
        again, observed, values, previous = merge(state, clock, scaled)
        seen = torch.where(state.observed & ~again[:, None], state.time[:, None], state.since)
        since = torch.where(new[:, None], clock[:, None], seen)
        # At a first row, and in a merge, no time passes.
        began = torch.where(new, clock, state.time)
        start = torch.where(again[:, None, None], state.before, state.h)
        before = self.carry(start, began, clock, range(len(state)))
        elapsed = self.scale_gap(clock[:, None] - since).to(values.dtype)
        h = self.update(Rows(clock, values, observed.to(values.dtype), elapsed), before)
        return RecurrentState(h, before, clock, values, observed, previous, since)

    def predict(self, state: RecurrentState, t: Any = None) -> Tensor:
        clock = state.time if t is None else per_stream(t, len(state), self.device)
        check_question(state.time, clock)
        return self.say(state, clock)

    def say(self, state: RecurrentState, clock: Tensor) -> Tensor:
        """`predict` for checked times (stream,)."""
        h = self.carry(state.h, state.time, clock, range(len(state)))[:, -1]
        return self.answer(h, state.last)
