"""GRU baselines. They differ only in their inputs for missing values and for time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from onlinecde.controls import Measurability
from onlinecde.models.base import arguments
from onlinecde.models.readout import Kind
from onlinecde.models.recurrent.recurrences import gru_recurrence
from onlinecde.models.recurrent.recurrent_model import RecurrentModel, Rows

RUN = 32
"""Rows in one call of cuDNN."""


class StackedGRU(RecurrentModel):
    """`torch.nn.GRU` over rows; a subclass says what stands in a row."""

    weights_alone = ("encoding", "cells")

    def __init__(
        self,
        channels: int,
        hidden: int = 64,
        outputs: int = 1,
        static: int = 0,
        *,
        layers: int = 1,
        kind: Kind = "regression",
        readout_width: int | None = None,
        channel_dropout: float = 0.0,
        gain: float = 1.0,
        clip: float | None = None,
    ) -> None:
        self.config = arguments(locals())
        super().__init__(
            channels,
            hidden,
            outputs,
            static,
            layers,
            kind,
            readout_width,
            channel_dropout,
            gain,
            clip,
        )
        self.cells = nn.GRU(self.inputs, hidden, layers)

    @property
    @abstractmethod
    def inputs(self) -> int:
        """How many numbers `sees` gives for a row."""

    @abstractmethod
    def sees(self, rows: Rows) -> Tensor:
        """What the GRU is fed at rows, (..., stream, input)."""

    @property
    def measurability(self) -> Measurability:
        """DISCRETE: between rows the output after the last row stands."""
        return Measurability.DISCRETE

    def time_and_values(self, rows: Rows) -> list[Tensor]:
        """Scaled time (..., stream, 1) and values carried forward (..., stream, channel)."""
        return [self.encoding.scale_time(rows.clock)[..., None].to(rows.values), rows.values]

    def trajectory(self, rows: Rows, h0: Tensor, streams: Sequence[Any]) -> Tensor:
        """The top layer's h after rows, (row, stream, hidden)."""
        x = self.sees(rows)
        return self._by_cudnn(x, h0, RUN)[0] if x.is_cuda else self._by_layer(x, h0)[0]

    def update(self, row: Rows, h: Tensor) -> Tensor:
        """(stream, layer, hidden) after one row."""
        x = self.sees(row)[None]
        return self._by_cudnn(x, h, 1)[1] if x.is_cuda else self._by_layer(x, h)[1]

    def _by_layer(self, x: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
        """The top layer's h after rows (row, stream, input), and all layers' after the last one."""
        ends = []
        for layer, (w_in, w_h, b_in, b_h) in enumerate(self.cells.all_weights):
            x = gru_recurrence(x, h0[:, layer], w_in, b_in, w_h, b_h)
            ends.append(x[-1])
        return x, torch.stack(ends, 1)

    def _by_cudnn(self, x: Tensor, h0: Tensor, run: int) -> tuple[Tensor, Tensor]:
        """The same from cuDNN, in runs of rows of one length: the length decides how it computes."""
        streams, h = len(x), h0.transpose(0, 1).contiguous()
        if missing := -streams % run:
            x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])])
        after = []
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            for part in x.split(run):
                out, h = self.cells(part, h)
                after.append(out)
        return torch.cat(after)[:streams], h.transpose(0, 1).contiguous()


class GRU(StackedGRU):
    """A GRU that sees, at each row, (time, values): scaled, values carried forward.

    It is not told what was observed and what was carried forward. Static features enter as the
    state before the first row, a linear map of them. `layers` (the paper used 3), `readout_width`
    and `channel_dropout` as in `NeuralCDE`; fit the scaling with `model.encoding.fit(train)`.
    Discretely online: what it says after a row stands until the next.

    >>> model = GRU(channels=2, hidden=8, outputs=1)
    >>> state = model.observe(model.init_state(), t=0.0, x=[[36.6, float("nan")]])
    >>> model.predict(state, t=1.5).shape
    torch.Size([1, 1])
    """

    @property
    def inputs(self) -> int:
        """Time and one value a channel."""
        return 1 + self.channels

    def sees(self, rows: Rows) -> Tensor:
        """(..., stream, 1 + channel): time, values."""
        return torch.cat(self.time_and_values(rows), -1)


class GRUdt(StackedGRU):
    """A GRU that sees (time, values, elapsed); else as `GRU`.

    `elapsed` is, for each channel, the scaled time since it was last observed before the row
    (whether or not it is observed at the row), since the stream's first row if it never was: 0 at
    the first row.
    """

    @property
    def inputs(self) -> int:
        """Time, and a value and a time a channel."""
        return 1 + 2 * self.channels

    def sees(self, rows: Rows) -> Tensor:
        """(..., stream, 1 + 2 * channel): time, values, elapsed."""
        return torch.cat([*self.time_and_values(rows), rows.elapsed], -1)


class GRUdtIntensity(StackedGRU):
    """A GRU that sees (time, values, elapsed, mask); else as `GRUdt`.

    The mask, the paper's observational intensity, is 1 where a channel was observed at the row.
    """

    @property
    def inputs(self) -> int:
        """Time, and for each channel a value, a time and a mask."""
        return 1 + 3 * self.channels

    def sees(self, rows: Rows) -> Tensor:
        """(..., stream, 1 + 3 * channel): time, values, elapsed, mask."""
        return torch.cat([*self.time_and_values(rows), rows.elapsed, rows.mask], -1)
