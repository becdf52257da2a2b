"""Which model is served: its weights, its settings, its channels' names, and a hash of them all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from safetensors.torch import save as write_tensors

from onlinecde.artifacts import load, read_manifest
from onlinecde.controls import Measurability
from onlinecde.models import OnlineModel
from onlinecde.series import Schema
from onlinecde.streaming.errors import StreamingError


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model ready to follow streams."""

    model: OnlineModel
    channels: tuple[str, ...]
    units: tuple[str, ...] | None
    hash: str
    schema: Schema
    """Names of its channels, as above, and of its static features"""


def served_model(
    model: OnlineModel | str | os.PathLike[str], channels: Sequence[str] | None = None
) -> ServedModel:
    """A model that can follow streams, as `named_model` finds it; one that cannot is refused."""
    found = named_model(model, channels)
    if found.model.measurability is Measurability.OFFLINE:
        raise StreamingError(
            "this model needs the whole series (its control is natural_cubic), so it cannot follow "
            "streams: train one with control='rectilinear'.",
            "model_offline",
        )
    return found


def named_model(
    model: OnlineModel | str | os.PathLike[str], channels: Sequence[str] | None = None
) -> ServedModel:
    """A folder that `save` wrote, or a model with names for its channels; the same model, the same hash.

    Channels without names are called by their positions: "0", "1", ...; static features are not called anything.
    """
    units = None
    if isinstance(model, OnlineModel):
        held = {k: v.detach().cpu().clone().contiguous() for k, v in model.state_dict().items()}
        weights = hashlib.sha256(write_tensors(held)).hexdigest()
        config, kind = getattr(model, "config", {}), type(model).__name__
        loaded = model.eval()
    else:
        manifest = read_manifest(model)
        loaded = load(model)
        weights, config, kind = manifest.sha256, manifest.config, manifest.model
        units = manifest.units
    schema = loaded.schema or Schema(())
    if channels is None and schema.channels:
        channels = schema.channels
    names = tuple(
        channels if channels is not None else (str(number) for number in range(loaded.channels))
    )
    if len(names) != loaded.channels or len(set(names)) != len(names):
        raise StreamingError(
            f"{len(set(names))} different names for {loaded.channels} channels: give one for each.",
            "channels_bad",
        )
    schema = replace(schema, channels=names)
    return ServedModel(loaded, names, units, _hash(kind, config, weights, names), schema)


def _hash(kind: str, config: dict[str, Any], weights: str, channels: Sequence[str]) -> str:
    told = {"model": kind, "config": config, "weights": weights, "channels": list(channels)}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
