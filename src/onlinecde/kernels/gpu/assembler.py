"""Which ptxas makes the kernels that an old one gets wrong.

ptxas 12.8, which Triton 3.6 takes for GPUs before Blackwell, makes some addresses in shared memory from a
wrong register in the reverse sweep of eight warps. The wheel has a newer one beside it, which does not.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

LEAST = (12, 9)


def ptxas() -> str | None:
    """Path of a ptxas that makes every kernel right; None if there is none, or another one was asked for."""
    return _right(os.environ.get("TRITON_PTXAS_PATH"))


@functools.cache
def _right(asked: str | None) -> str | None:
    try:
        from triton import knobs

        tools = [knobs.nvidia.ptxas]
        if asked is None:
            tools.append(knobs.nvidia.ptxas_blackwell)
    except (ImportError, AttributeError, RuntimeError):
        return None  # a Triton without these settings, or without such a tool
    return next((tool.path for tool in tools if _version(tool) >= LEAST), None)


def _version(tool: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in tool.version.split("."))


@contextlib.contextmanager
def right_ptxas() -> Iterator[None]:
    """What Triton compiles herein is made by `ptxas()`, where there is one."""
    path = ptxas()
    if path is None or "TRITON_PTXAS_PATH" in os.environ:
        yield
        return
    from triton import knobs

    with knobs.nvidia.scope():
        knobs.nvidia.ptxas = path
        yield
