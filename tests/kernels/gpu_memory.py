"""Bytes that a training step takes on a GPU, counted with its kernels left out, beside those that are reckoned.

Run as a program, with TRITON_INTERPRET=1 set, it prints both for each case as JSON, in bytes a stream.
"""

import json
import weakref
from types import SimpleNamespace

import torch
from made_problems import by_gpu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from onlinecde import MLPField, SeriesBatch, controls
from onlinecde.kernels import gpu
from onlinecde.kernels.gpu import launching, packing, room, solve, sums, weight_gradients
from onlinecde.solvers.backends.gpu import legs_of
from onlinecde.solvers.runge_kutta import tableau
from onlinecde.solvers.segments import segments_of

# Scheme, values, hidden, width, depth, counts, method.
CASES = {
    "linear Sepsis": ("linear", 37, 82, 65, 2, True, "rk4"),
    "cubic Sepsis": ("natural_cubic", 37, 82, 65, 2, True, "rk4"),
    "cubic, many values": ("natural_cubic", 150, 16, 16, 1, False, "rk4"),
    "linear, many values": ("linear", 150, 16, 16, 1, False, "rk4"),
    "cubic, one stage": ("natural_cubic", 37, 32, 32, 1, True, "euler"),
    "linear, dense": ("linear", 37, 64, 64, 2, False, "rk4"),
    "rectilinear": ("rectilinear", 40, 64, 64, 2, True, "rk4"),
    "rectilinear, many values": ("rectilinear", 150, 16, 16, 1, True, "euler"),
    "cubic, few values": ("natural_cubic", 3, 70, 89, 3, False, "rk4"),
}
ROWS = 21


class Counted(TorchDispatchMode):
    """Follows how many bytes the tensors made in it hold, and the most at any time."""

    def __init__(self):
        super().__init__()
        self.held = self.most = 0
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return out

    def _note(self, storage):
        if storage._cdata not in self.seen:
            self.seen.add(storage._cdata)
            self.held += storage.nbytes()
            self.most = max(self.most, self.held)
            weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())

    def _gone(self, name, size):
        self.seen.discard(name)
        self.held -= size


class LeftOut:
    """A kernel that does nothing, whatever its grid."""

    def __getitem__(self, grid):
        return lambda *args, **keywords: None


def leave_kernels_out():
    for module, name in (
        (solve, "forward_kernel"),
        (solve, "backward_kernel"),
        (weight_gradients, "columns_kernel"),
        (weight_gradients, "outer_kernel"),
        (packing, "halves_kernel"),
        (sums, "sum_kernel"),
    ):
        assert hasattr(module, name)
        setattr(module, name, LeftOut())


def as_on_an_h200(field, legs, alone=None, split=True):
    """The tiles that a GPU of 132 multiprocessors would get."""
    interpreted, properties = launching.interpreted, torch.cuda.get_device_properties
    launching.interpreted = lambda: False
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
    try:
        return gpu.shape_for(field, legs, alone, split)
    finally:
        launching.interpreted, torch.cuda.get_device_properties = interpreted, properties


def step(streams, scheme, values, hidden, width, depth, counts, method):
    """Bytes taken and reckoned by a step of so many streams."""
    times = torch.rand(streams, ROWS).cumsum(1).double()
    batch = SeriesBatch.from_padded(times, torch.randn(streams, ROWS, values))
    path = getattr(controls, scheme)(batch, counts)
    field = MLPField(hidden, path.channels, width, depth)
    laid, table = segments_of(path), tableau(method)
    reckoned = gpu.room_for_step(field, legs_of(laid), table.stages)
    z0 = torch.randn(streams, hidden)
    with Counted() as counted:
        z = by_gpu(laid, field, table, z0)
        torch.autograd.grad(z.sum(), list(field.parameters()))
    return counted.most, reckoned


if __name__ == "__main__":
    leave_kernels_out()
    solve.shape_for = room.shape_for = as_on_an_h200
    result = {}
    for name, case in CASES.items():
        # What does not grow with the streams, such as weights, is left out of both.
        few, many = step(128, *case), step(256, *case)
        result[name] = [(b - a) / 128 for a, b in zip(few, many, strict=True)]
    print(json.dumps(result))
