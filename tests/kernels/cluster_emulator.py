"""The cluster kernels on a CPU: their own source, compiled by g++ with primitives that emulate a GPU's.

Run as a program, with TRITON_INTERPRET=1 set, it prints the errors of the named cases as JSON.
"""

import ctypes
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from gpu_cases import TINY, Case, errors

from onlinecde.kernels.gpu import clusters, compiling

HERE = Path(__file__).parent
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
}  # fmt: skip


def built(name: str, defines: tuple[tuple[str, str], ...], folder: Path) -> ctypes.CDLL:
    """A kernel as a library with one function, `emulate(blocks, ...)`."""
    sources = ("cluster_tiles.cuh", f"cluster_{name}.cu")
    text = compiling.source_of(sources, (*defines, ("SHARED_BYTES", "232448")))
    memory = "extern __shared__ __align__(128) unsigned char memory[];"
    assert memory in text
    text = text.replace(memory, "unsigned char* memory = memories[now->block];")
    found = re.search(rf"cluster_{name}\((.*?)\) {{", text, re.S)
    assert found is not None
    parameters = [" ".join(one.split()) for one in found[1].split(",")]
    own = [one.rsplit(" ", 1)[1] for one in parameters]
    held = "".join(
        f"static {one.replace(n, 'held_' + n)};\n" for one, n in zip(parameters, own, strict=True)
    )
    text += (
        held + f"static void body() {{ cluster_{name}({', '.join('held_' + n for n in own)}); }}\n"
    )
    text += f'extern "C" void emulate(int blocks, {", ".join(parameters)}) {{\n'
    text += "".join(f"  held_{n} = {n};\n" for n in own) + "  run(blocks, body);\n}\n"
    source = folder / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}.cpp"
    library = source.with_suffix(".so")
    if not library.exists():
        source.write_text(f'#include "{HERE / "cluster_emulator.h"}"\n{text}')
        options = ("-O1", "-std=c++17", "-shared", "-fPIC", "-w", "-fno-strict-aliasing")
        subprocess.run(["g++", *options, "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


def emulated(
    name: str, block_streams: int, case: Case, seed: int, folder: Path
) -> dict[str, float]:
    """Errors of a case against float64 with all three kernels emulated."""
    launched = []

    def launch(name, how, save, blocks, arguments):
        library = built(name, (*how.defines, ("SAVE", str(int(save)))), folder)
        given = [
            ctypes.c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else ctypes.c_int(x)
            for x in arguments
        ]
        library.emulate(blocks, *given)
        launched.append(name)

    def plan(field, legs, table, **_):
        clusters.BLOCK_STREAMS = (block_streams,)
        return clusters.clusters_for(field, legs, table, at_once=1)

    clusters.launch, clusters.plan = launch, plan
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=4)
    found = errors(case, "cpu", seed)
    assert launched == ["forward", "forward", "reverse", "columns"], launched
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(
            json.dumps(
                {n: emulated(n, *CASES[n], int(sys.argv[1]), Path(place)) for n in sys.argv[2:]}
            )
        )
