"""The ODE-RNN is what Rubanova et al. (2019) write: an ODE over the true gaps, a GRU at rows."""

import pytest
import torch
from tests.models.test_gru import made_batch

import onlinecde as oc


def rate(model, h):
    """The MLP, layer by layer; h (hidden,)."""
    for layer in model.field.inner:
        h = torch.tanh(layer.weight @ h + layer.bias)
    return model.field.weight[0] @ h + model.field.bias[0]


def evolve(model, h, gap, steps):
    """The 3/8 rule in `steps` steps over a scaled gap."""
    d = gap / steps
    for _ in range(steps):
        k1 = rate(model, h)
        k2 = rate(model, h + d * k1 / 3)
        k3 = rate(model, h + d * (k2 - k1 / 3))
        k4 = rate(model, h + d * (k1 - k2 + k3))
        h = h + d * (k1 + 3 * k2 + 3 * k3 + k4) / 8
    return h


def by_the_equations(model, batch, stream, steps_for_gap):
    """Outputs (row, output) of one stream, nothing shared with the model but its weights."""
    c, n = model.channels, model.hidden
    w_r, w_z, w_n = model.cell.weight_ih.split(n)
    u_r, u_z, u_n = model.cell.weight_hh.split(n)
    b_r, b_z, b_n = model.cell.bias_ih.split(n)
    d_r, d_z, d_n = model.cell.bias_hh.split(n)
    h = torch.zeros(n, dtype=torch.float64)
    if batch.static is not None:
        h = model.initial(batch.static[stream])
    last = torch.zeros(c, dtype=torch.float64)
    outputs = []
    for row in range(int(batch.rows[stream])):
        if row:
            gap = batch.times[stream, row] - batch.times[stream, row - 1]
            h = evolve(model, h, gap / model.encoding.time_scale, steps_for_gap(float(gap)))
        x = (batch.values[stream, row] - model.encoding.shift) / model.encoding.scale
        mask = ~x.isnan()
        last = torch.where(mask, x, last)
        seen = torch.cat([last, mask.double()])
        r = torch.sigmoid(w_r @ seen + b_r + u_r @ h + d_r)
        z = torch.sigmoid(w_z @ seen + b_z + u_z @ h + d_z)
        new = torch.tanh(w_n @ seen + b_n + r * (u_n @ h + d_n))
        h = (1 - z) * new + z * h
        outputs.append(model.readout(h))
    return torch.stack(outputs)


@pytest.mark.parametrize(
    ("settings", "steps_for_gap"),
    [
        ({}, lambda gap: 1),
        ({"steps": 3, "static": 2}, lambda gap: 3),
        ({"max_step": 0.3}, lambda gap: max(1, int(-(-gap // 0.3)))),
        ({"gradient": "backprop", "depth": 1}, lambda gap: 1),
    ],
    ids=["one step", "three steps", "max_step", "backprop"],
)
def test_it_agrees_with_the_equations(settings, steps_for_gap):
    torch.manual_seed(0)
    rows = (9, 2, 1, 6)
    batch = made_batch(rows, static=settings.get("static", 0))
    model = oc.ODERNN(channels=3, hidden=5, outputs=2, width=7, **settings).double()
    model.fit_scales(made_batch((30, 30), seed=1))
    outputs = model(batch)
    weights = list(model.parameters())
    weighting = torch.randn(outputs.shape, dtype=torch.float64) * batch.real[:, :, None]
    found = torch.autograd.grad((outputs * weighting).sum(), weights)
    total = torch.zeros((), dtype=torch.float64)
    for stream, many in enumerate(rows):
        wanted = by_the_equations(model, batch, stream, steps_for_gap)
        torch.testing.assert_close(outputs[stream, :many], wanted, rtol=0, atol=1e-10)
        total = total + (wanted * weighting[stream, :many]).sum()
    for mine, theirs in zip(found, torch.autograd.grad(total, weights), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


def test_adaptive_steps_come_to_the_same_as_many_fixed_ones():
    torch.manual_seed(0)
    batch = made_batch((7, 4))
    exact = oc.ODERNN(channels=3, hidden=4, width=6, steps=40).double()
    settings = {**exact.config, "steps": 1, "method": "dopri5", "rtol": 1e-9, "atol": 1e-10}
    adaptive = oc.ODERNN(**settings).double()
    adaptive.load_state_dict(exact.state_dict())
    torch.testing.assert_close(adaptive(batch), exact(batch), rtol=0, atol=1e-7)


def test_between_rows_it_goes_on_without_committing():
    torch.manual_seed(0)
    batch = made_batch((5,))
    model = oc.ODERNN(channels=3, hidden=4, outputs=2, width=6, max_step=0.2).double()
    model.fit_scales(batch)
    assert model.measurability is oc.Measurability.CONTINUOUS
    state = model.init_state()
    for row in range(5):
        state = model.observe(state, batch.times[:, row], batch.values[:, row])
    times = batch.times[0, -1] + torch.tensor([0.0, 0.1, 0.7, 5.0], dtype=torch.float64)
    asked = torch.stack([model.predict(state, float(t)) for t in times], 1)
    torch.testing.assert_close(model(batch, at=times), asked, rtol=0, atol=1e-12)
    torch.testing.assert_close(asked[:, 0], model(batch, final=True), rtol=0, atol=1e-12)
    assert (asked[:, 1:] - asked[:, :1]).abs().amin() > 1e-6
    torch.testing.assert_close(model.predict(state), asked[:, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_gradients_reach_the_times(backend):
    torch.manual_seed(0)
    model = oc.ODERNN(channels=2, hidden=3, width=4, backend=backend).double()
    times = torch.tensor([[0.0, 0.4, 1.1], [0.0, 0.9, 1.0]], dtype=torch.float64)
    values = torch.randn(2, 3, 2, dtype=torch.float64)

    def outputs(clock):
        return model(oc.SeriesBatch.from_padded(clock, values))

    assert torch.autograd.gradcheck(outputs, times.requires_grad_())
    assert torch.autograd.grad(outputs(times).sum(), times)[0].abs().amax() > 1e-3


def test_a_state_that_runs_away_is_named():
    batch = made_batch((3,))
    model = oc.ODERNN(channels=3, hidden=4, width=6).double()
    with torch.no_grad():
        model.field.bias.fill_(torch.inf)
    with pytest.raises(oc.SolverError, match=r"stream 0 at time .*no longer finite"):
        model(batch)


def test_solver_settings_are_checked():
    with pytest.raises(ValueError, match="both rtol and atol"):
        oc.ODERNN(channels=1, method="dopri5", rtol=1e-3)
    with pytest.raises(ValueError, match="steps is 0"):
        oc.ODERNN(channels=1, steps=0)
    with pytest.raises(ValueError, match="width is 0"):
        oc.ODERNN(channels=1, width=0)


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu", "softplus"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"method": "midpoint", "depth": 1}, {"method": "heun", "steps": 3}, {"depth": 4}],
    ids=str,
)
def test_all_rows_at_once_are_the_rows_leg_by_leg(activation, settings, monkeypatch):
    """What a GPU computes, here in double precision on a CPU."""
    torch.manual_seed(0)
    settings = {"hidden": 5, "width": 7, "static": 2, "activation": activation, **settings}
    model = oc.ODERNN(channels=3, **settings).double()
    batch = made_batch((20, 3, 9, 1, 17), static=2)
    batch.values.requires_grad_()
    model.fit_scales(made_batch((30, 30), seed=1))
    wanted = model(batch)
    weighting = torch.randn(wanted.shape, dtype=torch.float64) * batch.real[:, :, None]
    inputs = [batch.values, *model.parameters()]
    gradients = torch.autograd.grad((wanted * weighting).sum(), inputs)
    monkeypatch.setattr(oc.ODERNN, "_at_once", lambda self, rows, h0: True)
    found = model(batch)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    mine = torch.autograd.grad((found * weighting).sum(), inputs)
    for g, expected in zip(mine, gradients, strict=True):
        torch.testing.assert_close(g, expected, rtol=1e-9, atol=1e-11)
    with torch.no_grad():
        torch.testing.assert_close(model(batch), found, rtol=0, atol=0)


def test_all_rows_at_once_name_a_state_that_runs_away(monkeypatch):
    monkeypatch.setattr(oc.ODERNN, "_at_once", lambda self, rows, h0: True)
    test_a_state_that_runs_away_is_named()


def test_all_rows_at_once_are_for_a_gpu_and_steps_that_are_alike():
    assert oc.ODERNN(channels=1).legs_alike() is None
    assert "depends on the data" in oc.ODERNN(channels=1, max_step=0.5).legs_alike()
    assert "leg by leg" in oc.ODERNN(channels=1, gradient="backprop").legs_alike()
    assert "asked for" in oc.ODERNN(channels=1, backend="cpu").legs_alike()
