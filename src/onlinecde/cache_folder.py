"""Where this user's prepared data and compiled kernels are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$ONLINECDE_CACHE`, else `onlinecde` in the user's cache folder."""
    if chosen := os.environ.get("ONLINECDE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onlinecde"
