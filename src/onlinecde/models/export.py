"""The online step as `torch.export` programs, for places where this package is not installed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from onlinecde.models import online
from onlinecde.models.neural_cde import NeuralCDE
from onlinecde.models.state import CDEState


@dataclass(frozen=True)
class OnlinePrograms:
    """`observe(*state, t, x) -> state` and `predict(*state, t) -> outputs`, for any number of streams.

    A state is its tensors in the order of `CDEState`'s fields, static features and stamps only where
    the model has them; t is (stream,) float64. Nothing is checked inside: bad input is the caller's.
    """

    observe: ExportedProgram
    predict: ExportedProgram


def export_online(model: NeuralCDE) -> OnlinePrograms:
    """Export the online step of a model with a dynamic number of streams.

    >>> programs = export_online(NeuralCDE(channels=2, hidden=4))  # doctest: +SKIP
    >>> torch.export.save(programs.observe, "observe.pt2")  # doctest: +SKIP
    """
    if model.solver.max_step is not None or model.solver.tolerance is not None:
        raise ValueError(
            "an exported step has a fixed number of steps: build the model with `steps`, without "
            "max_step, rtol and atol."
        )
    static = None if model.static == 0 else torch.zeros(2, model.static, dtype=model.dtype)
    with torch.no_grad():
        state = model.init_state(2, static)
        clock = torch.arange(2, dtype=torch.float64, device=model.device)
        x = torch.zeros(2, model.channels, dtype=model.dtype, device=model.device)
        stream = Dim("stream", min=1)
        # A fresh state holds some tensors twice, which export would take for one input.
        held = tuple(tensor.clone() for tensor in _tensors(state))
        return OnlinePrograms(
            torch.export.export(
                _Observe(model), (*held, clock, x), dynamic_shapes=_dynamic(len(held) + 2, stream)
            ),
            torch.export.export(
                _Predict(model), (*held, clock), dynamic_shapes=_dynamic(len(held) + 1, stream)
            ),
        )


def _dynamic(count: int, stream: Dim) -> tuple[tuple[dict[int, Dim], ...]]:
    return (tuple({0: stream} for _ in range(count)),)


def _tensors(state: CDEState) -> tuple[Tensor, ...]:
    held = (getattr(state, f.name) for f in fields(state))
    return tuple(tensor for tensor in held if tensor is not None)


def _state(tensors: tuple[Tensor, ...], model: NeuralCDE) -> CDEState:
    absent = {"static": model.static == 0, "stamps": not getattr(model.readout, "sees_ages", False)}
    names = [f.name for f in fields(CDEState) if not absent.get(f.name)]
    held: dict[str, Any] = {**dict.fromkeys(absent), **dict(zip(names, tensors, strict=True))}
    return CDEState(**held)


class _Observe(nn.Module):
    def __init__(self, model: NeuralCDE) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        *held, clock, x = tensors
        state = _state(tuple(held), self.model)
        return _tensors(online.take(self.model, state, clock, online.scale(self.model, x)))


class _Predict(nn.Module):
    def __init__(self, model: NeuralCDE) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> Tensor:
        *held, clock = tensors
        return online.answer(self.model, _state(tuple(held), self.model), clock)
