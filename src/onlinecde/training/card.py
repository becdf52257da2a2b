"""The model card: what a saved model is, what it was trained on, how good it was, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onlinecde.data import Task
from onlinecde.evaluation.bootstrap import Estimate
from onlinecde.evaluation.naive import NaiveScore
from onlinecde.models import OnlineModel
from onlinecde.models.flat_settings import flat_of
from onlinecde.training.settings import FitSettings


def model_card(
    model: OnlineModel,
    task: Task,
    settings: FitSettings,
    best: Mapping[str, Any],
    summary: Mapping[str, Any],
    after: Mapping[str, Any],
) -> str:
    """Write the card of a fitted model.

    `best` is the log's line of the epoch that was kept, `after` what was done with the model then:
    "with_steps", "with_trees", "recalibrated", "naive", as the manifest has them.
    """
    weights = sum(p.numel() for p in model.parameters())
    then = ""
    if "with_steps" in after:
        count = f"{after['with_steps']['steps']} single-feature steps"
        then = (
            f"\n- Then boosting added {count} to the readout: {_judged(after['with_steps'], task)}."
        )
    if "with_trees" in after:
        grown = after["with_trees"]
        then += (
            f"\n- Then {grown['trees']} boosted trees were grown over running statistics, with a share of "
            f"{grown['share']:.2f} in the outputs: {_judged(grown, task)}."
        )
    if "recalibrated" in after:
        then += (
            "\n- Log-odds scaled and shifted as the validation labels ask for, within the readout's "
            f"weights: {_judged(after['recalibrated'], task)}."
        )
    if "settled" in after:
        shares = ", ".join(f"{one:g}" for one in after["settled"]["share"][:6])
        then += (
            f"\n- Of each change from the last value {shares} is kept, and widths are as validation asks for: "
            f"{_judged(after['settled'], task)}."
        )
    if "parent" in after:
        parent = after["parent"]
        count = parent["streams"]
        then += (
            f"\n- Updated from model {parent['sha256'][:12]} on {parent['new'].get('name')}: "
            f"{count['new in training']} new training streams, {count['taught again']} old ones taught again. On old "
            f"validation streams {parent['in_words']['old']}; on new ones {parent['in_words']['new']}. Scales are that "
            "model's; calibration and intervals were fitted anew."
        )
        earlier = parent["before"]
        while earlier:
            then += f" Before that: from {earlier['sha256'][:12]} on {earlier['new'].get('name')}."
            earlier = earlier["before"]
    if "calibration" in after:
        slope, intercept = (
            Estimate(**after["calibration"][name]) for name in ("slope", "intercept")
        )
        then += (
            f"\n- Calibration on validation: slope {slope}, intercept {intercept}; a perfect model has 1 and 0. "
            "Labels that it was recalibrated with flatter it: `onlinecde evaluate` shows it on new streams."
        )
    if model.intervals is not None:
        shown = " and ".join(f"{100 * level:g} %" for level in model.intervals.levels)
        then += (
            f"\n- Intervals for {shown} of labels, measured on {model.intervals.subjects:,} validation subjects: "
            f"`model.interval(outputs, {model.intervals.widest:g})`."
        )
    for one in after.get("naive", ()):
        score = NaiveScore(**{k: v for k, v in one.items() if k != "beaten"})
        then += f"\n- On validation: {score.in_words}."
        if not score.beaten:
            then += f" **Warning:** {score.warning}."
    online = {
        "CONTINUOUS": "at any time, from the past alone",
        "DISCRETE": "at the rows, from the past alone",
        "OFFLINE": "after the fact only: it uses the whole series",
    }[model.measurability.name]
    channels = ", ".join(task.series.channels)
    statics = ", ".join(task.series.features) or "none"
    sizes = ", ".join(f"{name} {len(at)}" for name, at in task.splits.items())
    config = flat_of(getattr(model, "config", {}))
    hyper = "\n".join(f"| {name} | {value} |" for name, value in config.items())
    training = "\n".join(f"| {name} | {value} |" for name, value in settings.as_json().items())
    return f"""# {type(model).__name__} for {task.name}

{weights:,} weights. Predicts {task.kind} outputs ({", ".join(task.classes) or task.outputs}), {online}.

- Trained on: {task.source}; {len(task.series)} streams ({sizes}), no subject in two splits.
- Channels: {channels}.
- Static features: {statics}. Times in {task.time_unit}.
- Kept: epoch {best["epoch"]} of {summary["epochs"]}, chosen on the validation split;
  {_judged(best, task)}.{then}
- Trained for {summary["seconds"]:.0f} s on {summary["device"]}; {summary["ended"]}.

## Use

```python
import onlinecde as oc

model = oc.load("this folder")
state = model.init_state(streams=1{", static=..." if model.static else ""})
state = model.observe(state, t, x)  # x: (1, {model.channels}), NaN = not observed
model.predict(state, t)
```

Scaling is inside the model: give raw values in the units it was trained on. It knows only what
the training data shows; whether that holds for other wards, machines or years must be measured
(`onlinecde evaluate`) before it is relied upon.

## Settings

| model | |
|---|---|
{hyper}

| training | |
|---|---|
{training}
"""


def _judged(found: Mapping[str, Any], task: Task) -> str:
    """Metric and loss on the validation split, in words."""
    metric = found.get(f"validation_{task.metric}")
    said = "has no value on the validation split" if metric is None else f"{metric:.4f}"
    return f"validation {task.metric} {said}, loss {found['validation_loss']:.4f}"
