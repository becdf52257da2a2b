"""Backward passes that cannot be differentiated themselves, and say so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., tuple[Tensor | None, ...]]


def first_order(remedy: str) -> Callable[[Backward], Backward]:
    """Mark a `Function.backward` as one whose result has no gradient of its own.

    It raises as soon as such a gradient is prepared for (`create_graph=True`), with the `remedy`.
    torch's `once_differentiable` leaves it at that where no incoming gradient requires one, and raises
    only where the result is differentiated by way of itself: a gradient penalty would count for nothing.

    What was computed without autocast is also recomputed without it.
    """

    def mark(backward: Backward) -> Backward:
        @functools.wraps(backward)
        def checked(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            if torch.is_grad_enabled():
                raise RuntimeError(
                    "second derivatives (create_graph=True) would be lost here, for these gradients are "
                    f"found without autograd: {remedy}."
                )
            with torch.autocast(grads[0].device.type, enabled=False):
                return backward(ctx, *grads)

        return checked

    return mark


once_by_solve = first_order("solve with gradient='backprop', which records everything")
"""For solves"""
once_by_recurrence = first_order("leave create_graph out, or use a model whose solves are recorded")
"""For recurrences with gradients written out by hand"""
