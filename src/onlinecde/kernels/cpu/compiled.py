"""How every kernel is compiled: one set of options; and tuples of arrays that are not reference counted."""

import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import cfunc, njit, typeof, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numpy import float32, float64

SOURCES = sha256(
    b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()
"""What all compiled code was made of: machine code on disk is of these sources or not used."""

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


def cache_folder() -> Path | None:
    """Where machine code is kept; None where it cannot be."""

    def nothing():
        pass

    compiled: Any = njit(cache=True)(nothing)
    folder = compiled.stats.cache_path
    return None if folder is None else Path(folder)


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


# What is big and called from several kernels, with tuples of arrays as arguments: each argument is handed on as a
# pointer to a copy of its tuple on the caller's stack.


class Shared:
    """A function compiled once for all kernels that call it, by its address in `call`.

    `examples(dtype)` are arguments of the types it is called with. Its parameters are pointers, which it reads with
    `read`; it returns a whole number.
    """

    def __init__(self, function, examples):
        self._function, self._examples = function, examples
        self._addresses: dict[Any, int] = {}
        self._guard = threading.Lock()

    def address(self, dtype) -> int:
        """Where the code for a dtype is in this process; compiled when it is first asked for."""
        with self._guard:
            if dtype not in self._addresses:
                pointers = (types.CPointer(kind) for kind in self.kinds(dtype))
                self._addresses[dtype] = entry_point(self._function, types.int64(*pointers))
            return self._addresses[dtype]

    def kinds(self, dtype) -> tuple[Any, ...]:
        """The types of its arguments."""
        return tuple(typeof(example) for example in self._examples(dtype))


def shared(examples):
    """Make a function `Shared`."""
    return lambda function: Shared(function, examples)


@instruction
def read(typingctx, pointer):
    """The argument a pointer was made of."""

    def generate(context, builder, sig, args):
        value = context.unpack_value(builder, sig.return_type, args[0])
        return _unowned(context, builder, sig.return_type, value)

    return pointer.dtype(pointer), generate


def calling(function: Shared, address, kinds):
    """What an `instruction` returns that calls a shared function at an address with arguments of some types."""
    kinds = tuple(types.unliteral(kind) for kind in kinds)
    expected = next(
        (every for every in map(function.kinds, (float32, float64)) if every == kinds), None
    )
    if expected is None:
        raise TypingError(f"{kinds} are not the types that {function.kinds(float32)} are")

    def generate(context, builder, sig, args):
        pointers = []
        for kind, value in zip(kinds, args[1:], strict=True):
            place = cgutils.alloca_once(builder, context.get_data_type(kind))
            context.pack_value(builder, kind, value, place)
            pointers.append(place)
        code = ir.FunctionType(ir.IntType(64), [pointer.type for pointer in pointers])
        return builder.call(builder.inttoptr(args[0], code.as_pointer()), pointers)

    return types.int64(address, *kinds), generate


def _stamped(function):
    # numba asks only whether the function's own file changed, but a kernel has its callees compiled into it
    stamp = f"_{SOURCES[:8]}"
    if not function.__qualname__.endswith(stamp):
        function.__qualname__ += stamp
    return function


# Compiled code counts references to every array it takes out of a tuple, atomically: a seventh of the time of one
# live row. A borrowed tuple has the same data and counts nothing; its owner must outlive it.


@instruction
def borrow(typingctx, owner):
    """The same tuple with arrays that own nothing. Call `keep_alive(owner)` after the last use."""

    def generate(context, builder, sig, args):
        return _unowned(context, builder, sig.return_type, args[0])

    return owner(owner), generate


def _unowned(context, builder, kind, value):
    """An array or a tuple, with arrays that own nothing."""
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = array.meminfo.type(None)
        return array._getvalue()
    for n, one in enumerate(getattr(kind, "types", ())):
        part = builder.extract_value(value, n)
        value = builder.insert_value(value, _unowned(context, builder, one, part), n)
    return value


@instruction
def keep_alive(typingctx, owner):
    """Nothing, but numba frees nothing of `owner` before it."""
    return types.void(owner), lambda context, builder, sig, args: context.get_dummy_value()
