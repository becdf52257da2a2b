"""Heads: from a state to outputs, their losses and their probabilities; the same for every model."""

from typing import Literal

import torch
from torch import Tensor, nn

from onlinecde.solvers.fields import has_hooks, is_linear

Kind = Literal["regression", "binary", "multiclass", "multilabel"]
KINDS = ("regression", "binary", "multiclass", "multilabel")


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
            found = torch.zeros((), dtype=x.dtype, device=x.device)
            for one in zip(self.inward, self.bias, self.outward, strict=True):
                found = found + self._units(x, *one)
            return found / len(self.bias)
        drawn = torch.randint(len(self.bias), x.shape[:-1], device=x.device)
        # Products with 0 and 1 rather than rows picked: their gradients add up in a fixed order.
        chosen = nn.functional.one_hot(drawn, len(self.bias)).to(x.dtype)
        return self._units(x, chosen @ self.inward, chosen @ self.bias, chosen @ self.outward)

    def _units(self, x: Tensor, inward: Tensor, bias: Tensor, outward: Tensor) -> Tensor:
        return nn.functional.silu(self.linear(x * inward) + bias) * outward


def is_linear_head(head: nn.Module) -> bool:
    """Whether one weight and one bias say all that a head computes."""
    return (
        type(head) is Head
        and is_linear(head.layers)
        and "forward" not in head.__dict__
        and not has_hooks(head)
    )


class Head(nn.Module):
    """A linear readout, or a small MLP with layer norm where `width` is given, and `dropout` in training.

    `members`: so many MLPs that share their weights, without layer norm, see `Members`. Outputs are raw: numbers for
    regression, logits otherwise. `binary` and `multilabel` have one logit for each question,
    `multiclass` one for each class.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kind: Kind = "regression",
        width: int | None = None,
        dropout: float = 0.0,
        members: int = 1,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}: choose one of {', '.join(KINDS)}.")
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
        self.inputs, self.kind, self.linear, self.members = inputs, kind, width is None, members
        self.layers = (
            nn.Linear(inputs, outputs)
            if width is None
            else nn.Sequential(
                *(
                    [nn.LayerNorm(inputs), nn.Linear(inputs, width), nn.SiLU()]
                    if members == 1
                    else [Members(inputs, width, members)]
                ),
                *([nn.Dropout(dropout)] if dropout else []),
                nn.Linear(width, outputs),
            )
        )

    @property
    def paces(self) -> tuple[float, float]:
        """How fast the rest of a model and the readout learn where a training says 1.

        Of several members each sees few rows, and what holds for all of them comes slowly; a state
        that learned at their pace would know its patients by heart before.
        """
        return (0.1, 4.0) if self.members > 1 else (1.0, 1.0)

    def forward(self, features: Tensor) -> Tensor:
        """(..., inputs) -> (..., output)."""
        return self.layers(features)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Outputs as probabilities; numbers of a regression as they are."""
        if self.kind == "multiclass":
            return outputs.softmax(-1)
        return outputs if self.kind == "regression" else outputs.sigmoid()

    def loss(self, outputs: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Mean loss over the labels that are there; NaN (or -1 for a class) means no label.

        Without any label it is 0, and so are its gradients.

        outputs (..., output); labels (...,) for multiclass and for one output, else (..., output).
        `weight` is the positive weight, or (class,) for multiclass.
        """
        if self.kind == "multiclass":
            known = labels >= 0
            if not bool(known.any()):
                return outputs[known].sum()
            return nn.functional.cross_entropy(
                outputs[known], labels[known].to(torch.int64), weight
            )
        if labels.ndim == outputs.ndim - 1:
            labels = labels.unsqueeze(-1)
        known = ~labels.isnan()
        found, wanted = outputs[known], labels[known].to(outputs.dtype)
        if not found.numel():
            return found.sum()
        if self.kind == "regression":
            return nn.functional.mse_loss(found, wanted)
        return nn.functional.binary_cross_entropy_with_logits(found, wanted, pos_weight=weight)
