"""Weights, the tableau and the path as the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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

    >>> row(5), row(100), row(170), row(249)
    (16, 128, 192, 256)
    """
    return padded(size) if size <= 128 else -(-size // 64) * 64


def pack_field(
    inner: Layers, weight: Tensor, bias: Tensor, *, activation: str, final: str
) -> PackedField:
    """Split and pad weights; weight (channel, hidden, width), bias (channel, hidden)."""
    channels, hidden, width = weight.shape
    tall, wide = padded(hidden), padded(width)
    flat = weight.new_zeros(wide * tall + (len(inner) - 1) * wide * wide)
    biases = weight.new_zeros(len(inner), wide)
    start = 0
    for number, (matrix, offset) in enumerate(inner):
        columns = wide if number else tall
        room = flat[start : start + wide * columns].view(wide, columns)
        room[: matrix.shape[0], : matrix.shape[1]] = matrix
        biases[number, :width] = offset
        start += wide * columns
    last = weight.new_zeros(channels, tall, wide)
    last[:, :hidden, :width] = weight
    last_bias = weight.new_zeros(channels, tall)
    last_bias[:, :hidden] = bias
    inner_head, inner_tail = halves(flat)
    head, tail = halves(last)
    return PackedField(
        hidden, width, channels, len(inner), activation, final,
        inner_head, inner_tail, biases, head, tail, last_bias,
    )  # fmt: skip


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """X as two half-precision tensors: `x = head + tail / 2048` to 22 bits."""
    head = x.to(torch.float16)
    return head, ((x - head.to(x.dtype)) * 2048).to(torch.float16)


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
