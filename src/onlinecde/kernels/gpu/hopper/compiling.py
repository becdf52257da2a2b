"""CUDA C++ compiled while the program runs, by the NVRTC that comes with torch; no compiler need be installed."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from onlinecde.files import cache_folder

LARGEST_SHARED = 232_448
"""Bytes of shared memory a thread block of compute capability 9 may ask for."""
_SHARED_ATTRIBUTE = 8


class CompileError(RuntimeError):
    """A kernel could not be compiled or loaded; the message says why."""


@dataclass(frozen=True)
class Kernel:
    """A kernel on one device."""

    function: ctypes.c_void_p
    threads: int
    shared: int
    """Bytes of shared memory of a thread block"""

    def launch(self, blocks: int, arguments: tuple[Tensor | int, ...]) -> None:
        """Run it on the current stream; tensors are handed over as addresses, numbers as int32."""
        values = [
            ctypes.c_void_p(x.data_ptr()) if isinstance(x, Tensor) else ctypes.c_int(x)
            for x in arguments
        ]
        places = (ctypes.c_void_p * len(values))(*[ctypes.addressof(x) for x in values])
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        size = _Launch(blocks, 1, 1, self.threads, 1, 1, self.shared, stream, None, 0)
        _done(_driver().cuLaunchKernelEx(ctypes.byref(size), self.function, places, None))


@lru_cache(maxsize=256)
def kernel(
    name: str, sources: tuple[str, ...], defines: tuple[tuple[str, str], ...], threads: int,
    shared: int, device: int,
) -> Kernel:  # fmt: skip
    """The kernel `name` from this folder's files, compiled for a device's own architecture, and kept.

    It must be called with that device current.
    """
    major, minor = torch.cuda.get_device_capability(device)
    defines = (*defines, ("SHARED_BYTES", str(shared)))
    image = kept(source_of(sources, defines), f"sm_{major}{minor}")
    driver = _driver()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    # The driver needs a context: any work of torch on the device makes one.
    torch.cuda.current_stream(device).synchronize()
    _done(driver.cuModuleLoadData(ctypes.byref(module), image))
    _done(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    _done(driver.cuFuncSetAttribute(function, _SHARED_ATTRIBUTE, shared))
    return Kernel(function, threads, shared)


def source_of(sources: tuple[str, ...], defines: tuple[tuple[str, str], ...]) -> str:
    """The files in their order, with the sizes they are compiled for before them."""
    folder = files("onlinecde.kernels.gpu.hopper")
    head = "".join(f"#define {name} {value}\n" for name, value in defines)
    return head + "\n".join((folder / name).read_text() for name in sources)


def kept(source: str, architecture: str) -> bytes:
    """`compiled`, once: machine code is kept in the user's cache folder, where there can be one."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc = _nvrtc()
    _compiled(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    words = f"{major.value}.{minor.value} {architecture}\n{source}"
    name = hashlib.sha256(words.encode()).hexdigest() + ".cubin"
    path = cache_folder() / "kernels" / name
    with contextlib.suppress(OSError):
        return path.read_bytes()
    image = compiled(source, architecture)
    # Without such a folder, or room in it, the next process compiles anew.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(image)
        Path(file.name).replace(path)
    return image


def compiled(source: str, architecture: str) -> bytes:
    """Machine code of a source for an architecture such as `sm_90`; needs no GPU."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    _compiled(
        nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"", 0, None, None)
    )
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture={architecture}".encode(), b"-std=c++17")
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if failed:
            log = _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise CompileError(f"NVRTC does not compile the kernel: {log.strip()[:2000]}")
        return _read(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _compiled(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    _compiled(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, room))
    return room.raw


@lru_cache(maxsize=1)
def _nvrtc() -> ctypes.CDLL:
    """The NVRTC that torch was installed with, or else one on the library path."""
    major = (torch.version.cuda or "13").split(".")[0]
    name = f"libnvrtc.so.{major}"
    beside = Path(torch.__file__).parent.parent / "nvidia"
    folders = (beside / f"cu{major}" / "lib", beside / "cuda_nvrtc" / "lib")
    files = [folder / name for folder in folders if (folder / name).exists()]
    for path in (*files, Path(name)):
        try:
            # NVRTC looks for its builtins by name alone: once loaded they are found.
            for builtins in path.parent.glob("libnvrtc-builtins.so*") if path.is_absolute() else ():
                ctypes.CDLL(str(builtins))
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    raise CompileError(f"there is no {name}, neither beside torch nor on the library path")


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CompileError("there is no libcuda.so.1") from error


def _compiled(nvrtc: ctypes.CDLL, status: int) -> None:
    if status:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompileError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status).decode()}")


def _done(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        words = text.value.decode() if text.value else f"error {status}"
        raise CompileError(f"CUDA: {words}")


class _Attribute(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16),
    ]  # fmt: skip


class _Launch(ctypes.Structure):
    _fields_ = [
        *((f"size{i}", ctypes.c_uint) for i in range(6)),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("number", ctypes.c_uint),
    ]


@lru_cache(maxsize=16)
def clusters_at_once(blocks: int, threads: int, device: int) -> int:
    """The number of clusters that a device runs at a time, one thread block a multiprocessor."""
    probe = 'extern "C" __global__ void probe() {}'
    major, minor = torch.cuda.get_device_capability(device)
    driver = _driver()
    module, function, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    torch.cuda.current_stream(device).synchronize()
    _done(driver.cuModuleLoadData(ctypes.byref(module), compiled(probe, f"sm_{major}{minor}")))
    _done(driver.cuModuleGetFunction(ctypes.byref(function), module, b"probe"))
    _done(driver.cuFuncSetAttribute(function, _SHARED_ATTRIBUTE, LARGEST_SHARED))
    # 4: the attribute that gives the size of a cluster.
    size = _Attribute(4, 0, (ctypes.c_uint * 16)(blocks, 1, 1))
    launch = _Launch(blocks, 1, 1, threads, 1, 1, LARGEST_SHARED, None, ctypes.pointer(size), 1)
    _done(driver.cuOccupancyMaxActiveClusters(ctypes.byref(count), function, ctypes.byref(launch)))
    return count.value
