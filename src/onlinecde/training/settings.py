"""How a model is trained, as plain values that travel with every run, and the seeds that come of them."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class FitError(ValueError):
    """A training that cannot start or cannot go on; the message says why and what to do."""


@dataclass(frozen=True)
class FitSettings:
    """What `fit` does with a model and a task. Every field may be given to `fit` by name.

    >>> FitSettings(epochs=20).batch_size
    64
    """

    epochs: int = 100
    batch_size: int = 64
    lr: float = 1e-3
    """Learning rate; a readout of several members learns at 4 times this, all before it at a tenth
    where there are no horizons"""
    head_lr: float = 1.0
    """The readout learns at this many times as fast"""
    weight_decay: float = 0.0
    """Decoupled (AdamW), on matrices only"""
    clip_gradient: float | None = 1.0
    """Largest norm of the gradient of all weights together"""
    plateau: int = 8
    """Epochs without a better validation point after which the learning rate falls"""
    lr_factor: float = 0.3
    lr_floor: float = 1e-7
    stop: int = 25
    """Epochs without a better validation point after which training ends"""
    monitor: Literal["metric", "loss", "calibrated"] = "calibrated"
    """What makes a validation point better: the task's metric, the loss, or the loss after recalibration,
    with which the kept model's log-odds are then scaled and shifted (of a regression, the loss)"""
    average: float = 0.99
    """Weight averaging: decay a batch of an exponential mean of the weights; 0 for none"""
    class_weights: Literal["none", "balanced"] = "none"
    objective: Literal["label", "utility"] = "label"
    """What is learned: the label, or where an alarm is worth more than silence, of tasks that say so; the model answers
    the label's probability all the same, and its `boundary` is the one from which on an alarm is worth more"""
    scale_target: bool = True
    """Train on targets of mean 0 and deviation 1; the saved model speaks in the task's units"""
    scaling: Literal["train", "all"] = "train"
    """Whose means and deviations scale the values: the training split's; "all" peeks, as the
    paper's code did"""
    horizons: tuple[float, ...] = ()
    """More targets in training, for binary labels per row: whether the label is 1 at any row from now to
    this much time later, in the task's unit; `inf`: to the end of the stream"""
    horizon_weight: float = 0.1
    """What the mean loss of each horizon counts beside that of the label"""
    outlook: tuple[float, ...] = ()
    """More targets in training: in these times ahead, in the task's unit, which values are observed, and how often"""
    outlook_weight: float = 1.0
    """What their loss counts beside that of the label"""
    at: str = "task"
    """When training streams are asked, and taught their labels: at the task's own times, or as `Queries` says it:
    "rows", "end", "every=1h", "random=16" (drawn anew each epoch), several with "+" """
    validate_at: str = "task"
    """When validation streams are asked, likewise"""
    asking: Literal["hold", "empty-rows"] = "hold"
    """Between rows, of a model that is online at rows alone: it holds its last answer, or is given empty rows"""
    trees: bool = False
    """Whether boosted trees over running statistics are grown beside a Neural CDE's trained readout, as far as they
    serve the validation split; it takes LightGBM"""
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(FitSettings).items():
            wanted = remedy(getattr(self, name), hint)
            if wanted is not None:
                raise FitError(f"{name} is {getattr(self, name)!r}: give {wanted}.")
        for name in ("epochs", "batch_size", "plateau", "stop"):
            if getattr(self, name) < 1:
                raise FitError(f"{name} is {getattr(self, name)!r}: give a whole number from 1 on.")
        for name in ("lr", "head_lr"):
            if not 0 < getattr(self, name) < float("inf"):
                raise FitError(f"{name} is {getattr(self, name)}: give a number above 0.")
        if not 0 <= self.average < 1:
            raise FitError(f"average is {self.average}: give a decay from 0 up to 1.")
        if not 0 < self.lr_factor < 1:
            raise FitError(f"lr_factor is {self.lr_factor}: give a number between 0 and 1.")
        if self.weight_decay < 0:
            raise FitError(f"weight_decay is {self.weight_decay}: give 0 or more.")
        if self.clip_gradient is not None and not self.clip_gradient > 0:
            raise FitError(
                f"clip_gradient is {self.clip_gradient}: give a number above 0, or None."
            )
        object.__setattr__(self, "horizons", _times_ahead("horizons", self.horizons))
        outlook = _times_ahead("outlook", self.outlook, float("inf"))
        object.__setattr__(self, "outlook", outlook)
        for name in ("horizon_weight", "outlook_weight"):
            if not 0 < getattr(self, name) < float("inf"):
                raise FitError(f"{name} is {getattr(self, name)}: give a number above 0.")

    def changed(self, changes: Mapping[str, Any]) -> FitSettings:
        """These settings with some changed; an unknown name is refused with the nearest one."""
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = (
                    f": did you mean {near[0]!r}?" if near else f": choose from {', '.join(known)}."
                )
                raise FitError(f"there is no training setting {name!r}{hint}")
        return replace(self, **changes)

    def as_json(self) -> dict[str, Any]:
        """Plain values, for a manifest, without horizons and times to ask at where there are none.

        >>> FitSettings(horizons=(12, float("inf"))).as_json()["horizons"]
        [12.0, 'inf']
        """
        told = asdict(self)
        if self.horizons:
            # JSON has no infinity.
            told["horizons"] = [h if h < float("inf") else "inf" for h in self.horizons]
        else:
            del told["horizons"], told["horizon_weight"]
        if self.outlook:
            told["outlook"] = list(self.outlook)
        else:
            del told["outlook"], told["outlook_weight"]
        for name in ("objective", "at", "validate_at", "asking", "trees"):
            if told[name] == getattr(FitSettings, name):
                del told[name]
        return told


def _times_ahead(name: str, given: Any, least_too_long: float | None = None) -> tuple[float, ...]:
    """Times above 0, below one that is too long; "inf" may be a word, as it is in JSON."""
    try:
        found = None if isinstance(given, str) else tuple(float(h) for h in given)
    except (TypeError, ValueError):
        found = None
    right = found is not None and all(
        h > 0 and (least_too_long is None or h < least_too_long) for h in found
    )
    if found is None or not right:
        such_as = "(12, 48, inf)" if least_too_long is None else "(2, 6, 12)"
        raise FitError(f"{name} is {given!r}: give times above 0, such as {such_as}.")
    return found


_PLAIN: dict[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool, "true or false"),
    str: (str, "a word"),
    NoneType: (NoneType, "null"),
}


def remedy(value: Any, hint: Any) -> str | None:
    """What to give in place of a value that is not of a type; None where it is.

    Knows numbers, words, choices and unions of them; of other types any value is right.

    >>> remedy("abc", float | None), remedy(3, float)
    ('a number or null', None)
    """
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if any(_is(value, choice) for choice in choices):
        return None
    return " or ".join(_words(choice) for choice in choices)


def _is(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint not in _PLAIN:
        return True
    # To Python, True is a number; to whoever wrote hidden=true it is a slip.
    return isinstance(value, _PLAIN[hint][0]) and (hint is bool or not isinstance(value, bool))


def _words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    return _PLAIN[hint][1]


PAPER = FitSettings(
    epochs=1000,
    batch_size=1024,
    lr=5e-3,
    head_lr=10.0,
    clip_gradient=None,
    plateau=15,
    lr_factor=0.1,
    stop=60,
    monitor="loss",
    average=0.0,
    scale_target=False,
    scaling="all",
)
"""The paper's own: Adam, plateau of 15 epochs, stop after 60, readout at ten times the rate."""


def seed_for(*parts: int | str) -> int:
    """A seed from a few numbers and words; the same on every machine."""
    text = "/".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")
