"""What the audit asks of a path: any class with these four members can be measured."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from onlinecde.series import SeriesBatch


class ControlPath(Protocol):
    """The members a path needs to be audited; `onlinecde.controls.Path` has them.

    Channels come in the order time, values, counts (if any). Streams of a batch may differ in
    length; what a path does after the last row of its stream is not judged.
    """

    @property
    def knots(self) -> Tensor:
        """(knot,) or (stream, knot): the parameters at which pieces meet, both ends included."""
        ...

    def evaluate(self, s: Any) -> Tensor:
        """X at s (stream, query): (stream, query, channel)."""
        ...

    def derivative(self, s: Any) -> Tensor:
        """dX/ds at s (stream, query), the right slope at a knot: (stream, query, channel)."""
        ...

    def s_of_time(self, times: Any) -> Tensor:
        """The parameter (stream, query) at which the path stands at times (stream, query)."""
        ...


PathBuilder = Callable[[SeriesBatch], ControlPath]
"""Makes one path for each stream of a batch, such as `onlinecde.controls.linear`."""


def build_path(build: PathBuilder, batch: SeriesBatch) -> ControlPath:
    """Build a path and refuse one that lacks a member or answers in the wrong shape."""
    path = build(batch)
    for member in ("knots", "evaluate", "derivative", "s_of_time"):
        if not hasattr(path, member):
            raise ValueError(
                f"the path {type(path).__name__} has no `{member}`: give it knots, evaluate(s), "
                "derivative(s) and s_of_time(times), as onlinecde.audit.ControlPath says."
            )
    streams, _, channels = batch.values.shape
    s = path.s_of_time(batch.times[:, :1])
    if tuple(s.shape) != (streams, 1):
        raise ValueError(
            f"s_of_time gave shape {tuple(s.shape)} for times (stream, query) = ({streams}, 1): "
            "answer with one s for each time."
        )
    for name in ("evaluate", "derivative"):
        shape = tuple(getattr(path, name)(s).shape)
        if len(shape) != 3 or shape[:2] != (streams, 1) or shape[2] < 1 + channels:
            raise ValueError(
                f"{name} gave shape {shape} for s (stream, query) = ({streams}, 1): answer with "
                f"(stream, query, channel), time first, then the {channels} values."
            )
    return path


def knots_per_stream(path: ControlPath, streams: int) -> Tensor:
    """The knots as (stream, knot), whether the path has one set of them or one for each stream."""
    return torch.as_tensor(path.knots).expand(streams, -1)


def points_in_pieces(knots: Tensor, per_piece: int) -> Tensor:
    """Evenly spaced points (stream, piece, per_piece) of each piece, its first knot included."""
    fraction = torch.arange(per_piece, dtype=knots.dtype, device=knots.device) / per_piece
    return knots[:, :-1, None] + fraction * knots.diff(dim=1)[:, :, None]
