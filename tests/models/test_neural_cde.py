"""`NeuralCDE`: the same numbers offline and online, what it refuses, and the theory it stands on."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn

from onlinecde import (
    Measurability,
    SeriesBatch,
    SeriesError,
    SolverError,
    controls,
    solve,
)
from onlinecde.models import CDEState, StateError, online
from onlinecde.models.flat_settings import flat_of, neural_cde

D = torch.float64
NAN = float("nan")
ONLINE = ("rectilinear", "hermite", "linear")


def random_batch(lengths=(6, 3, 1, 5), channels=3, observed=1.0, seed=0, static=0, dtype=D):
    numbers = np.random.default_rng(seed)
    times, values = [], []
    for rows in lengths:
        times.append(numbers.uniform(-1, 1) + numbers.uniform(0.2, 1.2, rows).cumsum())
        table = numbers.normal(size=(rows, channels))
        table[numbers.random(table.shape) >= observed] = np.nan
        values.append(torch.tensor(table, dtype=dtype))
    features = (
        torch.tensor(numbers.normal(size=(len(lengths), static)), dtype=dtype) if static else None
    )
    return SeriesBatch.from_arrays(times, values, features)


def make(seed=0, dtype=D, **keywords):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return neural_cde(**{"channels": 3, "hidden": 5, "width": 7, "outputs": 2, **keywords}).to(
            dtype
        )


def feed(model, batch, stream, rows=None):
    """The state of one stream after its rows, and what was said after each."""
    static = None if batch.static is None else batch.static[stream : stream + 1]
    state, said = model.init_state(1, static), []
    for row in range(int(batch.rows[stream]) if rows is None else rows):
        state = model.observe(
            state, float(batch.times[stream, row]), batch.values[stream, row][None]
        )
        said.append(model.predict(state)[0])
    return state, torch.stack(said)


def tensors(state):
    return {
        f.name: getattr(state, f.name) for f in fields(state) if getattr(state, f.name) is not None
    }


def same_state(one, other, **tolerance):
    for name, tensor in tensors(one).items():
        torch.testing.assert_close(
            tensor, getattr(other, name), equal_nan=True, **(tolerance or {"rtol": 0, "atol": 0})
        )


VARIANTS = [
    {},
    {"counts": False},
    {"static": 2},
    {"backend": "torch"},
    {"method": "dopri5", "steps": 2},
    {"method": "dopri5", "rtol": 1e-4, "atol": 1e-4},
    {"field_sees_path": True, "readout_sees_path": True, "readout_width": 4},
    {"count_scale": "log", "count_gain": 0.3, "gain": 0.5, "clip": 1.0, "activation": "silu"},
    {"static": 2, "field_sees_path": True, "kind": "multiclass", "outputs": 3},
    {"static": 2, "static_in_path": True, "field_sees_path": True, "readout_sees_path": True},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("control", ONLINE)
@pytest.mark.parametrize("grad", [False, True], ids=["live", "grad"])
def test_row_by_row_is_the_whole_batch(control, variant, grad):
    """On gaps where the control takes them, and with an encoding that was fitted."""
    observed = 0.5 if control == "rectilinear" else 1.0
    batch = random_batch(observed=observed, static=variant.get("static", 0))
    model = make(control=control, **variant)
    model.fit_scales(batch)
    with torch.set_grad_enabled(grad):
        offline = model(batch)
        for stream, rows in enumerate(batch.rows.tolist()):
            _, said = feed(model, batch, stream)
            torch.testing.assert_close(said, offline[stream, :rows], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("control", ONLINE)
def test_many_streams_at_once_are_each_stream_alone(control):
    batch = random_batch((4, 4, 4), observed=0.6 if control == "rectilinear" else 1.0)
    model = make(control=control)
    state = model.init_state(3)
    for row in range(4):
        state = model.observe(state, batch.times[:, row], batch.values[:, row])
    for stream in range(3):
        same_state(state[stream], feed(model, batch, stream)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("control", ONLINE)
def test_leading_missing_values_stream_as_they_batch(control):
    """Every control may wait for a channel's first value: it is 0, with a count of 0, until then."""
    batch = random_batch((5, 4))
    values = batch.values.clone()
    values[:, :2, 1] = NAN
    values[:, :, 2] = NAN
    batch = SeriesBatch.from_padded(batch.times, values, batch.rows)
    model = make(control=control)
    offline = model(batch)
    for stream, rows in enumerate(batch.rows.tolist()):
        torch.testing.assert_close(
            feed(model, batch, stream)[1], offline[stream, :rows], rtol=1e-10, atol=1e-10
        )


@pytest.mark.parametrize("variant", VARIANTS[:1] + VARIANTS[5:], ids=str)
def test_predictions_between_rows_are_the_queries_of_forward(variant):
    batch = random_batch(observed=0.5, static=variant.get("static", 0))
    model = make(**variant)
    model.fit_scales(batch)
    for stream, rows in enumerate(batch.rows.tolist()):
        for row in range(rows):
            state, _ = feed(model, batch, stream, row + 1)
            t = float(batch.times[stream, row])
            until = float(batch.times[stream, row + 1]) if row + 1 < rows else t + 5.0
            query = [t, 0.7 * t + 0.3 * until, until - 1e-6]
            alone = batch[stream : stream + 1]
            offline = model(alone, at=query)[0]
            online = torch.cat([model.predict(state, q) for q in query])
            torch.testing.assert_close(online, offline, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("control", ["hermite", "linear", "natural_cubic"])
def test_other_controls_stay_between_rows_with_what_was_said_after_the_last(control):
    batch = random_batch()
    model = make(control=control)
    rows = model(batch)
    last = batch.times.gather(1, batch.rows[:, None] - 1)
    said = model(batch, at=torch.cat([batch.times, last + 3.0], 1))
    torch.testing.assert_close(said, torch.cat([rows, rows[:, -1:]], 1), rtol=1e-12, atol=1e-12)
    between = model(batch, at=batch.times[:, :1] + 1e-6)
    torch.testing.assert_close(between[:, 0], rows[:, 0], rtol=1e-12, atol=1e-12)
    if control != "natural_cubic":
        state, _ = feed(model, batch, 0)
        torch.testing.assert_close(
            model.predict(state, 99.0)[0], rows[0, -1], rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("control", [*ONLINE, "natural_cubic"])
@pytest.mark.parametrize("sees", [False, True])
def test_final_is_what_stands_after_the_last_row(control, sees):
    batch = random_batch()
    model = make(control=control, readout_sees_path=sees, readout_width=3)
    rows = model(batch)
    assert rows.shape == (4, 6, 2)
    last = (batch.rows - 1)[:, None, None].expand(-1, 1, 2)
    torch.testing.assert_close(model(batch, final=True), rows.gather(1, last)[:, 0])
    for stream, length in enumerate(batch.rows.tolist()):
        assert (rows[stream, length:] == rows[stream, length - 1]).all()


@pytest.mark.parametrize("control", [*ONLINE, "natural_cubic"])
@pytest.mark.parametrize("gradient", ["exact", "backprop", "adjoint"])
def test_every_gradient_trains_every_output(control, gradient):
    batch = random_batch()
    for settings in ({}, {"method": "dopri5", "rtol": 1e-4, "atol": 1e-4}):
        model = make(control=control, gradient=gradient, **settings)
        for outputs in (model(batch), model(batch, final=True), model(batch, at=batch.times + 0.1)):
            model.zero_grad()
            outputs.square().sum().backward()
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None, name
                assert parameter.grad.isfinite().all(), name
                assert parameter.grad.any(), name


class TestTheMergeRule:
    """Events of one instant: in any order, together or one by one, the same row and the same state."""

    @pytest.mark.parametrize(
        "variant",
        [
            {},
            {"static": 2},
            {"field_sees_path": True},
            {"counts": False},
            {"static": 2, "static_in_path": True, "field_sees_path": True},
        ],
    )
    @pytest.mark.parametrize("row", [0, 1, 3])
    @pytest.mark.parametrize("grad", [False, True], ids=["live", "grad"])
    def test_order_does_not_matter(self, row, variant, grad):
        batch = random_batch((5,), static=variant.get("static", 0))
        model = make(**variant)
        with torch.set_grad_enabled(grad):
            before = (
                model.init_state(1, batch.static) if row == 0 else feed(model, batch, 0, row)[0]
            )
            t, x = float(batch.times[0, row]), batch.values[0, row]
            together = model.observe(before, t, x[None])
            for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
                state = before
                for channel in order:
                    part = torch.full((1, 3), NAN, dtype=D)
                    part[0, channel] = x[channel]
                    state = model.observe(state, t, part)
                same_state(state, together, rtol=1e-13, atol=1e-13)
            after = model.observe(state, t + 1, x[None] + 1)
            same_state(after, model.observe(together, t + 1, x[None] + 1), rtol=1e-13, atol=1e-13)

    def test_the_same_event_twice_counts_once(self):
        model = make()
        state = model.observe(model.init_state(), 0.0, [[1.0, NAN, NAN]])
        state = model.observe(state, 1.0, [[1.0, 2.0, NAN]])
        same_state(model.observe(state, 1.0, [[NAN, 2.0, NAN]]), state, rtol=1e-13, atol=1e-13)
        assert state.counts.tolist() == [[2, 1, 0]]

    def test_one_stream_may_merge_while_another_moves_on(self):
        batch = random_batch((3, 3))
        model = make()
        state = model.init_state(2)
        for row in range(2):
            state = model.observe(state, batch.times[:, row], batch.values[:, row])
        clock = torch.stack([batch.times[0, 1], batch.times[1, 2]])
        again = model.observe(state, clock, torch.stack([batch.values[0, 1], batch.values[1, 2]]))
        same_state(again[0], state[0], rtol=1e-13, atol=1e-13)
        same_state(again[1], feed(model, batch, 1)[0], rtol=1e-12, atol=1e-12)

    def test_an_empty_row_moves_time_alone(self):
        """As a query does, save that the row is then the stream's last."""
        model = make()
        state = model.observe(model.init_state(), 0.0, [[1.0, 2.0, 3.0]])
        passed = model.observe(state, 2.0, [[NAN] * 3])
        torch.testing.assert_close(
            model.predict(passed), model.predict(state, 2.0), rtol=1e-12, atol=1e-12
        )
        assert passed.counts.tolist() == state.counts.tolist()
        assert passed.values.tolist() == state.values.tolist()


class TestWhatIsRefused:
    """Each refusal names the stream, and leaves the state as it was."""

    @pytest.fixture
    def begun(self):
        model = make()
        state = model.observe(model.init_state(2), 1.0, [[1.0, 2.0, 3.0]] * 2)
        return model, state

    @pytest.mark.parametrize("grad", [False, True], ids=["live", "grad"])
    @pytest.mark.parametrize(
        ("t", "x", "message"),
        [
            ([2.0, 0.5], [[1.0] * 3] * 2, r"stream 1: time 0\.5 lies before its last row at 1\.0"),
            (NAN, [[1.0] * 3] * 2, r"stream 0: the time is nan: give a finite time"),
            ([2.0, float("inf")], [[1.0] * 3] * 2, r"stream 1: the time is inf"),
            (
                2.0,
                [[1.0] * 3, [1.0, float("inf"), 0]],
                r"stream 1, channel 1: the value is inf: use NaN",
            ),
            (2.0, [[1.0] * 3], r"x has shape \(1, 3\): give \(stream, channel\) = \(2, 3\)"),
            (2.0, [[1.0] * 2] * 2, r"x has shape \(2, 2\)"),
            (2.0, [1.0] * 3, r"x has shape \(3,\)"),
            ([1.0, 2.0, 3.0], [[1.0] * 3] * 2, r"t has shape \(3,\): give a number or one time"),
            (
                1.0,
                [[1.0, 2.0, 3.0], [1.0, 2.5, 3.0]],
                r"stream 1, channel 1: this instant already has",
            ),
        ],
    )
    def test_observations_that_cannot_be_right(self, begun, t, x, message, grad):
        model, state = begun
        held = {name: tensor.clone() for name, tensor in tensors(state).items()}
        with torch.set_grad_enabled(grad), pytest.raises(StateError, match=message):
            model.observe(state, t, x)
        for name, tensor in tensors(state).items():
            assert (tensor == held[name]).all() or tensor.isnan().any()

    @pytest.mark.parametrize("t", [0.5, NAN, float("inf"), [1.0, 0.9]])
    def test_questions_about_the_past_or_no_time(self, begun, t):
        model, state = begun
        with pytest.raises(
            StateError, match=r"stream [01] is asked for at time .*at 1\.0: ask for that"
        ):
            model.predict(state, t)

    def test_questions_before_the_first_row(self):
        model = make()
        with pytest.raises(StateError, match="stream 0 has no row yet: observe one first"):
            model.predict(model.init_state())

    def test_the_natural_cubic_control_online(self):
        with pytest.raises(
            StateError, match=r"natural cubic control needs the whole series.*rectilinear"
        ):
            make(control="natural_cubic").init_state()

    @pytest.mark.parametrize("control", ["linear", "hermite"])
    def test_gaps_that_would_be_filled_from_the_future(self, control):
        model = make(control=control)
        state = model.observe(model.init_state(), 0.0, [[1.0, NAN, 2.0]])
        with pytest.raises(
            StateError, match=rf"stream 0, channel 2 is missing: the {control} control"
        ):
            model.observe(state, 1.0, [[1.0, 2.0, NAN]])
        with pytest.raises(StateError, match=r"stream 0: its row at 0\.0 is taken.*rectilinear"):
            model.observe(state, 0.0, [[1.0, 2.0, 2.0]])
        model.observe(state, 1.0, [[1.0, NAN, 2.0]])

    def test_static_features_that_do_not_fit(self):
        model = make(static=2)
        with pytest.raises(StateError, match="takes 2 static features: give static"):
            model.init_state()
        with pytest.raises(StateError, match=r"static has shape \(1, 2\).*\(3, 2\)"):
            model.init_state(3, [[0.0, 1.0]])
        with pytest.raises(StateError, match="known and finite"):
            model.init_state(1, [[0.0, NAN]])
        with pytest.raises(StateError, match="takes no static features"):
            make().init_state(1, [[0.0]])
        with pytest.raises(StateError, match="streams is 0"):
            make().init_state(0)
        with pytest.raises(ValueError, match="0 static features, the model was made for 2"):
            model(random_batch())

    def test_series_that_do_not_fit(self):
        model = make()
        with pytest.raises(ValueError, match=r"4 channels \(x0, x1, x2, x3\).*made for 3"):
            model(random_batch(channels=4))
        with pytest.raises(SeriesError, match="stream 0 is asked for at time -99"):
            model(random_batch(), at=[-99.0])
        for at in (3.0, torch.zeros(2, 2), torch.zeros(4, 1, 1)):
            with pytest.raises(ValueError, match=r"at has shape .* for 4 streams"):
                model(random_batch(), at=at)

    @pytest.mark.parametrize(
        ("keywords", "message"),
        [
            ({"control": "spline"}, "choose one of rectilinear, hermite, linear, natural_cubic"),
            ({"channel_dropout": 1.0}, "a share from 0 up to 1"),
            ({"control": "linear", "max_step": 1.0}, "give steps"),
            ({"kind": "ordinal"}, "choose one of regression, binary"),
            ({"width": 0}, "width is 0"),
            ({"depth": 0}, "depth is 0"),
            ({"channels": 0}, "channels is 0"),
            ({"outputs": 0}, "outputs is 0"),
            ({"activation": "gelu"}, "activation 'gelu' is not one of"),
            ({"method": "rk5"}, "'rk5' is not known"),
            ({"rtol": 1e-3}, "both rtol and atol"),
            ({"count_scale": "sqrt"}, "choose 'linear' or 'log'"),
        ],
    )
    def test_models_that_cannot_be_built(self, keywords, message):
        with pytest.raises(ValueError, match=message):
            make(**keywords)

    @pytest.mark.parametrize("grad", [False, True], ids=["live", "grad"])
    def test_a_state_that_is_no_longer_finite(self, grad):
        model = make(activation="relu", backend="torch" if grad else "auto")
        with torch.no_grad():
            model.initial.weight.fill_(1e200)
            model.field.inner[0].weight.fill_(1e200)
        batch = SeriesBatch.from_arrays(
            [[0.0, 7.5]], [torch.ones(2, 3, dtype=D)], streams=["bed 4"]
        )
        with (
            torch.set_grad_enabled(grad),
            pytest.raises(SolverError, match=r"stream 'bed 4' at time 7\.5"),
        ):
            model(batch)


class TestTheState:
    def test_picking_putting_and_joining_streams(self):
        batch = random_batch((3, 3, 3, 3), static=1)
        model = make(static=1)
        state = model.init_state(4, batch.static)
        for row in range(3):
            state = model.observe(state, batch.times[:, row], batch.values[:, row])
        assert len(state) == 4
        assert len(state[1]) == len(state[-1]) == len(state[-2]) == 1
        same_state(state[-1], state[3])
        for one in (np.int64(3), torch.tensor(3), np.array(3)):
            same_state(state[one], state[3])
        same_state(state[-2], state[2])
        same_state(state[1:3], state[[1, 2]])
        same_state(state[torch.tensor([True, False, True, False])], state[[0, 2]])
        same_state(CDEState.concatenate([state[:1], state[1:]]), state)
        other = model.observe(state[[3, 1]], 99.0, torch.zeros(2, 3, dtype=D))
        placed = state.put([3, 1], other)
        same_state(placed[[3, 1]], other)
        same_state(placed[[0, 2]], state[[0, 2]])
        assert (state.time != 99.0).all()
        moved = state.to("cpu")
        same_state(moved, state)

    @pytest.mark.parametrize("control", ONLINE)
    @pytest.mark.parametrize("grad", [False, True], ids=["live", "grad"])
    def test_nothing_is_changed_in_place(self, control, grad):
        batch = random_batch((4,))
        model = make(control=control)
        with torch.set_grad_enabled(grad):
            states = [model.init_state()]
            held = []
            for row in range(4):
                held.append({name: tensor.clone() for name, tensor in tensors(states[-1]).items()})
                states.append(model.observe(states[-1], batch.times[0, row], batch.values[:, row]))
                model.predict(states[-1], float(batch.times[0, row]) + 0.1)
        for state, kept in zip(states, held, strict=False):
            for name, tensor in tensors(state).items():
                torch.testing.assert_close(tensor, kept[name], rtol=0, atol=0, equal_nan=True)

    def test_an_old_state_can_be_gone_on_from_twice(self):
        """Two futures of one past do not disturb each other."""
        model = make()
        past = model.observe(model.init_state(), 0.0, [[1.0, 2.0, 3.0]])
        first = model.observe(past, 1.0, [[0.0, NAN, NAN]])
        second = model.observe(past, 1.0, [[NAN, 5.0, NAN]])
        same_state(model.observe(past, 1.0, [[0.0, NAN, NAN]]), first)
        assert (first.z != second.z).all()

    def test_its_size_does_not_depend_on_the_history(self):
        model = make()
        state = model.init_state()
        shapes = {name: tensor.shape for name, tensor in tensors(state).items()}
        with torch.no_grad():
            for row in range(50):
                state = model.observe(state, float(row), [[0.1 * row, NAN, -0.1]])
        assert {name: tensor.shape for name, tensor in tensors(state).items()} == shapes
        assert state.counts.tolist() == [[50, 0, 50]]


class TestDtypesAndSettings:
    @pytest.mark.parametrize("dtype", [torch.float32, D])
    @pytest.mark.parametrize("control", ONLINE)
    def test_everything_follows_the_model(self, dtype, control):
        model = make(dtype=dtype, control=control, static=1)
        batch = random_batch((3, 2), static=1, dtype=torch.float32)
        model.fit_scales(batch)
        assert model(batch).dtype == model(batch, final=True).dtype == dtype
        assert model(batch, at=batch.times).dtype == dtype
        state = model.observe(model.init_state(1, [[0.5]]), 0.0, np.array([[1.0, 2.0, 3.0]]))
        assert model.predict(state).dtype == dtype
        for name, tensor in tensors(state).items():
            wanted = {"time": D, "previous_time": D, "observed": torch.bool}.get(name, dtype)
            assert tensor.dtype == wanted, name
        assert model.encoding.time_scale.dtype == D

    def test_float64_is_not_rounded_to_float32_on_the_way(self):
        """A change of 1e-12 in a value is still seen in the output."""
        model = make()
        batch = random_batch((4,))
        nudged = batch.values.clone()
        nudged[0, 1, 0] += 1e-12
        moved = model(SeriesBatch.from_padded(batch.times, nudged)) - model(batch)
        assert 0 < moved.abs().max() < 1e-10

    @pytest.mark.parametrize(
        "settings", [{}, {"backend": "torch"}, {"method": "dopri5", "rtol": 1e-3, "atol": 1e-3}]
    )
    def test_no_global_setting_is_changed(self, settings):
        def world():
            return (
                torch.get_default_dtype(),
                torch.get_num_threads(),
                torch.is_grad_enabled(),
                torch.are_deterministic_algorithms_enabled(),
                torch.get_float32_matmul_precision(),
                torch.get_rng_state().tolist(),
                np.random.get_state()[1].tolist(),
                np.geterr(),
            )

        model, batch = make(**settings), random_batch(observed=0.5)
        before = world()
        model.eval()(batch, at=batch.times).sum().backward()
        feed(model, batch, 0)
        if "rtol" not in settings:
            model.explain(batch)
        with torch.no_grad():
            model(batch, final=True)
            model.predict(feed(model, batch, 0)[0], 99.0)
        assert world() == before

    def test_two_threads_say_what_one_says(self):
        model, batch = make(), random_batch(observed=0.5)
        one = model(batch)
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(2)
            two = model(batch)
        finally:
            torch.set_num_threads(threads)
        torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-12)


class TestOptions:
    def test_channels_are_dropped_in_training_alone(self):
        batch = random_batch((5,) * 64)
        model = make(channel_dropout=0.5).eval()
        torch.manual_seed(0)
        assert (model(batch) == model(batch)).all()
        plain = make()
        assert (model(batch) == plain(batch)).all()
        model.train()
        assert (model(batch) != model(batch)).any()
        assert (plain.train()(batch) == model.eval()(batch)).all()

    def test_a_dropped_channel_is_one_never_observed(self, monkeypatch):
        """Whole channels of a stream, from first row to last, and about as many as asked for."""
        from onlinecde.models import neural_cde

        batch = random_batch((5,) * 300)
        seen = []
        drop = neural_cde.drop_channels
        monkeypatch.setattr(
            neural_cde, "drop_channels", lambda *a: seen.append(drop(*a)) or seen[-1]
        )
        model = make(channel_dropout=0.3).train()
        torch.manual_seed(0)
        outputs = model(batch)
        (hidden,) = seen
        gone = hidden.values.isnan()
        assert (gone == gone[:, :1]).all()
        assert 0.25 < gone.double().mean() < 0.35
        torch.testing.assert_close(outputs, make()(hidden), rtol=1e-12, atol=1e-12)

    def test_counts_in_logarithms(self):
        """X's count channels are count_gain * log(1 + c), whatever the history."""
        batch = random_batch((6, 4), observed=0.5)
        model = make(count_scale="log", count_gain=0.25)
        x = model.path(batch).rows
        wanted = 0.25 * torch.log1p(batch.observed.cumsum(1).double())
        torch.testing.assert_close(x[:, :, 4:], wanted, rtol=1e-14, atol=0)
        state, _ = feed(model, batch, 0)
        row = online.row(model, state.time, state.values, state.counts)
        torch.testing.assert_close(row[0], x[0, 5], rtol=1e-14, atol=0)

    def test_gain_and_clip_shape_the_values(self):
        batch = random_batch((50,))
        model = make(gain=0.5, clip=1.0)
        model.fit_scales(batch)
        x = model.path(batch).rows[0, :, 1:4]
        values = batch.values[0]
        z_scores = (values - values.mean(0)) / values.std(0, correction=0)
        torch.testing.assert_close(x, 0.5 * z_scores.clamp(-1, 1), rtol=1e-12, atol=1e-12)
        assert (x.abs() == 0.5).any()

    def test_static_features_matter_and_stay_with_their_stream(self):
        batch = random_batch((3, 3), static=2)
        model = make(static=2)
        swapped = SeriesBatch.from_padded(
            batch.times, batch.values, batch.rows, batch.static.flip(0)
        )
        assert (model(batch) != model(swapped)).all()

    def test_the_initial_map_is_linear_in_static_and_the_first_row(self):
        batch = random_batch((1, 1), static=2)
        model = make(static=2, outputs=1)
        x = torch.cat([batch.static, batch.times, batch.values[:, 0], torch.ones(2, 3, dtype=D)], 1)
        z = x @ model.initial.weight.T + model.initial.bias
        said = z @ model.readout.layers.weight.T + model.readout.layers.bias
        torch.testing.assert_close(model(batch)[:, 0], said, rtol=1e-12, atol=1e-12)

    def test_a_readout_may_see_the_path(self):
        """(z, X(t)): with weights on X alone the output is X itself, between rows too."""
        batch = random_batch((3,), observed=0.6)
        model = make(readout_sees_path=True, outputs=7)
        with torch.no_grad():
            model.readout.layers.weight.zero_()
            model.readout.layers.weight[:, 5:] = torch.eye(7, dtype=D)
            model.readout.layers.bias.zero_()
        torch.testing.assert_close(model(batch), model.path(batch).rows)
        query = batch.times[:, :1] + 0.1
        said = model(batch, at=query)[0, 0]
        assert said[0].tolist() == query.item()
        torch.testing.assert_close(said[1:], model.path(batch).rows[0, 0, 1:])

    @pytest.mark.parametrize("control", [*ONLINE, "natural_cubic"])
    def test_the_declared_measurability_is_the_controls(self, control):
        declared = {"rectilinear": "continuous", "natural_cubic": "offline"}.get(
            control, "discrete"
        )
        assert make(control=control).measurability is Measurability(declared)

    def test_config_builds_the_same_model_again(self):
        model = make(static=1, field_sees_path=True, readout_width=3, max_step=0.5, clip=2.0)
        twin = neural_cde(**flat_of(model.config)).double()
        twin.load_state_dict(model.state_dict())
        batch = random_batch(static=1)
        assert (twin(batch) == model(batch)).all()


class TestTheory:
    """What the paper says of CDEs, with fields written out by hand."""

    def test_an_rnn_is_an_euler_discretised_cde(self):
        """z = (h, x), f(z) = time: (cell(x, h) - h, 0); values: (0, identity). One step a row, dt = 1.

        Euler gives h_{i+1} = h_i + (cell(x_i, h_i) - h_i) * 1 and carries x along X itself.
        """
        for cell in (nn.RNNCell(3, 4).double(), nn.GRUCell(3, 4).double()):
            batch = random_batch((6, 6), seed=3)
            regular = SeriesBatch.from_padded(torch.arange(6.0).expand(2, -1), batch.values)
            path = controls.linear(regular)
            h = torch.zeros(2, 4, dtype=D)
            states = [h]
            for row in range(5):
                states.append(cell(regular.values[:, row], states[-1]))
            z0 = torch.cat([h, regular.values[:, 0]], 1)
            z = solve(path, _Remembers(cell, 4, 3), z0, "euler").z
            torch.testing.assert_close(z[:, :, :4], torch.stack(states, 1), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(z[:, :, 4:], regular.values, rtol=1e-12, atol=1e-12)
            twice = solve(path, _Remembers(cell, 4, 3), z0, "euler", steps=2).z
            assert (twice[:, -1, :4] - states[-1]).abs().max() > 1e-3

    def test_an_ode_rnn_is_a_rectilinear_cde(self):
        """Time legs solve dh = g(h) dt; value legs take x in, then apply the cell to it.

        A phase p moves with the count of channel 0, from one whole number to the next on each
        value leg; 1 + cos(2 pi p) opens the first Euler step to x, 1 - cos(2 pi p) the second
        to the cell: h = cell(x_new, h), at irregular times.
        """
        cell, flow = nn.GRUCell(3, 4).double(), nn.Linear(4, 4).double()
        batch = random_batch((6, 4, 1), seed=5)
        path = controls.rectilinear(batch, counts=True)
        h0 = torch.randn(3, 4, dtype=D, generator=torch.Generator().manual_seed(0))
        z0 = torch.cat([h0, batch.values[:, 0], torch.zeros(3, 1, dtype=D)], 1)
        z = solve(path, _ODERNNField(cell, flow), z0, "euler", steps=2).z
        for stream, rows in enumerate(batch.rows.tolist()):
            h = h0[stream : stream + 1]
            for row in range(1, rows):
                gap = batch.times[stream, row] - batch.times[stream, row - 1]
                for _ in range(2):
                    h = h + torch.tanh(flow(h)) * gap / 2
                h = cell(batch.values[stream, row][None], h)
                torch.testing.assert_close(z[stream, row, :4], h[0], rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize("control", ["linear", "rectilinear"])
    def test_the_solution_does_not_depend_on_the_parametrisation(self, control):
        """Rows put in on the path itself change its speed, not its image: the same z."""
        batch = random_batch((5,), seed=7)
        times, values = batch.times[0], batch.values[0]
        parts_t, parts_x = [], []
        for row in range(4):
            for share in (0.0, 0.25, 0.8) if row % 2 else (0.0, 0.5):
                moved = share if control == "linear" else 0.0
                parts_t.append(torch.lerp(times[row], times[row + 1], share))
                parts_x.append(torch.lerp(values[row], values[row + 1], moved))
        finer = SeriesBatch.from_padded(
            torch.stack([*parts_t, times[-1]])[None], torch.stack([*parts_x, values[-1]])[None]
        )
        build = getattr(controls, control)
        field = make(counts=False, activation="tanh").field
        z0 = torch.ones(1, 5, dtype=D)
        tight = {"method": "dopri5", "rtol": 1e-11, "atol": 1e-11, "outputs": "end"}
        one, other = (solve(build(b), field, z0, **tight).z for b in (batch, finer))
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        reversed_ = SeriesBatch.from_padded(times[None], values.flip(0)[None])
        assert (solve(build(reversed_), field, z0, **tight).z - one).abs().max() > 1e-3

    def test_a_piece_in_two_steps_is_two_pieces_in_one(self):
        """The same to rounding, since a straight piece has one slope whatever its speed."""
        batch = random_batch((4,), seed=8)

        def halved(x):
            middle = (x[:, 1:] + x[:, :-1]) / 2
            return torch.cat([torch.stack([x[:, :-1], middle], 2).flatten(1, 2), x[:, -1:]], 1)

        finer = SeriesBatch.from_padded(halved(batch.times), halved(batch.values))
        field, z0 = make(counts=False).field, torch.ones(1, 5, dtype=D)
        coarse = solve(controls.linear(batch), field, z0, steps=2).z
        fine = solve(controls.linear(finer), field, z0, steps=1).z
        torch.testing.assert_close(fine[:, ::2], coarse, rtol=1e-12, atol=1e-12)

    def test_going_back_along_the_path_leads_back(self):
        """dz = f(z) dX undoes itself: there and back again is where it began."""
        values = random_batch((4,), seed=9).values
        loop = torch.cat([values, values.flip(1)[:, 1:]], 1)
        times = torch.arange(7.0, dtype=D)[None] * 1e-9
        path = controls.linear(SeriesBatch.from_padded(times, loop))
        z0 = torch.ones(1, 5, dtype=D)
        end = solve(
            path, make(counts=False, activation="tanh").field, z0, "dopri5", rtol=1e-11, atol=1e-11
        ).z[:, -1]
        torch.testing.assert_close(end, z0, rtol=1e-7, atol=1e-7)

    def test_without_counts_a_repeated_value_leaves_no_trace_with_them_it_does(self):
        """((t0, x0), (t1, x0)) and ((t0, x0), (t*, x0), (t1, x0)): the paper's case for counts."""
        once = SeriesBatch.from_arrays([[0.0, 2.0]], [torch.ones(2, 3, dtype=D)])
        twice = SeriesBatch.from_arrays([[0.0, 1.0, 2.0]], [torch.ones(3, 3, dtype=D)])
        tight = {"method": "dopri5", "rtol": 1e-11, "atol": 1e-11}
        same, other = (make(counts=counts, activation="tanh", **tight) for counts in (False, True))
        torch.testing.assert_close(same(once)[:, -1], same(twice)[:, -1], rtol=1e-9, atol=1e-9)
        assert (other(once)[:, -1] - other(twice)[:, -1]).abs().max() > 1e-3


class _Remembers(nn.Module):
    """f(z) of z = (h, x): the cell's update along time, x itself along the values."""

    def __init__(self, cell, hidden, channels):
        super().__init__()
        self.cell, self.hidden, self.channels = cell, hidden, channels

    def forward(self, z):
        h, x = z[:, : self.hidden], z[:, self.hidden :]
        by_time = torch.cat([self.cell(x, h) - h, torch.zeros_like(x)], 1)[:, :, None]
        by_value = torch.zeros(z.shape[0], z.shape[1], self.channels, dtype=z.dtype)
        by_value[:, self.hidden :] = torch.eye(self.channels, dtype=z.dtype)
        return torch.cat([by_time, by_value], 2)


class _ODERNNField(nn.Module):
    """f(z) of z = (h, x, p) for three values with counts: channels time, 3 values, 3 counts."""

    def __init__(self, cell, flow):
        super().__init__()
        self.cell, self.flow = cell, flow

    def forward(self, z):
        h, x, p = z[:, :4], z[:, 4:7], z[:, 7:]
        matrix = torch.zeros(z.shape[0], 8, 7, dtype=z.dtype)
        wave = torch.cos(2 * torch.pi * p)
        matrix[:, :4, 0] = torch.tanh(self.flow(h))
        matrix[:, 4:7, 1:4] = torch.eye(3, dtype=z.dtype) * (1 + wave)[:, :, None]
        matrix[:, :4, 4] = (self.cell(x, h) - h) * (1 - wave)
        matrix[:, 7, 4] = 1.0
        return matrix
