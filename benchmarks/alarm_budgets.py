"""Do budgets of false alarms hold? One model, many new wards: policies chosen on some streams, judged on others.

    python -m benchmarks.alarm_budgets --json benchmarks/results/alarm_budgets.json

A budget is kept on a ward where it is not below the interval of what was found on the unseen streams: that of 1,000
resamples of patients, and that of a Poisson number besides.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import onlinecde as oc
from onlinecde.evaluation.alarm_budget import Sweeps, choose_policy, usual_every
from onlinecde.evaluation.alarms import AlarmScore, look, score_alarms
from onlinecde.evaluation.bootstrap import Cohort
from onlinecde.experiments.machine import circumstances
from onlinecde.models import AlarmPolicy

BUDGETS = (0.2, 0.5, 2.0)
VALIDATION, UNSEEN = 300, 700


def main() -> None:
    """Fit, choose and judge; print a line a budget."""
    parser = argparse.ArgumentParser(description="Do budgets of false alarms hold?")
    parser.add_argument("--wards", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    trained = oc.data.simulate_ward(1500, seed=100).task
    model = oc.training.fit(trained, "neural-cde", epochs=given.epochs, lr=5e-3, device="cpu").model
    grid = AlarmPolicy(0.5, every=usual_every(trained))
    training = Sweeps(look(model, trained, "train", grid).select(np.arange(VALIDATION)))
    found: dict[float, list[dict[str, float]]] = {budget: [] for budget in BUDGETS}
    for ward in range(given.wards):
        task = oc.data.simulate_ward(VALIDATION + UNSEEN, seed=3000 + ward).task
        parts = torch.arange(len(task.series)).split([VALIDATION, UNSEEN])
        task = replace(task, splits=dict(zip(("validation", "test"), parts, strict=True)))
        chosen_on, unseen = (look(model, task, split, grid) for split in task.splits)
        cohort = Cohort(unseen.owners, unseen.subjects, 1000, 0)
        for budget in BUDGETS:
            policy = choose_policy(chosen_on, training, budget, lead=12.0, every=grid.every).policy
            found[budget].append(_line(score_alarms(unseen, policy, cohort), policy))
    for budget, lines in found.items():
        print(f"{budget:g} a stream and day: {_summary(budget, lines)}")
    if given.json is not None:
        command = shlex.join(["python", "-m", "benchmarks.alarm_budgets", *sys.argv[1:]])
        content = {"command": command, **circumstances("cpu"), "wards": found}
        given.json.write_text(json.dumps(content, indent=1) + "\n")


def _line(score: AlarmScore, policy: AlarmPolicy) -> dict[str, float]:
    rate, share = score.false_a_day, score.share_caught
    assert rate.value is not None
    assert rate.low is not None
    assert share.value is not None
    # Lower end of a Poisson number's interval, by Wilson and Hilferty.
    count = score.false
    lowest = count * (1 - 1 / (9 * count) - 1.96 / (3 * np.sqrt(count))) ** 3 if count else 0.0
    return {
        "rate": rate.value,
        "low": rate.low,
        "poisson_low": float(lowest) / score.days,
        "caught": share.value,
        "threshold": policy.threshold,
        "quiet": policy.quiet,
    }


def _summary(budget: float, lines: list[dict[str, float]]) -> str:
    kept, poisson = (sum(line[name] <= budget for line in lines) for name in ("low", "poisson_low"))
    rate, caught = (np.mean([line[name] for line in lines]) for name in ("rate", "caught"))
    return (
        f"kept on {kept} of {len(lines)} wards (as a Poisson number on {poisson}); mean rate {rate:.3f}, events caught "
        f"{100 * caught:.0f} %"
    )


if __name__ == "__main__":
    main()
