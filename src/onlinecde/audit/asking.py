"""Any callable from series to outputs, asked the same way each time and checked for its answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from onlinecde.series import SeriesBatch

Answering = Callable[..., Tensor]
"""From a SeriesBatch to outputs (stream, row, output); with `at=`, if it has that, at query times."""

ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Share of the largest output that the order of additions may move: the contract's own tolerance."""


class Asked:
    """A callable and what it can be asked: outputs at the rows, and at query times if it takes `at`."""

    def __init__(self, model: Answering) -> None:
        self.model = model
        asked = model.forward if isinstance(model, nn.Module) else model
        try:
            parameters = inspect.signature(asked).parameters
        except (TypeError, ValueError):
            parameters = {}
        at = parameters.get("at")
        self.takes_at = at is not None and at.kind in (at.POSITIONAL_OR_KEYWORD, at.KEYWORD_ONLY)
        self._needs_at = self.takes_at and at is not None and at.default is at.empty

    def at_rows(self, batch: SeriesBatch) -> Tensor:
        """Outputs (stream, row, output) after each row; in the padding stands anything."""
        answers = self.model(batch, at=batch.times) if self._needs_at else self.model(batch)
        return self._checked(answers, batch, int(batch.rows.max()), batch.times.shape[1], "row")

    def at_times(self, batch: SeriesBatch, clock: Tensor) -> Tensor:
        """Outputs (stream, query, output) at query times (stream, query)."""
        answers = self.model(batch, at=clock)
        return self._checked(answers, batch, clock.shape[1], clock.shape[1], "query")

    def _checked(
        self, answers: Any, batch: SeriesBatch, least: int, most: int, what: str
    ) -> Tensor:
        if not isinstance(answers, Tensor):
            raise ValueError(
                f"the model answered with a {type(answers).__name__}: answer with a tensor "
                f"(stream, {what}, output)."
            )
        if (
            answers.ndim == 2
            and answers.shape[0] == len(batch)
            and least <= answers.shape[1] <= most
        ):
            answers = answers[:, :, None]
        if (
            answers.ndim != 3
            or answers.shape[0] != len(batch)
            or not least <= answers.shape[1] <= most
        ):
            raise ValueError(
                f"the model answered with shape {tuple(answers.shape)} for {len(batch)} streams of "
                f"up to {most} {'rows' if what == 'row' else 'queries'}: answer with "
                f"(stream, {what}, output)."
            )
        return answers.detach().cpu()


@contextmanager
def in_use(model: Any) -> Iterator[None]:
    """Ask without gradients, and a torch module in eval mode, which is how it is deployed."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    before = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


def change(before: Tensor, after: Tensor) -> Tensor:
    """|after - before| in float64; 0 where both are NaN or the same infinity, infinite where one is."""
    moved = (after.double() - before.double()).abs()
    same = (before == after) | (before.isnan() & after.isnan())
    return torch.where(same, 0.0, moved.nan_to_num(nan=torch.inf, posinf=torch.inf))


def scale_of(outputs: Tensor) -> float:
    """The largest finite |output|, by which changes are judged."""
    sizes = torch.where(outputs.isfinite(), outputs, 0.0).abs()
    return max(float(sizes.max()) if sizes.numel() else 0.0, torch.finfo(torch.float32).tiny)


def rounding_of(outputs: Tensor) -> float:
    """The share of the scale that rounding may move outputs of this dtype."""
    return ROUNDING.get(outputs.dtype, 1e-2 if outputs.is_floating_point() else 0.0)
