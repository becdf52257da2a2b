"""Rows in blocks: products of all that is known beforehand, with bits that no later row can move.

A matrix product may sum in another order when it has more rows. All blocks have the same number, the
last one filled up with zeros, so every row's numbers are bitwise the same whatever rows follow it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

BLOCK = 8
"""Rows in a block of a recurrence."""
LONG = 24
"""Rows in a block of `in_blocks`."""

sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
tanh_back = torch.ops.aten.tanh_backward.grad_input
where_positive = torch.ops.aten.threshold_backward


def in_blocks(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """`function` of (row, stream, feature), a block at a time."""
    count = rows.shape[0]
    if missing := -count % LONG:
        rows = torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])
    return torch.cat([function(block) for block in rows.split(LONG)])[:count]


def blocks(rows: int) -> list[slice]:
    """The blocks of some rows."""
    return [slice(start, start + BLOCK) for start in range(0, rows, BLOCK)]


def room(x: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Gates (3, row of whole blocks, stream, hidden), and h (1 + row, stream, hidden) from h0 on."""
    trail = h0.new_empty(1 + len(x), *h0.shape)
    trail[0] = h0
    return h0.new_empty(3, len(x) + -len(x) % BLOCK, *h0.shape), trail


def beside(parts: list[Tensor]) -> Tensor:
    """Parts (row, stream, ...) side by side with a 1 for the bias, in whole blocks of rows."""
    rows, streams = parts[0].shape[:2]
    width = sum(part.shape[2] for part in parts)
    seen = parts[0].new_empty(rows + -rows % BLOCK, streams, width + 1)
    seen[:, :, -1] = 1
    seen[rows:] = 0
    for part, into in zip(
        parts, seen[:rows].split([*(part.shape[2] for part in parts), 1], 2), strict=False
    ):
        into.copy_(part)
    return seen


def project(seen: Tensor, weight: Tensor, out: Tensor, block: slice) -> None:
    """A block of rows times each gate's weight, into (gate, row, stream, hidden)."""
    inputs = seen[block].flatten(0, 1)
    for w, into in zip(weight.chunk(len(out)), out, strict=True):
        torch.mm(inputs, w.T, out=into[block].flatten(0, 1))


def joined(by_gate: Tensor) -> Tensor:
    """A weight's gradient (gate * hidden, input) from (gate, input, hidden)."""
    return by_gate.transpose(1, 2).flatten(0, 1)


class Collect:
    """What `project` gives back, block by block: gradients to its weight and its first inputs."""

    def __init__(self, seen: Tensor, weight: Tensor, wanted: int, gates: int = 3) -> None:
        self._seen, self._wanted = seen, wanted
        self._weight = seen.new_zeros(gates, seen.shape[2], len(weight) // gates)
        # Products are fastest with whole vectors of columns.
        wide = min(seen.shape[2], wanted + -wanted % 8)
        self._columns = weight[:, :wide].contiguous().chunk(gates)
        self._inputs = seen.new_empty(*seen.shape[:2], wide) if wanted else None

    def add(self, g_gates: Tensor, block: slice) -> None:
        """Take in the gradients (gate, row, stream, hidden) of a block's real rows."""
        each = g_gates.flatten(1, 2)
        seen = self._seen[block][: g_gates.shape[1]].flatten(0, 1).T
        for total, g in zip(self._weight, each, strict=True):
            total.addmm_(seen, g)
        if self._inputs is not None:
            into = self._inputs[block][: g_gates.shape[1]].flatten(0, 1)
            torch.mm(each[0], self._columns[0], out=into)
            for g, columns in zip(each[1:], self._columns[1:], strict=True):
                into.addmm_(g, columns)

    def weight_and_bias(self) -> tuple[Tensor, Tensor]:
        """Gradients (gate * hidden, input) and (gate * hidden,)."""
        both = joined(self._weight)
        return both[:, :-1], both[:, -1]

    def inputs(self, rows: int) -> Tensor | None:
        """Gradients of the first inputs, (row, stream, wanted), where they are wanted."""
        return None if self._inputs is None else self._inputs[:rows, :, : self._wanted]


def tanh_(x: Tensor) -> None:
    """tanh of x, in place. On a CPU it is numpy's, which is several times as fast as torch's."""
    if (array := _as_array(x)) is None:
        x.tanh_()
    else:
        np.tanh(array, out=array)


def exp_(x: Tensor) -> None:
    """The exponential of x, in place, likewise."""
    if (array := _as_array(x)) is None:
        x.exp_()
    else:
        np.exp(array, out=array)


def _as_array(x: Tensor) -> np.ndarray | None:
    fit = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return x.numpy() if fit else None
