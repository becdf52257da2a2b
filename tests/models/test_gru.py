"""The GRU baselines are `torch.nn.GRU` on the inputs they document."""

import pytest
import torch

import onlinecde as oc

NAN = float("nan")


def made_batch(rows=(20, 3, 9, 1), channels=3, static=0, missing=0.5, seed=0):
    numbers = torch.Generator().manual_seed(seed)
    shape = (len(rows), max(rows))
    times = torch.rand(shape, generator=numbers, dtype=torch.float64).add(0.05).cumsum(1)
    values = torch.randn(*shape, channels, generator=numbers, dtype=torch.float64)
    gone = torch.rand(values.shape, generator=numbers) < missing
    features = torch.randn(len(rows), static, generator=numbers, dtype=torch.float64)
    return oc.SeriesBatch.from_padded(
        times, values.masked_fill(gone, NAN), rows, features if static else None
    )


def documented_inputs(model, batch, stream):
    """(row, input) of one stream, written out event by event."""
    shift, scale = model.encoding.shift, model.encoding.scale
    last = [0.0] * model.channels
    seen = [float(batch.times[stream, 0])] * model.channels
    lines = []
    for row in range(int(batch.rows[stream])):
        now = float(batch.times[stream, row])
        elapsed = [(now - since) / float(model.encoding.time_scale) for since in seen]
        mask = [0.0] * model.channels
        for channel in range(model.channels):
            value = float(batch.values[stream, row, channel])
            if value == value:
                last[channel] = (value - float(shift[channel])) / float(scale[channel])
                seen[channel], mask[channel] = now, 1.0
        time = float(model.encoding.scale_time(torch.tensor(now, dtype=torch.float64)))
        parts = {
            oc.GRU: [time, *last],
            oc.GRUdt: [time, *last, *elapsed],
            oc.GRUdtIntensity: [time, *last, *elapsed, *mask],
        }
        lines.append(parts[type(model)])
    return torch.tensor(lines, dtype=torch.float64)


def by_torch(model, batch, stream):
    """Outputs (row, output) of one stream, from torch's own GRU."""
    h0 = torch.zeros(model.layers, model.hidden, dtype=torch.float64)
    if batch.static is not None:
        h0 = model.initial(batch.static[stream]).view(model.layers, model.hidden)
    return model.readout(model.cells(documented_inputs(model, batch, stream), h0)[0])


@pytest.mark.parametrize("kind", [oc.GRU, oc.GRUdt, oc.GRUdtIntensity])
@pytest.mark.parametrize(("layers", "static"), [(1, 0), (2, 2), (3, 1)])
def test_it_is_torchs_gru_on_the_documented_inputs(kind, layers, static):
    torch.manual_seed(0)
    batch = made_batch(static=static)
    model = kind(channels=3, hidden=7, outputs=2, static=static, layers=layers).double()
    model.fit_scales(batch)
    outputs = model(batch)
    weights = list(model.parameters())
    found = torch.autograd.grad(outputs.square().sum(), weights)
    total = torch.zeros((), dtype=torch.float64)
    for stream, rows in enumerate(batch.rows.tolist()):
        wanted = by_torch(model, batch, stream)
        torch.testing.assert_close(outputs[stream, :rows], wanted, rtol=0, atol=1e-12)
        assert torch.equal(
            outputs[stream, rows:], outputs[stream, rows - 1].expand(outputs.shape[1] - rows, -1)
        )
        padding = batch.times.shape[1] - rows
        total = total + wanted.square().sum() + padding * wanted[-1].square().sum()
    for mine, theirs in zip(found, torch.autograd.grad(total, weights), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [oc.GRUdt, oc.GRUdtIntensity])
def test_gradients_reach_the_values_and_the_times(kind):
    torch.manual_seed(0)
    model = kind(channels=2, hidden=3).double()
    batch = made_batch((11, 4), channels=2)
    times, values = batch.times.clone(), batch.values.clone()

    def outputs(times, values):
        shown = torch.where(batch.observed, values, NAN)
        return model(oc.SeriesBatch.from_padded(times, shown, batch.rows))

    inputs = times.requires_grad_(), values.nan_to_num().requires_grad_()
    assert torch.autograd.gradcheck(outputs, inputs)


@pytest.mark.parametrize("kind", [oc.GRU, oc.GRUdt, oc.GRUdtIntensity])
def test_what_it_says_after_a_row_stands_until_the_next(kind):
    model = kind(channels=3, hidden=4, outputs=2).double()
    batch = made_batch((6,))
    outputs = model(batch)
    middle = (batch.times[:, :-1] + batch.times[:, 1:]) / 2
    torch.testing.assert_close(model(batch, at=middle), outputs[:, :-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(model(batch, at=batch.times[0] + 1e-9), outputs, rtol=0, atol=1e-12)
    assert model.measurability is oc.Measurability.DISCRETE
    state = model.observe(model.init_state(), batch.times[:, 0], batch.values[:, 0])
    assert torch.equal(model.predict(state, 50.0), model.predict(state))


def test_it_is_never_told_which_values_were_carried_forward():
    """The plain GRU cannot tell a value observed again from one that was not."""
    model = oc.GRU(channels=1, hidden=4)
    same = oc.SeriesBatch.from_arrays([[0.0, 1.0]] * 2, [[[2.0], [2.0]], [[2.0], [NAN]]])
    outputs = model(same)
    assert torch.equal(outputs[0], outputs[1])
    told = oc.GRUdtIntensity(channels=1, hidden=4)(same)
    assert not torch.equal(told[0, 1], told[1, 1])


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="layers is 0: give at least 1"):
        oc.GRU(channels=2, layers=0)
    with pytest.raises(ValueError, match="hidden is 0: give at least 1"):
        oc.GRUdt(channels=2, hidden=0)
    with pytest.raises(ValueError, match="channel_dropout is 1"):
        oc.GRUdtIntensity(channels=2, channel_dropout=1.0)
    with pytest.raises(ValueError, match="channels is 0"):
        oc.GRU(channels=0)
    with pytest.raises(ValueError, match="multiclass needs"):
        oc.GRU(channels=1, kind="multiclass")
