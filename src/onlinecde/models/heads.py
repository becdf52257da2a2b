"""Heads: from a state to outputs, their losses and their probabilities; the same for every model."""

from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["regression", "binary", "multiclass", "multilabel"]
KINDS = ("regression", "binary", "multiclass", "multilabel")


class Head(nn.Module):
    """A linear readout, or a small MLP with layer norm where `width` is given, and `dropout` in training.

    Outputs are raw: numbers for regression, logits otherwise. `binary` and `multilabel` have one
    logit for each question, `multiclass` one for each class.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kind: Kind = "regression",
        width: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}: choose one of {', '.join(KINDS)}.")
        if outputs < 1:
            raise ValueError(f"outputs is {outputs}: give at least 1.")
        if kind == "multiclass" and outputs < 2:
            raise ValueError("multiclass needs one output for each class, at least 2.")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is {dropout}: give a share from 0 up to 1.")
        self.inputs, self.kind, self.linear = inputs, kind, width is None
        self.layers = (
            nn.Linear(inputs, outputs)
            if width is None
            else nn.Sequential(
                nn.LayerNorm(inputs),
                nn.Linear(inputs, width),
                nn.SiLU(),
                *([nn.Dropout(dropout)] if dropout else []),
                nn.Linear(width, outputs),
            )
        )

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
