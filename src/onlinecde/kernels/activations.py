"""The activations of a field's inner layers: one table for plain torch and for the kernels of every language.

A new one is a row here, and its value and derivative in `cpu/elementwise.py`, `gpu/arithmetic.py` and
`gpu/hopper/numbers.cuh`; each of them refuses a code that it does not know.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Activation:
    """One activation, by name in torch and Triton, by code in numba and CUDA."""

    name: str
    code: int
    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor, Tensor], Tensor]
    """(gradient after it, its output or input) -> gradient before it."""
    from_output: bool
    """Whether the derivative takes what the activation put out, not what it took in."""


_aten = torch.ops.aten
ACTIVATIONS: dict[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation("relu", 0, torch.relu, lambda g, out: _aten.threshold_backward(g, out, 0), True),
        Activation("tanh", 1, torch.tanh, _aten.tanh_backward, True),
        Activation("silu", 2, torch.nn.functional.silu, _aten.silu_backward, False),
        Activation(
            "softplus",
            3,
            torch.nn.functional.softplus,
            lambda g, x: _aten.softplus_backward(g, x, 1, 20),
            False,
        ),
    )
}


def activation_named(name: str) -> Activation:
    """Look an activation up.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is not one of {sorted(ACTIVATIONS)}.")
    return ACTIVATIONS[name]
