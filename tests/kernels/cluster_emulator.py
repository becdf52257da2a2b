"""The cluster kernels on a CPU, emulated.

Run as a program, with TRITON_INTERPRET=1 set, it prints the errors of the named cases as JSON.
"""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from cuda_emulator import emulate
from gpu_cases import TINY, Case, errors, made
from made_problems import by_gpu, by_torch

from onlinecde.kernels.gpu.hopper import clusters
from onlinecde.solvers.runge_kutta import tableau

CASES = {
    "one_step": (4, Case(lengths=(2, 2, 1), channels=9, method="midpoint", precision="high", every=2)),
    "dense": (
        4,
        Case(
            (2,) * 45, 9, 0.8, False, method="euler", precision="high", depth=1, steps=2,
            activation="tanh", hidden=20, width=33, shape=TINY | {"rows": 64},
        ),
    ),
    "nine_streams": (
        9,
        Case((2,) * 10, 17, 0.5, precision="high", method="heun", hidden=64, width=64,
             activation="softplus", final="identity"),
    ),
    "driven": (
        4,
        Case((3, 2, 1), 9, 0.5, precision="high", method="heun", depth=1, hidden=20, width=33, steps=2,
             sees_path=True, every=2),
    ),
    "through_autograd": (
        4, Case((3, 2), 9, 0.5, precision="high", method="midpoint", hidden=17, width=20, depth=1, sees_path=True),
    ),
}  # fmt: skip


def through_autograd(case: Case, device: str, seed: int) -> dict[str, float]:
    """Relative errors of z and of all parameters' gradients, as `solve` finds them, against plain torch."""
    laid, field, z0 = made(case, device, seed)
    table, found = tableau(case.method), []
    for z in (
        by_gpu(laid, field, table, z0, "high"),
        by_torch(laid, field, table, z0, exact=False),
    ):
        parameters = dict(field.named_parameters())
        g = torch.autograd.grad(z.square().mean(), list(parameters.values()), retain_graph=True)
        found.append(
            {"z": z.detach()} | {f"g {name}": x for name, x in zip(parameters, g, strict=True)}
        )
    return {n: float((x - found[0][n]).norm() / x.norm()) for n, x in found[1].items()}


def emulated(
    name: str, block_streams: int, case: Case, seed: int, folder: Path
) -> dict[str, float]:
    """Errors of a case with all three kernels emulated."""
    launched = []

    def launch(name, how, save, blocks, arguments):
        files = (*clusters.SHARED_FILES[1:], f"cluster_{name}.cu")
        defines = (*how.defines, ("SAVE", str(int(save))))
        emulate(f"cluster_{name}", files, defines, clusters.THREADS, blocks, arguments, folder)
        launched.append(name)

    def plan(field, legs, table, **_):
        clusters.BLOCK_STREAMS = (block_streams,)
        return clusters.clusters_for(field, legs, table, at_once=1)

    clusters.launch, clusters.plan = launch, plan
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=4)
    if name == "through_autograd":
        found, quiet = through_autograd(case, "cpu", seed), []
    else:
        found, quiet = errors(case, "cpu", seed), ["forward"]
    assert launched == [*quiet, "forward", "reverse", "columns"], launched
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(
            json.dumps(
                {n: emulated(n, *CASES[n], int(sys.argv[1]), Path(place)) for n in sys.argv[2:]}
            )
        )
