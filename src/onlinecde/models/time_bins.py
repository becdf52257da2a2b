"""Time to an event: hazards on bins of time ahead, the risk within any horizon, their likelihood with censoring.

Of bins with edges 0 = e_0 < e_1 < ... < e_K a model puts out K logits l. Bin k adds softplus(l_k) to the cumulative
hazard, so that sigmoid(l_k) is the chance that an event that has not come by e_(k-1) comes by e_k. Within a bin
log-survival is a straight line: with c_k(t) the share of bin k that lies before t,

    H(t) = sum_k c_k(t) softplus(l_k),    P(event within t) = 1 - exp(-H(t)),

which grows with t, and does not reach beyond e_K. A label is how long it took to the event, or to when the stream was
last known without it (censoring). An event in bin k costs -log P(it comes in bin k), censoring at t costs H(t), and
what comes after e_K costs H(e_K):

    loss = sum_k a_k softplus(l_k) - y_k l_k,

y_k being 1 for the event's bin, a_k 1 for the bins up to it, or c_k(t) for censoring at t.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

MULTIPLES = (0.5, 1.0, 2.0, 4.0)
"""Of a model's first horizon, those that are shown where nobody says others"""


def covered(edges: Tensor, times: Tensor) -> Tensor:
    """The share of each bin that lies before a time, (..., bin) of times (...).

    >>> covered(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 2.0, 9.0]))
    tensor([[0.5000, 0.0000],
            [1.0000, 0.5000],
            [1.0000, 1.0000]])
    """
    starts = _starts(edges)
    return ((times[..., None] - starts) / (edges - starts)).clamp(0, 1)


def _starts(edges: Tensor) -> Tensor:
    return nn.functional.pad(edges[:-1], (1, 0))


def taken(edges: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """How much of each bin a label was seen in without the event, and whether it came there: a and y, (..., bin).

    labels (..., 2): how long it took, and whether to the event (1) or to censoring (0).
    """
    time, event = labels[..., 0, None], labels[..., 1, None] > 0
    reached = time > _starts(edges)
    exposed = torch.where(event, reached.to(edges.dtype), covered(edges, labels[..., 0]))
    return exposed, (event & reached & (time <= edges)).to(edges.dtype)


def time_to_event_loss(outputs: Tensor, labels: Tensor, edges: Tensor | None) -> Tensor:
    """Minus the log-likelihood (...) of labels (..., 2) under logits (..., bin); see the top of this file.

    >>> time_to_event_loss(torch.zeros(2), torch.tensor([1.5, 0.0]), torch.tensor([1.0, 2.0])) / torch.tensor(2.0).log()
    tensor(1.5000)
    """
    assert edges is not None
    exposed, came = taken(edges.to(outputs), labels)
    return (exposed * nn.functional.softplus(outputs) - came * outputs).sum(-1)


def cumulative_risk(outputs: Tensor) -> Tensor:
    """P(event by the end of each bin), (..., bin), from logits (..., bin)."""
    return -torch.expm1(-nn.functional.softplus(outputs).cumsum(-1))


def hazards(risks: Tensor) -> Tensor:
    """What each bin adds to the cumulative hazard, (..., bin), from `cumulative_risk`; a risk of 1 is taken as less."""
    most = 1 - torch.finfo(risks.dtype).eps
    total = -torch.log1p(-risks.clamp(max=most))
    return total.diff(dim=-1, prepend=torch.zeros_like(total[..., :1]))


def risk_at(risks: Tensor, edges: Tensor, horizons: Tensor) -> Tensor:
    """P(event within each horizon), (..., horizon), from `cumulative_risk` (..., bin)."""
    share = covered(edges.to(risks), horizons.to(risks))
    return -torch.expm1(-(hazards(risks)[..., None, :] * share).sum(-1))


def usual_horizons(first: float, last: float) -> tuple[float, ...]:
    """Half, one, two and four times the first horizon, as far as bins reach.

    >>> usual_horizons(12.0, 40.0)
    (6.0, 12.0, 24.0)
    """
    return tuple(first * times for times in MULTIPLES if first * times <= last)


class TimeBins(nn.Module):
    """The bins of a readout of time to an event, and the horizon of its first answer; both travel with a model.

    Of one unit of time each until `put` says others.

    >>> bins = TimeBins(2).put([6.0, 24.0], 12.0)
    >>> bins.risk_within(torch.zeros(2), 6.0), bins.risk_within(torch.zeros(2), [15.0, 24.0])
    (tensor(0.5000), tensor([0.6464, 0.7500]))
    """

    edges: Tensor
    """(bin,) float64: where each bin ends, in the unit of the series' time"""
    horizon: Tensor
    """() float64"""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("edges", torch.arange(1.0, count + 1, dtype=torch.float64))
        self.register_buffer("horizon", torch.tensor(1.0, dtype=torch.float64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TimeBins:
        kept = self.edges, self.horizon
        super()._apply(fn, recurse)
        # Times are float64 whatever the model's dtype.
        self.edges, self.horizon = (
            one.to(now.device) for one, now in zip(kept, (self.edges, self.horizon), strict=True)
        )
        return self

    @property
    def laid(self) -> bool:
        """Whether `put` has said where the bins are."""
        return not torch.equal(self.edges.cpu(), torch.arange(1.0, len(self.edges) + 1).double())

    @property
    def last(self) -> float:
        """How far ahead the bins reach."""
        return float(self.edges[-1])

    @property
    def usual_horizons(self) -> tuple[float, ...]:
        """Horizons to be shown, see `usual_horizons`."""
        return usual_horizons(float(self.horizon), self.last)

    def put(self, edges: Sequence[float], horizon: float) -> TimeBins:
        """Give the bins these edges, and the first answer this horizon; returns itself.

        Raises:
            ValueError: other edges than rise from above 0, one for each output, or a horizon beyond the last.
        """
        given = torch.tensor(list(edges), dtype=torch.float64)
        if len(given) != len(self.edges):
            raise ValueError(
                f"{len(given)} edges for {len(self.edges)} outputs: give one for each, the end of its bin."
            )
        rising = given.diff(prepend=torch.zeros(1, dtype=torch.float64)) > 0
        if not bool(rising.all() & given.isfinite().all()):
            raise ValueError(f"edges are {list(edges)}: give times above 0, each above the last.")
        self.edges = given.to(self.edges.device)
        self.horizon = torch.tensor(
            self.check_horizon(horizon), dtype=torch.float64, device=self.edges.device
        )
        return self

    def check_horizon(self, horizon: float | None) -> float:
        """A horizon that the bins reach, by default the first.

        Raises:
            ValueError: it is not above 0, or lies beyond the last edge.
        """
        if horizon is None:
            return float(self.horizon)
        if not 0 < horizon <= self.last:
            raise ValueError(
                f"the horizon is {horizon:g}: the model says how likely the event is within times above 0 and up to "
                f"{self.last:g}."
            )
        return float(horizon)

    def risk_within(self, outputs: Tensor, horizon: float | Sequence[float] | None) -> Tensor:
        """P(event within the horizon), (...) of logits (..., bin); of several horizons (..., horizon)."""
        several = isinstance(horizon, Sequence)
        total = self._hazard(outputs, horizon if several else [horizon])
        risk = -torch.expm1(-total)
        return risk if several else risk[..., 0]

    def log_odds(self, outputs: Tensor, horizon: float) -> Tensor:
        """Log-odds of the event within the horizon, (..., 1), of logits (..., bin)."""
        total = self._hazard(outputs, [horizon]).clamp(min=torch.finfo(outputs.dtype).tiny)
        # log(exp(H) - 1), without exp of a large H.
        return total + torch.log(-torch.expm1(-total))

    def _hazard(self, outputs: Tensor, horizons: Sequence[float | None]) -> Tensor:
        """H at each horizon, (..., horizon)."""
        times = torch.tensor(list(map(self.check_horizon, horizons)), dtype=torch.float64)
        share = covered(self.edges, times.to(self.edges.device)).to(outputs)
        return (nn.functional.softplus(outputs)[..., None, :] * share).sum(-1)

    def extra_repr(self) -> str:
        return f"{len(self.edges)} to {self.last:g}, horizon={float(self.horizon):g}"


class LogOdds(nn.Module):
    """A last layer: logits of time bins as the log-odds of the event within one horizon."""

    def __init__(self, bins: TimeBins, horizon: float | None) -> None:
        super().__init__()
        self.bins, self.horizon = bins, bins.check_horizon(horizon)

    def forward(self, outputs: Tensor) -> Tensor:
        """(..., bin) -> (..., 1)."""
        return self.bins.log_odds(outputs, self.horizon)
