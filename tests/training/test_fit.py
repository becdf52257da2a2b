"""`fit`: learns, repeats itself, keeps the best point, folds scales, refuses what cannot be right."""

import json

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.data import Task, simulate_ward
from onlinecde.evaluation.metrics import score
from onlinecde.evaluation.predictions import predict_task
from onlinecde.training import FitError, FitSettings, build_model, fit, read_log
from onlinecde.training.optimiser import epoch_batches

SMALL = {"hidden": 8, "width": 8}


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(120, seed=3, hours=24).task


def easy_task(kind="binary", per="stream", streams=300, seed=0):
    """What is asked for is the mean of the second channel, seen now and then, far from 0."""
    random = np.random.default_rng(seed)
    level = random.normal(0, 1, streams)
    times = [np.sort(random.uniform(0, 10, random.integers(3, 9))) for _ in range(streams)]
    values = [
        np.stack(
            [random.normal(50, 20, len(t)), 300 + 40 * (at + random.normal(0, 0.1, len(t)))], 1
        )
        for t, at in zip(times, level, strict=True)
    ]
    series = oc.SeriesBatch.from_arrays(
        times, values, static=torch.tensor(random.normal(900, 5, (streams, 1)), dtype=torch.float32)
    )
    labels = {
        "binary": (level > 0).astype(float),
        "multiclass": np.digitize(level, [-0.5, 0.5]),
        "regression": 1000 + 70 * level,
    }[kind]
    if per == "row":
        labels = np.repeat(labels[:, None], series.times.shape[1], 1)
    classes = ("low", "mid", "high") if kind == "multiclass" else ()
    return Task.build("easy", series, labels, kind=kind, per=per, classes=classes)


@pytest.mark.parametrize("model", ["neural-cde", "gru", "gru-d"])
@pytest.mark.parametrize(
    ("kind", "per", "bar"),
    [
        ("binary", "stream", 0.97),
        ("binary", "row", 0.95),
        ("multiclass", "stream", 0.8),
        ("regression", "stream", 35.0),
        ("regression", "row", 40.0),
    ],
)
def test_every_kind_of_task_is_learned_in_its_own_units(model, kind, per, bar):
    task = easy_task(kind, per)
    done = fit(task, model, model_settings={"hidden": 16}, epochs=40, lr=1e-2, batch_size=32)
    series, labels = task.split("test")
    found = score(
        task.kind, task.metric, predict_task(done.model, series, per), labels, done.model.readout
    )
    assert (found < bar) if kind == "regression" else (found > bar), found


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(ward):
    runs = [
        fit(
            ward, model_settings={**SMALL, "channel_dropout": 0.3}, epochs=2, seed=seed, average=0.9
        )
        for seed in (5, 5, 6)
    ]
    weights = [torch.cat([p.flatten() for p in run.model.parameters()]) for run in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    same = [{k: v for k, v in e.items() if k != "seconds"} for e in runs[0].history]
    assert same == [{k: v for k, v in e.items() if k != "seconds"} for e in runs[1].history]


def test_the_callers_random_numbers_are_left_alone(ward):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    fit(ward, "gru", model_settings={"hidden": 4}, epochs=1)
    assert torch.equal(torch.rand(3), expected)


def test_the_model_has_the_weights_of_the_best_validation_point(ward):
    how = {"lr": 3e-2, "clip_gradient": None, "monitor": "metric", "validate_at": "task"}
    done = fit(ward, model_settings=SMALL, epochs=8, **how)
    values = [entry["validation_auc"] for entry in done.history]
    assert done.best["validation_auc"] == max(values)
    series, labels = ward.split("validation")
    outputs = predict_task(done.model, series, "row")
    again = score("binary", "auc", outputs, labels, done.model.readout)
    assert again == pytest.approx(done.best["validation_auc"], abs=1e-6)


def test_the_loss_decides_where_it_is_asked_to(ward):
    done = fit(ward, model_settings=SMALL, epochs=8, lr=3e-2, monitor="loss")
    assert done.best["validation_loss"] == min(e["validation_loss"] for e in done.history)


def test_training_stops_and_slows_down_where_nothing_gets_better(ward):
    done = fit(ward, "gru", model_settings={"hidden": 4}, epochs=50, lr=1e-9, plateau=2, stop=4)
    assert len(done.history) < 50
    assert "nothing better" in done.ended
    slow = fit(
        ward, "gru", model_settings={"hidden": 4}, epochs=6, lr=1e-6, plateau=2, monitor="loss"
    )
    assert [e["lr"] for e in slow.history] == sorted((e["lr"] for e in slow.history), reverse=True)


@pytest.mark.parametrize(("members", "body", "head"), [(1, 1.0, 3.0), (4, 0.1, 12.0)])
def test_a_readout_of_several_members_learns_faster_and_all_before_it_slower(members, body, head):
    task = easy_task(streams=60)
    torch.manual_seed(0)
    sizes = {**SMALL, "readout_width": 8, "readout_members": members, "readout_dropout": 0.0}
    model = build_model(task, "neural-cde", sizes)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    how = {"batch_size": 60, "average": 0.0, "clip_gradient": None, "lr": 1e-5, "head_lr": 3.0}
    fit(task, model, epochs=1, monitor="loss", **how)
    # Adam's first step is as long as the rate, whatever the gradient.
    for name, pace in (("field.inner.0.weight", body), ("readout.layers.1.weight", head)):
        moved = model.state_dict()[name] - before[name]
        assert float(moved.abs().max()) == pytest.approx(1e-5 * pace, rel=0.05), name


def test_a_fold_changes_nothing_but_units():
    task = easy_task("regression")
    torch.manual_seed(0)
    from onlinecde.training.defaults import build_model
    from onlinecde.training.objectives import fold, learn_scales

    for name in ("neural-cde", "gru", "ode-rnn"):
        model = build_model(task, name, {"hidden": 6}).double().eval()
        series, labels = task.split("train")
        series = series.to(dtype=torch.float64)
        model.fit_scales(series)
        scales = learn_scales(model, series, labels, target=True)
        with torch.no_grad():
            before = scales.outputs(model(scales.series(series)))
            fold(model, scales)
            torch.testing.assert_close(model(series), before, rtol=1e-9, atol=1e-7)
        assert before.std() > 1  # it speaks in the task's units


def test_scaling_comes_from_the_training_split_unless_all_is_asked_for(ward):
    clean = fit(ward, "gru", model_settings={"hidden": 4}, epochs=1).model
    peeking = fit(ward, "gru", model_settings={"hidden": 4}, epochs=1, scaling="all").model
    train = oc.Encoding(len(ward.series.channels)).fit(ward.split("train")[0])
    every = oc.Encoding(len(ward.series.channels)).fit(ward.series)
    assert torch.equal(clean.encoding.shift, train.shift)
    assert torch.equal(peeking.encoding.shift, every.shift)


def test_the_test_split_is_never_looked_at(ward):
    spoiled = ward.series.values.clone()
    spoiled[ward.splits["test"]] *= -3
    changed = Task.build(
        "spoiled",
        oc.SeriesBatch.from_padded(
            ward.series.times, spoiled, ward.series.rows, static=ward.series.static
        ),
        ward.labels,
        kind="binary",
        per="row",
        splits=ward.splits,
        truth=ward.truth,
    )
    ours = fit(ward, model_settings=SMALL, epochs=2).model
    theirs = fit(changed, model_settings=SMALL, epochs=2).model
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_balanced_classes_move_the_outputs_towards_the_rare_one(ward):
    plain, balanced = (
        fit(
            ward,
            "gru",
            model_settings={"hidden": 8},
            epochs=5,
            lr=1e-2,
            batch_size=8,
            class_weights=how,
        )
        for how in ("none", "balanced")
    )
    series, _ = ward.split("validation")
    said = [predict_task(r.model, series, "row").sigmoid().mean() for r in (plain, balanced)]
    assert said[1] > said[0] + 0.1


def test_batches_hold_every_stream_once_and_change_with_the_epoch():
    first, second = (epoch_batches(1001, 16, seed=1, epoch=e) for e in (1, 2))
    assert torch.equal(torch.cat(first).sort().values, torch.arange(1001))
    assert {len(batch) for batch in first} == {15, 16}
    assert {tuple(sorted(b.tolist())) for b in first}.isdisjoint(
        {tuple(sorted(b.tolist())) for b in second}
    )


def test_every_batch_knows_short_and_long_streams_alike():
    lengths = torch.arange(1000.0)
    means = torch.stack([lengths[b].mean() for b in epoch_batches(1000, 50, seed=3, epoch=1)])
    # The deviation of a mean of 50 drawn at random; of like lengths it would be 289.
    assert float(means.std()) < 2 * 289 / 50**0.5


def test_a_run_leaves_a_model_a_log_and_a_card_behind(ward, tmp_path):
    done = fit(ward, model_settings=SMALL, epochs=2, out=tmp_path / "run")
    loaded = oc.load(tmp_path / "run" / "model")
    series, _ = ward.split("test")
    with torch.no_grad():
        assert torch.equal(loaded(series), done.model(series))
    log = read_log(tmp_path / "run")
    assert [entry["epoch"] for entry in log] == [1, 2]
    assert log == list(done.history)
    manifest = json.loads((tmp_path / "run/model/manifest.json").read_text())
    assert manifest["channels"] == list(ward.series.channels)
    assert manifest["extra"]["metric"] == "auc"
    assert manifest["extra"]["validation"]["epoch"] == done.best["epoch"]
    card = (tmp_path / "run/model/README.md").read_text()
    assert "NeuralCDE for simulated-ward" in card
    assert f"epoch {done.best['epoch']} of 2" in card
    assert list((tmp_path / "run/tensorboard").iterdir())


def test_tensorboard_has_what_the_log_has(ward, tmp_path):
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter  # noqa: F401  (the package writes records)

    fit(ward, "gru", model_settings={"hidden": 4}, epochs=2, out=tmp_path)
    data = next((tmp_path / "tensorboard").iterdir()).read_bytes()
    found, at = {}, 0
    while at < len(data):  # a record: length (8), its crc (4), content, crc (4)
        size = int.from_bytes(data[at : at + 8], "little")
        event = Event.FromString(data[at + 12 : at + 12 + size])
        for value in event.summary.value:
            found[value.tag, event.step] = value.simple_value
        at += 16 + size
    for entry in read_log(tmp_path):
        for name in ("train_loss", "validation_loss", "validation_auc", "lr"):
            assert found[name, entry["epoch"]] == pytest.approx(entry[name], rel=1e-6)


def test_a_finished_run_is_loaded_and_not_trained_again(ward, tmp_path):
    once = fit(ward, "gru", model_settings={"hidden": 4}, epochs=2, out=tmp_path)

    class Forbidden:
        def batch(self, *told):
            raise AssertionError("it trains again")

        epoch = note = batch

    again = fit(
        ward, "gru", model_settings={"hidden": 4}, epochs=2, out=tmp_path, callback=Forbidden()
    )
    for one, other in zip(once.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert again.history == once.history


def test_a_folder_with_another_run_is_refused_and_says_what_differs(ward, tmp_path):
    fit(ward, "gru", model_settings={"hidden": 4}, epochs=1, out=tmp_path)
    with pytest.raises(FitError, match=r"settings \(lr was 0.001, is 0.01\).*--fresh"):
        fit(ward, "gru", model_settings={"hidden": 4}, epochs=1, lr=0.01, out=tmp_path)
    with pytest.raises(FitError, match=r"model \(hidden was 4, is 5\)"):
        fit(ward, "gru", model_settings={"hidden": 5}, epochs=1, out=tmp_path)
    other = simulate_ward(120, seed=4, hours=24).task
    with pytest.raises(FitError, match=r"holds a run on other data: streams, labels or splits"):
        fit(other, "gru", model_settings={"hidden": 4}, epochs=1, out=tmp_path)
    done = fit(ward, "gru", model_settings={"hidden": 5}, epochs=1, out=tmp_path, fresh=True)
    assert done.model.hidden == 5


def test_of_a_task_that_moved_the_entry_that_differs_is_named(ward, tmp_path):
    def source(file):
        return {"source": "table", "name": "w.csv", "arguments": {"events": file, "time": "t"}}

    small = {"model_settings": {"hidden": 4}, "epochs": 1, "out": tmp_path}
    fit(ward, "gru", source=source("/old/w.csv"), **small)
    with pytest.raises(FitError) as refused:
        fit(ward, "gru", source=source("/new/w.csv"), **small)
    assert "of another task (events was '/old/w.csv', is '/new/w.csv')." in str(refused.value)


def test_a_folder_that_is_no_run_is_left_alone(ward, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(FitError, match="something else than a run"):
            fit(ward, "gru", epochs=1, out=tmp_path, fresh=fresh)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "no training setting 'epoch': did you mean 'epochs'"),
        ({"epochs": 0}, "epochs is 0"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"average": 1.0}, "average is 1.0"),
        ({"epochs": 2.5}, "epochs is 2.5: give a whole number"),
        ({"epochs": True}, "epochs is True: give a whole number"),
        ({"lr": "abc"}, "lr is 'abc': give a number"),
        ({"clip_gradient": "abc"}, "clip_gradient is 'abc': give a number or null"),
        ({"monitor": "auc"}, "monitor is 'auc': give one of metric, loss"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"model": "lstm"}, "no model 'lstm': choose one of neural-cde"),
        ({"model_settings": {"hiden": 3}}, "no setting 'hiden': did you mean 'hidden'"),
        ({"model_settings": {"zeal": 3}}, "no setting 'zeal': it has channels, hidden"),
        ({"model_settings": {"clip": "abc"}}, "clip of NeuralCDE is 'abc': give a number or null"),
        ({"model_settings": {"hidden": 4.5}}, "hidden of NeuralCDE is 4.5: give a whole number"),
        ({"model_settings": {"counts": "yes"}}, "counts of NeuralCDE is 'yes': give true or false"),
        ({"model_settings": {"control": "x"}}, "control of NeuralCDE is 'x': give one of rectil"),
        ({"model_settings": {"channels": 3}}, "channels is 3, but the task"),
        ({"model_settings": {"hidden": 0}}, "cannot be built: hidden is 0"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(ward, changes, message):
    with pytest.raises(FitError, match=message):
        fit(ward, **changes)


def test_a_training_that_diverges_says_where_and_what_to_try(ward):
    with pytest.raises(FitError, match=r"epoch \d+, batch \d+: .*smaller learning rate"):
        fit(ward, model_settings=SMALL, epochs=20, lr=1e18, clip_gradient=None)


def test_a_model_of_ones_own_is_trained_as_it_is(ward):
    torch.manual_seed(0)
    own = oc.GRU(channels=len(ward.series.channels), static=2, hidden=6, kind="binary")
    done = fit(ward, own, epochs=1)
    assert done.model is own
    with pytest.raises(FitError, match="puts out 1 numbers of kind 'regression'"):
        fit(ward, oc.GRU(channels=len(ward.series.channels), static=2, hidden=6), epochs=1)


def test_settings_travel_as_plain_values():
    assert json.loads(json.dumps(FitSettings().as_json())) == FitSettings().as_json()
