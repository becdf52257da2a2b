"""Sums found in parts, side by side in memory, and added up by one kernel in a fixed order."""

from __future__ import annotations

# What Triton compiles is no Python to a type checker.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAssignmentType=false
import math
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Numbers a thread block adds up"""
DEEP = 32
"""... and the number of parts taken at once"""


@dataclass(frozen=True)
class Part:
    """Gradients of a matrix (rows, across) and of its bias (rows,), in several parts."""

    parts: int
    rows: int
    across: int
    skip: int = 0
    """Rows, the first ones, that another fills"""
    into: int | None = None
    """Which other's first rows it fills, if any"""


@triton.jit
def sum_kernel(room, sums, table, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr, DEEP: tl.constexpr):
    """Add up BLOCK numbers of one segment: table (segment, 6), as `_table` lays it out."""
    program = tl.program_id(0)
    segment = 0
    for other in tl.static_range(1, SEGMENTS):
        segment = tl.where(program >= tl.load(table + other * 6), other, segment)
    at = table + segment * 6
    number = (program - tl.load(at)) * BLOCK + tl.arange(0, BLOCK)
    stride, parts = tl.load(at + 2), tl.load(at + 3)
    here = number < tl.load(at + 4)
    base = room + tl.load(at + 1) + number
    total = tl.zeros([DEEP, BLOCK], tl.float32)
    for first in range(0, parts, DEEP):
        part = first + tl.arange(0, DEEP)
        mask = (part < parts)[:, None] & here[None, :]
        total += tl.load(base[None, :] + part[:, None] * stride, mask=mask, other=0.0)
    tl.store(sums + tl.load(at + 5) + number, tl.sum(total, 0), mask=here)


class Sums:
    """Room for the parts of several sums, and the sums."""

    def __init__(self, parts: tuple[Part, ...], like: Tensor) -> None:
        self._parts = parts
        self._starts, size = _laid_out([part.parts for part in parts], parts)
        self._room = like.new_empty(size)

    def parts(self, which: int) -> tuple[Tensor, Tensor]:
        """Where the parts of a sum go: (part, row, across) and (part, row)."""
        part, (weight, bias) = self._parts[which], self._starts[which]
        sizes = part.parts, part.rows, part.across
        return _cut(self._room, weight, sizes), _cut(self._room, bias, sizes[:2])

    def added(self) -> list[tuple[Tensor, Tensor]]:
        """All sums that do not go into another: (row, across) and (row,)."""
        table, programs, size = _table(self._parts, self._room.device)
        sums = self._room.new_empty(size)
        sum_kernel[(programs,)](
            self._room, sums, table, SEGMENTS=table.shape[0], BLOCK=BLOCK, DEEP=DEEP
        )
        whole = tuple(part for part in self._parts if part.into is None)
        starts, _ = _laid_out([1] * len(whole), whole)
        return [
            (_cut(sums, weight, (part.rows, part.across)), _cut(sums, bias, (part.rows,)))
            for part, (weight, bias) in zip(whole, starts, strict=True)
        ]


def _cut(room: Tensor, start: int, sizes: tuple[int, ...]) -> Tensor:
    return room[start : start + math.prod(sizes)].view(sizes)


def _laid_out(sizes: list[int], parts: tuple[Part, ...]) -> tuple[list[tuple[int, int]], int]:
    """Where matrices and biases begin if there are so `many` of each, in whole blocks; and the size of all."""
    starts, size = [], 0
    for number, part in zip(sizes, parts, strict=True):
        weight = size
        bias = weight + _whole(number * part.rows * part.across)
        size = bias + _whole(number * part.rows)
        starts.append((weight, bias))
    return starts, size


def _whole(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


@cache
def _table(parts: tuple[Part, ...], device: torch.device) -> tuple[Tensor, int, int]:
    """What `sum_kernel` reads, how many thread blocks it takes and the room for its sums.

    Of each segment: its first thread block, where its parts begin, from one to the next, how many,
    how many numbers, and where their sums go. Kept for good: a captured program cannot bring
    it there, and reads it each time.
    """
    starts, _ = _laid_out([part.parts for part in parts], parts)
    sums, size = _laid_out([0 if part.into is not None else 1 for part in parts], parts)
    lines, program = [], 0
    for own, (part, start) in enumerate(zip(parts, starts, strict=True)):
        to = sums[own if part.into is None else part.into]
        for begin, across, place in zip(start, (part.across, 1), to, strict=True):
            skipped, number = part.skip * across, (part.rows - part.skip) * across
            lines.append(
                (program, begin + skipped, part.rows * across, part.parts, number, place + skipped)
            )
            program += -(-number // BLOCK)
    return torch.tensor(lines, dtype=torch.int64, device=device), program, size
