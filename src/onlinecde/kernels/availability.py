"""Can the fused kernels run here? Answered without importing what they need."""

from importlib.util import find_spec


def cpu_unavailable() -> str | None:
    """The reason in words why `onlinecde.kernels.cpu` cannot be used here, or None when it can."""
    if find_spec("numba") is None:
        return "numba is not installed (pip install numba)"
    return None
