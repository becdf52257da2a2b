"""GRU-D (Che et al. 2018): inputs and state decay with the time since they were last told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from onlinecde.controls import Measurability
from onlinecde.models.base import arguments
from onlinecde.models.readout import Kind
from onlinecde.models.recurrent.decayed_recurrence import decayed_recurrence, fade
from onlinecde.models.recurrent.recurrent_model import RecurrentModel, Rows


class GRUD(RecurrentModel):
    """GRU-D: a GRU whose missing inputs decay to the mean and whose state decays to 0.

    With m the mask, x' the last value before the row and d the time since it was observed, per
    channel and scaled (from the stream's first row on while it never was),

        gamma = exp(-max(0, W d + b)), W diagonal for x and full for h
        x^ = m x + (1 - m) (gamma_x x' + (1 - gamma_x) mean),   k = gamma_h h
        z, r = sigmoid(W x^ + U k + V m + b),   c = tanh(W x^ + U (r k) + V m + b)
        h' = (1 - z) k + z c

    The mean is 0 after scaling: fit it with `model.encoding.fit(train)`. Static features enter as
    the state before the first row, a linear map of them. The decay is applied at rows only, so
    the model is discretely online: what it says after a row stands until the next.

    >>> model = GRUD(channels=2, hidden=8, outputs=1)
    >>> state = model.observe(model.init_state(), t=0.0, x=[[36.6, float("nan")]])
    >>> model.predict(state, t=1.5).shape
    torch.Size([1, 1])
    """

    weights_alone = ("encoding", "inward", "hidden_decay")

    def __init__(
        self,
        channels: int,
        hidden: int = 64,
        outputs: int = 1,
        static: int = 0,
        *,
        kind: Kind = "regression",
        readout_width: int | None = None,
        channel_dropout: float = 0.0,
        gain: float = 1.0,
        clip: float | None = None,
    ) -> None:
        self.config = arguments(locals())
        super().__init__(
            channels, hidden, outputs, static, 1, kind, readout_width, channel_dropout, gain, clip
        )

        def uniform(bound: float, *shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))

        self.value_decay = uniform(channels**-0.5, channels)
        self.value_decay_bias = uniform(channels**-0.5, channels)
        self.hidden_decay = nn.Linear(channels, hidden)
        self.inward = nn.Linear(2 * channels, 3 * hidden)
        self.recurrent = uniform(hidden**-0.5, 3 * hidden, hidden)

    @property
    def measurability(self) -> Measurability:
        """DISCRETE: the state decays at rows, and between them the last output stands."""
        return Measurability.DISCRETE

    def trajectory(self, rows: Rows, h0: Tensor, streams: Sequence[Any]) -> Tensor:
        """All h after rows, (row, stream, hidden)."""
        x = fade(rows.values, rows.mask, rows.elapsed, self.value_decay, self.value_decay_bias)
        return decayed_recurrence(
            x,
            rows.mask,
            rows.elapsed,
            h0[:, 0],
            self.inward.weight,
            self.inward.bias,
            self.recurrent,
            self.hidden_decay.weight,
            self.hidden_decay.bias,
        )

    def update(self, row: Rows, h: Tensor) -> Tensor:
        """h (stream, 1, hidden) after one row."""
        return self.trajectory(row.as_batch(), h, ()).transpose(0, 1)
