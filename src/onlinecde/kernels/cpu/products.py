"""Matrix products over lists of rows, cut into the register tiles of `tiles.py` and called by address."""

from functools import cache

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.extending import register_jitable

from onlinecde.kernels.cpu.compiled import entry_point, instruction
from onlinecde.kernels.cpu.tiles import (
    TILE_ROWS,
    TILE_VECTORS,
    lanes_of,
    offset_by,
    outer_tile,
    product_tile,
)


@register_jitable
def _cut(size, most):
    """Into how many parts of at most `most` to cut `size`, the size of the least, and how many have one more."""
    if size <= most:
        return 1, size, 0  # a live stream: no time for divisions
    parts = (size + most - 1) // most
    return parts, size // parts, size % parts


def _product(x, x_stride, x_index, weight, inner, outer, init, init_stride, out, out_index, count):
    lanes = lanes_of(x)
    width = outer // lanes
    panels, least_vectors, more_vectors = _cut(width, TILE_VECTORS)
    tiles, least_rows, more_rows = _cut(count, TILE_ROWS)
    column = 0
    for panel in range(panels):
        vectors = least_vectors + (panel < more_vectors)
        row = 0
        for tile in range(tiles):
            rows = least_rows + (tile < more_rows)
            product_tile(
                x, x_stride, offset_by(x_index, row), offset_by(weight, inner * column), inner, offset_by(init, column),
                init_stride, offset_by(out, column), outer, offset_by(out_index, row), rows, vectors,
            )  # fmt: skip
            row += rows
        column += vectors * lanes


def _add_outer(
    left, left_stride, left_index, right, right_stride, right_index, count, rows, columns, out
):
    lanes = lanes_of(left)
    width = columns // lanes
    panels, least_vectors, more_vectors = _cut(width, TILE_VECTORS)
    tiles, least_rows, more_rows = _cut(rows, TILE_ROWS)
    column = 0
    for panel in range(panels):
        vectors = least_vectors + (panel < more_vectors)
        row = 0
        for tile in range(tiles):
            height = least_rows + (tile < more_rows)
            outer_tile(
                offset_by(left, row), left_stride, left_index, offset_by(right, column), right_stride, right_index,
                count, offset_by(out, row * columns + column), columns, height, vectors,
            )  # fmt: skip
            row += height
        column += vectors * lanes


@cache
def product_address(dtype: np.dtype) -> int:
    """The address that `product` is called with, compiled for a dtype."""
    real, index, i = types.CPointer(from_dtype(dtype)), types.CPointer(types.int64), types.int64
    return entry_point(_product, types.void(real, i, index, real, i, i, real, i, real, index, i))


@cache
def outer_address(dtype: np.dtype) -> int:
    """The address that `add_outer` is called with, compiled for a dtype."""
    real, index, i = types.CPointer(from_dtype(dtype)), types.CPointer(types.int64), types.int64
    return entry_point(_add_outer, types.void(real, i, index, real, i, index, i, i, i, real))


def _call(context, builder, types_, args):
    """Call the address args[0]; an array followed by a start becomes a pointer to that element."""
    values, i = [], 1
    while i < len(args):
        if isinstance(types_[i], types.Array):
            data = context.make_array(types_[i])(context, builder, args[i]).data
            values.append(builder.gep(data, [args[i + 1]]))
            i += 2
        else:
            values.append(args[i])
            i += 1
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(builder.inttoptr(args[0], kind.as_pointer()), values)
    return context.get_dummy_value()


@instruction
def product(
    typingctx, address, x, x_start, x_stride, x_index, first, weight, offset, inner, outer, init, init_start,
    init_stride, out, out_start, out_index, also_first, count,
):  # fmt: skip
    """out[out_index[r]] = init[out_index[r]] + x[x_index[r]] @ weight for first <= r < first + count.

    Row n of x begins at `x_start + n * x_stride`, of init at `init_start + n * init_stride` (stride 0: one bias for
    all rows), of out at `out_start + n * outer`. `weight[offset:]` is a packed (inner, outer) matrix (see
    `packing.py`); outer is a multiple of the lanes. The output rows must differ; count must not be 0.
    """
    i = types.int64
    signature = types.void(
        i, x, i, i, x_index, i, weight, i, i, i, init, i, i, out, i, out_index, i, i
    )
    return signature, lambda context, builder, sig, args: _call(context, builder, sig.args, args)


@instruction
def add_outer(
    typingctx, address, left, left_start, left_stride, left_index, first, right, right_start, right_stride,
    right_index, also_first, count, rows, columns, out, out_start,
):  # fmt: skip
    """out (rows, columns) += sum over t of left[left_index[t], :rows] (x) right[right_index[t], :columns].

    t runs from first to first + count - 1; count must not be 0. `columns` is a multiple of the lanes. Used for the
    gradient of a weight, summed over streams and stages.
    """
    i = types.int64
    signature = types.void(
        i, left, i, i, left_index, i, right, i, i, right_index, i, i, i, i, out, i
    )
    return signature, lambda context, builder, sig, args: _call(context, builder, sig.args, args)
