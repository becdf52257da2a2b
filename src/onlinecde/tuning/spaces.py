"""What a search may choose from: the paper's spaces by model, and settings found, as a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from onlinecde.data import DATA_SETS
from onlinecde.files import replace_file
from onlinecde.training.defaults import MODEL_NAMES, check_names, parameters_of
from onlinecde.training.settings import FitError, FitSettings, remedy

FORMAT = "onlinecde best settings 1"


class TuneError(ValueError):
    """A search that cannot start or go on; the message says why and what to do."""


@dataclass(frozen=True)
class Span:
    """From `low` to `high`, both included; whole numbers where both are; `log`: by ratios."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise TuneError(f"a span from {self.low:g} to {self.high:g} is empty: give low < high.")
        if self.log and self.low <= 0:
            raise TuneError(f"a span by ratios cannot start at {self.low:g}: start above 0.")

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @classmethod
    def parse(cls, text: str) -> Span:
        """`LOW:HIGH` or `LOW:HIGH:log`.

        >>> Span.parse("1e-4:1e-2:log")
        Span(low=0.0001, high=0.01, log=True)
        """
        parts = text.split(":")
        try:
            low, high = (int(p) if p.lstrip("-").isdigit() else float(p) for p in parts[:2])
        except ValueError as error:
            raise TuneError(f"{text!r} is not LOW:HIGH or LOW:HIGH:log.") from error
        if parts[2:] not in ([], ["log"]):
            raise TuneError(f"{text!r} is not LOW:HIGH or LOW:HIGH:log.")
        return cls(low, high, bool(parts[2:]))


@dataclass(frozen=True)
class SearchSpace:
    """Spans by the name of a setting, of the model or of `FitSettings`."""

    spans: Mapping[str, Span]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings the search does not change."""
    final_lr: float = 1.0
    """The settings found are to be trained with this many times the search's learning rate."""

    def divided(self, chosen: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What was chosen, and what is fixed, as (settings of the model, settings of `fit`)."""
        every = {**self.fixed, **chosen}
        of_fit = {f.name for f in fields(FitSettings)}
        model = {name: value for name, value in every.items() if name not in of_fit}
        return model, {name: value for name, value in every.items() if name in of_fit}

    def as_json(self) -> dict[str, Any]:
        """Plain values, to compare and to keep."""
        spans = {name: [s.low, s.high, s.log] for name, s in sorted(self.spans.items())}
        return {"spans": spans, "fixed": dict(self.fixed), "final_lr": self.final_lr}


def paper_space(model: str, task: str = "") -> SearchSpace:
    """The paper's space for a model on a task by name; on some data sets the Neural CDE's is smaller.

    >>> sorted(paper_space("gru-d").spans)
    ['hidden', 'lr']
    """
    if model not in MODEL_NAMES:
        raise TuneError(f"there is no model {model!r}: choose one of {', '.join(MODEL_NAMES)}.")
    known = DATA_SETS.get(task.partition("/")[0])
    if model == "neural-cde" and known is not None and known.small_search:
        sizes = {"hidden": Span(32, 128), "width": Span(32, 128), "depth": Span(1, 4)}
        return SearchSpace(sizes, fixed={"lr": 0.005}, final_lr=0.1)
    if model == "neural-cde":
        sizes = {"hidden": Span(32, 256), "width": Span(32, 196), "depth": Span(1, 4)}
        return SearchSpace(sizes, fixed={"lr": 0.005})
    if model == "ode-rnn":
        sizes = {"hidden": Span(32, 256), "width": Span(32, 196), "depth": Span(1, 4)}
        return SearchSpace({**sizes, "lr": Span(1e-4, 1e-2, log=True)})
    return SearchSpace({"hidden": Span(32, 512), "lr": Span(1e-4, 1e-1, log=True)})


def check_space(model: str, space: SearchSpace, given: Mapping[str, Any]) -> None:
    """Refuse, before any trial, spans and settings of a model that it does not have, or of a wrong type."""
    searched, _ = space.divided(space.spans)
    check_names(model, {**given, **searched})
    hints = get_type_hints(FitSettings)
    hints |= {name: hint for name, (hint, _) in parameters_of(model).items()}
    for name, span in space.spans.items():
        wanted = remedy(span.low if span.whole else float(span.low), hints[name])
        if wanted is not None:
            raise TuneError(
                f"{name} is searched from {span.low:g} to {span.high:g}, and must be {wanted}: give such limits."
            )


def write_best(file: Path, best: Mapping[str, Any]) -> None:
    """Write settings that were found, for `fit` and `reproduce`."""
    replace_file(file, json.dumps({"format": FORMAT, **best}, indent=2) + "\n")


def read_best(file: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `tune` found; `fit(task, best["model"], model_settings=..., **best["settings"])`."""
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise TuneError(f"{file} cannot be read: {error}.") from error
    except ValueError as error:
        raise TuneError(f"{file} is not JSON ({error}): give the best.json of a search.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TuneError(f"{file} holds no settings of a search: give the best.json of `tune`.")
    for name, kind in (
        ("task", str),
        ("model", str),
        ("model_settings", dict),
        ("settings", dict),
        ("searched", list),
    ):
        if not isinstance(content.get(name), kind):
            raise TuneError(f"{file}: `{name}` is missing or of a wrong type: run `tune` again.")
    try:
        FitSettings().changed(content["settings"])
    except FitError as error:
        raise TuneError(f"{file}: {error}") from error
    return content
