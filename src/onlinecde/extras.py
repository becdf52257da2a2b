"""Optional dependencies: which extra brings which package, and the error that says so when one is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import Any

EXTRAS = {
    "duckdb": "data",
    "polars": "data",
    "jinja2": "report",
    "matplotlib": "report",
    "rich": "cli",
    "tensorboardX": "cli",
    "typer": "cli",
    "fastapi": "serve",
    "httptools": "serve",
    "httpx": "serve",
    "orjson": "serve",
    "prometheus_client": "serve",
    "pydantic": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "websockets": "serve",
    "optuna": "tune",
    "scipy": "tune",
    "lightgbm": "trees",
    "sklearn": "sklearn",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "pyspark": "spark",
    "pandas": "spark",
    "ray": "ray",
}
"""The extra that installs a package, by the name it is imported under."""


class MissingExtra:
    """Last finder of the import system: names the extra where this package imports what is not installed.

    It is asked only after every other finder, and answers only imports written in `onlinecde` itself, so
    that other packages see the import system as it is. The error is a `ModuleNotFoundError`, as without it.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        """None, or raises the error that names the extra."""
        extra = EXTRAS.get(name)
        if extra is None or not _imported_here():
            return None
        raise ModuleNotFoundError(
            f"this part of onlinecde needs the package {name!r}, which is not installed: "
            f"pip install 'onlinecde[{extra}]' (everything: 'onlinecde[all]').",
            name=name,
        )


def _imported_here() -> bool:
    """Whether the import statement being carried out stands in this package."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib._"):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("onlinecde.")


def install() -> None:
    """Put the finder behind all others, once."""
    if MissingExtra not in sys.meta_path:
        sys.meta_path.append(MissingExtra)
