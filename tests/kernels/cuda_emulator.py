"""CUDA kernels on a CPU: their own source, compiled by g++ with primitives that emulate a GPU's."""

import ctypes
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import torch

from onlinecde.kernels.gpu.hopper import compiling

HEADER = Path(__file__).parent / "cuda_emulator.h"


def emulate(
    name: str, files: tuple[str, ...], defines: tuple[tuple[str, str], ...], threads: int,
    blocks: int, arguments: tuple, folder: Path,
) -> None:  # fmt: skip
    """Run kernel `name` of these files in thread blocks of so many threads; libraries are kept in `folder`."""
    given = [
        ctypes.c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else ctypes.c_int(x)
        for x in arguments
    ]
    _built(name, files, defines, folder).emulate(threads, blocks, *given)


def _built(
    name: str, files: tuple[str, ...], defines: tuple[tuple[str, str], ...], folder: Path
) -> ctypes.CDLL:
    """A kernel as a library with one function, `emulate(threads, blocks, ...)`."""
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
    text += f'extern "C" void emulate(int threads, int blocks, {", ".join(parameters)}) {{\n'
    text += "".join(f"  held_{n} = {n};\n" for n in own) + "  run(threads, blocks, body);\n}\n"
    source = folder / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}.cpp"
    library = source.with_suffix(".so")
    if not library.exists():
        source.write_text(f'#include "{HEADER.name}"\n{text}')
        _compile("-I", _header(folder), "-shared", "-o", library, source)
    return ctypes.CDLL(str(library))


def _header(folder: Path) -> Path:
    """A folder with the emulator's header compiled, which takes longer than any kernel."""
    place = folder / "header"
    if not place.exists():
        place.mkdir()
        shutil.copy(HEADER, place)
        _compile("-x", "c++-header", place / HEADER.name)
    return place


def _compile(*words: str | Path) -> None:
    options = ("-O1", "-std=c++17", "-fPIC", "-w", "-fno-strict-aliasing")
    subprocess.run(["g++", *options, *words], check=True)
