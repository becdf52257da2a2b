"""A field's weights in the layouts the kernels read, in two flat arrays.

A linear map with `inner` inputs and `outer` outputs becomes a block of (inner + 1) * padded(outer) numbers:
the transposed weight cut into panels of a few vectors of outputs, each panel (inner, panel) contiguous, then
the bias. `weights` holds such a block for each hidden layer, then for each column of the field. `transposed`
holds the same maps the other way round, without biases, for the backward pass. A gradient block holds the
weight's gradient as (outer, padded(inner)) rows, then the bias's, padded.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onlinecde.kernels.cpu.compiled import kernel
from onlinecde.kernels.cpu.elementwise import code_of
from onlinecde.kernels.cpu.products import entry_points
from onlinecde.kernels.cpu.tiles import TILE_VECTORS, VECTOR_BYTES

FINALS = {"identity": 0, "tanh": 1}


class Field(NamedTuple):
    """What compiled code sees of a field: flat arrays and sizes. wide = padded width, tall = padded hidden."""

    weights: np.ndarray
    transposed: np.ndarray
    hidden: int
    width: int
    depth: int
    channels: int
    tall: int
    wide: int
    activation: int
    final: int
    column_start: int
    column_start_transposed: int
    column_start_gradient: int
    """Where the first column's block begins in `weights`, in `transposed` and in a flat gradient."""
    product: int
    outer: int
    """Addresses of the products for the dtype, see `products.entry_points`; of this process only."""


@kernel
def _pack_block(weight, bias, padded, out, start):
    """Write a linear map (outer, inner) and its bias as a block of `weights`."""
    outer, inner = weight.shape
    lanes = VECTOR_BYTES // out.itemsize
    width = padded // lanes
    panels = (width + TILE_VECTORS - 1) // TILE_VECTORS
    end = 0
    for panel in range(panels):  # as `product` cuts them
        begin, end = end, end + (width // panels + (panel < width % panels)) * lanes
        panel_start = start + inner * begin
        for column in range(begin, min(end, outer)):
            place = panel_start + column - begin
            for k in range(inner):
                out[place + k * (end - begin)] = weight[column, k]
    for column in range(outer):
        out[start + inner * padded + column] = bias[column]


@kernel
def _pack_transposed(weight, padded, out, start):
    """Write the transpose of a linear map (outer, inner): outer inputs, inner outputs, no bias."""
    outer, inner = weight.shape
    lanes = VECTOR_BYTES // out.itemsize
    width = padded // lanes
    panels = (width + TILE_VECTORS - 1) // TILE_VECTORS
    end = 0
    for panel in range(panels):  # as `product` cuts them
        begin, end = end, end + (width // panels + (panel < width % panels)) * lanes
        panel_start = start + outer * begin
        for k in range(outer):
            place = panel_start + k * (end - begin) - begin
            for column in range(begin, min(end, inner)):
                out[place + column] = weight[k, column]


@kernel
def _pack_columns(field, weight, bias, gradient):
    """Pack the columns (channel, hidden, width) and their biases (channel, hidden)."""
    for channel in range(field.channels):
        start = field.column_start + channel * (field.width + 1) * field.tall
        _pack_block(weight[channel], bias[channel], field.tall, field.weights, start)
        if gradient:
            start = field.column_start_transposed + channel * field.hidden * field.wide
            _pack_transposed(weight[channel], field.wide, field.transposed, start)


def padded(size: int, dtype: np.dtype) -> int:
    """`size` rounded up to whole vector registers of dtype."""
    lanes = VECTOR_BYTES // dtype.itemsize
    return -(-size // lanes) * lanes


def aligned_zeros(size: int, dtype: np.dtype) -> np.ndarray:
    """Zeros that begin at a vector boundary, so that no load crosses a cache line."""
    lanes = VECTOR_BYTES // dtype.itemsize
    whole = np.zeros(size + lanes, dtype)
    skip = -whole.ctypes.data % VECTOR_BYTES // dtype.itemsize
    return whole[skip : skip + size]


@dataclass(frozen=True)
class PackedField:
    """A vector field packed for the kernels: made by `pack_field`, cheap enough to make at every step."""

    compiled: Field
    dtype: np.dtype

    def __reduce__(self):
        raise TypeError(
            "a PackedField holds addresses of this process; send the weights and pack them there"
        )

    @property
    def hidden(self) -> int:
        return self.compiled.hidden

    @property
    def channels(self) -> int:
        return self.compiled.channels


class FieldGradient(NamedTuple):
    """Gradients of a field's weights, in the shapes `pack_field` takes them."""

    layers: list[tuple[np.ndarray, np.ndarray]]
    columns: np.ndarray
    column_biases: np.ndarray


def pack_field(
    layers, columns, column_biases, *, activation="relu", final="tanh", gradient=True
) -> PackedField:
    """Pack h = act(W_L ... act(W_1 z + b_1)), f_j = final(V_j h + c_j).

    layers: (weight (width, inputs), bias (width,)) for each hidden layer; inputs is hidden for the first.
    columns: V (channel, hidden, width). column_biases: c (channel, hidden). All of one dtype, float32 or
    float64. Without `gradient` the field can be solved but not differentiated, and packs in half the time.
    """
    columns = np.ascontiguousarray(columns)
    dtype, (channels, hidden, width) = columns.dtype, columns.shape
    if dtype not in (np.float32, np.float64):
        raise TypeError(f"the kernels compute in float32 or float64, not {dtype}")
    tall, wide, depth = padded(hidden, dtype), padded(width, dtype), len(layers)
    column_start = (hidden + 1 + (depth - 1) * (width + 1)) * wide
    column_start_transposed = width * (tall + (depth - 1) * wide)
    field = Field(
        aligned_zeros(column_start + channels * (width + 1) * tall, dtype),
        aligned_zeros(column_start_transposed + channels * hidden * wide if gradient else 0, dtype),
        hidden, width, depth, channels, tall, wide, code_of(activation), FINALS[final],
        column_start, column_start_transposed, width * tall + wide + (depth - 1) * (width + 1) * wide,
        *entry_points(dtype),
    )  # fmt: skip
    start = start_transposed = 0
    for i, (weight, bias) in enumerate(layers):
        weight, bias = np.ascontiguousarray(weight, dtype), np.ascontiguousarray(bias, dtype)
        if weight.shape != (width, width if i else hidden) or bias.shape != (width,):
            what = f"weight {weight.shape}, bias {bias.shape}"
            raise ValueError(f"layer {i}: {what} do not fit hidden {hidden}, width {width}")
        _pack_block(weight, bias, wide, field.weights, start)
        start += (weight.shape[1] + 1) * wide
        if gradient:
            _pack_transposed(weight, wide if i else tall, field.transposed, start_transposed)
            start_transposed += width * (wide if i else tall)
    _pack_columns(field, columns, np.ascontiguousarray(column_biases, dtype), gradient)
    return PackedField(field, dtype)


def gradient_size(field: Field) -> int:
    """Numbers in a flat gradient: a block for each hidden layer, then for each column."""
    return field.column_start_gradient + field.channels * (field.hidden * field.wide + field.tall)


def unpack_gradient(field: Field, flat: np.ndarray) -> FieldGradient:
    """Cut a flat gradient into the shapes of the weights."""
    hidden, width, depth, tall, wide = (
        field.hidden,
        field.width,
        field.depth,
        field.tall,
        field.wide,
    )
    layers, start = [], 0
    for i in range(depth):
        inputs, stride = (width, wide) if i else (hidden, tall)
        weight = flat[start : start + width * stride].reshape(width, stride)[:, :inputs]
        bias = flat[start + width * stride :][:width]
        layers.append((np.ascontiguousarray(weight), bias.copy()))
        start += width * stride + wide
    blocks = flat[start:].reshape(field.channels, hidden * wide + tall)
    columns = blocks[:, : hidden * wide].reshape(field.channels, hidden, wide)[:, :, :width]
    return FieldGradient(
        layers, np.ascontiguousarray(columns), blocks[:, hidden * wide :][:, :hidden].copy()
    )
