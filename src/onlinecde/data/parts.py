"""What a task carries beside series and labels (truth, utility, known risk) <-> plain facts and arrays, for a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onlinecde.data.alarm_utility import Utility, UtilityCurve
from onlinecde.data.forecasting import ForecastTruth
from onlinecde.data.known_risk import KnownRisk, RiskCurve
from onlinecde.data.truth import EndLabels, EventTruth, IntervalTruth, ListedLabels

_CLASSES = {
    one.__name__: one
    for one in (
        *(EndLabels, ListedLabels, IntervalTruth, EventTruth, ForecastTruth),
        *(Utility, UtilityCurve, KnownRisk, RiskCurve),
    )
}


def part_arrays(part: Any, prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The plain facts of a part; its tables go to `arrays`, under names that begin with `prefix`.

    >>> arrays = {}
    >>> truth = EndLabels(torch.tensor([2.0]), torch.tensor([1.0]))
    >>> facts = part_arrays(truth, "truth", arrays)
    >>> facts, sorted(arrays)
    ({'class': 'EndLabels', 'until': 'truth_until', 'label': 'truth_label'}, ['truth_label', 'truth_until'])
    >>> part_of(facts, arrays).label
    tensor([1.])
    """
    facts: dict[str, Any] = {"class": type(part).__name__}
    for one in fields(part):
        value, name = getattr(part, one.name), f"{prefix}_{one.name}"
        if isinstance(value, (Tensor, np.ndarray)):
            arrays[name] = value.cpu().numpy() if isinstance(value, Tensor) else value
            value = name
        elif is_dataclass(value):
            value = part_arrays(value, name, arrays)
        facts[one.name] = value
    return facts


def part_of(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Any:
    """A part from what `part_arrays` gave."""
    made = _CLASSES[facts["class"]]
    own: dict[str, Any] = {}
    for one in fields(made):
        value = facts[one.name]
        if isinstance(value, str):
            value = arrays[value]
            value = torch.from_numpy(value) if "Tensor" in str(one.type) else value
        elif isinstance(value, dict):
            value = part_of(value, arrays)
        own[one.name] = tuple(value) if isinstance(value, list) else value
    return made(**own)
