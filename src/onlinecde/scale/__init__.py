"""More than one machine: `scale.spark` for live streams and bulk scoring, `scale.ray` for training and search.

Each needs its extra (`pip install "onlinecde[spark]"`, `"onlinecde[ray]"`) and is imported when first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onlinecde.scale import ray, spark

__all__ = ["ray", "spark"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
