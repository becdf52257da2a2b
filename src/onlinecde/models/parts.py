"""The parts of a `NeuralCDE`: from settings or the user's own modules, and their records in a saved model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from onlinecde.controls import Encoding
from onlinecde.models.readout import Readout
from onlinecde.solvers import MLPField, Solver

Part = Mapping[str, Any] | nn.Module | None
"""Settings of the usual part, a module of one's own, or None for the usual settings"""


def recorded(given: Any) -> Any:
    """A setting as JSON can hold it: of a module its class's name, and its `config` where it has one."""
    if isinstance(given, nn.Module):
        config = recorded(getattr(given, "config", {}))
        return {"class": type(given).__name__, "config": config}
    if isinstance(given, Mapping):
        return {name: recorded(value) for name, value in given.items()}
    return given


def make_encoding(given: Part, channels: int, static: int, counts: bool) -> tuple[Encoding, Any]:
    """The encoding of a model, and its record. The functions below return such pairs too."""
    if isinstance(given, nn.Module):
        if not isinstance(given, Encoding):
            raise TypeError(f"encoding is a {type(given).__name__}: give an `Encoding`.")
        if (given.channels, given.counts) != (channels, counts):
            raise ValueError(
                f"the encoding has {given.channels} channels and counts={given.counts}, the model {channels} and "
                f"counts={counts}: give both the same."
            )
        if given.static not in (0, static):
            raise ValueError(
                f"the encoding has {given.static} static features and the model {static}: give both the same, or the "
                "encoding none."
            )
        return given, recorded(given)
    chosen = _chosen("encoding", given, Encoding, ("channels", "counts", "static"), static_in_path=False)  # fmt: skip
    record = recorded(chosen)
    in_path = chosen.pop("static_in_path")
    if in_path and static < 1:
        raise ValueError("static_in_path is for static features, and static is 0: leave it out.")
    return Encoding(channels, counts, static=static if in_path else 0, **chosen), record


def make_field(given: Part, hidden: int, encoding: Encoding) -> tuple[Any, Any]:
    """The field of a model whose path this encoding gives; with `restoring`, z is at first pulled back to 0.

    It is pulled along channels that only grow, time and counts, at that rate.
    """
    if isinstance(given, nn.Module):
        return given, recorded(given)
    chosen = _chosen("field", given, MLPField, ("hidden", "channels", "bounded_counts"), restoring=0.0)  # fmt: skip
    record = recorded(chosen)
    rate = chosen.pop("restoring")
    if not 0 <= rate < float("inf"):
        raise ValueError(f"restoring is {rate}: give a rate of 0 or more.")
    field = MLPField(
        hidden, encoding.path_channels, bounded_counts=encoding.bounded_counts, **chosen
    )
    if rate:
        grow = range(1 + encoding.value_channels, encoding.path_channels)
        field.start_restoring([0, *grow], rate)
    return field, record


def make_readout(given: Part, hidden: int, outputs: int, encoding: Encoding) -> tuple[Readout, Any]:
    """The readout of a model whose path this encoding gives; a module of one's own becomes its layers."""
    if isinstance(given, Readout):
        return given, recorded(given)
    if isinstance(given, nn.Module):
        own = {"layers": given, "kind": getattr(given, "kind", "regression")}
        given = {**own, "sees_path": getattr(given, "sees_path", False)}
    taken = ("hidden", "outputs", "path_channels", "channels")
    chosen = _chosen("readout", given, Readout, taken, sees_path=False)
    record = recorded(chosen)
    if chosen["dropout"] and chosen["width"] is None:
        raise ValueError("the readout's dropout is for an MLP: give it a width too.")
    path_channels = encoding.path_channels if chosen.pop("sees_path") else 0
    readout = Readout(
        hidden, outputs, path_channels=path_channels, channels=encoding.channels, **chosen
    )
    return readout, record


def make_solver(given: Mapping[str, Any] | Solver | None, control: str) -> tuple[Solver, Any]:
    """The solver of a model with this control."""
    chosen = _chosen("solver", asdict(given) if isinstance(given, Solver) else given, Solver, ())
    if chosen["max_step"] is not None and control != "rectilinear":
        raise ValueError(
            "max_step limits steps on time legs, which only the rectilinear control has: give steps= instead."
        )
    return Solver(**chosen), recorded(chosen)


def _chosen(
    part: str, given: Any, usual: Callable[..., Any], taken: Collection[str], **more: Any
) -> dict[str, Any]:
    """Settings of a part, those not given as they usually are; `taken` are the model's to say."""
    parameters = inspect.signature(usual).parameters
    usually = {n: p.default for n, p in parameters.items() if n not in taken} | more
    if not isinstance(given, Mapping | None):
        raise TypeError(
            f"{part} is a {type(given).__name__}: give a module, settings by name, or None."
        )
    for name in given or {}:
        if name not in usually:
            raise TypeError(f"{part} has no setting {name!r}: it has {', '.join(usually)}.")
    return {**usually, **(given or {})}
