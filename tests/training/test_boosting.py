"""Boosting: steps of single numbers, each the best there is, as many as serve others."""

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.artifacts import read_manifest
from onlinecde.evaluation.metrics import score
from onlinecde.evaluation.predictions import predict_task
from onlinecde.models.steps import Steps
from onlinecde.training import boosting, fit
from onlinecde.training.boosting import boost


def lines_of(random, many, numbers=6):
    """Lines whose log-odds jump at 0.3 of one number and fall in steps of a count; the rest is noise."""
    lines = random.normal(size=(many, numbers)).astype(np.float32)
    lines[:, 2] = random.integers(0, 5, many)
    odds = 2.0 * (lines[:, 0] > 0.3) - 0.6 * lines[:, 2]
    labels = (random.random(many) < 1 / (1 + np.exp(-odds))).astype(float)
    return lines, labels, odds


def said(found, lines):
    steps = Steps(lines.shape[1], len(found.place) or 1)
    steps.put(found.base, found.place, found.low, found.high, found.height)
    return steps(torch.from_numpy(lines))[:, 0].double().numpy()


def test_steps_of_the_right_numbers_are_found(rng):
    lines, labels, _ = lines_of(rng, 12_000)
    others, other_labels, odds = lines_of(rng, 12_000)
    found = boost(lines, labels, others, other_labels, most=64)
    loss = boosting._loss(said(found, others), other_labels)
    best, none = (boosting._loss(o, other_labels) for o in (odds, np.full(12_000, odds.mean())))
    assert loss < best + 0.06 * (none - best)
    # From centre to centre of the bins a step is a line: little is lost by that.
    assert abs(loss - found.loss) < 2e-3
    size = np.zeros(6)
    np.add.at(size, found.place, np.abs(found.height))
    assert size[[0, 2]].min() > 2 * np.delete(size, [0, 2]).max()
    jump = [h for p, a, b, h in zip(found.place, found.low, found.high, found.height, strict=True)
            if p == 0 and a < 0.3 < b + 0.1]  # fmt: skip
    assert sum(jump) > 0.6, "most of the jump is where it belongs"


def test_the_best_step_is_the_best_of_all(rng):
    lines, labels, _ = lines_of(rng, 300, numbers=4)
    cuts = [boosting._cuts(lines[:, n]) for n in range(4)]
    codes = boosting._codes(lines, cuts)
    odds = rng.normal(size=300)
    place, bin_, left, right = boosting._best_step(codes, np.arange(4), odds, labels, 20)
    chance = 1 / (1 + np.exp(-odds))
    slope, bend = chance - labels, chance * (1 - chance)
    best = (-np.inf, None)
    for number in range(4):
        for cut in range(len(cuts[number])):
            low = codes[number] <= cut
            if min(low.sum(), (~low).sum()) < 20:
                continue
            gain = sum(
                slope[side].sum() ** 2 / (bend[side].sum() + boosting.RIDGE) for side in (low, ~low)
            )
            best = max(best, (gain, (number, cut)))
    assert best[1] == (place, bin_)
    low = codes[place] <= bin_
    for side, height in ((low, left), (~low, right)):
        wanted = -boosting.RATE * slope[side].sum() / (bend[side].sum() + boosting.RIDGE)
        assert height == pytest.approx(wanted, rel=1e-9)


def test_the_same_seed_finds_the_same_steps():
    lines, labels, _ = lines_of(np.random.default_rng(3), 2000)
    found = [boost(lines, labels, lines, labels, most=20, seed=seed) for seed in (5, 5, 6)]
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert len(found[0].place) <= 20


def test_what_serves_nobody_else_is_not_kept(rng):
    lines, labels, _ = lines_of(rng, 2000)
    found = boost(lines, labels, lines, 1 - labels, most=64)
    assert found.place == []
    # Nothing to learn from, nothing that varies: no step, and no failure.
    assert boost(lines[:0], labels[:0], lines, labels, most=8).place == []
    assert boost(lines[:, :1] * 0, labels, lines[:, :1] * 0, labels, most=8).place == []


SMALL = {
    "hidden": 4, "width": 8, "rank": None, "restoring": 0.0, "readout_width": 8, "readout_ramps": 3,
    "readout_sees_path": True, "readout_steps": 12,
}  # fmt: skip


class Notes:
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)

    def batch(self, *_):
        pass

    def epoch(self, *_):
        pass


@pytest.mark.parametrize("per", ["stream", "row"])
def test_fit_lays_the_steps_of_a_model_that_has_room(tmp_path, per):
    ward = oc.data.simulate_ward(220, seed=1).task
    series, labels = ward.series, ward.labels
    if per == "row":
        known = series.real & (torch.arange(series.times.shape[1]) % 3 == 0)
        labels = torch.where(known, (series.times > series.times.median()).float(), torch.nan)
    elif ward.per == "row":
        labels = labels.nan_to_num(0).amax(1)
    task = oc.data.Task.build("steps", series, labels, kind="binary", per=per, seed=0)
    callback = Notes()
    done = fit(
        task, "neural-cde", tmp_path / "run", model_settings=SMALL, epochs=1, callback=callback
    )
    steps = done.model.readout.steps
    laid = int((steps.height != 0).sum())
    if per == "row":
        # The label is a matter of time alone, which is the first number.
        assert float(steps.share) == 0.5
        assert steps.height[steps.place == 0].abs().max() == steps.height.abs().max()
        judged = read_manifest(tmp_path / "run" / "model").extra["with_steps"]
        assert judged["steps"] == laid
        said = f"with them validation loss {judged['validation_loss']:.4f}, auc {judged['validation_auc']:.4f}"
        assert f"boosting adds {laid} single-feature steps to the readout; {said}" in callback.said
        asked, wanted = task.split("validation")
        found = predict_task(done.model, asked, "row")
        assert judged["validation_auc"] == score("binary", "auc", found, wanted, done.model.readout)
        assert judged["validation_auc"] > done.best["validation_auc"]
        card = (tmp_path / "run" / "model" / "README.md").read_text()
        assert (
            f"- Then boosting added {laid} single-feature steps to the readout: validation" in card
        )
    assert laid <= 12
    assert done.model.training is False
    # A run that is over is loaded, steps and all; without a folder the same are found.
    again = fit(task, "neural-cde", tmp_path / "run", model_settings=SMALL, epochs=1)
    assert torch.equal(again.model.readout.steps.height, steps.height)
    alone = fit(task, "neural-cde", model_settings=SMALL, epochs=1)
    for name, tensor in steps.state_dict().items():
        assert torch.equal(alone.model.readout.steps.state_dict()[name], tensor), name
