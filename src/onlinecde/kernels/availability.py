"""Can the fused kernels run here? Answered without importing what they need."""

import os
from importlib.util import find_spec

import torch


def cpu_unavailable() -> str | None:
    """The reason in words why `onlinecde.kernels.cpu` cannot be used here, or None when it can."""
    if find_spec("numba") is None:
        return "numba is not installed (pip install numba)"
    return None


def gpu_unavailable(device: torch.device | str = "cuda") -> str | None:
    """The reason in words why `onlinecde.kernels.gpu` cannot be used on a device, or None when it can."""
    if find_spec("triton") is None:
        return "triton is not installed (pip install triton)"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if torch.version.hip is not None:
        return "the kernels are written for NVIDIA GPUs"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        name = torch.cuda.get_device_name(device)
        return f"{name} has compute capability {major}.{minor}; the kernels need 8.0 or later"
    return None
