"""Numbers as smooth ramps between quantiles: what a linear layer needs to bend where the data do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LINES = 50_000
"""Lines at most that quantiles are taken from, evenly spaced."""
NARROW = 1e-4
"""A ramp is at least this share of the whole range long."""


class Ramps(nn.Module):
    """Each of some numbers as itself and as `count` smooth ramps, from 0 to 1 between neighbouring knots.

    `fit` lays the knots at quantiles, from 1 % to 99 %; where many lines have one value there are
    fewer knots, and ramps without a place are 0. Before `fit` all are.

    >>> ramps = Ramps(1, 2).fit(torch.tensor([[0.0], [1.0], [2.0]]))
    >>> ramps(torch.tensor([[0.5], [2.0]]))
    tensor([[0.5000, 0.5000, 0.0000],
            [2.0000, 1.0000, 1.0000]])
    """

    low: Tensor
    """(input, ramp): where each begins"""
    steepness: Tensor
    """(input, ramp): one over its length; 0 for a ramp without a place"""

    def __init__(self, inputs: int, count: int) -> None:
        super().__init__()
        if count < 1:
            raise ValueError(f"there are to be {count} ramps: give at least 1.")
        self.inputs, self.count = inputs, count
        self.register_buffer("low", torch.zeros(inputs, count))
        self.register_buffer("steepness", torch.zeros(inputs, count))

    @property
    def outputs(self) -> int:
        """How many numbers come of the inputs."""
        return self.inputs * (1 + self.count)

    def fit(self, lines: Tensor) -> Ramps:
        """Lay the knots for lines (line, input), NaN where a number is not known; returns itself."""
        drawn = lines[:: -(-len(lines) // LINES)].double().sort(0).values
        last = (~drawn.isnan()).sum(0) - 1
        share = torch.linspace(0.01, 0.99, self.count + 1, dtype=torch.float64)
        place = (share.to(drawn.device)[:, None] * last.clamp(min=0)).round().to(torch.int64)
        knots = drawn.gather(0, place).T.cpu()
        low, steepness = (knots.new_zeros(self.inputs, self.count) for _ in range(2))
        for number in range(self.inputs):
            if last[number] >= 0:
                kept = _apart(knots[number])
                low[number, : len(kept) - 1] = kept[:-1]
                steepness[number, : len(kept) - 1] = 1 / kept.diff()
        self.low, self.steepness = low.to(self.low), steepness.to(self.steepness)
        return self

    def forward(self, numbers: Tensor) -> Tensor:
        """(..., input) -> (..., output): the numbers, then their ramps."""
        way = ((numbers[..., None] - self.low) * self.steepness).clamp(0, 1)
        return torch.cat([numbers, (way * way * (3 - 2 * way)).flatten(-2)], -1)

    def by_input(self, parts: Tensor) -> Tensor:
        """Parts (..., output), one for each number put out, added up for each input (..., input)."""
        own, ramps = parts.split([self.inputs, self.inputs * self.count], -1)
        return own + ramps.unflatten(-1, (self.inputs, self.count)).sum(-1)

    def extra_repr(self) -> str:
        return f"inputs={self.inputs}, count={self.count}"


def _apart(knots: Tensor) -> Tensor:
    """Those of the sorted knots that are not too near the last one kept."""
    nearest = NARROW * float(knots[-1] - knots[0])
    kept = [knots[0]]
    for knot in knots[1:]:
        if knot - kept[-1] > nearest:
            kept.append(knot)
    return torch.stack(kept)
