"""`Solver.run` as `torch.compile` sees it: one call, not hundreds of unrolled stages."""

from collections.abc import Callable

import torch
from torch import Tensor

from onlinecde.solvers.chain import Chain
from onlinecde.solvers.fields import VectorField
from onlinecde.solvers.solver import Solution, Solver


@torch.compiler.disable
def run(
    how: Solver,
    chain: Chain,
    field: VectorField,
    z0: Tensor,
    where: Callable[[int, float], str],
    across: bool,
) -> Solution:
    """`how.run`, outside of the compiled program."""
    return how.run(chain, field, z0, where, across)
