"""The register tiles every product is made of, emitted as LLVM vectors.

A tile holds `rows x vectors` accumulators in registers while it runs over the summed index, so that each
loaded weight serves several rows and each broadcast input several vectors. Each output element is one chain
of fused multiply-adds in ascending order of the summed index, whatever the shape of the tile: that is why a
row's result does not depend, bit for bit, on the rows beside it.

Left to itself LLVM vectorises such loops along the sum, which reorders it, and keeps fewer accumulators.
Arrays are flat; an offset or a stride counts elements.
"""

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils

from onlinecde.kernels.cpu.compiled import instruction

_FEATURES = llvm.get_host_cpu_features()
_WIDE = bool(_FEATURES.get("avx512f"))
VECTOR_BYTES = 64 if _WIDE else 32 if _FEATURES.get("avx") else 16
"""Bytes in a vector register of this machine; rows in packed and scratch arrays are padded to it."""

TILE_ROWS = 6 if _WIDE else 4
TILE_VECTORS = 4 if _WIDE else 2
"""Largest tile: 6 x 4 accumulators, 4 weights and a broadcast fill 29 of 32 registers (4 x 2: 11 of 16)."""

_I64 = ir.IntType(64)
_I32 = ir.IntType(32)


@instruction
def lanes_of(typingctx, pointer):
    """Numbers in a vector register, for a pointer to numbers."""

    def generate(context, builder, sig, args):
        return ir.Constant(_I64, VECTOR_BYTES * 8 // sig.args[0].dtype.bitwidth)

    return types.int64(pointer), generate


@instruction
def offset_by(typingctx, pointer, elements):
    """pointer + elements."""
    return pointer(pointer, types.int64), lambda context, builder, sig, args: builder.gep(
        args[0], [args[1]]
    )


class VectorCode:
    """Writes vector instructions for one element type at the builder's position."""

    def __init__(self, context, builder, dtype):
        self.context, self.builder = context, builder
        self.element = context.get_data_type(dtype)
        bits = dtype.bitwidth
        self.lanes = VECTOR_BYTES * 8 // bits
        self.vector = ir.VectorType(self.element, self.lanes)
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        # fmuladd fuses wherever the machine can, always or never: the result cannot depend on the tile
        name = f"llvm.fmuladd.v{self.lanes}f{bits}"
        self._fma = cgutils.get_or_insert_function(builder.module, kind, name)

    def data(self, array_type, value):
        return self.context.make_array(array_type)(self.context, self.builder, value).data

    def number(self, n):
        return ir.Constant(_I64, n)

    def at(self, pointer, *terms):
        """The address `pointer + sum of terms`, in elements; a term is a number, or a pair to multiply."""
        for term in terms:
            if isinstance(term, tuple):
                term = self.builder.mul(
                    *(self.number(t) if isinstance(t, int) else t for t in term)
                )
            elif isinstance(term, int):
                term = self.number(term)
            pointer = self.builder.gep(pointer, [term])
        return pointer

    def load(self, pointer):
        value = self.builder.load(self.builder.bitcast(pointer, self.vector.as_pointer()))
        value.align = self.element_bytes
        return value

    def store(self, value, pointer):
        done = self.builder.store(value, self.builder.bitcast(pointer, self.vector.as_pointer()))
        done.align = self.element_bytes

    @property
    def element_bytes(self):
        return VECTOR_BYTES // self.lanes

    def scalar(self, pointer):
        return self.builder.load(pointer)

    def spread(self, value):
        empty = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(empty, value, ir.Constant(_I32, 0))
        lanes = ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, empty, lanes)

    def constant(self, number):
        return ir.Constant(self.vector, [float(number)] * self.lanes)

    def fma(self, a, b, c):
        return self.builder.call(self._fma, [a, b, c])

    def loop(self, start, stop, step, carried, body):
        """`for i in range(start, stop, step): carried = body(i, carried)`, run at least once."""
        builder = self.builder
        before = builder.block
        block, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(block)
        builder.position_at_end(block)
        i = builder.phi(_I64)
        i.add_incoming(start, before)
        held = [builder.phi(self.vector) for _ in carried]
        for phi, value in zip(held, carried, strict=True):
            phi.add_incoming(value, before)
        new = body(i, held)
        following = builder.add(i, self.number(step))
        i.add_incoming(following, builder.block)
        for phi, value in zip(held, new, strict=True):
            phi.add_incoming(value, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, stop), block, after)
        builder.position_at_end(after)
        return new

    def for_each_tile(self, rows, vectors, emit):
        """Branch to the code `emit(rows, vectors)` wrote for the tile's shape."""
        builder = self.builder
        after = builder.append_basic_block("tiled")
        shape = builder.add(builder.mul(rows, self.number(TILE_VECTORS + 1)), vectors)
        switch = builder.switch(shape, after)
        for r in range(1, TILE_ROWS + 1):
            for v in range(1, TILE_VECTORS + 1):
                block = builder.append_basic_block(f"tile_{r}x{v}")
                switch.add_case(self.number(r * (TILE_VECTORS + 1) + v), block)
                builder.position_at_end(block)
                emit(r, v)
                builder.branch(after)
        builder.position_at_end(after)


def _multiply(code, x_rows, weight, inner, sums, vectors):
    """sums[r, v] += sum over k of x_rows[r][k] * weight[k, v], one fused multiply-add per k."""

    def body(k, held):
        line = code.at(weight, (k, vectors * code.lanes))
        weights = [code.load(code.at(line, v * code.lanes)) for v in range(vectors)]
        new = []
        for r, x in enumerate(x_rows):
            value = code.spread(code.scalar(code.at(x, k)))
            new += [code.fma(value, weights[v], held[r * vectors + v]) for v in range(vectors)]
        return new

    return code.loop(code.number(0), inner, 1, sums, body)


@instruction
def product_tile(
    typingctx,
    x,
    x_stride,
    x_index,
    weight,
    inner,
    init,
    init_stride,
    out,
    out_stride,
    out_index,
    rows,
    vectors,
):
    """out[out_index[r]] = init[out_index[r]] + x[x_index[r]] @ weight, for r < rows.

    Arrays are pointers. Row n of out begins at `n * out_stride`, of init at `n * init_stride` (0: one bias for all
    rows). The weight panel is (inner, vectors * lanes). The output rows must differ.
    """
    i = types.int64
    signature = types.void(x, i, x_index, weight, i, init, i, out, i, out_index, i, i)

    def generate(context, builder, sig, args):
        (
            x,
            x_stride,
            x_index,
            weight,
            inner,
            init,
            init_stride,
            out,
            out_stride,
            out_index,
            rows,
            vectors,
        ) = args
        code = VectorCode(context, builder, sig.args[0].dtype)

        def tile(rows, vectors):
            x_rows = [code.at(x, (code.scalar(code.at(x_index, r)), x_stride)) for r in range(rows)]
            places = [code.scalar(code.at(out_index, r)) for r in range(rows)]
            begin = [code.at(init, (n, init_stride)) for n in places]
            sums = [code.load(code.at(p, v * code.lanes)) for p in begin for v in range(vectors)]
            sums = _multiply(code, x_rows, weight, inner, sums, vectors)
            for r, n in enumerate(places):
                row = code.at(out, (n, out_stride))
                for v in range(vectors):
                    code.store(sums[r * vectors + v], code.at(row, v * code.lanes))

        code.for_each_tile(rows, vectors, tile)
        return context.get_dummy_value()

    return signature, generate


@instruction
def outer_tile(
    typingctx,
    left,
    left_stride,
    left_index,
    right,
    right_stride,
    right_index,
    count,
    out,
    out_stride,
    rows,
    vectors,
):
    """out[r] += sum over t < count of left[left_index[t], r] * right[right_index[t]], for r < rows.

    Arrays are pointers; row n of left begins at `n * left_stride`, and so on.
    """
    i = types.int64
    signature = types.void(left, i, left_index, right, i, right_index, i, out, i, i, i)

    def generate(context, builder, sig, args):
        (
            left,
            left_stride,
            left_index,
            right,
            right_stride,
            right_index,
            count,
            out,
            out_stride,
            rows,
            vectors,
        ) = args
        code = VectorCode(context, builder, sig.args[0].dtype)

        def tile(rows, vectors):
            places = [code.at(out, (r, out_stride)) for r in range(rows)]
            sums = [code.load(code.at(p, v * code.lanes)) for p in places for v in range(vectors)]

            def body(t, held):
                x = code.at(left, (code.scalar(code.at(left_index, t)), left_stride))
                y = code.at(right, (code.scalar(code.at(right_index, t)), right_stride))
                ys = [code.load(code.at(y, v * code.lanes)) for v in range(vectors)]
                new = []
                for r in range(rows):
                    value = code.spread(code.scalar(code.at(x, r)))
                    new += [code.fma(value, ys[v], held[r * vectors + v]) for v in range(vectors)]
                return new

            sums = code.loop(code.number(0), count, 1, sums, body)
            for r, place in enumerate(places):
                for v in range(vectors):
                    code.store(sums[r * vectors + v], code.at(place, v * code.lanes))

        code.for_each_tile(rows, vectors, tile)
        return context.get_dummy_value()

    return signature, generate
