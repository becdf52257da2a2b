"""The readout: from z, and what else it may see, to outputs; the kinds of outputs, their losses and probabilities."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from onlinecde.models.forecasts import LEVELS, Forecasts, pinball
from onlinecde.models.forest import Forest
from onlinecde.models.ramps import Ramps
from onlinecde.models.steps import Steps
from onlinecde.models.time_bins import LogOdds, TimeBins, cumulative_risk, time_to_event_loss
from onlinecde.solvers.fields import has_hooks, is_linear

Kind = Literal["regression", "binary", "multiclass", "multilabel", "time-to-event", "forecast"]

BLOCK = 16_384
"""Rows that a GPU's readout takes in at once, outside training."""


class _Rule(NamedTuple):
    """What a kind of outputs means."""

    probabilities: Callable[[Tensor], Tensor]
    each_loss: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """Losses from outputs (..., output), labels, and a weight or the edges of bins: of each output, or one for all"""
    known: Callable[[Tensor], Tensor] = lambda labels: ~labels.isnan()
    """Where there is a label: of the shape of the losses"""
    together: bool = False
    """Whether all outputs answer to one label"""
    each: int = 1
    """How many outputs answer to each of several labels"""
    numbers: bool = False
    """Whether outputs are numbers in the label's unit, and no log-odds"""


def _squared(outputs: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
    return (outputs - labels).square()


def _log_loss(outputs: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(
        outputs, labels, pos_weight=weight, reduction="none"
    )


def _class_loss(outputs: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
    flat, wanted = outputs.flatten(0, -2), labels.to(torch.int64).flatten()
    each = nn.functional.cross_entropy(flat, wanted, weight, reduction="none")
    return each.view(labels.shape)


RULES: dict[str, _Rule] = {
    "regression": _Rule(lambda outputs: outputs, _squared, numbers=True),
    "binary": _Rule(torch.sigmoid, _log_loss),
    "multiclass": _Rule(
        lambda outputs: outputs.softmax(-1), _class_loss, lambda labels: labels >= 0, together=True
    ),
    "multilabel": _Rule(torch.sigmoid, _log_loss),
    "time-to-event": _Rule(
        cumulative_risk, time_to_event_loss, lambda labels: ~labels[..., 0].isnan(), together=True
    ),
    "forecast": _Rule(lambda outputs: outputs, pinball, each=len(LEVELS), numbers=True),
}
assert set(RULES) == set(get_args(Kind))


def watched(kind: str, outputs: int) -> int:
    """How many numbers alarms may watch: one of time to an event, of forecasts the middle of each, else all outputs."""
    return 1 if kind == "time-to-event" else outputs // RULES[kind].each


def known_labels(kind: str, labels: Tensor) -> Tensor:
    """Where there is a label, bool: (...) of one label for all outputs, of the shape of `labels` otherwise."""
    return RULES[kind].known(labels)


def masked_loss(kind: str, outputs: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean loss over the labels that are there, without a look at how many there are (a CUDA graph may hold it).

    Args:
        kind: what the outputs are.
        outputs: (..., output).
        labels: (...,) for multiclass and for one output, (..., 2) for time-to-event (how long it took, and whether to
            the event), (..., forecast) of forecasts, else (..., output); NaN, or -1 for a class, where there is none.
        weight: the positive weight; (class,) for multiclass, whose mean is then a weighted one; (bin,) for
            time-to-event, the edges of its bins; (forecast,) units of forecasts.

    Returns:
        A number; without any label 0, and so are its gradients.
    """
    rule, classes = RULES[kind], kind == "multiclass"
    # A sum over many labels is beyond half precision.
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    if rule.each > 1:
        outputs = outputs.unflatten(-1, (-1, rule.each))
    elif not rule.together and labels.ndim == outputs.ndim - 1:
        labels = labels.unsqueeze(-1)
    known = rule.known(labels)
    there = known if known.ndim == labels.ndim else known[..., None]
    labels = torch.where(there, labels, 0).to(labels.dtype if classes else outputs.dtype)
    # What stands where there is no label may be infinite, and 0 times that would be NaN in the gradients.
    several = rule.together or rule.each > 1
    outputs = torch.where(known[..., None] if several else known, outputs, 0.0)
    each = rule.each_loss(outputs, labels, weight)
    total = torch.where(known, each, 0.0).sum()
    if classes and weight is not None:
        share = torch.where(known, weight[labels.to(torch.int64)], 0.0).sum()
        return total / torch.where(share > 0, share, 1.0)
    return total / known.sum().clamp(min=1)


class Members(nn.Module):
    """A layer of SiLU units as several members see it, with one weight matrix for all.

    A member has a factor for each input (1 or -1 at first), a bias and a factor for each unit. In
    training a row goes through one member, drawn by lot; otherwise through all, and their mean goes on.
    What is learned must serve all members, so it is learned more slowly and holds longer.
    """

    def __init__(self, inputs: int, width: int, members: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        self.inward = nn.Parameter(torch.randint(2, (members, inputs)) * 2.0 - 1)
        self.bias = nn.Parameter(torch.zeros(members, width))
        self.outward = nn.Parameter(torch.ones(members, width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., width)."""
        if not self.training:
            total = torch.zeros((), dtype=x.dtype, device=x.device)
            for one in zip(self.inward, self.bias, self.outward, strict=True):
                total = total + self._units(x, *one)
            return total / len(self.bias)
        drawn = torch.randint(len(self.bias), x.shape[:-1], device=x.device)
        # Products with 0 and 1 rather than rows picked: their gradients add up in a fixed order.
        chosen = nn.functional.one_hot(drawn, len(self.bias)).to(x.dtype)
        return self._units(x, chosen @ self.inward, chosen @ self.bias, chosen @ self.outward)

    def _units(self, x: Tensor, inward: Tensor, bias: Tensor, outward: Tensor) -> Tensor:
        return nn.functional.silu(self.linear(x * inward) + bias) * outward


class Direct(nn.Module):
    """The units of an MLP and, behind them, a linear model of what the readout sees besides z.

    The linear model says nothing until `fit` has put it there; then it is kept as it is, and the MLP learns what it
    lacks.
    """

    weight: Tensor
    """(output, number seen)"""
    bias: Tensor
    """(output,)"""

    def __init__(self, units: nn.Module, hidden: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.units, self.hidden = units, hidden
        self.register_buffer("weight", torch.zeros(outputs, inputs - hidden))
        self.register_buffer("bias", torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(..., input) -> (..., width + output)."""
        seen = x[..., self.hidden :]
        return torch.cat([self.units(x), nn.functional.linear(seen, self.weight, self.bias)], -1)


class Readout(nn.Module):
    """From z, and what it may see of the path besides, to outputs.

    Linear; a small MLP with layer norm where `width` is given, with `dropout` in training; so many MLPs that share
    their weights, without layer norm, with `members` (see `Members`). Outputs are raw: numbers for regression, logits
    otherwise. `binary` and `multilabel` have one logit for each question, `multiclass` one for each class,
    `time-to-event` one for each of its `bins` of time ahead (`TimeBins`, which `fit` lays where events are). Of
    `forecast` they are quantiles of each of its `forecasts` (`Forecasts`), around last values that stand behind what is
    seen; they begin as these.

    Args:
        hidden: size of z.
        outputs: how many outputs there are.
        kind: what they are.
        width, dropout, members: as above.
        layers: a module of one's own in place of all that, (..., input) -> (..., output), where input is
            hidden and what is seen besides, one behind the other.
        path_channels: how many channels the path has, where the readout sees X too; else 0.
        channels: how many of them are observed in time, where it has ramps.
        ramps: it then also sees how long ago each channel was observed, and each number it sees as so many `Ramps`.
        direct: a linear model of all that it sees stands beside the MLP (`Direct`, put there by `fit`).
        steps: room for so many steps of single numbers it sees, whose log-odds are averaged with its own outside
            training (`Steps`; models of versions before trees have them).
        trees: room for a `Forest` of so many trees, nodes and levels, which `fit` grows; its outputs, from running
            statistics (`models.past`), are averaged with its own outside training.

    Raises:
        ValueError: settings that do not go together.
    """

    def __init__(
        self,
        hidden: int,
        outputs: int,
        kind: Kind = "regression",
        width: int | None = None,
        dropout: float = 0.0,
        members: int = 1,
        *,
        layers: nn.Module | None = None,
        path_channels: int = 0,
        channels: int = 0,
        ramps: int = 0,
        steps: int = 0,
        trees: Sequence[int] | None = None,
        direct: bool = False,
    ) -> None:
        self.config = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        super().__init__()
        if kind not in RULES:
            raise ValueError(f"kind is {kind!r}: choose one of {', '.join(RULES)}.")
        if outputs < 1:
            raise ValueError(f"outputs is {outputs}: give at least 1.")
        if width is not None and width < 1:
            raise ValueError(f"the readout's width is {width}: give at least 1, or None.")
        if kind == "multiclass" and outputs < 2:
            raise ValueError("multiclass needs one output for each class, at least 2.")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}: give a share from 0 up to 1.")
        if members < 1 or (members > 1 and width is None):
            raise ValueError(
                f"members is {members}: give 1, or more where the readout has a width."
            )
        if (ramps or steps) and not path_channels:
            raise ValueError("ramps and steps are of X: give the readout sees_path=True too.")
        if steps and (kind != "binary" or outputs != 1):
            raise ValueError("steps are of log-odds: give kind='binary' and one output.")
        if direct and (width is None or members > 1 or not path_channels or layers is not None):
            raise ValueError(
                "direct stands beside one MLP that sees X: give the readout a width, one member and sees_path=True."
            )
        self.hidden, self.kind, self.members = hidden, kind, members
        seen = path_channels + (channels if ramps else 0)
        self.sees_path, self.sees_ages = bool(path_channels), bool(ramps)
        self.inputs = hidden + seen * (1 + ramps)
        self.own_layers = layers is not None
        self.linear = layers is None and width is None
        if layers is None:
            layers = _layers(self.inputs, outputs, width, dropout, members, hidden * direct)
        self.layers = layers
        self.ramps = Ramps(seen, ramps) if ramps else None
        self.steps = Steps(seen, steps) if steps else None
        self.trees = Forest(*trees, outputs=outputs) if trees else None
        self.bins = TimeBins(outputs) if kind == "time-to-event" else None
        self.forecasts = Forecasts(outputs) if kind == "forecast" else None
        if self.forecasts is not None and not self.own_layers:
            last = layers[-1] if isinstance(layers, nn.Sequential) else layers
            for weight in last.parameters():
                nn.init.zeros_(weight)

    @property
    def paces(self) -> tuple[float, float]:
        """How fast the rest of a model and the readout learn where a training says 1.

        Of several members each sees few rows, and what holds for all of them comes slowly; a state
        that learned at their pace would know its patients by heart before.
        """
        return (0.1, 4.0) if self.members > 1 else (1.0, 1.0)

    def features(self, z: Tensor, seen: Tensor | None) -> Tensor:
        """What the layers take in, (..., input): z, what is seen, and its ramps."""
        if self.forecasts is not None and seen is not None:
            seen = seen[..., : -len(self.forecasts)]
        if seen is None or not seen.shape[-1]:
            return z
        return torch.cat([z, seen if self.ramps is None else self.ramps(seen)], -1)

    def forward(self, z: Tensor, seen: Tensor | None = None, past: Tensor | None = None) -> Tensor:
        """Outputs (..., output) of z (..., hidden), what is seen (..., number) and, for trees, numbers of the past.

        In training, of its layers alone.
        """
        outputs = self.layers(self.features(z, seen))
        if self.forecasts is not None and seen is not None:
            return self.forecasts(outputs, seen[..., -len(self.forecasts) :])
        if self.training:
            return outputs
        if self.steps is not None and seen is not None:
            outputs = self.steps.beside(outputs, seen)
        if self.trees is not None and past is not None:
            outputs = self.trees.beside(outputs, past)
        return outputs

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Outputs as probabilities; numbers of a regression as they are."""
        return RULES[self.kind].probabilities(outputs)

    def loss(self, outputs: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Mean loss over the labels that are there, see `masked_loss`."""
        if self.bins is not None:
            weight = self.bins.edges
        elif self.forecasts is not None:
            weight = self.forecasts.unit
        return masked_loss(self.kind, outputs, labels, weight)

    def within(self, horizon: float | None = None) -> Readout:
        """Of a readout of time to an event one of kind "binary", with the same weights: log-odds within a horizon."""
        if self.bins is None:
            raise ValueError(f"a readout of kind {self.kind!r} says nothing of horizons.")
        one = copy.copy(self)
        layers = nn.Sequential(self.layers, LogOdds(self.bins, horizon))
        one._modules = {**self._modules, "layers": layers, "bins": None}
        one.kind, one.linear = "binary", False
        return one


def _layers(
    inputs: int, outputs: int, width: int | None, dropout: float, members: int, hidden: int = 0
) -> nn.Module:
    """The layers of a readout; hidden: of z, where a linear model of the other inputs stands beside the MLP."""
    if width is None:
        return nn.Linear(inputs, outputs)
    if members > 1:
        first: list[nn.Module] = [Members(inputs, width, members)]
    else:
        first = [nn.LayerNorm(inputs), nn.Linear(inputs, width), nn.SiLU()]
    first += [nn.Dropout(dropout)] if dropout else []
    if not hidden:
        return nn.Sequential(*first, nn.Linear(width, outputs))
    last = nn.Linear(width + outputs, outputs)
    with torch.no_grad():
        last.weight[:, width:] = torch.eye(outputs)
    return nn.Sequential(Direct(nn.Sequential(*first), hidden, inputs, outputs), last)


def is_plain_readout(readout: nn.Module) -> bool:
    """Whether a readout is its layers, its ramps and its steps and nothing else: no subclass, hook or other forward."""
    return type(readout) is Readout and "forward" not in readout.__dict__ and not has_hooks(readout)


def is_linear_readout(readout: nn.Module) -> bool:
    """Whether one weight and one bias say all that a readout makes of its features."""
    return is_plain_readout(readout) and is_linear(readout.layers)  # pyright: ignore[reportArgumentType]


def behind(seen: Tensor | None, last: Tensor | None) -> Tensor | None:
    """Last values (..., forecast) behind what a readout sees (..., number), either of which may be None."""
    if seen is None or last is None:
        return last if seen is None else seen
    return torch.cat([seen, last.to(seen)], -1)


def read(readout: nn.Module, z: Tensor, seen: Tensor | None, past: Tensor | None = None) -> Tensor:
    """Outputs of z (..., hidden) with what the readout sees besides (..., number), or None; its trees, of `past`."""
    if z.is_cuda and not torch.is_grad_enabled():
        return read_rounded_once(readout, z, seen, past)
    if past is not None:
        return readout(z, seen, past)
    return readout(z) if seen is None else readout(z, seen)


def read_rounded_once(
    readout: nn.Module, z: Tensor, seen: Tensor | None, past: Tensor | None = None
) -> Tensor:
    """`read` in float64, rounded once: a GPU's products alone would round by the number of rows.

    A readout that sees ramps takes in a thousand numbers a row, so rows go through it in blocks.
    """
    tensors = [*readout.named_parameters(), *readout.named_buffers()]
    weights = {name: x.double() for name, x in tensors if x.is_floating_point()}
    inputs = [z, seen, past]
    while inputs[-1] is None:
        inputs.pop()
    lines = [None if x is None else x.double().flatten(0, -2) for x in inputs]
    outputs = [
        torch.func.functional_call(
            readout, weights, tuple(None if x is None else x[at : at + BLOCK] for x in lines)
        )
        for at in range(0, max(1, z[..., 0].numel()), BLOCK)
    ]
    return torch.cat(outputs).to(z.dtype).unflatten(0, z.shape[:-1])


def read_rows(
    readout: nn.Module,
    z: Tensor,
    seen: Tensor | None,
    lengths: Tensor | None,
    past: Tensor | None = None,
) -> Tensor:
    """`read` at all rows (stream, row, ...); in training an MLP is spared the padding, where lengths are given."""
    linear = getattr(readout, "linear", False)
    if lengths is None or not readout.training or linear or torch.compiler.is_compiling():
        return read(readout, z, seen, past)
    row = torch.arange(z.shape[1], device=z.device)
    real = row < lengths[:, None]
    outputs = read(readout, z[real], None if seen is None else seen[real])
    # What stands in the padding repeats the last row.
    first = nn.functional.pad(lengths.cumsum(0), (1, 0))[:-1]
    return outputs[first[:, None] + row.minimum(lengths[:, None] - 1)]
