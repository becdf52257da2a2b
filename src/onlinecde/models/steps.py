"""`Steps`: single-feature step functions, added to a readout."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Steps(nn.Module):
    """The log-odds as a base and `count` steps of one number each, and its mean with those of a readout.

    A step rises from 0 at one place to its height at the next, in a straight line. It tells values
    apart that ramps between few quantiles do not, and says what a number means by itself. `put`
    lays the steps, as `fit` does by boosting; before that a readout's log-odds stay as they are.

    >>> steps = Steps(2, 3).put(-1.0, [0], [0.0], [1.0], [4.0])
    >>> steps(torch.tensor([[0.25, 9.0], [2.0, 9.0]]))
    tensor([[0.],
            [3.]])
    >>> steps.beside(torch.tensor([[1.0], [1.0]]), torch.tensor([[0.25, 9.0], [2.0, 9.0]]))
    tensor([[0.5000],
            [2.0000]])
    """

    place: Tensor
    """(step,): the number each is of"""
    low: Tensor
    """(step,): where each begins"""
    steepness: Tensor
    """(step,): one over its length"""
    height: Tensor
    """(step,): what it adds; 0 for a step that was not needed"""
    base: Tensor
    share: Tensor
    """Share of the mean that comes from the steps: 0 before there are any"""

    def __init__(self, inputs: int, count: int) -> None:
        super().__init__()
        if count < 1:
            raise ValueError(f"there are to be {count} steps: give at least 1.")
        self.inputs, self.count = inputs, count
        self.register_buffer("place", torch.zeros(count, dtype=torch.int64))
        for name in ("low", "steepness", "height"):
            self.register_buffer(name, torch.zeros(count))
        for name in ("base", "share"):
            self.register_buffer(name, torch.zeros(()))

    def put(
        self,
        base: float,
        place: list[int],
        low: list[float],
        high: list[float],
        height: list[float],
    ) -> Steps:
        """Lay steps of the numbers at `place`, at most `count`; returns itself."""
        number = len(place)
        if number > self.count:
            raise ValueError(f"{number} steps were given, and there is room for {self.count}.")
        if not number == len(low) == len(high) == len(height):
            raise ValueError(
                f"{number} places, {len(low)} lows, {len(high)} highs and {len(height)} heights were "
                "given: give one of each for every step."
            )
        for step, (at, begins, ends) in enumerate(zip(place, low, high, strict=True)):
            if not 0 <= at < self.inputs:
                raise ValueError(
                    f"step {step} is of number {at}: there are {self.inputs}, from 0 on."
                )
            if not begins < ends:
                raise ValueError(
                    f"step {step} goes from {begins} to {ends}: give a high above its low."
                )
        for whole in (self.place, self.low, self.steepness, self.height):
            whole.zero_()
        begin, end = (torch.tensor(ends, dtype=torch.float64) for ends in (low, high))
        self.place[:number] = torch.tensor(place, dtype=torch.int64)
        self.low[:number], self.steepness[:number] = (
            begin.to(self.low),
            (1 / (end - begin)).to(self.low),
        )
        self.height[:number] = torch.tensor(height, dtype=torch.float64).to(self.low)
        self.base.fill_(base)
        self.share.fill_(0.5)
        return self

    def forward(self, numbers: Tensor) -> Tensor:
        """(..., input) -> (..., 1): log-odds by the steps alone."""
        return self.base + self._each(numbers).sum(-1, keepdim=True)

    def beside(self, outputs: Tensor, numbers: Tensor) -> Tensor:
        """The mean of a readout's log-odds (..., 1) and of those found here from numbers (..., input)."""
        return outputs + self.share * (self(numbers) - outputs)

    def by_input(self, numbers: Tensor) -> Tensor:
        """What each number adds, (..., input) -> (..., input)."""
        each = self._each(numbers)
        return numbers.new_zeros(numbers.shape).index_add(-1, self.place, each)

    def _each(self, numbers: Tensor) -> Tensor:
        way = (numbers[..., self.place] - self.low) * self.steepness
        return way.clamp(0, 1) * self.height

    def extra_repr(self) -> str:
        return f"inputs={self.inputs}, count={self.count}"
