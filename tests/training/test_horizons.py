"""Horizons: targets by their definition, losses by hand, and a training state that can be put down."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import onlinecde as oc
import onlinecde.training.fitting as fitting
from onlinecde.data import Task, simulate_ward
from onlinecde.training import MODEL_NAMES, FitError, FitSettings, build_model, fit
from onlinecde.training import defaults as building
from onlinecde.training.graphs import GraphedStep
from onlinecde.training.journal import read_checkpoint
from onlinecde.training.loop import Training
from onlinecde.training.objectives import HorizonReadout, Scales, coming_labels

INF = float("inf")
HOW = FitSettings(horizons=(3.0, INF), horizon_weight=0.4, batch_size=8)
SMALL = {"hidden": 6}


@pytest.fixture(scope="module")
def ward():
    """Rows without a label in it, and streams of unequal length."""
    task = simulate_ward(60, seed=1, hours=12).task
    hidden = torch.rand(task.labels.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    labels = task.labels.masked_fill(hidden, torch.nan)
    assert len(set(task.series.rows.tolist())) > 1
    return Task.build("ward", task.series, labels, kind="binary", per="row", splits=task.splits)


def by_definition(times, labels, horizon):
    found = np.full(labels.shape, np.nan)
    for stream in range(len(labels)):
        for row, now in enumerate(times[stream]):
            known = [
                label
                for later, label in zip(times[stream][row:], labels[stream][row:], strict=True)
                if later <= now + horizon and not np.isnan(label)
            ]
            if known:
                found[stream, row] = max(known)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_targets_are_what_they_are_said_to_be(seed):
    random = np.random.default_rng(seed)
    rows = random.integers(1, 12, 9)
    series = oc.SeriesBatch.from_arrays(
        # On a grid of halves, so that many rows lie just at the end of a horizon.
        [np.cumsum(random.integers(1, 5, n)) / 2 for n in rows],
        [random.normal(size=(n, 1)) for n in rows],
    )
    labels = torch.tensor(random.choice([0, 1, np.nan], series.times.shape, p=[0.6, 0.15, 0.25]))
    labels[~series.real] = torch.nan
    horizons = (0.5, 2.0, 3.7, INF)
    found = coming_labels(series.times, labels, horizons)
    for place, horizon in enumerate(horizons):
        wanted = by_definition(series.times.numpy(), labels.numpy(), horizon)
        np.testing.assert_array_equal(found[:, :, place].numpy(), wanted)
    assert bool(found[~series.real].isnan().all())


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_gradients_are_those_of_the_loss_written_out(ward, name):
    torch.manual_seed(0)
    still = {"channel_dropout": 0.0} | ({"readout_dropout": 0.0} if name == "neural-cde" else {})
    model = build_model(ward, name, {**SMALL, **still}).double()
    settings = FitSettings(**{**HOW.as_json(), "dtype": "float64"})
    training = Training(model, ward, Scales(), settings, torch.device("cpu"))
    batch, labels = training.series[:7], training.labels[:7]
    labels = labels[:, : batch.times.shape[1]]
    seen = []
    with torch.no_grad():
        training.ahead.bias += torch.randn(2, dtype=torch.float64)
    loss = training._gradients(batch, labels)
    found = [p.grad.clone() for p in (*model.parameters(), *training.ahead.parameters())]

    # Row by row, what the head reads at the last row of each beginning of a stream.
    handle = model.readout.register_forward_pre_hook(lambda _, read: seen.append(read[0]))
    said = []
    for stream in range(len(batch)):
        for row in range(int(batch.rows[stream])):
            one = batch[stream]
            cut = oc.SeriesBatch.from_padded(
                one.times[:, : row + 1], one.values[:, : row + 1], static=one.static
            )
            said.append(model(cut, final=True)[0, 0])
    handle.remove()
    bce = nn.functional.binary_cross_entropy_with_logits
    real = batch.real
    wanted = labels[real].double()
    known = ~wanted.isnan()
    plain = bce(torch.stack(said)[known], wanted[known])
    total = plain
    read = torch.cat(seen)[:, : model.hidden]
    for place, horizon in enumerate(settings.horizons):
        coming = torch.tensor(by_definition(batch.times.numpy(), labels.numpy(), horizon))[real]
        there = ~coming.isnan()
        logits = read @ training.ahead.weight[place] + training.ahead.bias[place]
        total = total + 0.4 * bce(logits[there], coming[there])
    training.optimiser.zero_grad()
    total.backward()
    torch.testing.assert_close(loss.detach(), plain.detach())
    every = (*model.parameters(), *training.ahead.parameters())
    for one, parameter in zip(found, every, strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-6, atol=1e-9)


def test_the_state_alone_is_read_where_the_head_sees_x_too(ward):
    sizes = {**SMALL, "readout_sees_path": True, "readout_width": 5}
    model = build_model(ward, "neural-cde", sizes)
    series, labels = ward.split("train")
    ahead = HorizonReadout(model, series, labels, HOW)
    assert ahead.in_features == model.hidden < model.readout.inputs
    with torch.no_grad():
        outputs, logits = ahead.forward_with(model, series[:4])
        assert logits.shape == (*series[:4].times.shape, 2)
        model.eval()
        assert torch.equal(ahead.forward_with(model, series[:4])[0], model(series[:4]))
    assert outputs.shape == (*series[:4].times.shape, 1)


def test_what_is_saved_and_averaged_is_the_model_alone(ward, tmp_path):
    with_it = fit(ward, "gru", tmp_path / "run", settings=HOW, epochs=2, model_settings=SMALL)
    without = fit(ward, "gru", epochs=2, batch_size=8, model_settings=SMALL)
    assert with_it.model.state_dict().keys() == without.model.state_dict().keys()
    assert with_it.history[0]["train_loss"] != without.history[0]["train_loss"]
    tensors, _ = read_checkpoint(tmp_path / "run" / "checkpoint")
    assert {n for n in tensors if n.startswith("ahead.")} == {"ahead.weight", "ahead.bias"}
    assert not [n for n in tensors if n.startswith(("average.ahead", "best.ahead"))]
    manifest = json.loads((tmp_path / "run/model/manifest.json").read_text())
    assert manifest["extra"]["settings"]["horizons"] == [3.0, "inf"]


def test_a_training_put_down_anywhere_ends_as_if_it_had_not_been(ward, tmp_path, monkeypatch):
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

    ways = {"settings": HOW, "epochs": 3, "average": 0.9, "model_settings": {**SMALL, "rank": 2}}
    calm = fit(ward, **ways)
    stops = 0
    for after in (2, 3, 5):
        with pytest.raises(KeyboardInterrupt):
            fit(ward, out=tmp_path, callback=Stopping(after), **ways)
        stops += 1
    assert stops == 3
    wild = fit(ward, out=tmp_path, **ways)
    for one, other in zip(calm.model.parameters(), wild.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_it_learns_what_is_to_come(ward):
    """Trained together, the loss of horizons falls well below that of their base rates."""
    model = build_model(ward, "gru", {"hidden": 16})
    training = Training(model, ward, Scales(), HOW.changed({"lr": 1e-2}), torch.device("cpu"))
    model.fit_scales(ward.split("train")[0])
    rows, labels = training.series, training.labels

    def loss():
        with torch.no_grad():
            return float(
                training.ahead.loss(training.ahead.forward_with(model, rows)[1], rows.times, labels)
            )

    before = loss()
    for number in range(30):
        training._step(torch.arange(len(rows)), number)
    assert loss() < 0.9 * before


def test_a_captured_step_is_told_of_horizons(ward, monkeypatch):
    from onlinecde.training import loop

    told = []

    class Captured(GraphedStep):
        def __init__(self, *_, **more):
            told.append((more["ahead"], more["horizon_weight"]))

    monkeypatch.setattr(loop, "why_not", lambda model: None)
    monkeypatch.setattr(loop, "GraphedStep", Captured)
    model = build_model(ward, "neural-cde", SMALL)
    here = torch.device("cpu")
    plain = Training(model, ward, Scales(), FitSettings(), here)
    ahead = Training(model, ward, Scales(), HOW, here)
    assert plain.captured is not None
    assert told == [(None, FitSettings().horizon_weight), (ahead.ahead, 0.4)]
    assert isinstance(ahead.ahead, HorizonReadout)


def test_a_state_with_more_to_learn_learns_at_full_pace(ward):
    model = build_model(ward, "neural-cde", {**SMALL, "readout_width": 5, "readout_members": 2})
    assert model.readout.paces == (0.1, 4.0)

    def rates(settings):
        training = Training(model, ward, Scales(), settings, torch.device("cpu"))
        body = {id(parameter) for parameter in model.field.parameters()}
        return {
            group["rate"] for group in training.optimiser.param_groups
            if any(id(parameter) in body for parameter in group["params"])
        }  # fmt: skip

    assert rates(FitSettings()) == {0.1}
    assert rates(HOW) == {1.0}


def test_other_tasks_are_refused_before_a_folder_is_taken(ward, tmp_path):
    series = ward.series
    some = torch.arange(len(series)) % 2
    others = [
        Task.build("t", series, some, kind="binary"),
        Task.build("t", series, series.times, kind="regression", per="row"),
        Task.build("t", series, some, kind="multiclass", classes=("a", "b")),
    ]
    for task in others:
        with pytest.raises(FitError, match="horizons are for binary tasks with a label per row"):
            fit(task, "gru", tmp_path / "run", horizons=(3.0,))
    assert not (tmp_path / "run").exists()


def test_a_model_that_does_not_put_out_what_its_head_does_is_refused(ward):
    class Cut(oc.GRU):
        def forward(self, batch, at=None, *, final=False):
            return super().forward(batch, at, final=final)[..., :1]

    own = Cut(len(ward.series.channels), 4, static=2, kind="binary")
    with pytest.raises(FitError, match="Cut does not put out what its readout does"):
        fit(ward, own, epochs=1, horizons=(3.0,))


class Begun(Exception):  # noqa: N818 - what a test looks for, not a fault
    """What a run was to begin with."""


@pytest.mark.parametrize("told", [{}, {"horizons": ()}, {"epochs": 3, "horizons": (2.0,)}])
def test_several_processes_train_the_recipe_of_one(ward, tmp_path, monkeypatch, told):
    from onlinecde.scale import ray_fitting
    from onlinecde.training import fitting

    def begin(task, model, out=None, *, settings, **more):
        raise Begun(getattr(settings, "training", settings))

    monkeypatch.setattr(building, "MANY", 10)
    monkeypatch.setattr(ray_fitting, "check_run", begin)
    monkeypatch.setattr(
        fitting, "_about", lambda model, task, how, source: begin(task, model, settings=how)
    )
    how = {"model_settings": {"hidden": 4, "readout_width": 8}, **told}
    begun = []
    for fit_by in (ray_fitting.fit, fit):
        with pytest.raises(Begun) as found:
            fit_by(ward, "neural-cde", tmp_path / "run", **how)
        begun.append(found.value.args[0])
    several, one = begun
    assert several == one
    assert len(one.horizons) == (3 if not told else len(told["horizons"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizons": (0.0,)}, "horizons is .*times above 0"),
        ({"horizons": (float("nan"),)}, "times above 0"),
        ({"horizons": 12}, "horizons is 12: give times"),
        ({"horizons": "12"}, "horizons is '12'"),
        ({"horizons": ("soon",)}, "soon"),
        ({"horizon_weight": 0.0}, "horizon_weight is 0.0"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(changes, message):
    with pytest.raises(FitError, match=message):
        FitSettings(**changes)


def test_settings_without_horizons_are_what_they_were_and_with_them_come_back():
    assert not [name for name in FitSettings(horizon_weight=0.3).as_json() if "horizon" in name]
    told = json.loads(json.dumps(HOW.as_json(), allow_nan=False))
    assert told == HOW.as_json()
    assert FitSettings(**told) == HOW
    assert FitSettings(horizons=[]) == FitSettings()


def test_a_readout_of_several_members_has_horizons_by_default(ward, monkeypatch):
    small = {"batch_size": 8}  # few streams
    assert building.usual_settings(ward, "neural-cde").values_alone == small
    monkeypatch.setattr(building, "MANY", 10)
    series, _ = ward.split("train")
    lasted = [float(one.times[0, int(one.rows[0]) - 1] - one.times[0, 0]) for one in series]
    found = building.usual_settings(ward, "neural-cde").values_alone
    third, whole, ever = found["horizons"]
    assert whole == pytest.approx(sorted(lasted)[(len(lasted) - 1) // 2], rel=0.005)
    assert third == pytest.approx(whole / 3, rel=0.005)
    assert ever == INF
    assert found["horizon_weight"] == 1.0
    assert building.usual_settings(ward, "gru-d").values_alone == small
    one = {"readout_members": 1}
    assert building.usual_settings(ward, "neural-cde", one).values_alone == small
    ever = Task.build("t", ward.series, torch.arange(len(ward.series)) % 2, kind="binary")
    assert building.usual_settings(ever, "neural-cde").values_alone == small


@pytest.mark.parametrize(
    ("told", "horizons"),
    [({}, 3), ({"horizons": ()}, 0), ({"settings": FitSettings()}, 0), ({"horizons": (2.0,)}, 1)],
)
def test_what_is_told_wins_over_the_default(ward, monkeypatch, told, horizons):
    monkeypatch.setattr(building, "MANY", 10)
    seen = []

    class Watched(Training):
        def __init__(self, *given):
            super().__init__(*given)
            seen.append(0 if self.ahead is None else self.ahead.out_features)

    settings = told.pop("settings", None)
    sizes = {"hidden": 4, "readout_width": 8}
    told["epochs"] = 1
    fit(ward, "neural-cde", model_settings=sizes, settings=settings, loop=Watched, **told)
    assert seen == [horizons]
