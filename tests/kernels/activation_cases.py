"""Every activation of the table in Triton's interpreter: values and derivatives, and what an unknown one meets.

Run as a program, with TRITON_INTERPRET=1 set; it prints JSON.
"""

import json

import torch
import triton
import triton.language as tl

from onlinecde.kernels.activations import ACTIVATIONS
from onlinecde.kernels.gpu.arithmetic import activate, through_activation


@triton.jit
def both(x, value, derivative, ACT: tl.constexpr):
    at = tl.arange(0, 64)
    here = tl.load(x + at)
    tl.store(value + at, activate(here, ACT, False))
    tl.store(derivative + at, through_activation(here * 0.0 + 1.0, here, ACT, False))


def found(name: str) -> list[list[float]]:
    x = torch.linspace(-25, 25, 64)
    value, derivative = torch.empty_like(x), torch.empty_like(x)
    both[(1,)](x, value, derivative, ACT=name)
    return [value.tolist(), derivative.tolist()]


if __name__ == "__main__":
    result = {name: found(name) for name in ACTIVATIONS}
    try:
        found("cube")
    except Exception as error:
        result["cube"] = f"{type(error).__name__} {error}"
    print(json.dumps(result))
