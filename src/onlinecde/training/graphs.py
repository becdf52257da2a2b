"""A training step as a CUDA graph: captured once for each length bucket, replayed for every batch that fits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from onlinecde.controls import PolynomialPath, RectilinearPath
from onlinecde.models import GRU, GRUD, ODERNN, GRUdt, GRUdtIntensity, NeuralCDE, RecurrentModel
from onlinecde.models.channel_dropout import drop_channels
from onlinecde.models.readout import Readout
from onlinecde.series import SeriesBatch
from onlinecde.solvers.backends.gpu import unsupported_settings
from onlinecde.solvers.counting import note_evaluations, uncounted
from onlinecde.solvers.fields import has_hooks
from onlinecde.solvers.segments import PathSegments, copy_rows, segments_of
from onlinecde.training.objectives import HorizonReadout

RECURRENT = (GRU, GRUdt, GRUdtIntensity, GRUD, ODERNN)
"""The recurrent models whose step is captured, by `RecurrentStep`."""


AT_TIMES = "streams are asked at query times, and a captured step knows rows alone"
"""Why a step at query times is not captured, whatever the model."""


def why_not(model: nn.Module) -> str | None:
    """Why a model's step at rows cannot be captured, or None where it can."""
    # A subclass may compute otherwise, and a captured step would pass it by, as it would hooks.
    for name, module in model.named_modules():
        if has_hooks(module) or "forward" in module.__dict__:
            return f"{name or 'the model'} has hooks, or a forward of its own"
    if getattr(getattr(model, "readout", None), "kind", None) == "forecast":
        return "forecasts need last values, which a captured step does not see"
    if type(model) in RECURRENT:
        if isinstance(model, ODERNN) and (reason := model.legs_alike()) is not None:
            return reason
        where = next(model.parameters()).device.type
        return None if where == "cuda" else f"the model is on {where}"
    if type(model) is not NeuralCDE:
        return f"{type(model).__name__} has no captured step"
    for name, part, kind in (
        ("initial", model.initial, nn.Linear),
        ("readout", model.readout, Readout),
    ):
        if type(part) is not kind:
            return f"{name} is a {type(part).__name__}, which may not be captured"
    if model.readout.own_layers:
        return "the readout has layers of its own kind, which may not be captured"
    if not model.encoding.is_plain:
        return "the encoding is one of its own kind"
    solver = model.solver
    if solver.tolerance is not None or solver.max_step is not None:
        return "the number of steps depends on the data"
    if model.device.type != "cuda":
        return f"the model is on {model.device.type}"
    z0 = torch.empty(0, model.hidden, dtype=model.dtype, device=model.device)
    return unsupported_settings(
        model.vector_field, solver.table, z0, solver.gradient, solver.backend, capture=True
    )


def bucket(rows: int) -> int:
    """The number of rows a batch is padded to: few sizes, so that graphs are met again.

    >>> [bucket(rows) for rows in (1, 9, 64, 65, 182)]
    [8, 16, 64, 96, 192]
    """
    step = 8 if rows <= 64 else 32
    return -(-rows // step) * step


class _Targets(Protocol):
    """What all graphs read, padded to their size."""

    @property
    def times(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...


Model = TypeVar("Model", bound=NeuralCDE | RecurrentModel)
Inputs = TypeVar("Inputs", bound=_Targets)


@dataclass(frozen=True, eq=False)
class _Captured(Generic[Inputs]):
    graph: torch.cuda.CUDAGraph
    inputs: Inputs
    loss: Tensor


class CapturedStep(ABC, Generic[Model, Inputs]):
    """Loss and gradients of a batch by replaying a graph; a subclass says what is computed from what.

    Call it with a batch of at most `streams` streams and its labels, (stream, row, ...) or, with
    `final`, (stream, ...): it returns the loss and leaves the gradients in the parameters' `grad`.
    A batch is padded to `streams` and to one of a few numbers of rows; what is padded has no
    labels and changes nothing. Gradients are zeroed first. The `grad` tensors belong to the step:
    do not set them to None.

    Graphs share memory, and a small one finds room in that of a larger one. So the first that is
    captured is that of the `longest` series there are, in rows.
    """

    takes: ClassVar[tuple[type[nn.Module], ...]]
    """The models it is for."""

    def __init__(
        self,
        model: Model,
        *,
        streams: int,
        final: bool = False,
        weight: Tensor | None = None,
        ahead: HorizonReadout | None = None,
        horizon_weight: float = 0.1,
        longest: int = 1,
    ) -> None:
        reason = why_not(model)
        if reason is None and type(model) not in self.takes:
            reason = f"{type(self).__name__} is not for {type(model).__name__}"
        if reason is not None:
            raise ValueError(f"this model's step cannot be captured: {reason}.")
        self.model, self.streams, self.final, self.weight = model, streams, final, weight
        self.ahead, self.horizon_weight, self.longest = ahead, horizon_weight, longest
        more = [] if ahead is None else [*ahead.parameters()]
        self._own = [p for p in (*model.parameters(), *more) if p.requires_grad]
        self._graphs: dict[tuple[int, ...], _Captured[Inputs]] = {}
        self._pool = torch.cuda.graph_pool_handle()
        for parameter in self._own:
            parameter.grad = torch.zeros_like(parameter)

    def __call__(self, batch: SeriesBatch, labels: Tensor) -> Tensor:
        model = self.model
        batch = model.prepare(batch)
        if model.training and model.channel_dropout:
            batch = drop_channels(batch, model.channel_dropout)
        streams, rows = batch.times.shape
        if streams > self.streams:
            raise ValueError(
                f"the batch has {streams} streams, the step takes up to {self.streams}."
            )
        if not self._graphs:
            self._graph_for(bucket(max(rows, self.longest)), batch, labels)
        captured = self._graph_for(bucket(rows), batch, labels)
        self._fill(captured.inputs, batch, labels)
        captured.graph.replay()
        return captured.loss.clone()

    def _graph_for(self, rows: int, batch: SeriesBatch, labels: Tensor) -> _Captured[Inputs]:
        """The graph of so many rows for batches like this one."""
        key = (rows, *labels.shape[1 if self.final else 2 :])
        if key not in self._graphs:
            inputs = self._room(rows, batch, labels)
            self._fill(inputs, batch, labels)
            self._graphs[key] = self._capture(inputs)
        return self._graphs[key]

    @abstractmethod
    def _room(self, rows: int, batch: SeriesBatch, labels: Tensor) -> Inputs:
        """Where a graph of so many rows reads batches like this one from."""

    @abstractmethod
    def _fill(self, to: Inputs, batch: SeriesBatch, labels: Tensor) -> None:
        """Copy a batch to where the graph reads it."""

    @abstractmethod
    def _outputs(self, inputs: Inputs) -> Tensor:
        """What the model puts out, computed without a look at any number."""

    def _loss(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The labels' loss, and what gradients are taken of: that of horizons is in it as well."""
        readout = self.model.readout
        if self.ahead is None:
            loss = readout.loss(self._outputs(inputs), inputs.labels, self.weight)
            return loss, loss
        with self.ahead.beside(readout):
            both = self._outputs(inputs)
        outputs, logits = both.split([self.model.outputs, self.ahead.out_features], -1)
        loss = readout.loss(outputs, inputs.labels, self.weight)
        more = self.ahead.loss(logits, inputs.times, inputs.labels)
        return loss, loss + self.horizon_weight * more

    def _room_for_labels(self, rows: int, labels: Tensor) -> Tensor:
        shape = labels.shape[1:] if self.final else (rows, *labels.shape[2:])
        return torch.empty(self.streams, *shape, dtype=labels.dtype, device=self.model.device)

    def _fill_labels(self, to: Tensor, labels: Tensor) -> None:
        to.fill_(-1 if self.model.readout.kind == "multiclass" else torch.nan)
        if self.final:
            to[: len(labels)] = labels
        else:
            to[: len(labels), : labels.shape[1]] = labels

    def _compute(self, inputs: Inputs) -> Tensor:
        """Zero the gradients; the loss, and its gradients."""
        torch._foreach_zero_([p.grad for p in self._own if p.grad is not None])
        with uncounted():
            loss, total = self._loss(inputs)
        grads = torch.autograd.grad(total, self._own, allow_unused=True)
        for parameter, g in zip(self._own, grads, strict=True):
            if g is not None and parameter.grad is not None:
                parameter.grad.add_(g)
        return loss.detach()

    def _capture(self, inputs: Inputs) -> _Captured[Inputs]:
        # What is drawn here does not count: the first replay draws what any other would.
        with torch.random.fork_rng(devices=[self.model.device]):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                # Kernels are compiled and libraries started outside of the graph.
                self._compute(inputs)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                loss = self._compute(inputs)
        return _Captured(graph, inputs, loss)


@dataclass(frozen=True, eq=False)
class _Path:
    """Where a graph reads paths from: streams and rows padded to its size, longest streams first."""

    segments: PathSegments
    """Those between rows, for as many as there is room for, and X at the rows"""
    static: Tensor | None
    ages: Tensor | None
    """(stream, row, channel): how long ago each channel was observed, where the readout asks"""
    times: Tensor
    """(stream, row) float64, filled where there are horizons"""
    labels: Tensor


class GraphedStep(CapturedStep[NeuralCDE, _Path]):
    """The captured step of a `NeuralCDE` along any control path; what is padded costs nothing."""

    takes = (NeuralCDE,)

    def __call__(self, batch: SeriesBatch, labels: Tensor) -> Tensor:
        loss = super().__call__(batch, labels)
        solver, pieces = self.model.solver, self._pieces_per_row * (batch.rows - 1)
        note_evaluations(pieces * (solver.steps * solver.table.stages))
        return loss

    @property
    def _pieces_per_row(self) -> int:
        """How many pieces of the model's path lead from one row to the next."""
        kind = RectilinearPath if self.model.control == "rectilinear" else PolynomialPath
        return kind.pieces_per_row

    def _room(self, rows: int, batch: SeriesBatch, labels: Tensor) -> _Path:
        model, streams, static = self.model, self.streams, batch.static
        path = model.path(batch)
        new = path.rows.new_zeros
        return _Path(
            segments=segments_of(path, model.solver.steps).room_for(streams, rows),
            static=None if static is None else new(streams, static.shape[1]),
            ages=None if not model.readout.sees_ages else new(streams, rows, model.channels),
            times=batch.times.new_zeros(streams, rows),
            labels=self._room_for_labels(rows, labels),
        )

    def _fill(self, to: _Path, batch: SeriesBatch, labels: Tensor) -> None:
        segments = segments_of(self.model.path(batch))
        order = segments.order
        assert order is not None
        # Streams that are not there keep finite numbers of an earlier batch and have no labels.
        to.segments.fill(segments)
        if to.static is not None and batch.static is not None:
            to.static[: len(batch)] = batch.static[order]
        ages = self.model.ages(batch.times, self.model.stamps(batch))
        if to.ages is not None and ages is not None:
            copy_rows(to.ages, ages[order])
        if self.ahead is not None:
            copy_rows(to.times, batch.times[order])
        self._fill_labels(to.labels, labels.to(to.labels)[order])

    def _outputs(self, inputs: _Path) -> Tensor:
        rows = inputs.segments.rows
        assert rows is not None
        return self.model.along(inputs.segments, rows, inputs.static, inputs.ages, final=self.final)
