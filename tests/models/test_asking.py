"""Any model is asked at any time: gradients included, in both ways of being asked, with the past alone."""

import pytest
import torch

import onlinecde as oc
from onlinecde.data import simulate_ward
from onlinecde.models.asking import ask, called, check_asking
from onlinecde.series.empty_rows import with_empty_rows

NAN = float("nan")


@pytest.fixture(scope="module")
def series():
    return simulate_ward(12, seed=5, hours=12).task.series.to(torch.float64)


def made(kind, series, **more):
    torch.manual_seed(len(kind))
    sizes = {"channels": len(series.channels), "hidden": 6, "outputs": 1, "static": 2, **more}
    model = getattr(oc, kind)(**sizes).double()
    return model.fit_scales(series)


def some_times(series, rng, queries=7):
    first, last = series.times[:, :1], series.times[:, -1:]
    share = torch.from_numpy(rng.uniform(0, 1.3, (len(series), queries))).sort(1).values
    times = first + share * (last - first).clamp(min=1.0)
    times[0, 3:] = NAN
    times[1] = NAN
    return times


CDE = {
    "field": {"width": 8, "sees_path": True, "rank": 3},
    "readout": {"sees_path": True, "ramps": 3, "width": 5},
    "encoding": {"static_in_path": True, "bounded": True, "gain": 0.3, "count_gain": 0.2},
}
"""With all that `fit` takes for series with gaps."""


@pytest.mark.parametrize("kind", ["NeuralCDE", "ODERNN"])
def test_answers_between_rows_are_those_after_an_empty_row_there(kind, series, rng):
    """Outputs and gradients at query times against a slow reference: a copy of its stream for every query.

    An empty row ends the time leg that leads to a query, and nothing moves on its value leg; an ODE-RNN would update
    its state there, so for it the reference is an answer of the live form.
    """
    model = made(kind, series, **(CDE if kind == "NeuralCDE" else {"width": 5}))
    times = some_times(series, rng)
    weight = torch.from_numpy(rng.normal(size=times.shape))
    outputs = ask(model, series, times)[..., 0]
    known = ~times.isnan()
    (outputs[known] * weight[known]).sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    total, wanted = torch.zeros((), dtype=torch.float64), torch.zeros_like(outputs)
    for stream, query in known.nonzero().tolist():
        one, at = series[stream], times[stream : stream + 1, query : query + 1]
        if kind == "NeuralCDE":
            copy, row = with_empty_rows(one, at)
            answer = model(copy)[0, int(row), 0]
        else:
            before = one.first_rows(int((one.times[0] <= at[0, 0]).sum()))
            state = model.init_state(1, before.static)
            for t, x in zip(before.times[0], before.values[0], strict=True):
                state = model.observe(state, t, x[None])
            answer = model.predict(state, float(at))[0, 0]
        wanted[stream, query] = answer.detach()
        total = total + answer * weight[stream, query]
    torch.testing.assert_close(outputs[known], wanted[known], rtol=1e-9, atol=1e-11)
    total.backward()
    assert set(found) == {n for n, p in model.named_parameters() if p.grad is not None}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("asking", ["hold", "empty-rows"])
@pytest.mark.parametrize("kind", ["GRU", "GRUdt", "GRUdtIntensity", "GRUD"])
def test_models_that_are_online_at_rows_are_asked_in_two_ways(kind, asking, series, rng):
    model = made(kind, series)
    times = some_times(series, rng)
    found = ask(model, series, times, asking=asking)
    for stream, query in (~times.isnan()).nonzero().tolist():
        at, state = times[stream, query], model.init_state(1, series[stream].static)
        rows = series[stream]
        asked = [] if asking == "hold" else times[stream, : query + 1].tolist()
        real = [
            (float(t), x) for t, x in zip(rows.times[0], rows.values[0], strict=True) if t <= at
        ]
        empty = [(t, torch.full((len(series.channels),), NAN)) for t in asked]
        for t, x in sorted([*real, *empty], key=lambda row: row[0]):
            state = model.observe(state, t, x[None].double())
        wanted = model.predict(state, float(at))[0]
        torch.testing.assert_close(found[stream, query], wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("asking", ["hold", "empty-rows"])
def test_padding_costs_no_gradient(asking, series, rng):
    model = made("GRUD", series)
    times = some_times(series, rng)
    outputs = ask(model, series, times, asking=asking)
    assert bool(outputs.isfinite().all())
    behind = (outputs[0, 3:] - outputs[0, 2]).detach()
    assert float(behind.abs().max()) == 0.0
    model.readout.loss(outputs, torch.where(times.isnan(), NAN, 1.0)).backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    nobody = torch.full((len(series), 2), NAN)
    model.zero_grad()
    model.readout.loss(ask(model, series, nobody, asking=asking), nobody).backward()
    assert all(float(p.grad.abs().max()) == 0 for p in model.parameters() if p.grad is not None)


def test_a_model_keeps_how_it_is_asked(series, tmp_path):
    model = made("GRU", series)
    assert model.asking == "hold"
    model.asking = "empty-rows"
    oc.save(model, tmp_path / "model")
    again = oc.load(tmp_path / "model")
    assert again.asking == "empty-rows"
    times = series.times[:, -1:] + 2.0
    assert torch.equal(ask(again, series, times), ask(model.eval(), series, times))
    assert not torch.equal(ask(again, series, times), ask(again, series, times, asking="hold"))
    assert called("GRU", again) == "GRU, given empty rows"
    assert called("GRU", again, "hold") == "GRU, holds its last answer"


def test_ways_that_mean_nothing_are_refused(series):
    with pytest.raises(ValueError, match="NeuralCDE answers at any time"):
        check_asking(made("NeuralCDE", series), "empty-rows")
    with pytest.raises(ValueError, match="hermite control would fill an empty row from the future"):
        check_asking(made("NeuralCDE", series, control="hermite"), "empty-rows")
    with pytest.raises(ValueError, match="asking is 'often': choose one of hold, empty-rows"):
        check_asking(made("GRU", series), "often")
    assert called("Neural CDE", made("NeuralCDE", series)) == "Neural CDE"
