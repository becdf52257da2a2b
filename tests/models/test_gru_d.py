"""GRU-D is what Che et al. (2018) write, to 1e-10, with its gradients."""

import pytest
import torch
from tests.models.test_gru import NAN, made_batch

import onlinecde as oc


def by_the_equations(model, batch, stream):
    """Outputs (row, output) of one stream, equation by equation, nothing shared with the model."""
    c, n = model.channels, model.hidden
    w, v = model.inward.weight[:, :c], model.inward.weight[:, c:]
    (w_z, w_r, w_h), (v_z, v_r, v_h) = w.split(n), v.split(n)
    u_z, u_r, u_h = model.recurrent.split(n)
    b_z, b_r, b_h = model.inward.bias.split(n)
    scaled = (batch.values[stream] - model.encoding.shift) / model.encoding.scale
    s = batch.times[stream] / model.encoding.time_scale
    h = torch.zeros(n, dtype=torch.float64)
    if batch.static is not None:
        h = model.initial(batch.static[stream])
    delta = torch.zeros(c, dtype=torch.float64)
    x_last = torch.zeros(c, dtype=torch.float64)
    mean = torch.zeros(c, dtype=torch.float64)
    m_before = None
    outputs = []
    for t in range(int(batch.rows[stream])):
        m = (~scaled[t].isnan()).double()
        x = torch.where(m == 1, scaled[t], 0.0)
        if t > 0:
            delta = s[t] - s[t - 1] + (1 - m_before) * delta
        gamma_x = torch.exp(-torch.relu(model.value_decay * delta + model.value_decay_bias))
        gamma_h = torch.exp(
            -torch.relu(model.hidden_decay.weight @ delta + model.hidden_decay.bias)
        )
        x_hat = m * x + (1 - m) * (gamma_x * x_last + (1 - gamma_x) * mean)
        h = gamma_h * h
        z = torch.sigmoid(w_z @ x_hat + u_z @ h + v_z @ m + b_z)
        r = torch.sigmoid(w_r @ x_hat + u_r @ h + v_r @ m + b_r)
        h_new = torch.tanh(w_h @ x_hat + u_h @ (r * h) + v_h @ m + b_h)
        h = (1 - z) * h + z * h_new
        x_last = torch.where(m == 1, x, x_last)
        m_before = m
        outputs.append(model.readout(h))
    return torch.stack(outputs)


@pytest.mark.parametrize("rows", [(1,), (8,), (7, 2), (9, 8, 1), (20, 3, 17, 16)])
@pytest.mark.parametrize("static", [0, 2])
def test_it_agrees_with_the_papers_equations(rows, static):
    torch.manual_seed(0)
    batch = made_batch(rows, static=static, missing=0.6)
    model = oc.GRUD(channels=3, hidden=6, outputs=2, static=static).double()
    model.fit_scales(made_batch((30, 30), seed=1))
    outputs = model(batch)
    weights = list(model.parameters())
    weighting = torch.randn(outputs.shape, dtype=torch.float64)
    real = batch.real[:, :, None]
    found = torch.autograd.grad((outputs * weighting * real).sum(), weights)
    total = torch.zeros((), dtype=torch.float64)
    for stream, many in enumerate(rows):
        wanted = by_the_equations(model, batch, stream)
        torch.testing.assert_close(outputs[stream, :many], wanted, rtol=0, atol=1e-10)
        total = total + (wanted * weighting[stream, :many]).sum()
    for mine, theirs in zip(found, torch.autograd.grad(total, weights), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_gradients_reach_the_values_the_times_and_the_static_features():
    torch.manual_seed(0)
    model = oc.GRUD(channels=2, hidden=3, static=1).double()
    batch = made_batch((11, 4), channels=2, static=1)

    def outputs(times, values, static):
        shown = torch.where(batch.observed, values, NAN)
        return model(oc.SeriesBatch.from_padded(times, shown, batch.rows, static))

    inputs = (batch.times.clone(), batch.values.nan_to_num(), batch.static.clone())
    assert torch.autograd.gradcheck(outputs, [tensor.requires_grad_() for tensor in inputs])


def test_a_value_not_seen_again_fades_to_the_mean():
    """With a strong decay of inputs a long gap leaves nothing of the last value, a short one all."""
    model = oc.GRUD(channels=1, hidden=4).double()
    with torch.no_grad():
        model.value_decay.fill_(50.0)
        model.value_decay_bias.fill_(-5.0)
        model.hidden_decay.weight.zero_()
        # The state before the last row must not tell the two streams apart.
        model.recurrent.zero_()
        model.hidden_decay.bias.fill_(1e3)
    values = [[[3.0], [NAN]], [[-3.0], [NAN]]]
    soon = model(oc.SeriesBatch.from_arrays([[0.0, 0.05]] * 2, values).to(dtype=torch.float64))
    late = model(oc.SeriesBatch.from_arrays([[0.0, 9.0]] * 2, values).to(dtype=torch.float64))
    assert (soon[0, 1] - soon[1, 1]).abs().max() > 1e-3
    torch.testing.assert_close(late[0, 1], late[1, 1], rtol=0, atol=1e-12)


def test_the_state_decays_at_rows_only():
    model = oc.GRUD(channels=3, hidden=4, outputs=2).double()
    batch = made_batch((5,))
    assert model.measurability is oc.Measurability.DISCRETE
    state = model.observe(model.init_state(), batch.times[:, 0], batch.values[:, 0])
    assert torch.equal(model.predict(state, 50.0), model.predict(state))
    middle = (batch.times[:, :-1] + batch.times[:, 1:]) / 2
    torch.testing.assert_close(model(batch, at=middle), model(batch)[:, :-1], rtol=0, atol=1e-12)


def test_memory_grows_with_rows_and_hidden_alone():
    """What is kept for the backward pass of a row: its inputs, gates and h, each once."""
    model = oc.GRUD(channels=4, hidden=16)
    batch = made_batch((64,) * 8, channels=4).to(dtype=torch.float32)
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(batch)
    numbers = sum(kept.values()) / 4 / (64 * 8)
    # Five h (three gates, decay, h) and six of the channels' width (x twice, mask twice, elapsed
    # twice), the readout's copy of h, and change.
    assert numbers <= 6 * 16 + 6 * 4 + 20
