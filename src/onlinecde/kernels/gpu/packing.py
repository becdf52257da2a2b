"""Weights, the tableau and the path as the kernels read them."""

from __future__ import annotations

# Triton's own types call every constant a constexpr, which callers do not give.
# pyright: reportArgumentType=false, reportCallIssue=false
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from onlinecde.kernels.gpu.halves import BLOCK, halves_kernel

Layers = list[tuple[Tensor, Tensor]]
"""(weight (out, in), bias (out,)) of each inner layer"""


@dataclass(frozen=True, eq=False)
class PackedField:
    """An MLP field in halves, padded to powers of two: weight = head + tail / 2048."""

    hidden: int
    width: int
    channels: int
    depth: int
    activation: str
    final: str
    inner_head: Tensor
    inner_tail: Tensor
    inner_bias: Tensor
    """(depth, padded width)"""
    head: Tensor
    """(channel, padded hidden, padded width)"""
    tail: Tensor
    bias: Tensor
    """(channel, padded hidden)"""


@dataclass(frozen=True, eq=False)
class Table:
    """A Runge-Kutta method of up to four stages."""

    stages: int
    numbers: Tensor
    """a (4, 4), b (4), c (4), 0 where there is no stage"""
    rows: tuple[float, ...]
    """The same where the host can read them"""


@dataclass(frozen=True, eq=False)
class Legs:
    """A path laid out piece by piece, streams in order of falling length, all on one device."""

    lengths: Tensor
    """(stream,) int32: pieces of each stream"""
    pieces: int
    """Pieces for which there is room; no stream has more."""
    time: Tensor | None
    """(leg, stream): increments of the time legs of a rectilinear path"""
    slopes: Tensor
    """(leg, stream, degree, channel): coefficients of dX/du, without the time channel if rectilinear"""
    observed: Tensor | None
    """(leg, stream, value) bool, rectilinear: what moves; None where anything may"""
    parts: int
    """Channels that move together: 2 for a value with its count"""
    steps: int
    time_steps: Tensor | None
    """(leg, stream) int32: steps of each time leg; None where `steps` holds there too"""
    drive: Tensor | None
    """(knot, stream, width), or (piece, stream, 4, width) for cubic pieces"""

    @property
    def rectilinear(self) -> bool:
        return self.time is not None

    @property
    def streams(self) -> int:
        return self.lengths.shape[0]

    @property
    def values(self) -> int:
        return self.slopes.shape[3] // self.parts

    def row(self, size: int) -> int:
        """Numbers in a row kept in memory: those of `row`, or fewer where every channel moves.

        Then products are bound by arithmetic, and what is over 64 makes a block of its own.
        """
        fine = self.observed is None and 64 < size <= 96
        return -(-size // 16) * 16 if fine else row(size)

    @cached_property
    def moving(self) -> Tensor:
        """(piece,) int32: how many streams move in each; they come first."""
        piece = torch.arange(self.pieces, device=self.lengths.device)
        return (self.lengths[None, :] > piece[:, None]).sum(1, dtype=torch.int32)

    def stage_slopes(self, table: Table) -> Tensor:
        """(leg, stage, channel, stream): dX/du at the stages of a leg, or at one of them where all are alike.

        So they are read where a channel moves in all streams.
        """
        if table.rows not in self._slopes_by_method:
            self._slopes_by_method[table.rows] = self._find_stage_slopes(table)
        return self._slopes_by_method[table.rows]

    @cached_property
    def _slopes_by_method(self) -> dict[tuple[float, ...], Tensor]:
        return {}

    @cached_property
    def steep(self) -> Tensor:
        """(leg, stream): no dX/du of a channel is larger there."""
        return self.slopes.abs().sum(2).amax(2)

    @cached_property
    def steepest(self) -> Tensor:
        """No dX/du of a channel is larger: that of a cubic piece is at most the sum of its coefficients."""
        return torch.linalg.vector_norm(self.slopes, torch.inf) * self.slopes.shape[2]

    @cached_property
    def _found(self) -> dict[tuple[str, int], tuple[Tensor, Tensor]]:
        return {}

    def slots(self, stages: int) -> tuple[Tensor, int]:
        """The first slot of each piece's stages and one past the last, (piece + 1,) int32; and how many."""
        first, _ = self._once("slots", stages, self._find_slots)
        same = self.pieces * self.steps * stages
        return first, same if self.time_steps is None else int(first[-1])

    def moving_in_slots(self, stages: int) -> tuple[Tensor, Tensor]:
        """How many streams move in each slot, (slot,) int32; and the same with 0 on value legs."""
        return self._once("moving", stages, self._find_moving)

    def _once(
        self, what: str, stages: int, find: Callable[[int], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """What depends on the path alone is found once for all steps along it."""
        if (what, stages) not in self._found:
            self._found[what, stages] = find(stages)
        return self._found[what, stages]

    def _find_stage_slopes(self, table: Table) -> Tensor:
        across = self.slopes.permute(0, 2, 3, 1)
        if across.shape[1] == 1:
            return across.contiguous()
        step = torch.arange(self.steps, device=across.device)
        nodes = table.numbers[20 : 20 + table.stages]
        at = ((step[:, None] + nodes) / self.steps).view(1, -1, 1, 1)
        # In place: with many steps this is the largest thing there is.
        total = across[:, -1:].expand(-1, at.shape[1], -1, -1).contiguous()
        for power in range(across.shape[1] - 2, -1, -1):
            total.mul_(at).add_(across[:, power : power + 1])
        return total

    def _find_slots(self, stages: int) -> tuple[Tensor, Tensor]:
        rounds = torch.full((self.pieces,), self.steps, device=self.lengths.device)
        if self.time_steps is not None:
            rounds[::2] = self.time_steps.amax(1)
        each = rounds * stages
        return torch.nn.functional.pad(each.cumsum(0), (1, 0)).to(torch.int32), each

    def _find_moving(self, stages: int) -> tuple[Tensor, Tensor]:
        _, each = self._once("slots", stages, self._find_slots)
        _, room = self.slots(stages)
        even = torch.arange(self.pieces, device=self.lengths.device) % 2 == 0
        moving, timed = (
            streams.repeat_interleave(each, output_size=room)
            for streams in (self.moving, torch.where(even, self.moving, 0))
        )
        return moving, timed

    def some(self, first: int, last: int) -> Legs:
        """The legs of streams first to last."""

        def cut(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[:, first:last].contiguous()

        slopes = self.slopes[:, first:last].contiguous()
        return Legs(
            self.lengths[first:last], self.pieces, cut(self.time), slopes, cut(self.observed),
            self.parts, self.steps, cut(self.time_steps), cut(self.drive),
        )  # fmt: skip


def padded(size: int) -> int:
    """The power of two, at least 16, that holds `size`."""
    return max(16, 1 << (size - 1).bit_length())


def row(size: int) -> int:
    """Numbers in a row kept in memory that holds `size`: whole blocks, so that rows are read in whole words.

    >>> row(5), row(65), row(100), row(170), row(249)
    (16, 128, 128, 192, 256)
    """
    return padded(size) if size <= 128 else -(-size // 64) * 64


def pack_field(
    inner: Layers, weight: Tensor, bias: Tensor, *, activation: str, final: str
) -> PackedField:
    """Split and pad weights; weight (channel, hidden, width), bias (channel, hidden)."""
    channels, hidden, width = weight.shape
    tall, wide = padded(hidden), padded(width)
    room = wide * tall + (len(inner) - 1) * wide * wide
    inner_head, inner_tail = _room(weight, room), _room(weight, room)
    inner_bias = weight.new_empty(len(inner), wide)
    start = 0
    for number, (matrix, offset) in enumerate(inner):
        across = wide if number else tall
        some = slice(start, start + wide * across)
        _pack(
            matrix[None], offset, inner_head[some], inner_tail[some], inner_bias[number], wide, across
        )  # fmt: skip
        start += wide * across
    head, tail = (_room(weight, channels, tall, wide) for _ in range(2))
    last_bias = weight.new_empty(channels, tall)
    _pack(weight, bias, head, tail, last_bias, tall, wide)
    return PackedField(
        hidden, width, channels, len(inner), activation, final,
        inner_head, inner_tail, inner_bias, head, tail, last_bias,
    )  # fmt: skip


def _room(like: Tensor, *sizes: int) -> Tensor:
    return like.new_empty(*sizes, dtype=torch.float16)


def _pack(
    weight: Tensor, bias: Tensor, head: Tensor, tail: Tensor, offset: Tensor, tall: int, wide: int
) -> None:
    """Matrices (number, M, K) into rooms of (number, tall, wide), and their biases."""
    number, m, k = weight.shape
    halves_kernel[number, tall // BLOCK](
        weight.contiguous(), bias.contiguous(), head, tail, offset,
        M=m, K=k, MP=tall, KP=wide, BM=BLOCK,
    )  # fmt: skip


def pack_table(
    a: tuple[tuple[float, ...], ...],
    b: tuple[float, ...],
    c: tuple[float, ...],
    device: torch.device,
) -> Table:
    """Lay a tableau of up to four stages out."""
    rows = [*a, *[()] * (4 - len(a)), b, c]
    flat = [number for row in rows for number in (*row, *[0.0] * (4 - len(row)))]
    return Table(len(b), torch.tensor(flat, dtype=torch.float32, device=device), tuple(flat))
