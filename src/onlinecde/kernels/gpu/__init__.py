"""The solver's inner loops in Triton and CUDA, on plain tensors: states, and gradients of all that went in.

Importing it imports triton. With TRITON_INTERPRET=1 set before, kernels run on CPU tensors.
"""

from onlinecde.kernels.gpu.launching import Dense, Shape, shape_for
from onlinecde.kernels.gpu.packing import Legs, PackedField, Table, pack_field, pack_table
from onlinecde.kernels.gpu.plan import Moves, plan_moves
from onlinecde.kernels.gpu.room import room_for_step
from onlinecde.kernels.gpu.solve import Gradients, backward, clustered, forward
from onlinecde.kernels.gpu.weight_gradients import Tape

__all__ = [
    "Dense",
    "Gradients",
    "Legs",
    "Moves",
    "PackedField",
    "Shape",
    "Table",
    "Tape",
    "backward",
    "clustered",
    "forward",
    "pack_field",
    "pack_table",
    "plan_moves",
    "room_for_step",
    "shape_for",
]
