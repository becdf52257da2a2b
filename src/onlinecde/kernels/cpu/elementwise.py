"""Activations and their derivatives, the same bits wherever an element stands.

tanh in float32 is x P(x^2) / Q(x^2) with deg P = 3, deg Q = 4, fitted for least relative error on
0 < x <= 7.9: solve the linearised problem `P - tanh(x)/x Q = 0` by least squares on Chebyshev points, divide
the weights by the last Q and multiply them by the last error (Loeb, Lawson), a few hundred times: 1.3e-7.
Numerator and denominator were then scaled together by the factor in [1, 2] whose rounded coefficients erred
least: 3.4e-7 absolute over all floats, 2.7e-7 of it at the clamp, never above 1.
"""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import overload, register_jitable

from onlinecde.kernels.activations import ACTIVATIONS
from onlinecde.kernels.cpu.compiled import instruction, part

OURS = ("relu", "tanh", "silu", "softplus")
RELU, TANH, SILU, SOFTPLUS = (ACTIVATIONS[name].code for name in OURS)

# exact in either precision, so that float32 stays float32 and float64 loses nothing
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)

_CLAMP = np.float32(7.9)
_P = tuple(map(np.float32, (1.6262718, 0.210348807, 0.00481453458, 1.87539048e-05)))
_Q = tuple(map(np.float32, (1.626272, 0.752437736, 0.038793226, 0.00039032485, 4.05356024e-07)))


def code_of(name: str) -> int:
    """The code by which kernels know an activation.

    Raises:
        ValueError: `activate` and `through_activation` have no line for it.
    """
    if name not in OURS:
        raise ValueError(f"the CPU kernels do not know the activation {name!r}: they have {OURS}.")
    return ACTIVATIONS[name].code


@instruction
def fma(typingctx, a, b, c):
    """a * b + c, rounded once where the machine can."""

    def generate(context, builder, sig, args):
        element = context.get_data_type(sig.return_type)
        name = f"llvm.fmuladd.f{sig.return_type.bitwidth}"
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(element, [element] * 3), name
        )
        return builder.call(function, args)

    widest = max(a, b, c, key=lambda number: number.bitwidth)
    return widest(widest, widest, widest), generate


def _tanh(x):
    raise NotImplementedError("compiled code only")


@overload(_tanh)
def _tanh_for(x):
    if x != types.float32:
        return lambda x: math.tanh(x)

    def rational(x):
        x = _CLAMP if x > _CLAMP else x
        x = -_CLAMP if x < -_CLAMP else x
        s = x * x
        p = fma(fma(fma(_P[3], s, _P[2]), s, _P[1]), s, _P[0])
        q = fma(fma(fma(fma(_Q[4], s, _Q[3]), s, _Q[2]), s, _Q[1]), s, _Q[0])
        return x * p / q

    return rational


@part
def tanh(x):
    """Replace each element by its tanh."""
    for i in range(x.size):
        x[i] = _tanh(x[i])


@register_jitable
def _sigmoid(x):
    return fma(_HALF, _tanh(_HALF * x), _HALF)


@part
def activate(kind, x, kept):
    """x = act(x), flat; silu leaves x before the activation in `kept`, the others need only what comes out."""
    n = x.size
    if kind == RELU:
        for i in range(n):
            x[i] = _ZERO if x[i] < _ZERO else x[i]
    elif kind == TANH:
        for i in range(n):
            x[i] = _tanh(x[i])
    elif kind == SILU:
        if kept.size == n:
            for i in range(n):
                kept[i] = x[i]
        for i in range(n):
            x[i] = x[i] * _sigmoid(x[i])
    else:
        for i in range(n):
            v = x[i]
            x[i] = (v if v > _ZERO else _ZERO * v) + math.log1p(math.exp(-abs(v)))


@part
def through_activation(kind, gradient, x, kept):
    """gradient *= act'(...), flat, with x what `activate` put out and `kept` what it kept."""
    n = x.size
    if kind == RELU:
        for i in range(n):
            gradient[i] = gradient[i] if x[i] > _ZERO else _ZERO
    elif kind == TANH:
        for i in range(n):
            gradient[i] = gradient[i] * fma(-x[i], x[i], _ONE)
    elif kind == SILU:
        for i in range(n):
            s = _sigmoid(kept[i])
            gradient[i] = gradient[i] * (s * fma(kept[i], _ONE - s, _ONE))
    else:
        for i in range(n):
            gradient[i] = gradient[i] * -math.expm1(-x[i])
