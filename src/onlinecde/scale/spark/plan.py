"""What a worker receives: plain settings, and the model, which it loads itself."""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from onlinecde.scale.spark.columns import SparkError

if TYPE_CHECKING:
    from onlinecde.streaming.served import ServedModel


@dataclass(frozen=True)
class Plan:
    """Settings of a job: those of an `Engine`, and how streams are distributed."""

    folder: str
    model_hash: str
    lateness: float = 0.0
    horizon: float | None = None
    ahead: float | None = None
    checkpoint_rows: int = 16
    buckets: int = 32
    pages: int = 64
    every: float | None = None
    rate: float = 1.0
    silent_after: float = float("inf")
    forget_after: float | None = None

    @property
    def layout(self) -> dict[str, object]:
        """What states in a checkpoint are bound to."""
        content = asdict(self)
        return {name: content[name] for name in ("model_hash", "buckets", "pages", "every", "rate")}

    def check(self) -> None:
        """Raise SparkError for settings that no job can have."""
        for name in ("buckets", "pages"):
            if getattr(self, name) < 1:
                raise SparkError(f"{name} is {getattr(self, name)}: give at least 1.")
        for name in ("every", "rate", "silent_after", "forget_after"):
            content = getattr(self, name)
            if content is not None and not content > 0:
                raise SparkError(f"{name} is {content}: give a positive number.")


def manifest_folder(folder: str) -> Path:
    """The model's folder: where it was said to be, or among the files sent with `SparkContext.addFile`."""
    home = Path(folder)
    if not home.is_dir():
        from pyspark import SparkFiles

        sent = Path(SparkFiles.get(home.name))
        if sent.is_dir():
            return sent
    return home


@lru_cache(maxsize=4)
def model_here(folder: str, model_hash: str) -> ServedModel:
    """The model on this machine, loaded once a process; SparkError where it is missing or another."""
    import torch

    from onlinecde.streaming.served import named_model

    torch.set_num_threads(1)
    where = f"on worker {socket.gethostname()}, model folder {folder}"
    try:
        result = named_model(manifest_folder(folder))
    except ValueError as error:
        raise SparkError(
            f"{where}: {error} Put the folder where every worker sees it, or send it with "
            "spark.sparkContext.addFile(folder, recursive=True)."
        ) from error
    if result.hash != model_hash:
        raise SparkError(
            f"{where}: it holds model {result.hash[:12]}, the job was started with {model_hash[:12]}: "
            "give every worker the same folder, and a new model a new folder."
        )
    return result
