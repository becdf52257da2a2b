"""A count scale, a tableau, a kind of outputs, a control: each is added by one row of its table, for all who use it."""

import pytest
import torch
from tests.models.test_own_parts import asked_everywhere, online
from torch import nn

import onlinecde as oc
from onlinecde.controls import encoding
from onlinecde.models import neural_cde, readout
from onlinecde.solvers import runge_kutta


def made(**settings):
    torch.manual_seed(0)
    model = oc.NeuralCDE(2, 3, **{"field": {"width": 6}, **settings}).double().eval()
    return model, oc.audit.trial_batch_for(model, 1, streams=3, rows=5, missing=0.3)


def test_a_count_scale_counts_in_live_streams_as_in_batches(monkeypatch):
    monkeypatch.setitem(encoding.COUNT_SCALES, "root", torch.sqrt)
    model, batch = made(encoding={"count_scale": "root"})
    plain, _ = made()
    assert (asked_everywhere(model, batch) - asked_everywhere(plain, batch)).abs().amax() > 1e-3
    live = model.frozen()
    with torch.no_grad():
        assert torch.equal(online(live, batch), online(model, batch))


def test_a_tableau_solves_on_every_backend_and_adapts_its_steps(monkeypatch):
    ralston = runge_kutta.Tableau(
        "ralston", 2, ((), (2 / 3,)), (0.25, 0.75), (0.0, 2 / 3), (-0.75, 0.75), embedded_order=1
    )
    monkeypatch.setitem(runge_kutta.TABLEAUS, "ralston", ralston)
    model, batch = made(solver={"method": "ralston", "steps": 20})
    asked_everywhere(model, batch)
    path, z0 = model.path(batch), torch.randn(3, 3, dtype=torch.float64)
    settings = {"steps": 50, "backend": "torch"}, {"steps": 50}, {"rtol": 1e-6, "atol": 1e-6}
    exact = oc.solve(path, model.field, z0, "dopri5", steps=50).z
    for one in settings:
        torch.testing.assert_close(
            oc.solve(path, model.field, z0, "ralston", **one).z, exact, rtol=1e-3, atol=1e-3
        )
    with pytest.raises(ValueError, match=r"heun, bosh3, dopri5, tsit5 or ralston"):
        oc.Solver("rk4", rtol=1e-3, atol=1e-3)


def test_a_kind_of_outputs_has_its_loss_and_its_probabilities(monkeypatch):
    def poisson(outputs, labels, weight):
        return nn.functional.poisson_nll_loss(outputs, labels, reduction="none")

    monkeypatch.setitem(readout.RULES, "rate", readout._Rule(torch.exp, poisson))
    model, batch = made(readout={"kind": "rate"})
    outputs = asked_everywhere(model, batch)
    assert torch.equal(model.readout.probabilities(outputs), outputs.exp())
    labels = torch.tensor([[2.0, torch.nan, 0.0, 1.0, 5.0]], dtype=torch.float64)
    known = ~labels.isnan()
    wanted = (outputs.exp()[..., 0] - labels * outputs[..., 0])[known].mean()
    torch.testing.assert_close(model.readout.loss(outputs, labels), wanted)


def test_a_control_has_its_path_and_its_measurability(monkeypatch):
    build, measurability = neural_cde.CONTROLS["linear"]
    monkeypatch.setitem(neural_cde.CONTROLS, "lines", (build, measurability))
    model, batch = made(control="lines")
    same, _ = made(control="linear")
    whole = oc.SeriesBatch.from_padded(batch.times[:1], batch.values[:1].nan_to_num())
    assert model.measurability is measurability
    with torch.no_grad():
        assert torch.equal(model(whole), same(whole))
        assert torch.equal(online(model, whole), online(same, whole))
