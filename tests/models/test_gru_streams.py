"""The recurrent baselines online: the same numbers row by row, in any order within an instant."""

import itertools

import numpy as np
import pytest
import torch
from tests.models.test_gru import NAN, made_batch

import onlinecde as oc
from onlinecde.audit.editing import cuts, edited_futures
from onlinecde.models import RecurrentState, StateError

BASELINES = {
    "GRU": (oc.GRU, {"layers": 2}),
    "GRUdt": (oc.GRUdt, {}),
    "GRUdtIntensity": (oc.GRUdtIntensity, {"readout_width": 5}),
    "GRUD": (oc.GRUD, {}),
    "ODERNN": (oc.ODERNN, {"width": 6, "max_step": 0.4}),
    "ODERNN adaptive": (
        oc.ODERNN,
        {"width": 6, "method": "dopri5", "rtol": 1e-3, "atol": 1e-4},
    ),
}


@pytest.fixture(params=BASELINES)
def model(request):
    kind, settings = BASELINES[request.param]
    torch.manual_seed(0)
    made = kind(channels=3, hidden=6, outputs=2, static=2, gain=0.7, clip=1.5, **settings)
    made.encoding.fit(made_batch((30, 30), seed=5))
    return made.double()


def fields_of(state):
    return [state.h, state.before, state.time, state.values, state.observed, state.previous,
            state.since]  # fmt: skip


def assert_same_state(one, other):
    for mine, theirs in zip(fields_of(one), fields_of(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-15, equal_nan=True)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_row_by_row_gives_what_the_batch_gives(model, dtype, within):
    model = model.to(dtype)
    batch = made_batch((20, 3, 9, 1), static=2).to(dtype=dtype)
    outputs = model(batch)
    state = model.init_state(4, batch.static)
    for row in range(20):
        live = (batch.rows > row).nonzero()[:, 0]
        after = model.observe(state[live], batch.times[live, row], batch.values[live, row])
        state = state.put(live, after)
        error = (model.predict(after) - outputs[live, row]).abs().max() / outputs.abs().max()
        assert error <= within
    assert isinstance(state, RecurrentState)
    torch.testing.assert_close(model.predict(state), model(batch, final=True), rtol=0, atol=within)


def test_events_of_one_instant_come_in_any_order(model):
    batch = made_batch((4,), static=2, missing=0.2)
    events = [(0, 1.0), (1, -0.5), (2, 0.3)]

    def rows_up_to(row):
        state = model.init_state(1, batch.static)
        for i in range(row):
            state = model.observe(state, batch.times[:, i], batch.values[:, i])
        return state

    for before in (0, 3):
        now = float(batch.times[0, before])
        whole = model.observe(rows_up_to(before), now, [[value for _, value in events]])
        for order in itertools.permutations(events):
            state = model.observe(rows_up_to(before), now, [[NAN] * 3])
            for channel, value in order:
                x = torch.full((1, 3), NAN, dtype=torch.float64)
                x[0, channel] = value
                state = model.observe(state, now, x)
                state = model.observe(state, now, x)  # told twice is told once
            assert_same_state(state, whole)
        after = [model.observe(state, now + 1, [[NAN, 0.1, NAN]]) for state in (whole, state)]
        assert_same_state(*after)


def test_the_past_keeps_its_bits_whatever_comes_after(model):
    batch = made_batch((13, 3, 9, 1), static=2)
    chance = np.random.default_rng(0)
    outputs = model(batch)
    for cut in cuts(batch, 3, chance):
        past = (batch.times <= cut[:, None]) & batch.real
        for name, edited in edited_futures(batch, cut, chance):
            changed = model(edited)
            many = min(changed.shape[1], outputs.shape[1])
            kept = past[:, :many]
            assert torch.equal(changed[:, :many][kept], outputs[:, :many][kept]), name


def test_a_companion_and_its_length_change_nothing(model):
    batch = made_batch((20, 3, 9, 1), static=2)
    together = model(batch)
    for stream, alone in enumerate(batch):
        rows = int(batch.rows[stream])
        torch.testing.assert_close(model(alone)[0], together[stream, :rows], rtol=0, atol=1e-12)
        assert torch.equal(
            together[stream, rows:], together[stream, rows - 1].expand(20 - rows, -1)
        )


def test_training_hides_channels_only_in_training():
    model = oc.GRUD(channels=3, hidden=4, channel_dropout=0.9).double()
    batch = made_batch((6, 5))
    torch.manual_seed(0)
    assert not torch.equal(model(batch), model.eval()(batch))
    assert torch.equal(model(batch), model(batch))


def test_it_can_be_built_again_from_its_settings(model):
    again = type(model)(**model.config).double()
    again.load_state_dict(model.state_dict())
    batch = made_batch((5, 3), static=2)
    assert torch.equal(again(batch), model(batch))


def test_what_cannot_be_right_is_refused_and_changes_nothing(model):
    static = [[0.1, 0.2]]
    with pytest.raises(StateError, match="takes 2 static features: give static"):
        model.init_state()
    with pytest.raises(StateError, match="has no row yet"):
        model.predict(model.init_state(1, static))
    state = model.observe(model.init_state(1, static), 1.0, [[1.0, NAN, 0.5]])
    before = [tensor.clone() for tensor in fields_of(state)]
    for t, x, message in [
        (0.5, [[1.0, 1.0, 1.0]], "stream 0: time 0.5 lies before its last row at 1.0"),
        (NAN, [[1.0, 1.0, 1.0]], "give a finite time"),
        (1.0, [[-0.4, NAN, NAN]], "stream 0, channel 0: this instant already has another value"),
        (2.0, [[float("inf"), 1.0, 1.0]], "stream 0, channel 0: the value is inf"),
        (2.0, [[1.0, 1.0]], "x has shape"),
    ]:
        with pytest.raises(StateError, match=message):
            model.observe(state, t, x)
    with pytest.raises(StateError, match="ask for that time or later"):
        model.predict(state, 0.9)
    for mine, theirs in zip(before, fields_of(state), strict=True):
        assert torch.equal(mine.nan_to_num(), theirs.nan_to_num())
    with pytest.raises(ValueError, match="3"):
        model(made_batch((4,), channels=2, static=2))
    with pytest.raises(oc.SeriesError, match="nothing is known before that"):
        model(made_batch((4,), static=2), at=[-1.0])
