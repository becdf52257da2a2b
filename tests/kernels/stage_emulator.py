"""Solves stage by stage on a CPU, emulated.

Run as a program, with TRITON_INTERPRET=1 set, it prints the errors of the named cases as JSON.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from cuda_emulator import emulate
from gpu_cases import TINY, Case, errors

from onlinecde.kernels.gpu.hopper import stage_by_stage, stage_plan

SMOOTH = Case(observed=1.0, shape=TINY)
# Hidden units of a piece of work and warps of a thread block, and the case.
CASES = {
    "linear": (
        (16, 4),
        replace(SMOOTH, scheme="linear", hidden=20, channels=3, method="midpoint", lengths=(3, 2), steps=2),
    ),
    "cubic": (
        (32, 4),
        replace(SMOOTH, scheme="natural_cubic", counts=False, channels=4, depth=3, activation="softplus",
                hidden=20, lengths=(4, 2), every=2),
    ),
    "many_streams": (
        (16, 4),
        replace(SMOOTH, scheme="hermite", counts=False, channels=3, hidden=33, width=20, method="euler",
                lengths=(3,) * 49 + (2,) * 18, shape=TINY | {"rows": 128}),
    ),
    "wide": (
        (16, 4),
        replace(SMOOTH, scheme="linear", counts=False, hidden=20, width=130, depth=1,
                method="rk4", lengths=(3, 2), shape=TINY | {"deep": 64}),
    ),
    "high": ((32, 8), replace(SMOOTH, scheme="hermite", lengths=(3,) * 16, precision="high")),
}  # fmt: skip


def emulated(tiles: tuple[int, int], case: Case, seed: int, folder: Path) -> dict[str, float]:
    """Errors of a case against float64."""
    launched = []

    def launch(name, how, blocks, arguments, *, save=True, every=1, early=False):
        defines, threads = stage_plan.compiled_for(name, how, save, every)
        files = stage_plan.SOURCES[name]
        emulate(f"stage_{name}", files, defines, threads, blocks, arguments, folder)
        launched.append(name)

    def plan(field, legs, table, *, split, **_):
        assert stage_plan.not_covered(field, legs, split=split) is None
        units, warps = tiles
        how = stage_plan.stages_for(field, legs, table, programs=2, split=split)
        own = stage_plan.tiles_for(field, legs, units, warps, 1, 2)
        return replace(how, there=own, back=own, weights=(4, 1))

    stage_by_stage.launch, stage_plan.plan, stage_plan.WORTH = launch, plan, 0
    found = errors(case, "cpu", seed, capture=True)
    stages = launched.count("columns") // 2
    many = {name: launched.count(name) for name in stage_plan.SOURCES}
    assert many == {
        "next": 2 * stages + 2, "columns": 2 * stages, "back": stages + 1, "pull": stages, "weights": 1,
    }, launched  # fmt: skip
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(
            json.dumps(
                {n: emulated(*CASES[n], int(sys.argv[1]), Path(place)) for n in sys.argv[2:]}
            )
        )
