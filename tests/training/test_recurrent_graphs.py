"""What a recurrent model's captured step computes, without a GPU: the plain step, with no look at a number."""

import copy

import pytest
import torch
from recomputed import NoLook, Recomputing, assert_same_gradients, made_labels, plain_step
from tests.models.test_gru import made_batch

import onlinecde as oc
from onlinecde.models.recurrent.gru import RUN, StackedGRU
from onlinecde.solvers import counting_evaluations
from onlinecde.training import graphs
from onlinecde.training.objectives import HorizonReadout
from onlinecde.training.recurrent_graphs import RecurrentStep
from onlinecde.training.settings import FitSettings

MODELS = {
    "GRU": (oc.GRU, {"layers": 2}),
    "GRUdt": (oc.GRUdt, {"readout_width": 5}),
    "GRUdtIntensity": (oc.GRUdtIntensity, {}),
    "GRUD": (oc.GRUD, {"readout_width": 5}),
    "ODERNN": (oc.ODERNN, {"width": 7, "readout_width": 5}),
}


class Recomputed(Recomputing, RecurrentStep):
    def __init__(self, model, **keywords):
        super().__init__(model, **keywords)
        if isinstance(model, oc.ODERNN):
            model._at_once = lambda rows, h0: True  # as on a GPU


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    monkeypatch.setattr(graphs, "why_not", lambda model: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    # While a graph is captured, states are not looked at.
    monkeypatch.setattr("onlinecde.models.recurrent.ode_rnn.check_states", lambda z, where: None)


@pytest.fixture(params=[False, True], ids=["by layer", "in cuDNN's runs"])
def runs(request, monkeypatch):
    """A GPU's way through a GRU too, as far as there is one without it."""
    if request.param:
        monkeypatch.setattr(StackedGRU, "_by_layer", lambda self, x, h0: self._by_cudnn(x, h0, RUN))


def made_model(name, **keywords):
    kind, settings = MODELS[name]
    torch.manual_seed(0)
    settings = {"channels": 3, "hidden": 6, "gain": 0.7, "clip": 1.5} | settings | keywords
    model = kind(**settings)
    model.fit_scales(made_batch((30, 30), seed=5))
    return model.double().train()


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("kind", ["binary", "regression", "multiclass"])
def test_it_is_the_plain_step_whatever_came_before(name, final, kind):
    outputs = 3 if kind == "multiclass" else 1
    model = made_model(name, kind=kind, outputs=outputs, static=2)
    plain = copy.deepcopy(model)
    weight = {
        "binary": torch.tensor(1.7).double(),
        "regression": None,
        "multiclass": torch.tensor([0.5, 1.5, 1.0]).double(),
    }[kind]
    step = Recomputed(model, streams=7, final=final, weight=weight)
    # Full and with padding, in streams and in rows; later ones leave traces of earlier ones to trip over.
    for seed, rows in enumerate(
        [(20, 3, 9, 1, 24, 24, 7), (17, 2), (1,), (5, 1, 8), (37, 40), (24,) * 7, (1, 1)]
    ):
        batch = made_batch(rows, static=2, seed=seed)
        labels = made_labels(batch, kind, final, seed)
        wanted = plain_step(plain, batch, labels, final, weight)
        torch.testing.assert_close(step(batch, labels), wanted, rtol=1e-9, atol=1e-12)
        assert_same_gradients(model, plain)
    assert sorted(key[0] for key in step._graphs) == [8, 24, 40]


def test_evaluations_are_those_of_the_plain_step():
    model = made_model("ODERNN", kind="binary", steps=2)
    plain, step = copy.deepcopy(model), Recomputed(model, streams=7)
    for seed, rows in enumerate([(20, 3, 9), (5, 1), (21,)]):
        batch = made_batch(rows, seed=seed)
        labels = made_labels(batch, "binary", False, seed)
        with counting_evaluations() as wanted:
            plain_step(plain, batch, labels, False)
        with counting_evaluations() as found:
            step(batch, labels)
        assert found.total == wanted.total == (max(rows) - 1) * 2 * 4


def test_the_longest_comes_first_and_the_others_as_they_are_met():
    model = made_model("GRUD", kind="binary")
    plain = copy.deepcopy(model)
    step = Recomputed(model, streams=7, longest=60)
    for seed, rows in enumerate([(20, 3), (5, 1), (60,), (61,)]):
        batch = made_batch(rows, seed=seed)
        labels = made_labels(batch, "binary", False, seed)
        wanted = plain_step(plain, batch, labels, False)
        torch.testing.assert_close(step(batch, labels), wanted, rtol=1e-9, atol=1e-12)
        assert_same_gradients(model, plain)
    # One that is longer than all that were promised is taken too.
    assert [key[0] for key in step._graphs] == [64, 24, 8]


@pytest.mark.parametrize("name", MODELS)
def test_it_hides_the_channels_that_the_plain_step_hides(name):
    model = made_model(name, kind="binary", channel_dropout=0.5)
    plain, batch = copy.deepcopy(model), made_batch()
    labels = made_labels(batch, "binary", False, 0)
    step, found = Recomputed(model, streams=6), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        wanted = plain_step(plain, batch, labels, False)
        torch.manual_seed(seed)
        found.append(step(batch, labels))
        torch.testing.assert_close(found[-1], wanted, rtol=1e-9, atol=1e-12)
        assert_same_gradients(model, plain)
    assert found[0] != found[1]


@pytest.mark.parametrize("name", MODELS)
def test_with_horizons_it_is_the_plain_step_too(name):
    model = made_model(name, kind="binary", static=2)
    batch = made_batch((20, 3, 9, 1, 24), static=2)
    how = FitSettings(horizons=(1.0, float("inf")), horizon_weight=0.4)
    ahead = HorizonReadout(model, batch, made_labels(batch, "binary", False, 0), how)
    plain, plain_ahead = copy.deepcopy(model), copy.deepcopy(ahead)
    step = Recomputed(model, streams=7, ahead=ahead, horizon_weight=0.4)
    for seed, rows in enumerate([(20, 3, 9, 1, 24), (17, 2), (1,)]):
        batch = made_batch(rows, static=2, seed=seed)
        labels = made_labels(batch, "binary", False, seed)
        labels[torch.arange(batch.times.shape[1]) >= batch.rows[:, None]] = torch.nan
        plain.zero_grad()
        plain_ahead.zero_grad()
        outputs, logits = plain_ahead.forward_with(plain, batch)
        loss = plain.readout.loss(outputs, labels)
        (loss + 0.4 * plain_ahead.loss(logits, batch.times, labels)).backward()
        torch.testing.assert_close(step(batch, labels), loss.detach(), rtol=1e-9, atol=1e-12)
        assert_same_gradients(model, plain)
        assert_same_gradients(ahead, plain_ahead)
    (captured, *_) = step._graphs.values()
    with NoLook():
        step._compute(captured.inputs)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_no_number_is_looked_at(name, final, kind):
    model = made_model(name, kind=kind, outputs=2 if kind == "multiclass" else 1, static=2)
    step, batch = Recomputed(model, streams=7, final=final), made_batch(static=2)
    labels = made_labels(batch, kind, final, 0)
    step(batch, labels)
    (captured,) = step._graphs.values()
    outputs = model(batch, final=final)
    with NoLook():
        loss = step._compute(captured.inputs)
        model.readout.loss(outputs, labels)
    with pytest.raises(AssertionError, match="looks at numbers"), NoLook():
        assert torch.isfinite(loss)
    assert torch.isfinite(loss)


def test_what_it_is_not_for_is_refused():
    with pytest.raises(ValueError, match="RecurrentStep is not for NeuralCDE"):
        RecurrentStep(oc.NeuralCDE(2, 4, field={"width": 4}), streams=8)
    with pytest.raises(ValueError, match="GraphedStep is not for GRU"):
        graphs.GraphedStep(oc.GRU(2, 4), streams=8)
    with pytest.raises(ValueError, match="4 streams, the step takes up to 3"):
        Recomputed(made_model("GRU"), streams=3)(made_batch(), torch.zeros(4, 20))
