"""Tuples of arrays that are not reference counted.

Compiled code counts references to every array it takes out of a tuple, atomically: a seventh of the time of one
live row. A borrowed tuple has the same data and counts nothing; its owner must outlive it.
"""

from numba import types

from onlinecde.kernels.cpu.compiled import instruction


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
