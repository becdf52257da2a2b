"""A training in one file: tensors and facts, replaced in one move, never a pickle."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors
from torch import Tensor

from onlinecde.files import replace_file
from onlinecde.training.settings import FitError

FORMAT = "onlinecde training 1"
_LARGEST_HEADER = 1 << 26


def write_checkpoint(file: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and facts (anything JSON); whoever looks finds the old file or the new one."""
    held = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    data = write_tensors(held, {"format": FORMAT, "facts": json.dumps(facts)})
    try:
        replace_file(file, data)
    except OSError as error:
        raise FitError(
            f"{file} cannot be written ({error}): make room; the same run then goes on from its last "
            "checkpoint."
        ) from error


def read_checkpoint(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and facts of a checkpoint; None where there is none."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        size = struct.unpack("<Q", data[:8])[0]
        if size > min(_LARGEST_HEADER, len(data)):
            raise ValueError("its header is longer than it is")
        about = json.loads(data[8 : 8 + size])["__metadata__"]
        if about.get("format") != FORMAT:
            raise ValueError(f"it says {about.get('format')!r}, not {FORMAT!r}")
        return read_tensors(data), json.loads(about["facts"])
    except Exception as error:  # safetensors, json and struct each raise their own
        raise FitError(
            f"{file} is not a checkpoint that can be read ({error}): delete it to start anew."
        ) from error


def pack_optimiser(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimiser remembers of each weight, by name."""
    held = optimiser.state_dict()["state"]
    return {
        f"optimiser.{index}.{name}": torch.as_tensor(value)
        for index, entry in held.items()
        for name, value in entry.items()
    }


def unpack_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give an optimiser back what it remembered; learning rates are the caller's to set."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})
