"""The fast way through `observe` and `predict` is the plain way, sooner."""

from dataclasses import fields

import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import onlinecde as oc
from onlinecde.controls import Encoding
from onlinecde.models import StateError
from onlinecde.models.flat_settings import flat_of, neural_cde
from onlinecde.models.frozen import packed
from onlinecde.solvers import Solver

VARIANTS = [
    {},
    {"counts": False},
    {"steps": 2},
    {"max_step": 0.3},
    {"method": "heun", "activation": "silu"},
    {"gain": 0.2, "clip": 1.5, "count_scale": "log", "count_gain": 0.3},
    {"field_sees_path": True, "readout_sees_path": True, "readout_width": 5},
    {"static": 2},
    {"static": 2, "static_in_path": True, "field_sees_path": True, "readout_sees_path": True},
    {"readout_sees_path": True, "readout_ramps": 3, "readout_width": 5},
    {"static": 2, "static_in_path": True, "readout_sees_path": True, "readout_ramps": 3},
]


def made(dtype, streams=3, rows=6, **settings):
    torch.manual_seed(0)
    times = torch.rand(streams, rows, dtype=torch.float64).cumsum(1)
    values = torch.randn(streams, rows, 4, dtype=dtype)
    values[torch.rand(values.shape) < 0.5] = torch.nan
    static = torch.randn(streams, settings["static"]) if "static" in settings else None
    batch = oc.SeriesBatch.from_padded(times, values, static=static)
    model = neural_cde(channels=4, hidden=7, width=9, outputs=2, **settings).to(dtype).eval()
    model.fit_scales(batch)
    return model, batch


def follow(model, batch, fast):
    """States and answers after every row, by the kernels or the plain way."""
    plain = neural_cde(**{**flat_of(model.config), "backend": "torch"}).to(model.dtype).eval()
    plain.load_state_dict(model.state_dict())
    chosen = model if fast else plain
    said = []
    with torch.no_grad():
        state = chosen.init_state(len(batch), batch.static)
        for row in range(batch.times.shape[1]):
            t, x = batch.times[:, row], batch.values[:, row]
            assert (packed(chosen) is not None) == fast
            state = chosen.observe(state, t, x)
            said.append(chosen.predict(state, t + 0.2))
    return state, torch.stack(said, 1)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_kernels_and_plain_torch_hold_the_same_state(dtype, settings):
    model, batch = made(dtype, **settings)
    (fast, fast_said), (slow, slow_said) = follow(model, batch, True), follow(model, batch, False)
    close = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(fast_said, slow_said, rtol=close, atol=close)
    for field in fields(fast):
        mine, other = getattr(fast, field.name), getattr(slow, field.name)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_live_state_is_the_batch_solve_bit_for_bit(dtype):
    model, batch = made(dtype, max_step=0.3)
    with torch.no_grad():
        path = model.path(batch)
        z = oc.solve(path, model.field, model.begin(path.rows[:, 0], None), max_step=0.3).z
        state, _ = follow(model, batch, True)
    assert torch.equal(state.z, z[:, -1])


def test_one_stream_among_many_has_the_same_bits():
    model, batch = made(torch.float32, streams=40)
    with torch.no_grad():
        everyone, _ = follow(model, batch, True)
        alone, _ = follow(model, batch[17], True)
    assert torch.equal(everyone.z[17], alone.z[0])


def test_changed_weights_and_scaling_are_noticed():
    model, batch = made(torch.float32)
    with torch.no_grad():
        _, before = follow(model, batch, True)
        model.field.weight.mul_(0.5)
        _, lighter = follow(model, batch, True)
        _, reference = follow(model, batch, False)
    assert not torch.allclose(before, lighter)
    torch.testing.assert_close(lighter, reference, rtol=1e-5, atol=1e-5)
    model.fit_scales(batch[:1])
    _, rescaled = follow(model, batch, True)
    assert not torch.allclose(lighter, rescaled)


def fused_step(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    versions = [weight._version for weight in model.parameters()]
    optimizer.step()
    assert versions == [weight._version for weight in model.parameters()]


def by_data(model):
    for weight in model.field.parameters():
        weight.data.mul_(0.5)


def from_a_vector(model):
    weights = [*model.field.parameters()]
    vector_to_parameters(0.5 * parameters_to_vector(weights), weights)


def clipped(model):
    model.encoding.clip = 0.1


def gained(model):
    model.encoding.gain = 3.0


def counted(model):
    model.encoding.count_gain = 3.0


def other_steps(model):
    model.solver = Solver("euler")


def other_counts(model):
    model.encoding.count_scale = "log"


def another_encoding(model):
    model.encoding = Encoding(4, True, gain=3.0)


def another_field(model):
    model.field = oc.MLPField(7, model.field.channels, 9)


CHANGES = [fused_step, by_data, from_a_vector, clipped, gained, counted, other_steps, other_counts]
CHANGES += [another_encoding, another_field]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whatever_changes_a_model_the_next_observation_is_by_what_it_is_now(change):
    model, batch = made(torch.float32)

    def live():
        with torch.no_grad():
            state = model.init_state(3)
            for row in range(6):
                state = model.observe(state, batch.times[:, row], batch.values[:, row])
            return model.predict(state, 9.0)

    first = live()
    for _ in range(3):  # what an earlier change gave back of memory, a later one may use again
        change(model)
        last = live()
        with torch.no_grad():
            torch.testing.assert_close(last, model(batch, at=[9.0])[:, 0], rtol=1e-5, atol=1e-5)
    assert (last - first).abs().amax() > 1e-3


@pytest.mark.parametrize("settings", [{}, VARIANTS[-2]], ids=str)
def test_the_state_given_is_left_as_it_was(settings):
    model, batch = made(torch.float32, **settings)
    with torch.no_grad():
        state = model.observe(model.init_state(3), batch.times[:, 0], batch.values[:, 0])
        copies = [getattr(state, field.name) for field in fields(state)]
        kept = [None if tensor is None else tensor.clone() for tensor in copies]
        model.observe(state, batch.times[:, 1], batch.values[:, 1])
        model.observe(state, batch.times[:, 0], torch.full((3, 4), torch.nan))
        model.predict(state, 99.0)
    for tensor, copy in zip(copies, kept, strict=True):
        if tensor is not None:
            torch.testing.assert_close(tensor, copy, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("t", "x", "told"),
    [
        (-1.0, [[0.0, 0.0]], "lies before its last row"),
        (float("nan"), [[0.0, 0.0]], "finite time"),
        (5.0, [[float("inf"), 0.0]], "channel 0"),
        (5.0, [[0.0]], "shape"),
        (1.0, [[7.0, 0.0]], "already has another value"),
        ([5.0, 6.0], [[0.0, 0.0]], "one time for each"),
        ([[5.0]], [[0.0, 0.0]], "one time for each"),
    ],
)
def test_bad_observations_are_refused_on_the_fast_way_too(t, x, told):
    model = oc.NeuralCDE(channels=2, hidden=4, field={"width": 4})
    with torch.no_grad():
        state = model.observe(model.init_state(), 1.0, [[1.0, float("nan")]])
        with pytest.raises(StateError, match=told):
            model.observe(state, t, x)
        if told == "one time for each":
            with pytest.raises(StateError, match=told):
                model.predict(state, t)


def test_a_state_that_runs_away_is_an_error_and_names_the_stream():
    model = oc.NeuralCDE(channels=1, hidden=4, field={"width": 4})
    with torch.no_grad():
        model.field.weight.fill_(1e30)
        state = model.observe(model.init_state(), 0.0, [[1.0]])
        model.field.bias.fill_(float("nan"))
        with pytest.raises(oc.SolverError, match="stream 0 at time 1"):
            model.observe(state, 1.0, [[2.0]])


def test_with_gradients_on_the_state_can_be_differentiated():
    model, batch = made(torch.float64)
    state = model.init_state(3)
    for row in range(3):
        state = model.observe(state, batch.times[:, row], batch.values[:, row])
    model.predict(state).sum().backward()
    online = model.field.weight.grad.clone()
    model.zero_grad()
    model(batch)[:, 2].sum().backward()
    torch.testing.assert_close(online, model.field.weight.grad)


@pytest.mark.parametrize("kind", [neural_cde, oc.ODERNN], ids=["Neural CDE", "ODE-RNN"])
def test_a_gap_of_too_many_steps_is_an_error_that_names_it(kind):
    model = kind(channels=1, hidden=4, width=4, max_step=1e-3)
    message = r"stream 1: a gap of 3\.6e\+12 in steps of at most 0\.001"
    with torch.no_grad():
        state = model.observe(model.init_state(2), 0.0, [[1.0], [1.0]])
        with pytest.raises(oc.SolverError, match=message):
            model.observe(state, [0.0, 3.6e12], [[1.0], [1.0]])
        with pytest.raises(oc.SolverError, match=message):
            model.predict(state, [0.0, 3.6e12])


@pytest.mark.parametrize("bounded", [False, True])
def test_what_a_field_sees_of_the_path_has_the_same_bits_alone_and_in_company(bounded, rng):
    torch.manual_seed(int(rng.integers(1000)))
    model = oc.NeuralCDE(
        4,
        7,
        field={"width": 9, "activation": "silu", "sees_path": True},
        readout={"sees_path": True},
        encoding={"bounded": bounded},
    )
    model.eval()
    rows = torch.from_numpy(rng.normal(0, 1, (6, 70, 4))).float()
    rows[torch.from_numpy(rng.random(rows.shape) < 0.5)] = torch.nan

    def follow(streams):
        state = model.init_state(len(streams))
        for t, row in enumerate(rows):
            state = model.observe(state, float(t), row[streams])
        return state.z, packed(model).ahead(model, state, 7.5)

    with torch.no_grad():
        together = follow(range(70))
        for few in ([5], [5, 6], range(3, 17), range(5, 70)):
            for whole, part in zip(together, follow(list(few)), strict=True):
                assert torch.equal(whole[list(few)], part)
