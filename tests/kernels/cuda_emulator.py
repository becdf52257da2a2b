"""CUDA kernels on a CPU: their own source, compiled by g++ with primitives that emulate a GPU's."""

import ctypes
import hashlib
import re
import subprocess
from pathlib import Path

import torch

from onlinecde.kernels.gpu import compiling

HERE = Path(__file__).parent


def emulate(
    name: str, files: tuple[str, ...], defines: tuple[tuple[str, str], ...], threads: int,
    blocks: int, arguments: tuple, folder: Path,
) -> None:  # fmt: skip
    """Run kernel `name` of these files in thread blocks of so many threads; libraries are kept in `folder`."""
    given = [
        ctypes.c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else ctypes.c_int(x)
        for x in arguments
    ]
    _built(name, files, defines, threads, folder).emulate(blocks, *given)


def _built(
    name: str, files: tuple[str, ...], defines: tuple[tuple[str, str], ...], threads: int, folder: Path
) -> ctypes.CDLL:  # fmt: skip
    """A kernel as a library with one function, `emulate(blocks, ...)`."""
    text = compiling.source_of(files, (*defines, ("SHARED_BYTES", "232448")))
    memory = "extern __shared__ __align__(128) unsigned char memory[];"
    assert memory in text
    text = text.replace(memory, "unsigned char* memory = memories[now->block];")
    found = re.search(rf"{name}\((.*?)\) {{", text, re.S)
    assert found is not None
    parameters = [" ".join(one.split()) for one in found[1].split(",")]
    own = [one.rsplit(" ", 1)[1] for one in parameters]
    held = "".join(
        f"static {one.replace(n, 'held_' + n)};\n" for one, n in zip(parameters, own, strict=True)
    )
    text += held + f"static void body() {{ {name}({', '.join('held_' + n for n in own)}); }}\n"
    text += f'extern "C" void emulate(int blocks, {", ".join(parameters)}) {{\n'
    text += "".join(f"  held_{n} = {n};\n" for n in own) + "  run(blocks, body);\n}\n"
    text = f'const int BLOCK_THREADS = {threads};\n#include "{HERE / "cuda_emulator.h"}"\n{text}'
    source = folder / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}.cpp"
    library = source.with_suffix(".so")
    if not library.exists():
        source.write_text(text)
        options = ("-O1", "-std=c++17", "-shared", "-fPIC", "-w", "-fno-strict-aliasing")
        subprocess.run(["g++", *options, "-o", library, source], check=True)
    return ctypes.CDLL(str(library))
