"""Who shares this machine: as many processes as whoever started them said."""

from __future__ import annotations

import os
from pathlib import Path

SIDE_BY_SIDE = "ONLINECDE_SIDE_BY_SIDE"
"""The variable that tells a process how many work on the machine at once: times depend on it."""


def side_by_side() -> int:
    """How many processes work on this machine at once, this one among them."""
    return max(1, int(os.environ.get(SIDE_BY_SIDE, "1")))


def on_the_gpu() -> int:
    """How many of them a GPU runs at the same time: all where NVIDIA's MPS is at work, else one."""
    if (processes := side_by_side()) == 1:
        return 1  # asked before every solve: no look at files for nothing
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return processes if (pipes / "control").exists() else 1
