"""Training at query times: which times, which labels, the loss written out, put down and taken up, refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from onlinecde.data import EndLabels, Queries, simulate_ward
from onlinecde.evaluation.predictions import predict_split
from onlinecde.models.asking import ask
from onlinecde.training import FitError, FitSettings, build_model, fit
from onlinecde.training.defaults import TAUGHT_AT, resolve
from onlinecde.training.journal import settings_of_then
from onlinecde.training.loop import Training
from onlinecde.training.objectives import Scales, class_weight
from onlinecde.training.query_times import asked_task, drawn_anew

SMALL = {"hidden": 6}
HOW = FitSettings(at="rows+random=5", validate_at="every=1h", epochs=2, batch_size=16, average=0.0)


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(120, seed=3, hours=24).task


def test_training_streams_are_asked_as_taught_and_others_as_validated(ward):
    asked = asked_task(ward, HOW)
    until = ward.truth.until
    for name, at in ward.splits.items():
        series, _ = ward.split(name)
        times, (_, labels) = asked.split_times(name), asked.split(name)
        truth = ward.truth.select(at)
        same = torch.equal(labels.nan_to_num(-1), truth.at(times).nan_to_num(-1))
        assert same, name
        if name == "train":
            for stream in range(len(series)):
                own = series.times[stream, : int(series.rows[stream])]
                mine = times[stream][~times[stream].isnan()]
                assert bool(torch.isin(own, mine).all())
                assert float(mine.max()) <= float(until[at][stream])
        else:
            grid = Queries("grid", every=1.0).times(series, until[at])
            assert torch.equal(times.nan_to_num(-1), grid.nan_to_num(-1))
    assert asked_task(ward, FitSettings()) is ward


def test_times_are_drawn_anew_each_epoch_and_the_same_for_a_seed(ward):
    asked = asked_task(ward, HOW)
    drawn = [drawn_anew(asked, HOW, epoch)[0] for epoch in (1, 1, 2)]
    assert torch.equal(drawn[0].nan_to_num(-1), drawn[1].nan_to_num(-1))
    assert not torch.equal(drawn[0][:, :4].nan_to_num(-1), drawn[2][:, :4].nan_to_num(-1))
    other = drawn_anew(asked, replace(HOW, seed=1), 1)[0]
    assert not torch.equal(drawn[0][:, :4].nan_to_num(-1), other[:, :4].nan_to_num(-1))
    assert drawn_anew(asked, replace(HOW, at="every=1h"), 1) is None


def test_every_hour_counts_alike_however_long_a_stream_is(ward):
    """As many times as a stream is long, and everywhere in its span."""
    series, until = ward.series, ward.truth.until
    spans = (until - series.times[:, 0]).numpy()
    generator = torch.Generator().manual_seed(0)
    times = [Queries("random", number=8).times(series, until, generator) for _ in range(40)]
    counts = np.stack([(~one.isnan()).sum(1).numpy() for one in times])
    expected = 8 * spans / spans.mean()
    assert np.abs(counts - expected).max() < 1
    assert counts.mean(0) == pytest.approx(expected, abs=0.45)
    share = torch.cat(
        [
            ((one - series.times[:, :1]) / torch.from_numpy(spans)[:, None]).flatten()
            for one in times
        ]
    )
    share = share[~share.isnan()]
    assert float(share.mean()) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize(
    ("kind", "asking"), [("neural-cde", "hold"), ("gru-d", "hold"), ("gru-d", "empty-rows")]
)
def test_a_step_has_the_loss_of_its_labels_written_out(ward, kind, asking, balanced):
    how = replace(
        HOW, asking=asking, dtype="float64", class_weights="balanced" if balanced else "none"
    )
    asked = asked_task(ward, how)
    torch.manual_seed(0)
    model = build_model(ward, kind, {**SMALL, "channel_dropout": 0.0}).double()
    model.asking = asking
    training = Training(model, asked, Scales(), how, torch.device("cpu"))
    training._draw_times()
    chosen = torch.arange(5, 17)
    batch, labels, times = (x[chosen] for x in (training.series, training.labels, training.times))
    model.eval()  # without dropout
    loss = training._gradients(batch, labels, times)
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    total, count = torch.zeros((), dtype=torch.float64), 0
    weight = class_weight(asked) if balanced else None
    for stream in range(len(chosen)):
        known = ~labels[stream].isnan()
        logits = ask(model, batch[stream], times[stream : stream + 1])[0, :, 0][known]
        wanted = labels[stream][known].double()
        each = nn.functional.binary_cross_entropy_with_logits(
            logits, wanted, pos_weight=weight, reduction="none"
        )
        total, count = total + each.sum(), count + int(known.sum())
    (total / count).backward()
    assert float(loss.detach()) == pytest.approx(float(total.detach()) / count, rel=1e-9)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("kind", ["neural-cde", "ode-rnn", "gru-dt"])
def test_all_models_are_validated_where_the_task_is_judged(ward, kind):
    done = fit(ward, kind, settings=HOW, model_settings=SMALL, monitor="metric")
    asked = asked_task(ward, HOW)
    outputs = predict_split(done.model, asked, "validation")[..., 0]
    labels = asked.split("validation")[1]
    known = ~labels.isnan()
    value = roc_auc_score(labels[known], outputs[known])
    assert value == pytest.approx(done.best["validation_auc"], abs=1e-6)


def test_a_run_put_down_within_an_epoch_ends_as_if_it_had_not_been(ward, tmp_path, monkeypatch):
    from onlinecde.training import fitting

    monkeypatch.setattr(fitting, "SAVE_SECONDS", 0.0)

    class Stopping:
        def __init__(self, after):
            self.left = after

        def batch(self, *told):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

        def epoch(self, *told):
            pass

        note = epoch

    ways = {"settings": HOW, "horizons": (4.0,), "model_settings": {**SMALL, "width": 12}}
    calm = fit(ward, **ways)
    for after in (2, 9):
        with pytest.raises(KeyboardInterrupt):
            fit(ward, out=tmp_path, callback=Stopping(after), **ways)
    wild = fit(ward, out=tmp_path, **ways)
    for one, other in zip(calm.model.parameters(), wild.model.parameters(), strict=True):
        assert torch.equal(one, other)
    told = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert (told["at"], told["validate_at"]) == (HOW.at, HOW.validate_at)
    assert settings_of_then(tmp_path) == {
        "at": HOW.at,
        "validate_at": HOW.validate_at,
        "head_lr": 1.0,
        "weight_decay": 0.0,
        "outlook": [],
    }


def test_a_label_of_the_end_may_be_taught_all_along(rng):
    task = simulate_ward(80, seed=1, hours=12).task
    last = task.series.times.gather(1, task.series.rows[:, None] - 1)[:, 0]
    sizes = task.series.values[:, 0, 0]
    stays = replace(task, per="stream", kind="regression", metric="rmse", labels=sizes, classes=())
    stays = replace(stays, truth=EndLabels(last, sizes), known_risk=None)
    done = fit(stays, "gru", epochs=2, at="random=3", model_settings=SMALL)
    errors = predict_split(done.model, stays, "validation")[:, 0] - stays.split("validation")[1]
    rmse = float(errors.square().mean().sqrt())
    assert done.best["validation_rmse"] == pytest.approx(rmse, rel=1e-4)
    assert stays.clock is None


def test_by_default_labels_known_between_rows_are_taught_there(ward):
    found = resolve(ward, "gru")
    assert (found.training.at, found.training.validate_at) == (TAUGHT_AT, "every=0.5")
    assert found.chosen["training"]["at"].by == "task"
    at_rows = resolve(replace(ward, truth=None), "gru").training
    assert (at_rows.at, at_rows.validate_at) == ("task", "task")
    cubic = resolve(ward, "neural-cde", {"control": "natural_cubic"}).training
    assert cubic.at == "task", "it needs the whole series, between rows too"
    assert "at" not in FitSettings().as_json(), "a run of before is the same run"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at": "often"}, "at: query times are 'often'"),
        ({"validate_at": "every=0h"}, "validate_at: '0h' is no length of time"),
        ({"asking": "empty-rows"}, "NeuralCDE answers at any time"),
        ({"asking": "sometimes"}, "asking is 'sometimes'"),
    ],
)
def test_wrong_settings_are_refused_before_a_folder_is_taken(ward, tmp_path, changes, message):
    with pytest.raises(FitError, match=message):
        fit(ward, out=tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()
