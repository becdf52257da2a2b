"""A `NeuralCDE` from flat settings: those of the command line, of experiment tables and of folders 0.1 wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import nn

from onlinecde.controls.encoding import CountScale
from onlinecde.models import MODELS, OnlineModel
from onlinecde.models.base import arguments
from onlinecde.models.neural_cde import Control, NeuralCDE
from onlinecde.models.readout import Kind
from onlinecde.solvers.fields import Activation

PLACES = {
    "gain": ("encoding", "gain"),
    "clip": ("encoding", "clip"),
    "count_scale": ("encoding", "count_scale"),
    "count_gain": ("encoding", "count_gain"),
    "bounded": ("encoding", "bounded"),
    "static_in_path": ("encoding", "static_in_path"),
    "width": ("field", "width"),
    "depth": ("field", "depth"),
    "activation": ("field", "activation"),
    "field_sees_path": ("field", "sees_path"),
    "rank": ("field", "rank"),
    "restoring": ("field", "restoring"),
    "kind": ("readout", "kind"),
    "readout_sees_path": ("readout", "sees_path"),
    "readout_ramps": ("readout", "ramps"),
    "readout_width": ("readout", "width"),
    "readout_dropout": ("readout", "dropout"),
    "readout_members": ("readout", "members"),
    "readout_steps": ("readout", "steps"),
    "readout_direct": ("readout", "direct"),
    "method": ("solver", "method"),
    "steps": ("solver", "steps"),
    "max_step": ("solver", "max_step"),
    "rtol": ("solver", "rtol"),
    "atol": ("solver", "atol"),
    "step_control": ("solver", "step_control"),
    "max_steps": ("solver", "max_steps"),
    "gradient": ("solver", "gradient"),
    "backend": ("solver", "backend"),
    "precision": ("solver", "precision"),
}
"""Which part each setting belongs to, and what it is called there; all others are the model's own."""


def maker(name: str) -> Callable[..., OnlineModel]:
    """What builds a model of one of `MODELS` from flat settings."""
    return neural_cde if name == "NeuralCDE" else MODELS[name]


def parts_of(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `NeuralCDE` from flat settings.

    >>> parts_of({"channels": 2, "width": 32, "readout_width": 8})
    {'channels': 2, 'field': {'width': 32}, 'readout': {'width': 8}}
    """
    arguments: dict[str, Any] = {}
    for name, value in flat.items():
        if name in PLACES:
            part, setting = PLACES[name]
            arguments.setdefault(part, {})[setting] = value
        else:
            arguments[name] = value
    return arguments


def present_config(kind: type[nn.Module], config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a model's class from the config of a folder of any version."""
    flat = issubclass(kind, NeuralCDE) and not PLACES.keys().isdisjoint(config)
    return parts_of(config) if flat else dict(config)


def flat_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The flat settings of a model's `config`, as 0.1 wrote them; a module of one's own stays in its part's place."""
    flat: dict[str, Any] = {}
    for name, (part, setting) in PLACES.items():
        if isinstance(config.get(part), Mapping) and setting in config[part]:
            flat[name] = config[part][setting]
    parts = {part for part, _ in PLACES.values()}
    flat |= {
        name: value
        for name, value in config.items()
        if name not in parts or (isinstance(value, Mapping) and "class" in value)
    }
    for name, usual in (("bounded", False), ("initial", None), ("readout_direct", False)):
        if name in flat and flat[name] == usual:
            del flat[name]
    return flat


def neural_cde(
    channels: int,
    hidden: int = 64,
    width: int = 64,
    depth: int = 2,
    outputs: int = 1,
    control: Control = "rectilinear",
    counts: bool = True,
    static: int = 0,
    *,
    kind: Kind = "regression",
    activation: Activation = "relu",
    field_sees_path: bool = False,
    rank: int | None = None,
    restoring: float = 0.0,
    readout_sees_path: bool = False,
    static_in_path: bool = False,
    readout_ramps: int = 0,
    readout_width: int | None = None,
    readout_dropout: float = 0.0,
    readout_members: int = 1,
    readout_steps: int = 0,
    readout_direct: bool = False,
    channel_dropout: float = 0.0,
    gain: float = 1.0,
    clip: float | None = None,
    count_scale: CountScale = "linear",
    count_gain: float = 1.0,
    bounded: bool = False,
    method: str = "rk4",
    steps: int = 1,
    max_step: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    step_control: Literal["stream", "batch"] = "stream",
    max_steps: int = 10_000,
    gradient: Literal["exact", "backprop", "adjoint"] = "exact",
    backend: Literal["auto", "torch", "cpu", "gpu"] = "auto",
    precision: Literal["highest", "high"] = "highest",
) -> NeuralCDE:
    """A `NeuralCDE` from flat settings, each of which belongs to one of its parts (`PLACES`)."""
    return NeuralCDE(**parts_of(arguments(locals())))
