"""Time to an event: the likelihood written out bin by bin, risks that agree over horizons, and their bins."""

import math

import pytest
import torch

import onlinecde as oc
from onlinecde.models import Readout
from onlinecde.models.readout import masked_loss
from onlinecde.models.time_bins import TimeBins, cumulative_risk, hazards, risk_at

D = torch.float64
NAN = float("nan")
EDGES = (0.5, 2.0, 3.0, 8.0)


def logits(*shape, seed=0):
    drawn = torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))
    return 2 * drawn


def readout(horizon=2.0):
    head = Readout(4, len(EDGES), "time-to-event").double()
    head.bins.put(EDGES, horizon)
    return head


def survival(hazard, t):
    """P(no event by t) of discrete hazards, log-linear within a bin."""
    alive, start = 1.0, 0.0
    for h, end in zip(hazard, EDGES, strict=True):
        if t < end:
            return alive * (1 - h) ** ((t - start) / (end - start))
        alive, start = alive * (1 - h), end
    return alive


def surprise(row, time, event):
    """Minus the log-likelihood of one label, from chances of surviving alone."""
    hazard = [1 / (1 + math.exp(-x)) for x in row]
    if not event or time > EDGES[-1]:
        return -math.log(survival(hazard, min(time, EDGES[-1])))
    place = next(k for k, end in enumerate(EDGES) if time <= end)
    before = survival(hazard, EDGES[place - 1]) if place else 1.0
    return -math.log(before - survival(hazard, EDGES[place]))


TIMES = [0.1, 0.5, 0.50001, 1.2, 2.0, 2.7, 3.0, 7.9, 8.0, 8.1, 100.0]


@pytest.mark.parametrize("event", [0, 1], ids=["censored", "event"])
@pytest.mark.parametrize("time", TIMES)
def test_the_loss_is_the_likelihood_of_one_label_written_out(time, event):
    said = logits(len(EDGES), seed=3)
    found = readout().loss(said, torch.tensor([time, event], dtype=D))
    assert found.item() == pytest.approx(surprise(said.tolist(), time, event), rel=1e-12)


def test_the_loss_is_a_mean_over_labels_and_its_gradients_are_right():
    said = logits(2, 6, len(EDGES)).requires_grad_()
    drawn = torch.Generator().manual_seed(1)
    labels = torch.stack(
        [
            10 * torch.rand(2, 6, dtype=D, generator=drawn),
            torch.rand(2, 6, dtype=D, generator=drawn).round(),
        ],
        -1,
    )
    labels[0, 2:4] = NAN
    head = readout()
    known = [(i, j) for i in range(2) for j in range(6) if not labels[i, j, 0].isnan()]
    each = [surprise(said[i, j].tolist(), *labels[i, j].tolist()) for i, j in known]
    loss = head.loss(said, labels)
    assert loss.item() == pytest.approx(sum(each) / len(each), rel=1e-12)
    loss.backward()
    assert (said.grad[0, 2:4] == 0).all()
    assert torch.autograd.gradcheck(lambda x: head.loss(x, labels), said)
    # In single and half precision the same to rounding, however far logits are from 0.
    far = 30 * said.detach()
    wanted = head.loss(far, labels).item()
    assert masked_loss(
        "time-to-event", far.float(), labels.float(), head.bins.edges
    ).item() == pytest.approx(wanted, rel=1e-5)


def test_what_may_happen_adds_up_to_1():
    said = logits(len(EDGES), seed=5)
    head = readout()
    ends = [head.loss(said, torch.tensor([end, 1.0], dtype=D)) for end in EDGES]
    never = head.loss(said, torch.tensor([EDGES[-1], 0.0], dtype=D))
    assert sum(math.exp(-x.item()) for x in (*ends, never)) == pytest.approx(1, rel=1e-12)


def test_nothing_is_learned_where_there_is_no_label():
    said = logits(3, len(EDGES)).requires_grad_()
    loss = readout().loss(said, torch.full((3, 2), NAN, dtype=D))
    loss.backward()
    assert loss.item() == 0
    assert (said.grad == 0).all()


def test_a_longer_horizon_never_has_the_smaller_risk():
    said, head = 4 * logits(50, len(EDGES), seed=2), readout()
    times = [8 * k / 400 for k in range(1, 401)]
    risk = head.bins.risk_within(said, times)
    assert (risk.diff(dim=-1) >= 0).all()
    assert (risk > 0).all()
    assert (risk <= 1).all()
    at_edges = head.bins.risk_within(said, EDGES)
    torch.testing.assert_close(at_edges, head.probabilities(said))
    one = [1 - survival(torch.sigmoid(said[0]).tolist(), t) for t in times]
    torch.testing.assert_close(risk[0], torch.tensor(one, dtype=D))
    # The same from the risks alone, which is all that an answer keeps.
    torch.testing.assert_close(
        risk_at(cumulative_risk(said), head.bins.edges, torch.tensor(times, dtype=D)), risk
    )
    assert head.bins.risk_within(said, None).equal(head.bins.risk_within(said, 2.0))


def test_a_risk_of_1_has_finite_hazards():
    sure = cumulative_risk(torch.tensor([60.0, 60.0]))
    assert sure.tolist() == [1, 1]
    assert hazards(sure).isfinite().all()
    risk = risk_at(sure, torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.0, 2.0]))
    assert ((risk > 0.99) & (risk <= 1)).all()


def test_a_readout_within_a_horizon_is_a_binary_one_of_the_same_risk():
    head, z = readout(), logits(7, 4)
    for horizon in (None, 0.2, 3.0, 8.0):
        one = head.within(horizon)
        assert one.kind == "binary"
        risk = head.bins.risk_within(head(z), horizon)
        torch.testing.assert_close(one.probabilities(one(z))[:, 0], risk)
    assert head.kind == "time-to-event"
    extreme = torch.tensor([[-40.0] * 4, [300.0] * 4], dtype=D)
    odds = head.bins.log_odds(extreme, 8.0)
    torch.testing.assert_close(odds[:, 0], torch.tensor([-40 + math.log(4), 1200], dtype=D))
    with pytest.raises(ValueError, match="'binary' says nothing of horizons"):
        Readout(4, 1, "binary").within(2.0)


def test_a_model_within_a_horizon_answers_alike_in_batch_and_live():
    model = oc.NeuralCDE(
        channels=3, hidden=5, outputs=4, readout={"kind": "time-to-event", "width": 6}
    )
    model.eval().readout.bins.put(EDGES, 2.0)
    batch = oc.audit.trial_batch_for(model, streams=3, rows=5, missing=0.3)
    one = model.within(3.0)
    kept = {found.contract: found.passed for found in oc.audit.check_model(one, batch).results}
    # It is a view of a model, which is saved as the whole.
    assert {name for name, passed in kept.items() if not passed} == {"save and load"}
    with torch.no_grad():
        risk = model.readout.bins.risk_within(model(batch), 3.0)
        torch.testing.assert_close(one.readout.probabilities(one(batch))[..., 0], risk)
    # Its attributions add up to the log-odds of the risk.
    parts = one.explain(batch)
    torch.testing.assert_close(parts.outputs(), one(batch).detach(), rtol=1e-4, atol=1e-4)
    assert parts.start.shape == (3, 1)


def test_bins_are_kept_in_every_dtype():
    head = readout().half()
    assert head.bins.edges.dtype == torch.float64
    assert head.bins.edges.tolist() == list(EDGES)
    assert head.bins.to(torch.float16).horizon.item() == 2.0


@pytest.mark.parametrize(
    ("edges", "horizon", "message"),
    [
        ([1.0, 2.0], 1.0, "2 edges for 3 outputs"),
        ([1.0, 1.0, 2.0], 1.0, "each above the last"),
        ([0.0, 1.0, 2.0], 1.0, "give times above 0"),
        ([1.0, 2.0, math.inf], 1.0, "give times above 0"),
        ([1.0, 2.0, 3.0], 3.5, "the horizon is 3.5: .* above 0 and up to 3"),
        ([1.0, 2.0, 3.0], 0.0, "the horizon is 0"),
        ([1.0, 2.0, 3.0], NAN, "the horizon is nan"),
    ],
)
def test_bins_that_cannot_be_meant_are_refused(edges, horizon, message):
    with pytest.raises(ValueError, match=message):
        TimeBins(3).put(edges, horizon)


def test_a_horizon_beyond_the_bins_is_refused():
    with pytest.raises(ValueError, match=r"the horizon is 8\.5: .* up to 8"):
        readout().bins.risk_within(logits(4), 8.5)


def test_usual_horizons_lie_within_the_bins():
    assert readout(2.0).bins.usual_horizons == (1.0, 2.0, 4.0, 8.0)
    assert readout(8.0).bins.usual_horizons == (4.0, 8.0)
