"""Operations on one padded row, emitted as vectors.

Written as loops, LLVM would compare the arrays for overlap before each row of a few vectors, which costs as
much as the row. Starts count elements; the length is a multiple of the lanes, and not 0.
"""

from llvmlite import ir
from numba import types

from onlinecde.kernels.cpu.compiled import instruction
from onlinecde.kernels.cpu.tiles import VectorCode


@instruction
def copy_row(typingctx, x, x_start, out, out_start, length):
    """out[out_start:] = x[x_start:]."""
    i = types.int64
    signature = types.void(x, i, out, i, i)

    def generate(context, builder, sig, args):
        x, x_start, out, out_start, length = args
        code = VectorCode(context, builder, sig.args[0].dtype)
        x, out = (
            code.at(code.data(sig.args[0], x), x_start),
            code.at(code.data(sig.args[2], out), out_start),
        )

        def body(n, _):
            code.store(code.load(code.at(x, n)), code.at(out, n))
            return []

        code.loop(code.number(0), length, code.lanes, [], body)
        return context.get_dummy_value()

    return signature, generate


@instruction
def clear_row(typingctx, out, out_start, length):
    """out[out_start:] = 0."""
    i = types.int64
    signature = types.void(out, i, i)

    def generate(context, builder, sig, args):
        out, out_start, length = args
        code = VectorCode(context, builder, sig.args[0].dtype)
        out = code.at(code.data(sig.args[0], out), out_start)

        def body(n, _):
            code.store(code.constant(0), code.at(out, n))
            return []

        code.loop(code.number(0), length, code.lanes, [], body)
        return context.get_dummy_value()

    return signature, generate


@instruction
def add_scaled(typingctx, x, x_start, scale, out, out_start, length):
    """out[out_start:] += scale * x[x_start:]."""
    i = types.int64
    signature = types.void(x, i, x.dtype, out, i, i)

    def generate(context, builder, sig, args):
        x, x_start, scale, out, out_start, length = args
        code = VectorCode(context, builder, sig.args[0].dtype)
        x, out = (
            code.at(code.data(sig.args[0], x), x_start),
            code.at(code.data(sig.args[3], out), out_start),
        )
        scale = code.spread(scale)

        def body(n, _):
            place = code.at(out, n)
            code.store(code.fma(scale, code.load(code.at(x, n)), code.load(place)), place)
            return []

        code.loop(code.number(0), length, code.lanes, [], body)
        return context.get_dummy_value()

    return signature, generate


@instruction
def through_column(typingctx, u, u_start, upstream, upstream_start, scale, curve, length):
    """u[u_start:] = scale * upstream[upstream_start:] * (1 + curve * u * u): the gradient before tanh.

    curve is -1 for a column that ends in tanh, 0 for one that does not.
    """
    i = types.int64
    signature = types.void(u, i, upstream, i, u.dtype, u.dtype, i)

    def generate(context, builder, sig, args):
        u, u_start, upstream, upstream_start, scale, curve, length = args
        code = VectorCode(context, builder, sig.args[0].dtype)
        u = code.at(code.data(sig.args[0], u), u_start)
        upstream = code.at(code.data(sig.args[2], upstream), upstream_start)
        scale, curve, one = code.spread(scale), code.spread(curve), code.constant(1)

        def body(n, _):
            place = code.at(u, n)
            value = code.load(place)
            slope = code.fma(builder.fmul(curve, value), value, one)
            code.store(
                builder.fmul(builder.fmul(scale, code.load(code.at(upstream, n))), slope), place
            )
            return []

        code.loop(code.number(0), length, code.lanes, [], body)
        return context.get_dummy_value()

    return signature, generate


@instruction
def dot(typingctx, x, x_start, y, y_start, length):
    """The sum of x[x_start:] * y[y_start:]."""
    i = types.int64
    signature = x.dtype(x, i, y, i, i)

    def generate(context, builder, sig, args):
        x, x_start, y, y_start, length = args
        code = VectorCode(context, builder, sig.args[0].dtype)
        x, y = (
            code.at(code.data(sig.args[0], x), x_start),
            code.at(code.data(sig.args[2], y), y_start),
        )

        def body(n, held):
            return [code.fma(code.load(code.at(x, n)), code.load(code.at(y, n)), held[0])]

        (sums,) = code.loop(code.number(0), length, code.lanes, [code.constant(0)], body)
        total = builder.extract_element(sums, ir.Constant(ir.IntType(32), 0))
        for lane in range(1, code.lanes):
            total = builder.fadd(
                total, builder.extract_element(sums, ir.Constant(ir.IntType(32), lane))
            )
        return total

    return signature, generate
