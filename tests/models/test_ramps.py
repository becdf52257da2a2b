"""Ramps bend where the data lie, and an encoding knows how long ago each channel was observed."""

import copy
import math

import numpy as np
import pytest
import torch
from tests.controls.made_series import random_batch, same_bits

from onlinecde import Encoding, SeriesBatch, controls
from onlinecde.controls.fill import last_observed
from onlinecde.models import NeuralCDE, neural_cde
from onlinecde.models import ramps as ramps_module
from onlinecde.models.ramps import NARROW, Ramps

D = torch.float64


def seeing(channels, counts, static, ramps, dtype=D):
    """A model whose readout sees X as so many ramps, with static features in it."""
    return NeuralCDE(
        channels, 2, static=static, counts=counts, field={"width": 2},
        encoding={"static_in_path": static > 0}, readout={"sees_path": True, "ramps": ramps},
    ).to(dtype)  # fmt: skip


def lines(many=1009, inputs=3, missing=0.3, seed=None):
    random = np.random.default_rng(seed)
    found = random.normal(size=(many, inputs)) * 10 ** random.uniform(-2, 2, inputs)
    found[random.random(found.shape) < missing] = np.nan
    return torch.tensor(found)


def used(ramps):
    """How many ramps of each input have a place."""
    return (ramps.steepness > 0).sum(1).tolist()


def test_knots_are_the_quantiles_of_what_is_known():
    known, count = lines(), 6
    ramps = Ramps(3, count).double().fit(known)
    for number in range(3):
        column = sorted(x for x in known[:, number].tolist() if not math.isnan(x))
        places = [round(q * (len(column) - 1)) for q in np.linspace(0.01, 0.99, count + 1)]
        knots = [column[place] for place in places]
        assert ramps.low[number].tolist() == knots[:-1]
        lengths = torch.tensor(knots, dtype=D).diff()
        torch.testing.assert_close(1 / ramps.steepness[number], lengths, rtol=1e-12, atol=0)


def test_each_ramp_rises_from_0_to_1_between_its_knots_and_is_level_elsewhere():
    ramps = Ramps(3, 5).double().fit(lines())
    for number in range(3):
        low = ramps.low[number]
        high = low + 1 / ramps.steepness[number]
        way = torch.linspace(float(low[0]) - 3, float(high[-1]) + 3, 4001, dtype=D)
        told = torch.zeros(len(way), 3, dtype=D)
        told[:, number] = way
        found = ramps(told)
        assert torch.equal(found[:, :3], told), "the numbers themselves come first"
        own = found[:, 3:].unflatten(1, (3, 5))[:, number]
        assert (own.diff(dim=0) >= 0).all()
        for ramp in range(5):
            assert (own[way <= low[ramp], ramp] == 0).all()
            torch.testing.assert_close(
                own[way >= high[ramp], ramp].min(), torch.ones((), dtype=D), rtol=0, atol=1e-12
            )
            inside = (way > low[ramp]) & (way < high[ramp])
            assert ((own[inside, ramp] > 0) & (own[inside, ramp] < 1)).all()
            middle = torch.zeros(1, 3, dtype=D)
            middle[0, number] = (low[ramp] + high[ramp]) / 2
            said = ramps(middle)[0, 3:].unflatten(0, (3, 5))[number, ramp]
            assert abs(float(said) - 0.5) < 1e-12


def test_ramps_have_a_slope_without_jumps():
    """Finite differences agree with the gradient, and the gradient is as good as 0 at every knot."""
    ramps = Ramps(1, 4).double().fit(lines(inputs=1, missing=0))
    low, length = ramps.low[0], 1 / ramps.steepness[0]
    places = torch.cat([low, low + length, low + 0.3 * length, low - 1])[:, None]
    jacobian = torch.func.vmap(torch.func.jacrev(ramps))(places)[:, 1:, 0]
    h = 1e-6 * float(length.min())
    differences = (ramps(places + h) - ramps(places - h))[:, 1:] / (2 * h)
    scale = float(ramps.steepness.max())
    torch.testing.assert_close(differences / scale, jacobian / scale, rtol=0, atol=1e-5)
    for side in (-h, h):
        near = torch.func.vmap(torch.func.jacrev(ramps))(low[:, None] + side)[:, 1:, 0]
        own = torch.diagonal(near)
        assert (own.abs() < 1e-4 * ramps.steepness[0]).all()
    inside = torch.diagonal(
        torch.func.vmap(torch.func.jacrev(ramps))((low + length / 2)[:, None])[:, 1:, 0]
    )
    torch.testing.assert_close(inside, 1.5 * ramps.steepness[0])


@pytest.mark.parametrize("distinct", [1, 2, 3, 5])
def test_few_distinct_values_have_fewer_ramps(distinct, rng):
    values = rng.permutation(np.arange(1000) % distinct).astype(float)
    ramps = Ramps(1, 8).double().fit(torch.tensor(values)[:, None])
    assert used(ramps) == [distinct - 1]
    told = torch.arange(distinct, dtype=D)[:, None]
    steps = ramps(told)[:, 1:]
    # Each value is one more ramp climbed, and ramps without a place say 0 of everything.
    assert torch.equal(steps.sum(1), told[:, 0])
    assert (ramps(1e6 * (told - 1))[:, distinct:] == 0).all()


def test_a_number_never_known_has_no_ramps_and_lines_without_it_do_not_matter():
    known = lines(missing=0)
    known[:, 1] = torch.nan
    ramps = Ramps(3, 4).double().fit(known)
    assert used(ramps) == [4, 0, 4]
    holes = torch.full((5000, 3), torch.nan, dtype=D)
    more = torch.cat([known, holes])[torch.randperm(6009)]
    again = Ramps(3, 4).double().fit(more)
    same_bits(again.low, ramps.low)
    same_bits(again.steepness, ramps.steepness)
    assert used(Ramps(3, 4).double().fit(holes)) == [0, 0, 0]


def test_knots_too_near_each_other_are_one(rng):
    """A steep ramp would turn rounding into an answer."""
    values = np.concatenate([rng.uniform(0, 1e-7, 800), rng.uniform(0, 1, 200)])
    knots = np.sort(values)[np.linspace(8, 991, 11).astype(int)]
    assert np.diff(knots).min() < 0.1 * NARROW * np.ptp(knots), "the plain quantiles are that near"
    ramps = Ramps(1, 10).double().fit(torch.tensor(values)[:, None])
    kept = used(ramps)[0]
    assert 1 <= kept < 10
    lengths = 1 / ramps.steepness[0, :kept]
    assert (lengths > 0.999 * NARROW * lengths.sum()).all()
    # They lie end to end all the same.
    torch.testing.assert_close(ramps.low[0, 1:kept], (ramps.low[0, :kept] + lengths)[:-1])


def test_fit_is_the_same_every_time_in_any_order_and_knows_of_outliers_little(monkeypatch):
    known = lines()
    ramps, again = Ramps(3, 5).double().fit(known), Ramps(3, 5).double()
    assert again.fit(known[torch.randperm(len(known))]) is again
    assert again.low.is_contiguous()
    assert again.steepness.is_contiguous(), "some who write tensors ask for that"
    same_bits(again.low, ramps.low)
    same_bits(again.steepness, ramps.steepness)
    known[7] = 1e12
    again.fit(known)
    assert float((1 / again.steepness).max()) < 1e6
    # Of very many lines every n-th is taken.
    monkeypatch.setattr(ramps_module, "LINES", 300)
    some, thin = Ramps(3, 5).double().fit(known), Ramps(3, 5).double()
    monkeypatch.undo()
    same_bits(thin.fit(known[::4]).low, some.low)


def test_before_fit_there_is_the_number_alone_and_parts_go_back_to_their_numbers():
    ramps = Ramps(3, 2)
    told = torch.randn(4, 5, 3)
    said = ramps(told)
    assert said.shape == (4, 5, ramps.outputs) == (4, 5, 9)
    assert torch.equal(said[..., :3], told)
    assert (said[..., 3:] == 0).all()
    parts = torch.randn(4, 9, dtype=D)
    wanted = parts[:, :3].clone()
    for number in range(3):
        for ramp in range(2):
            wanted[:, number] += parts[:, 3 + 2 * number + ramp]
    torch.testing.assert_close(ramps.by_input(parts), wanted)
    with pytest.raises(ValueError, match="0 ramps: give at least 1"):
        Ramps(3, 0)


def by_hand(batch, encoding):
    """When each channel was last observed and how long ago that was, scaled, in plain Python."""
    stamps = torch.full(batch.values.shape, torch.nan, dtype=D)
    since = torch.zeros(batch.values.shape, dtype=D)
    for stream in range(len(batch)):
        for channel in range(batch.values.shape[2]):
            last = math.nan
            for row in range(batch.times.shape[1]):
                now = float(batch.times[stream, row])
                if not math.isnan(float(batch.values[stream, row, channel])):
                    last = now
                stamps[stream, row, channel] = last
                if not math.isnan(last):
                    since[stream, row, channel] = (now - last) / float(encoding.time_scale)
    return stamps, since


@pytest.mark.parametrize("missing", ["none", "leading", "any"])
def test_since_is_what_a_plain_loop_finds(missing, rng):
    batch = random_batch([7, 1, 4, 9], 3, rng.integers(1 << 30), missing)
    encoding = Encoding(3).double().fit(batch)
    stamps, since = by_hand(batch, encoding)
    found = last_observed(batch.observed, batch.times)
    same_bits(found, stamps)
    torch.testing.assert_close(encoding.since(batch.times, found), since, rtol=1e-12, atol=1e-12)
    assert encoding.float().since(batch.times, found).dtype == torch.float32
    if missing == "none":
        assert (since == 0).all()


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("static", [0, 2])
def test_a_model_fits_ramps_to_x_and_since_at_the_rows_there_are(counts, static, rng):
    """What was never observed yet is no line: the 0 that stands for it says nothing of the channel."""
    made = random_batch([40, 3, 25, 60], 3, rng.integers(1 << 30))
    features = torch.randn(4, static, dtype=D) if static else None
    batch = SeriesBatch.from_padded(made.times, made.values, made.rows, features)
    model = seeing(3, counts, static, 4).fit_scales(batch)
    encoding, ramps = model.encoding, model.readout.ramps
    stamps, since = by_hand(batch, encoding)
    x = controls.rectilinear(batch, encoding=encoding).rows.clone()
    x[:, :, 1:4][stamps.isnan()] = torch.nan
    told = torch.cat([x, torch.where(stamps.isnan(), torch.nan, since)], 2)[batch.real]
    assert ramps.inputs == told.shape[1] == encoding.path_channels + 3
    wanted = Ramps(told.shape[1], 4).double().fit(told)
    torch.testing.assert_close(ramps.low, wanted.low, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ramps.steepness, wanted.steepness, rtol=1e-9, atol=1e-9)
    assert max(used(ramps)) == 4
    if static:
        told_once = ramps.steepness[4:6], ramps.steepness[-5:-3]
        assert (told_once[0] > 0).any(), "four streams, four values"
        if counts:
            assert (told_once[1] == 0).all(), "a feature is told once: its count is always 1"


def test_fit_does_not_see_padding_and_scales_are_what_they_are_without_ramps():
    batch = random_batch([6, 2, 9], 3, 0)
    pad = torch.nn.functional.pad
    wider = SeriesBatch.from_padded(
        pad(batch.times, (0, 5)), pad(batch.values, (0, 0, 0, 5)), batch.rows
    )
    model, other = (seeing(3, True, 0, 3).fit_scales(b) for b in (batch, wider))
    for name, buffer in model.named_buffers():
        same_bits(buffer, dict(other.named_buffers())[name])
    plain = Encoding(3, True).double().fit(batch)
    for name, buffer in plain.state_dict().items():
        same_bits(buffer, model.encoding.state_dict()[name])


def test_of_very_many_streams_every_nth_lays_the_ramps(monkeypatch):
    batch = random_batch([5] * 11, 2, 0)
    monkeypatch.setattr(neural_cde, "STREAMS", 4)
    thin = seeing(2, False, 0, 3).fit_scales(batch)
    monkeypatch.undo()
    whole = seeing(2, False, 0, 3).fit_scales(batch)
    same_bits(thin.encoding.scale, whole.encoding.scale)
    some = copy.deepcopy(whole)
    some.encoding.fit = lambda batch: some.encoding  # scales stay those of all streams
    some.fit_scales(batch[::3])
    same_bits(thin.readout.ramps.low, some.readout.ramps.low)
    assert not torch.equal(thin.readout.ramps.low, whole.readout.ramps.low)


def test_series_of_another_dtype_lay_the_ramps_too():
    batch = random_batch([9, 9], 2, 0)
    low = seeing(2, True, 0, 3, torch.float32).fit_scales(batch).readout.ramps.low
    assert low.dtype == torch.float32
    wanted = seeing(2, True, 0, 3).fit_scales(batch).readout.ramps.low
    torch.testing.assert_close(low.double(), wanted, rtol=1e-5, atol=1e-5)
