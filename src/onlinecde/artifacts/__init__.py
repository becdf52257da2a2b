"""A model as a folder: safetensors and a JSON manifest, written atomically; no pickle anywhere."""

from onlinecde.artifacts.folders import ArtifactError
from onlinecde.artifacts.saved_model import (
    MANIFEST,
    WEIGHTS,
    Manifest,
    load,
    pack,
    read_manifest,
    save,
    save_alarm_policy,
    unpack,
)

__all__ = [
    "MANIFEST",
    "WEIGHTS",
    "ArtifactError",
    "Manifest",
    "load",
    "pack",
    "read_manifest",
    "save",
    "save_alarm_policy",
    "unpack",
]
