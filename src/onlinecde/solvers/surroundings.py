"""What a field's evaluations read and change besides their inputs: random numbers and buffers.

Dropout draws from torch's generators; batch norm and spectral norm in training change their buffers. Code
that evaluates a field again, to find gradients, has to find both as they were, and leave them as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Buffer = tuple[dict[str, Any], str, Tensor, int, Tensor]
"""Where a buffer is kept, its name, itself, its version, and a copy of it"""


@dataclass(frozen=True, eq=False)
class _Mark:
    """Random states and buffers at one moment."""

    random: list[Tensor]
    """State of the CPU's generator, and of that of the device z is on"""
    buffers: list[Buffer]


class Surroundings:
    """The surroundings of a field's evaluations at marked moments, to go back to.

    Moments between which nothing changed share what is kept of them.
    """

    def __init__(self, field: nn.Module, z: Tensor) -> None:
        self._homes = [module._buffers for module in field.modules() if module._buffers]
        self._device = z.device
        self._generator = None if z.device.type == "cpu" else torch.get_device_module(z.device)
        self._marks = [self._take(None)]

    def mark(self) -> None:
        """Keep this moment."""
        self._marks.append(self._take(self._marks[-1]))

    def change(self) -> str | None:
        """What the evaluations between the first moment and the last one did; None if nothing."""
        first, last = self._marks[0], self._marks[-1]
        if first is last:
            return None
        for before, after in zip(first.buffers, last.buffers, strict=False):
            if before[2] is not after[2] or before[3] != after[3]:
                return f"changes its buffer {after[1]!r} (batch norm or spectral norm in training mode?)"
        return "draws random numbers (dropout in training mode?)"

    def go_back(self) -> None:
        """Make random states and buffers what they were at the first moment, from what they are at the last."""
        if self._marks[0] is not self._marks[-1]:
            self._restore(self._marks[0])

    @contextmanager
    def as_at(self, number: int) -> Iterator[None]:
        """Inside, evaluations begin as they did at a moment; afterwards all is as it was before."""
        if self._marks[0] is self._marks[-1]:
            yield
            return
        now = self._take(None)
        self._restore(self._marks[number])
        try:
            yield
        finally:
            self._restore(now)

    def _take(self, last: _Mark | None) -> _Mark:
        """This moment, or the last one if nothing changed since."""
        random = [torch.get_rng_state()]
        if self._generator is not None:
            random.append(self._generator.get_rng_state(self._device))
        here = [
            (home, name, one, _version(one))
            for home in self._homes
            for name, one in home.items()
            if one is not None
        ]
        if last is None or not _same(here, last.buffers):
            return _Mark(random, [(*one, one[2].detach().clone()) for one in here])
        if all(map(torch.equal, random, last.random)):
            return last
        return _Mark(random, last.buffers)

    @torch.no_grad()
    def _restore(self, mark: _Mark) -> None:
        torch.set_rng_state(mark.random[0])
        if self._generator is not None:
            self._generator.set_rng_state(mark.random[1], self._device)
        for home, name, buffer, _, copy in mark.buffers:
            home[name] = buffer
            buffer.copy_(copy)


def _same(here: Sequence[tuple[dict[str, Any], str, Tensor, int]], then: list[Buffer]) -> bool:
    """Whether buffers are the same tensors, not changed since."""
    return len(here) == len(then) and all(
        now[2] is old[2] and now[3] == old[3] for now, old in zip(here, then, strict=True)
    )


def check_recomputed(off: Tensor, z: Tensor) -> None:
    """Refuse gradients of states z that came out otherwise, by up to `off`, when they were computed again."""
    if z.numel() and bool(off > 64 * torch.finfo(z.dtype).eps * (1 + z.abs().amax())):
        raise RuntimeError(
            "the vector field gave other values when it was evaluated again for its gradient: it depends on "
            "more than its inputs, its parameters, its buffers and torch's random numbers. Use "
            "gradient='backprop'."
        )


def _version(buffer: Tensor) -> int:
    """How often a tensor was changed in place; those made in inference mode do not say."""
    return 0 if buffer.is_inference() else buffer._version
