"""How every kernel is compiled: one set of options; and tuples of arrays that are not reference counted."""

from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import cfunc, njit, types
from numba.extending import intrinsic

_SOURCES = sha256(
    b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
)

_entry_points: list[Any] = []  # an address is good for as long as its owner lives

instruction: Any = intrinsic
"""numba's decorator for code that is written as LLVM instructions."""


def kernel(function):
    """Compile on first call, keep the machine code on disk, release the GIL.

    No fastmath: IEEE arithmetic means that an element's bits do not depend on whether LLVM put it in a
    vector or in the tail of a loop, and NaN stays NaN. Where fused multiply-adds pay, the code says `fma`.
    `error_model="numpy"` drops the check for a zero divisor, which would stop vectorisation.
    """
    return njit(cache=True, nogil=True, error_model="numpy")(_stamped(function))


def part(function):
    """A function that kernels call: compiled into them, so not kept on disk by itself.

    LLVM puts it in line, because handing on a tuple of arrays costs more than most of them do.
    """
    return njit(
        error_model="numpy", forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)


def entry_point(function, signature) -> int:
    """The address of `function` compiled for one signature of numbers and pointers.

    numba compiles every callee again into each of its callers, and their callers. What is big and called from
    many places is compiled once instead, and called by its address.
    """
    compiled: Any = cfunc(signature, cache=True, error_model="numpy")(_stamped(function))
    _entry_points.append(compiled)
    return compiled.address


def _stamped(function):
    # numba asks only whether the function's own file changed, but a kernel has its callees compiled into it
    stamp = f"_{_SOURCES.hexdigest()[:8]}"
    if not function.__qualname__.endswith(stamp):
        function.__qualname__ += stamp
    return function


# Compiled code counts references to every array it takes out of a tuple, atomically: a seventh of the time of one
# live row. A borrowed tuple has the same data and counts nothing; its owner must outlive it.


@instruction
def borrow(typingctx, owner):
    """The same tuple with arrays that own nothing. Call `keep_alive(owner)` after the last use."""

    def generate(context, builder, sig, args):
        (record,) = args
        for n, kind in enumerate(sig.args[0].types):
            if isinstance(kind, types.Array):
                array = context.make_array(kind)(context, builder, builder.extract_value(record, n))
                array.meminfo = array.meminfo.type(None)
                record = builder.insert_value(record, array._getvalue(), n)
        return record

    return owner(owner), generate


@instruction
def keep_alive(typingctx, owner):
    """Nothing, but numba frees nothing of `owner` before it."""
    return types.void(owner), lambda context, builder, sig, args: context.get_dummy_value()
