"""The online step as `torch.export` programs, for places where this package is not installed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from onlinecde.models import online
from onlinecde.models.base import OnlineModel
from onlinecde.models.neural_cde import NeuralCDE
from onlinecde.models.recurrent.gru import StackedGRU
from onlinecde.models.recurrent.gru_d import GRUD
from onlinecde.models.recurrent.recurrent_model import RecurrentModel, RecurrentState, Rows
from onlinecde.models.state import CDEState, merge


@dataclass(frozen=True)
class OnlinePrograms:
    """The online model as three functions of tensors, for any number of streams.

    `init(static) -> state`, `observe(*state, t, x) -> state`, `predict(*state, t) -> outputs`, where asked for with
    probabilities behind them. A state is its tensors in the order of `state`; t is (stream,) float64; `init` of a model
    without static features takes any (stream,) float64 in their place. Nothing is checked inside: bad input is the
    caller's.
    """

    init: ExportedProgram
    observe: ExportedProgram
    predict: ExportedProgram
    state: tuple[str, ...]
    """Names of a state's tensors"""


def export_online(model: OnlineModel, *, probabilities: bool = False) -> OnlinePrograms:
    """Export the online step of a Neural CDE, a GRU or a GRU-D with a dynamic number of streams.

    Args:
        model: in whatever mode; its outputs in eval mode are exported.
        probabilities: whether `predict` gives (outputs, probabilities) instead of outputs.

    Returns:
        The programs.

    Raises:
        ValueError: the model has no online step of a fixed shape; the message says why.

    >>> programs = export_online(NeuralCDE(channels=2, hidden=4))  # doctest: +SKIP
    >>> torch.export.save(programs.observe, "observe.pt2")  # doctest: +SKIP
    """
    _check(model)
    static = torch.zeros(2, model.static, dtype=model.dtype, device=model.device)
    clock = torch.arange(2, dtype=torch.float64, device=model.device)
    x = torch.zeros(2, model.channels, dtype=model.dtype, device=model.device)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            state = model.init_state(2, static if model.static else None)
            names = tuple(f.name for f in fields(state) if getattr(state, f.name) is not None)
            # A fresh state holds some tensors twice, which export would take for one input.
            parts = tuple(getattr(state, name).clone() for name in names)
            return OnlinePrograms(
                _exported(_Init(model, names), (static if model.static else clock,)),
                _exported(_Observe(model, names), (*parts, clock, x)),
                _exported(_Predict(model, names, probabilities), (*parts, clock)),
                names,
            )
    finally:
        model.train(was_training)


def _check(model: OnlineModel) -> None:
    if isinstance(model, NeuralCDE):
        if model.solver.max_step is not None or model.solver.tolerance is not None:
            raise ValueError(
                "an exported step has a fixed number of steps: build the model with `steps`, without "
                "max_step, rtol and atol."
            )
    elif not isinstance(model, StackedGRU | GRUD):
        raise ValueError(
            f"{type(model).__name__} has no exported step: Neural CDEs, GRUs and GRU-D have one."
        )


def _exported(module: nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    stream = Dim("stream", min=1)
    shapes = (tuple({0: stream} for _ in inputs),)
    return torch.export.export(module, inputs, dynamic_shapes=shapes)


class _Step(nn.Module):
    """A function of a state's tensors."""

    def __init__(self, model: OnlineModel, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def state(self, tensors: tuple[Tensor, ...]) -> Any:
        kind = CDEState if isinstance(self.model, NeuralCDE) else RecurrentState
        parts = dict(zip(self.names, tensors, strict=True))
        return kind(**{f.name: parts.get(f.name) for f in fields(kind)})  # pyright: ignore[reportArgumentType]

    def tensors(self, state: Any) -> tuple[Tensor, ...]:
        return tuple(getattr(state, name) for name in self.names)


class _Init(_Step):
    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        streams, model = given[0].shape[0], self.model
        static = given[0] if model.static else None
        if isinstance(model, NeuralCDE):
            state = online.first_state(model, streams, static)
        else:
            assert isinstance(model, RecurrentModel)
            state = model.first_state(streams, static)
        # Each tensor by itself: some are one and the same, and an output has one name.
        return tuple(tensor.clone() for tensor in self.tensors(state))


class _Observe(_Step):
    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        *parts, clock, x = tensors
        model, state = self.model, self.state(tuple(parts))
        if isinstance(model, NeuralCDE):
            after = online.take(model, state, clock, online.scale(model, x))
        else:
            after = _take(model, state, clock, model.encoding.scale_values(x))
        return self.tensors(replace(after, last=model.last_after(state.last, x)))


class _Predict(_Step):
    def __init__(self, model: OnlineModel, names: tuple[str, ...], probabilities: bool) -> None:
        super().__init__(model, names)
        self.probabilities = probabilities

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        *parts, clock = tensors
        model, state = self.model, self.state(tuple(parts))
        # Of a model that is online at rows alone the last answer stands.
        if isinstance(model, NeuralCDE):
            outputs = online.answer(model, state, clock)
        else:
            assert isinstance(model, RecurrentModel)
            outputs = model.answer(state.h[:, -1], state.last)
        if not self.probabilities:
            return outputs
        return outputs, model.readout.probabilities(outputs)


def _take(model: Any, state: RecurrentState, clock: Tensor, scaled: Tensor) -> RecurrentState:
    """`RecurrentModel.take` of a model whose state stays as it is between rows, in plain operations."""
    new = state.time.isnan()
    again, observed, values, previous = merge(state, clock, scaled)
    seen = torch.where(state.observed & ~again[:, None], state.time[:, None], state.since)
    since = torch.where(new[:, None], clock[:, None], seen)
    before = torch.where(again[:, None, None], state.before, state.h)
    elapsed = model.scale_gap(clock[:, None] - since).to(values.dtype)
    row = Rows(clock, values, observed.to(values.dtype), elapsed)
    update = _gru_d if isinstance(model, GRUD) else _gru
    return RecurrentState(
        update(model, row, before), before, clock, values, observed, previous, since
    )


def _gru(model: Any, row: Rows, h: Tensor) -> Tensor:
    """h (stream, layer, hidden) after a row, as `torch.nn.GRU` has it."""
    x, after = model.sees(row), []
    for layer, (w_in, w_h, b_in, b_h) in enumerate(model.cells.all_weights):
        own = h[:, layer]
        i_r, i_z, i_n = nn.functional.linear(x, w_in, b_in).chunk(3, -1)
        h_r, h_z, h_n = nn.functional.linear(own, w_h, b_h).chunk(3, -1)
        reset, keep = torch.sigmoid(i_r + h_r), torch.sigmoid(i_z + h_z)
        fresh = torch.tanh(i_n + reset * h_n)
        x = fresh + keep * (own - fresh)
        after.append(x)
    return torch.stack(after, 1)


def _gru_d(model: Any, row: Rows, h: Tensor) -> Tensor:
    """h (stream, 1, hidden) after a row, by the equations of `GRUD`."""
    fading = (row.elapsed * model.value_decay + model.value_decay_bias).clamp(min=0)
    x = row.values * torch.exp(fading * (row.mask - 1))
    kept = h[:, 0] * torch.exp(-model.hidden_decay(row.elapsed).clamp(min=0))
    i_z, i_r, i_n = model.inward(torch.cat([x, row.mask], -1)).chunk(3, -1)
    u_z, u_r, u_n = model.recurrent.chunk(3)
    update, reset = torch.sigmoid(i_z + kept @ u_z.T), torch.sigmoid(i_r + kept @ u_r.T)
    fresh = torch.tanh(i_n + (reset * kept) @ u_n.T)
    return (kept + update * (fresh - kept))[:, None]
