"""One Runge-Kutta step, and one piece of a chain, in plain torch."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from onlinecde.solvers.chain import Chain
from onlinecde.solvers.tableau import Tableau

Rate = Callable[[Tensor, float | Tensor], Tensor]
"""(z (stream, hidden), u) -> dz/du (stream, hidden), u a number or (stream, 1)"""


def stages(
    table: Tableau,
    rate: Rate,
    z: Tensor,
    u: float | Tensor,
    h: float | Tensor,
    first: Tensor | None = None,
) -> list[Tensor]:
    """The stages k_s of one step of length h from u; `first` is the first one where it is known."""
    ks = [rate(z, u) if first is None else first]
    for s in range(1, table.stages):
        ks.append(rate(advance(z, table.a[s], ks, h), u + table.c[s] * h))
    return ks


def advance(z: Tensor, weights: tuple[float, ...], ks: list[Tensor], h: float | Tensor) -> Tensor:
    """`z + h sum_s weights[s] k_s`; h a number or (stream, 1)."""
    for weight, k in zip(weights, ks, strict=True):
        if weight:
            # One operation instead of two: half of what a small step costs is calling torch.
            z = z + (weight * h) * k if isinstance(h, Tensor) else z.add(k, alpha=weight * h)
    return z


def combine(weights: tuple[float, ...], ks: list[Tensor]) -> Tensor:
    """sum_s weights[s] k_s."""
    total = None
    for weight, k in zip(weights, ks, strict=True):
        if weight:
            total = weight * k if total is None else total + weight * k
    return torch.zeros_like(ks[0]) if total is None else total


def take_piece(
    chain: Chain,
    table: Tableau,
    contract: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    piece: int,
    z: Tensor,
    data: Tensor,
    drive: Tensor | None,
) -> Tensor:
    """z (active, hidden) at the start of a piece -> at its end, in its fixed number of steps.

    `contract(y, dX/du, drive)` is the field's contraction for this piece; `data` and
    `drive` are what `piece_data` and `piece_drive` give for it.
    """

    def rate(y: Tensor, u: float | Tensor) -> Tensor:
        return contract(y, chain.slope(data, u), drive_at(drive, u))

    for u, h in piece_steps(chain, piece, z):
        z = advance(z, table.b, stages(table, rate, z, u, h), h)
    return z


def piece_steps(
    chain: Chain, piece: int, z: Tensor
) -> Iterator[tuple[float | Tensor, float | Tensor]]:
    """Start u and length h of each step on a piece: numbers, or (active, 1) where streams differ."""
    own = None
    if chain.rectilinear and piece % 2 == 0 and chain.time_steps is not None:
        # In z's dtype before the division, which would be float32 for whole numbers.
        own = chain.time_steps[piece // 2, : z.shape[0], None].to(z.dtype)
    rounds = chain.steps if own is None else int(own.max())
    for step in range(rounds):
        if own is None:
            yield step / rounds, 1.0 / rounds
        else:
            # A stream that has taken its steps takes steps of length 0 from there on.
            going = step < own
            yield (
                torch.where(going, step / own, 1.0),
                torch.where(going, 1.0 / own, 0.0),
            )


def piece_data(chain: Chain, piece: int) -> Tensor:
    """The active streams' entries of `chain.time` or `chain.slopes` for a piece."""
    n = chain.active[piece]
    if not chain.rectilinear:
        return chain.slopes[piece, :n]
    if piece % 2 == 0:
        assert chain.time is not None
        return chain.time[piece // 2, :n]
    return chain.slopes[piece // 2, :n]


def piece_drive(chain: Chain, piece: int) -> Tensor | None:
    """What `drive_at` needs for one piece: (2 or 4, active, drive)."""
    if chain.drive is None:
        return None
    n = chain.active[piece]
    if chain.drive.ndim == 3:
        return chain.drive[piece : piece + 2, :n]
    return chain.drive[piece, :n].transpose(0, 1)


def drive_at(drive: Tensor | None, u: float | Tensor) -> Tensor | None:
    """Drive at u: on the line between two knots, or of a cubic."""
    if drive is None:
        return None
    if drive.shape[0] == 2:
        return drive[0] + u * (drive[1] - drive[0])
    return drive[0] + u * (drive[1] + u * (drive[2] + u * drive[3]))
