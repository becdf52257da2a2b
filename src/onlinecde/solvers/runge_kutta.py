"""Explicit Runge-Kutta methods as Butcher tableaus, and their steps in plain torch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from onlinecde.solvers.segments import PathSegments, drive_at, slope_at

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Tableau:
    """`y_s = z + h sum_{r<s} a[s][r] k_r`, `z' = z + h sum_s b[s] k_s`, stage s at `c[s]` of the step."""

    name: str
    order: int
    a: tuple[Numbers, ...]
    b: Numbers
    c: Numbers
    error: Numbers | None = None
    """b minus the weights of the embedded method; None where there is none."""
    embedded_order: int = 0
    reuses_last: bool = False
    """Whether the last stage is the first of the next step (first same as last)."""

    @property
    def stages(self) -> int:
        return len(self.b)


def _row(*entries: int | str | float) -> Numbers:
    return tuple(float(Fraction(e)) if isinstance(e, str) else float(e) for e in entries)


def _with_error(b: Numbers, embedded: Numbers) -> Numbers:
    return tuple(x - y for x, y in zip(b, embedded, strict=True))


_DOPRI5_B = _row("35/384", 0, "500/1113", "125/192", "-2187/6784", "11/84", 0)
_BOSH3_B = _row("2/9", "1/3", "4/9", 0)
_TSIT5_B = (
    0.09646076681806523,
    0.01,
    0.4798896504144996,
    1.379008574103742,
    -3.290069515436081,
    2.324710524099774,
    0.0,
)

TABLEAUS: dict[str, Tableau] = {
    tableau.name: tableau
    for tableau in (
        Tableau("euler", 1, a=((),), b=(1.0,), c=(0.0,)),
        Tableau("midpoint", 2, a=((), _row("1/2")), b=(0.0, 1.0), c=(0.0, 0.5)),
        Tableau(
            "heun",
            2,
            a=((), (1.0,)),
            b=(0.5, 0.5),
            c=(0.0, 1.0),
            error=(-0.5, 0.5),
            embedded_order=1,
        ),
        # The 3/8 rule: what torchdiffeq calls rk4, and the paper used.
        Tableau(
            "rk4",
            4,
            a=((), _row("1/3"), _row("-1/3", 1), _row(1, -1, 1)),
            b=_row("1/8", "3/8", "3/8", "1/8"),
            c=_row(0, "1/3", "2/3", 1),
        ),
        Tableau(
            "rk4_classic",
            4,
            a=((), _row("1/2"), _row(0, "1/2"), _row(0, 0, 1)),
            b=_row("1/6", "1/3", "1/3", "1/6"),
            c=_row(0, "1/2", "1/2", 1),
        ),
        Tableau(
            "bosh3",
            3,
            a=((), _row("1/2"), _row(0, "3/4"), _row("2/9", "1/3", "4/9")),
            b=_BOSH3_B,
            c=_row(0, "1/2", "3/4", 1),
            error=_with_error(_BOSH3_B, _row("7/24", "1/4", "1/3", "1/8")),
            embedded_order=2,
            reuses_last=True,
        ),
        Tableau(
            "dopri5",
            5,
            a=(
                (),
                _row("1/5"),
                _row("3/40", "9/40"),
                _row("44/45", "-56/15", "32/9"),
                _row("19372/6561", "-25360/2187", "64448/6561", "-212/729"),
                _row("9017/3168", "-355/33", "46732/5247", "49/176", "-5103/18656"),
                _row("35/384", 0, "500/1113", "125/192", "-2187/6784", "11/84"),
            ),
            b=_DOPRI5_B,
            c=_row(0, "1/5", "3/10", "4/5", "8/9", 1, 1),
            error=_with_error(
                _DOPRI5_B,
                # Shampine's embedded weights, as in torchdiffeq and diffrax.
                _row("1951/21600", 0, "22642/50085", "451/720", "-12231/42400", "649/6300", "1/60"),
            ),
            embedded_order=4,
            reuses_last=True,
        ),
        Tableau(
            "tsit5",
            5,
            a=(
                (),
                (0.161,),
                (-0.008480655492356989, 0.335480655492357),
                (2.897153057105493, -6.359448489975075, 4.3622954328695815),
                (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
                (
                    5.86145544294642,
                    -12.92096931784711,
                    8.159367898576159,
                    -0.071584973281401,
                    -0.028269050394068383,
                ),
                _TSIT5_B[:6],
            ),
            b=_TSIT5_B,
            c=(0.0, 0.161, 0.327, 0.9, 0.9800255409045097, 1.0, 1.0),
            error=(
                -0.00178001105222577714,
                -0.0008164344596567469,
                0.007880878010261995,
                -0.1447110071732629,
                0.5823571654525552,
                -0.45808210592918697,
                1 / 66,
            ),
            embedded_order=4,
            reuses_last=True,
        ),
    )
}


def tableau(method: str) -> Tableau:
    """Look a method up by name."""
    if method not in TABLEAUS:
        raise ValueError(f"method {method!r} is not known: choose one of {sorted(TABLEAUS)}.")
    return TABLEAUS[method]


Rate = Callable[[Tensor, float | Tensor], Tensor]
"""(z (stream, hidden), u) -> dz/du (stream, hidden), u a number or (stream, 1)"""
Contract = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(z (stream, hidden), dX/du (stream, channel), drive) -> f(z) dX/du (stream, hidden)"""


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


def take_segment(
    segments: PathSegments,
    table: Tableau,
    contract: Contract,
    segment: int,
    z: Tensor,
    increments: Tensor,
    drive: Tensor | None,
) -> Tensor:
    """z (active, hidden) at the start of a segment -> at its end, in its fixed number of steps.

    `contract` is the field's contraction for this segment; `increments` and `drive` are what
    `segments.increments` and `segments.seen` give for it.
    """

    def rate(y: Tensor, u: float | Tensor) -> Tensor:
        return contract(y, slope_at(increments, u), drive_at(drive, u))

    for u, h in fixed_steps(segments, segment, z):
        z = advance(z, table.b, stages(table, rate, z, u, h), h)
    return z


def fixed_steps(
    segments: PathSegments, segment: int, z: Tensor
) -> Iterator[tuple[float | Tensor, float | Tensor]]:
    """Start u and length h of each step on a segment: numbers, or (active, 1) where streams differ."""
    own = None
    if segments.is_time_leg(segment) and segments.time_steps is not None:
        # In z's dtype before the division, which would be float32 for whole numbers.
        own = segments.time_steps[segment // 2, : z.shape[0], None].to(z.dtype)
    rounds = segments.steps if own is None else int(own.max())
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
