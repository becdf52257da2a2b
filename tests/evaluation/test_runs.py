"""Runs of one model, judged by themselves and together."""

import torch

import onlinecde as oc
from onlinecde.evaluation.runs import judge_runs


def test_each_run_predicts_once(monkeypatch):
    from onlinecde.evaluation import predictions

    asked = []
    plain = predictions.predict_task

    def counted(model, series, per, **how):
        asked.append(id(model))
        return plain(model, series, per, **how)

    monkeypatch.setattr(predictions, "predict_task", counted)
    task = oc.data.simulate_ward(60, seed=1).task
    made = {"channels": 12, "hidden": 4, "outputs": 1, "static": 2, "kind": "binary"}
    models = [oc.GRU(**made), oc.GRU(**made)]
    found = judge_runs("GRU", models, task, bootstrap=10)
    assert len(found.runs) == 2
    assert sorted(asked) == sorted(map(id, models))
    both = (found.runs[0].probabilities + found.runs[1].probabilities) / 2
    assert torch.equal(found.together.probabilities, both)
