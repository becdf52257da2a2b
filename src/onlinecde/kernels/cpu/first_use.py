"""The first use on a machine: kernels are compiled once, in two processes side by side, and kept on disk.

numba keeps machine code beside its source, or in `NUMBA_CACHE_DIR`. A file there says which group of kernels is
complete; whoever comes first compiles, others wait for it. `onlinecde warmup` does it beforehand.
"""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import llvmlite.binding as llvm
import numba
import numpy as np

from onlinecde.files import held

log = logging.getLogger(__name__)

_compiled: set[tuple[str, str]] = set()
_guard = threading.RLock()
_alone = True
"""Whether no second process has been started yet."""


def ready(group: str, dtype: np.dtype) -> None:
    """Return when a group of kernels, one of `GROUPS`, is compiled for a dtype: by this process or by another."""
    if (group, dtype.name) in _compiled:
        return
    with _guard:
        if (group, dtype.name) not in _compiled:
            _make_ready(group, dtype.name)


def _make_ready(group: str, dtype: str) -> None:
    global _alone
    # Marked first: the problem below asks for the same group again.
    _compiled.add((group, dtype))
    mark = _mark(group, dtype)
    if mark is None or mark.exists():
        return  # numba reads or compiles what it is called with
    if _alone:
        log.warning(
            "compiling the solver for this processor: once, 10 to 20 seconds; kept in %s",
            mark.parent,
        )
        _alone = False
        _start_helper(dtype)
    with held(mark.with_suffix(".lock")):
        if not mark.exists():
            GROUPS[group](np.dtype(dtype))
            mark.touch()


def _mark(group: str, dtype: str) -> Path | None:
    """The file that says a group is compiled; None where nothing can be kept."""
    from onlinecde.kernels.cpu.compiled import SOURCES, cache_folder

    folder = cache_folder()
    if folder is None or os.name != "posix":
        return None
    machine = (numba.__version__, sys.version_info[:3], llvm.get_host_cpu_name())
    where = sha256(repr((*machine, llvm.get_host_cpu_features().flatten())).encode())
    return folder / f"onlinecde-{SOURCES[:8]}-{where.hexdigest()[:8]}-{group}-{dtype}.compiled"


def _after_fork() -> None:
    global _guard
    _guard = threading.RLock()  # a thread that the fork left behind may have had it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def compile_beside(dtype: str) -> None:
    """What the helper does: all groups, beginning with those that the first process needs last."""
    global _alone
    _alone = False
    for group in reversed(GROUPS):
        ready(group, np.dtype(dtype))


def _start_helper(dtype: str) -> None:
    """Compile in a second process too; should it fail, all is compiled here when it is needed."""
    package = str(Path(__file__).parents[3])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
    try:
        helper = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from {__name__} import compile_beside; compile_beside({dtype!r})",
            ],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        log.info("no second process to compile in: %s", error)
        return
    threading.Thread(target=helper.wait, daemon=True).start()  # leaves no zombie


def _step(dtype: np.dtype) -> None:
    from onlinecde.kernels import cpu

    one, two = np.ones((2, 2), dtype), np.ones(2, dtype)
    cpu.pack_field([(one, two)], np.ones((2, 2, 2), dtype), np.ones((2, 2), dtype))


def _forward(dtype: np.dtype) -> None:
    from onlinecde.kernels import cpu

    field, path, method = _small(dtype)
    cpu.forward(field, path, np.ones((1, 2), dtype), method)


def _backward(dtype: np.dtype) -> None:
    from onlinecde.kernels import cpu
    from onlinecde.kernels.cpu.products import outer_address
    from onlinecde.kernels.cpu.step_back import step_back

    outer_address(dtype)  # first what does not wait for the step
    step_back.address(dtype)
    field, path, method = _small(dtype)
    z = np.ones((3, 1, 2), dtype)
    cpu.backward(z, z, field, path, method)


def _live(dtype: np.dtype) -> None:
    from onlinecde.kernels import cpu
    from onlinecde.kernels.cpu.observation import observe_once

    observe_once(dtype)
    field, _, method = _small(dtype)
    one = np.ones(1, dtype)
    cpu.advance(field, method, np.ones((1, 2), dtype), one, [0, 1], [1], one)


def _small(dtype: np.dtype):
    """A field, a path and a method of the types that those of every solve are."""
    from onlinecde.kernels import cpu

    one, two = np.ones((2, 2), dtype), np.ones(2, dtype)
    field = cpu.pack_field([(one, two)], np.ones((2, 2, 2), dtype), np.ones((2, 2), dtype))
    path = cpu.rectilinear([2], np.ones((1, 1), dtype), np.ones((1, 1, 1), dtype))
    return field, path, cpu.tableau([[0.0]], [1.0], [0.0], dtype)


GROUPS: dict[str, Callable[[np.dtype], None]] = {
    "step": _step,
    "forward": _forward,
    "live": _live,
    "backward": _backward,
}
"""Each by a small problem of its own, in the order in which a training needs them."""
