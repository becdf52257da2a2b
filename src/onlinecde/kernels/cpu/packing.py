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

from onlinecde.kernels.cpu.elementwise import code_of
from onlinecde.kernels.cpu.first_use import ready
from onlinecde.kernels.cpu.inputs import Field, PathArrays
from onlinecde.kernels.cpu.products import product_address
from onlinecde.kernels.cpu.step import step
from onlinecde.kernels.cpu.tiles import TILE_VECTORS, VECTOR_BYTES

FINALS = {"identity": 0, "tanh": 1}


def _pack(blocks: np.ndarray, weight: np.ndarray, outer: int) -> None:
    """Write maps (map, inner, outer) into blocks (map, ...), in panels as `product` cuts the padded `outer`."""
    maps, inner, real = weight.shape
    lanes = VECTOR_BYTES // blocks.itemsize
    width = outer // lanes
    panels = -(-width // TILE_VECTORS)
    end = 0
    for panel in range(panels):
        begin, end = end, end + (width // panels + (panel < width % panels)) * lanes
        place = blocks[:, inner * begin : inner * end].reshape(maps, inner, end - begin)
        place[:, :, : max(0, min(end, real) - begin)] = weight[:, :, begin:end]


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
    ready("step", dtype)
    tall, wide, depth = padded(hidden, dtype), padded(width, dtype), len(layers)
    column_start = (hidden + 1 + (depth - 1) * (width + 1)) * wide
    column_start_transposed = width * (tall + (depth - 1) * wide)
    field = Field(
        aligned_zeros(column_start + channels * (width + 1) * tall, dtype),
        aligned_zeros(column_start_transposed + channels * hidden * wide if gradient else 0, dtype),
        hidden, width, depth, channels, tall, wide, code_of(activation), FINALS[final],
        column_start, column_start_transposed, width * tall + wide + (depth - 1) * (width + 1) * wide,
        product_address(dtype), 0, step.address(dtype), 0,
    )  # fmt: skip
    start = start_transposed = 0
    for i, (weight, bias) in enumerate(layers):
        weight, bias = np.asarray(weight), np.asarray(bias)
        inputs, inner = (width, wide) if i else (hidden, tall)
        if weight.shape != (width, inputs) or bias.shape != (width,):
            what = f"weight {weight.shape}, bias {bias.shape}"
            raise ValueError(f"layer {i}: {what} do not fit hidden {hidden}, width {width}")
        end = start + (inputs + 1) * wide
        _pack(field.weights[None, start:end], weight.T[None], wide)
        field.weights[end - wide : end - wide + width] = bias
        start = end
        if gradient:
            end = start_transposed + width * inner
            _pack(field.transposed[None, start_transposed:end], weight[None], inner)
            start_transposed = end
    blocks = field.weights[column_start:].reshape(channels, -1)
    _pack(blocks, columns.transpose(0, 2, 1), tall)
    blocks[:, width * tall : width * tall + hidden] = column_biases
    if gradient:
        _pack(field.transposed[column_start_transposed:].reshape(channels, -1), columns, wide)
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


def rectilinear(pieces, dt, dx, *, moved=None, time_steps=None, drive=None) -> PathArrays:
    """Time and values in turn.

    pieces: (stream,), not increasing. dt: (row, stream). dx: (row, channel - 1, stream), rows as in dt or one
    fewer. moved: (row, channel - 1, stream), by default dx != 0. time_steps: (row, stream), by default 1.
    drive: (knot, stream, width), knot p at the start of piece p.
    """
    dx = np.ascontiguousarray(dx)
    pieces = _lengths(pieces, dx.shape[2])
    dt = np.ascontiguousarray(dt, dx.dtype)
    longest = int(pieces.max(initial=0))
    if dt.shape[0] < (longest + 1) // 2 or dx.shape[0] < longest // 2 or dt.shape[1] != dx.shape[2]:
        raise ValueError(
            f"{longest} pieces need more rows than dt {dt.shape} and dx {dx.shape} hold"
        )
    steps = (
        np.empty((0, 0), np.int32)
        if time_steps is None
        else np.ascontiguousarray(time_steps, np.int32)
    )
    if time_steps is not None and steps.shape != dt.shape:
        raise ValueError(f"time_steps {steps.shape} must be shaped as dt {dt.shape}")
    drive = None if drive is None else np.asarray(drive)[None]
    return PathArrays(
        pieces,
        True,
        dt,
        steps,
        dx[None],
        _mask(moved, dx[None]),
        _drive(drive, dx.dtype, longest + 1),
    )


def dense(pieces, slopes, *, moved=None, drive=None) -> PathArrays:
    """Pieces on which any channel may move.

    pieces: (stream,), not increasing. slopes: (degree + 1, piece, channel, stream). moved: (piece, channel,
    stream), by default where a slope is not zero. drive: (knot, stream, width) interpolated linearly in u, or
    (degree + 1, piece, stream, width), a polynomial in u.
    """
    slopes = np.ascontiguousarray(slopes)
    pieces = _lengths(pieces, slopes.shape[3])
    longest = int(pieces.max(initial=0))
    if slopes.shape[1] < longest:
        raise ValueError(f"{longest} pieces need more than the {slopes.shape[1]} in slopes")
    knots = longest
    if drive is not None and np.ndim(drive) == 3:
        drive, knots = np.asarray(drive)[None], longest + 1
    elif drive is not None and len(drive) == 1:
        raise ValueError("a drive of degree 0 within pieces: give a second coefficient, of zeros")
    none = np.empty((0, 0), slopes.dtype), np.empty((0, 0), np.int32)
    drive = _drive(drive, slopes.dtype, knots)
    return PathArrays(pieces, False, *none, slopes, _mask(moved, slopes), drive)


def _lengths(pieces, streams):
    pieces = np.ascontiguousarray(pieces, np.int64)
    if pieces.shape != (streams,) or (np.diff(pieces) > 0).any():
        raise ValueError(
            f"pieces must be ({streams},), longest stream first; got shape {pieces.shape}"
        )
    return pieces


def _mask(moved, slopes):
    if moved is None:
        return np.ascontiguousarray((slopes != 0).any(0)).view(np.uint8)
    moved = np.ascontiguousarray(moved)
    if moved.shape != slopes.shape[1:]:
        raise ValueError(f"moved {moved.shape} must be shaped {slopes.shape[1:]}")
    return (moved if moved.dtype == np.bool_ else moved != 0).view(np.uint8)


def _drive(drive, dtype, least):
    if drive is None:
        return np.empty((0, 0, 0, 0), dtype)
    if drive.shape[1] < least:
        raise ValueError(f"drive {drive.shape} must hold {least} knots or pieces")
    return np.ascontiguousarray(drive, dtype)
