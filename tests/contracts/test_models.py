"""Every model keeps the eight contracts, in float32 and float64."""

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.audit.contract_checks import batch_independence
from onlinecde.models import MODELS, StateError
from onlinecde.models.flat_settings import maker, neural_cde

SMALL = {"channels": 3, "hidden": 5, "outputs": 2}
CDE = {**SMALL, "width": 6}
SEEN = {"static": 2, "static_in_path": True, "field_sees_path": True, "readout_sees_path": True}
RAMPS = {"readout_sees_path": True, "readout_ramps": 3}
MODELS_AND_SETTINGS = [
    ("NeuralCDE", CDE),
    ("NeuralCDE", {**CDE, "counts": False}),
    ("NeuralCDE", {**CDE, "static": 2}),
    ("NeuralCDE", {**CDE, "field_sees_path": True}),
    ("NeuralCDE", {**CDE, "readout_sees_path": True}),
    ("NeuralCDE", {**CDE, **SEEN}),
    ("NeuralCDE", {**CDE, "readout_width": 4}),
    ("NeuralCDE", {**CDE, **RAMPS, "readout_width": 4}),
    ("NeuralCDE", {**CDE, **SEEN, **RAMPS}),
    ("NeuralCDE", {**CDE, **SEEN, "bounded": True}),
    ("NeuralCDE", {**CDE, **SEEN, **RAMPS, "bounded": True}),
    ("NeuralCDE", {**CDE, **RAMPS, "readout_width": 4, "kind": "time-to-event"}),
    ("NeuralCDE", {**CDE, **RAMPS, "readout_width": 4, "outputs": 18, "kind": "forecast"}),
    ("NeuralCDE", {**CDE, "control": "linear", "outputs": 9, "kind": "forecast", "clip": 0.5}),
    ("NeuralCDE", {**CDE, "max_step": 0.4}),
    ("NeuralCDE", {**CDE, "count_scale": "log", "clip": 2.0, "gain": 0.5, "depth": 1}),
    ("NeuralCDE", {**CDE, "method": "dopri5", "rtol": 0.1, "atol": 0.01}),
    ("NeuralCDE", {**CDE, "control": "linear"}),
    ("NeuralCDE", {**CDE, "control": "linear", "field_sees_path": True, "static": 1}),
    ("NeuralCDE", {**CDE, "control": "linear", **SEEN}),
    ("NeuralCDE", {**CDE, "control": "hermite"}),
    ("NeuralCDE", {**CDE, "control": "hermite", "counts": False, "field_sees_path": True}),
    ("NeuralCDE", {**CDE, "control": "hermite", **RAMPS}),
    ("NeuralCDE", {**CDE, "control": "natural_cubic"}),
    ("NeuralCDE", {**CDE, "control": "natural_cubic", "readout_sees_path": True, "static": 1}),
    ("GRU", SMALL),
    ("GRU", {**SMALL, "layers": 2, "static": 2}),
    ("GRUdt", SMALL),
    ("GRUdtIntensity", {**SMALL, "readout_width": 4}),
    ("GRUD", SMALL),
    ("GRUD", {**SMALL, "kind": "time-to-event"}),
    ("GRUD", {**SMALL, "outputs": 18, "kind": "forecast"}),
    ("GRUD", {**SMALL, "static": 2}),
    ("ODERNN", {**SMALL, "width": 6}),
    ("ODERNN", {**SMALL, "width": 6, "outputs": 18, "kind": "forecast"}),
    ("ODERNN", {**SMALL, "width": 6, "max_step": 0.4, "static": 2}),
    ("ODERNN", {**SMALL, "width": 6, "method": "dopri5", "rtol": 0.1, "atol": 0.01}),
]
ONLINE = {"natural_cubic": 5, "linear": 7, "hermite": 7}
"""How many contracts apply: none that run an offline model, no single events to whole rows."""


def named(case):
    name, settings = case
    told = [f"{k}={v}" for k, v in settings.items() if k not in CDE]
    return " ".join([name, *told])


@pytest.fixture(params=MODELS_AND_SETTINGS, ids=named)
def name_and_settings(request):
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_all_contracts_hold(name_and_settings, dtype):
    name, settings = name_and_settings
    torch.manual_seed(0)
    model = maker(name)(**settings).to(dtype)
    whole = settings.get("control") in ("linear", "hermite")
    # Adaptive steps take their time: a few short series will do.
    streams, rows = (2, 4) if "rtol" in settings else (4, 6)
    missing = 0.0 if whole else 0.4
    batch = oc.audit.trial_batch_for(model, streams=streams, rows=rows, missing=missing)
    if "readout_ramps" in settings:  # before that they are flat
        model.fit_scales(oc.audit.trial_batch_for(model, 1, streams=8, rows=12, missing=missing))
        assert model.readout.ramps.steepness.any()
    if settings.get("kind") == "forecast":  # before that they repeat the last value
        several = model.readout.forecasts
        several.put(
            [1, 2][: len(several)],
            [1.0, 2.0][: len(several)],
            start=[3.0] * len(several),
            unit=[0.5] * len(several),
        )
        for weight in model.readout.layers.parameters():
            torch.nn.init.normal_(weight)
    report = oc.audit.check_model(model, batch)
    assert report.ok, str(report)
    asked = sum(result.passed is not None for result in report.results)
    assert asked == ONLINE.get(settings.get("control"), 8), str(report)


def test_every_model_is_among_them():
    assert {name for name, _ in MODELS_AND_SETTINGS} == set(MODELS)
    for name in MODELS:
        assert getattr(oc, name) is MODELS[name]


@pytest.mark.parametrize("name", MODELS)
def test_contracts_hold_in_the_units_of_fitted_series(name):
    """Clocks and values far from 0, as an encoding fitted to them expects."""
    torch.manual_seed(0)
    model = maker(name)(channels=2, hidden=4, outputs=1)
    made = oc.audit.trial_batch(streams=8, rows=6, channels=2, missing=0.3)
    train = oc.SeriesBatch.from_padded(1e6 + 3600 * made.times, 120 + 15 * made.values)
    model.fit_scales(train.to(dtype=torch.float32))
    report = oc.audit.check_model(model, train.to(dtype=torch.float32))
    assert report.ok, str(report)


def torch_backend_report(seed):
    torch.manual_seed(seed)
    model = neural_cde(**CDE, backend="torch").double()
    batch = oc.audit.trial_batch_for(model, seed, streams=2, rows=6, missing=0.5)
    return oc.audit.check_model(model, batch, seed=seed)


def test_the_torch_backend_keeps_all_contracts():
    for seed in range(4):
        report = torch_backend_report(seed)
        assert report.ok, str(report)


def test_a_large_linear_model_is_independent_of_the_batch_to_1e_6():
    for seed in range(8):
        torch.manual_seed(seed)
        model = oc.NeuralCDE(channels=4, hidden=64, outputs=2, control="linear").eval()
        batch = oc.audit.trial_batch_for(model, seed, rows=30, missing=0.0)
        with torch.no_grad():
            found = batch_independence(model, batch, seed)
        assert found.passed, found.measured


GRADIENTS = pytest.mark.parametrize("gradients", [False, True], ids=["fast", "with gradients"])
NOT_NUMBERS = [
    np.datetime64("2024-01-01T00:00"),
    np.timedelta64(3, "h"),
    "3",
    ["3"],
    np.array([np.datetime64("2024-01-01")]),
    torch.tensor(1j),
    object(),
]


@GRADIENTS
@pytest.mark.parametrize("name", MODELS)
def test_null_is_a_missing_value(name, gradients):
    torch.manual_seed(0)
    model = maker(name)(channels=2, hidden=4, static=1)
    nan = float("nan")
    with torch.set_grad_enabled(gradients):
        blank = model.init_state(1, [[1]])
        wanted = model.predict(model.observe(blank, 1.0, [[nan, 2.0]]))
        masked = np.ma.masked_array([[9.0, 2.0]], [[True, False]])
        for x in ([[None, 2.0]], [[None, 2]], np.array([[None, 2.0]]), masked):
            assert torch.equal(model.predict(model.observe(blank, 1, x)), wanted)


@GRADIENTS
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("given", NOT_NUMBERS, ids=lambda given: type(given).__name__)
def test_what_is_no_number_is_refused_and_never_read_as_one(name, gradients, given):
    """The number behind a date depends on its unit, which nobody was asked for."""
    model = maker(name)(channels=1, hidden=4, static=1)
    with torch.set_grad_enabled(gradients):
        with pytest.raises(StateError, match="static"):
            model.init_state(1, [[given]])
        state = model.observe(model.init_state(1, [[1.0]]), 1.0, [[1.0]])
        with pytest.raises(StateError, match=r"^t "):
            model.observe(state, given, [[1.0]])
        with pytest.raises(StateError, match=r"^x "):
            model.observe(state, 2.0, [[given]])
        with pytest.raises(StateError, match=r"^t "):
            model.predict(state, given)


@pytest.mark.parametrize("name", MODELS)
def test_questions_at_no_time_have_no_answers_and_others_are_checked(name):
    model = maker(name)(channels=2, hidden=4, outputs=3)
    batch = oc.audit.trial_batch(streams=2, rows=4, channels=2, missing=0.0).to(torch.float32)
    assert model(batch, at=[]).shape == (2, 0, 3)
    assert model(batch, at=[[], []]).shape == (2, 0, 3)
    for at in (0.5, [[0.5]] * 3, [[[0.5]]] * 2):
        with pytest.raises(ValueError, match=r"at has shape .* for 2 streams"):
            model(batch, at=at)
    with pytest.raises(ValueError, match="at has dtype"):
        model(batch, at=["noon"])


@pytest.mark.parametrize("name", MODELS)
def test_a_tensor_is_no_series(name):
    with pytest.raises(TypeError, match=r"a Tensor is no series: give a SeriesBatch"):
        maker(name)(channels=2, hidden=4)(torch.zeros(1, 3, 2))


@pytest.mark.parametrize("name", MODELS)
def test_values_beyond_the_models_dtype_are_refused(name):
    model = maker(name)(channels=2, hidden=4, static=1)
    times, values = [[0.0, 1.0]] * 2, np.zeros((2, 2, 2))
    values[1, 0, 1] = 1e300
    batch = oc.SeriesBatch.from_padded(times, values, static=np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"stream 1, row 0, channel 'x1'.*1e\+300.*float32"):
        model(batch)
    far = oc.SeriesBatch.from_padded(times, 0 * values, static=np.array([[0.0], [1e300]]))
    with pytest.raises(ValueError, match=r"stream 1, static feature 'f0' is 1e\+300.*float32"):
        model(far)
    model.double()(batch)


@pytest.mark.parametrize("name", MODELS)
def test_times_too_far_apart_are_an_error_and_never_a_silent_nan(name):
    model = maker(name)(channels=1, hidden=4)
    batch = oc.SeriesBatch.from_arrays([[0.0, 1e300]], [[[1.0], [2.0]]])
    with pytest.raises((ValueError, oc.SolverError), match="stream 0"):
        model(batch)
    state = model.observe(model.init_state(), 0.0, [[1.0]])
    with pytest.raises((ValueError, oc.SolverError), match="stream 0"):
        model.observe(state, 1e300, [[1.0]])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"static": -1}, "static is -1"),
        ({"clip": 0.0}, "clip is 0.0"),
        ({"gain": float("nan")}, "gain is nan"),
        ({"readout_width": 0}, "width is 0"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_meant_are_refused(name, settings, said):
    with pytest.raises(ValueError, match=said):
        maker(name)(channels=1, hidden=4, **settings)


@pytest.mark.parametrize("name", MODELS)
def test_query_times_and_the_last_row_are_not_both_asked_for(name):
    """Whichever were taken, the caller would take one answer for another."""
    model = maker(name)(channels=2, hidden=4)
    batch = oc.audit.trial_batch(streams=2, rows=4, channels=2, missing=0.0).to(torch.float32)
    with pytest.raises(ValueError, match=r"at and final=True were both given: leave final out"):
        model(batch, at=[5.0], final=True)
    assert model(batch, at=[5.0]).shape == (2, 1, 1)
    assert model(batch, final=True).shape == (2, 1)


@pytest.mark.parametrize("settings", [{}, {"backend": "torch"}, {"gradient": "adjoint"}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_second_derivatives_are_right_or_refused(name, settings):
    """The penalty on the gradient of a model's outputs by its inputs, as its weights would learn from it."""
    if settings and name not in ("NeuralCDE", "ODERNN"):
        return
    torch.manual_seed(0)
    model = maker(name)(channels=2, hidden=4, **settings).double().eval()
    made = oc.audit.trial_batch(streams=2, rows=4, channels=2, missing=0.0)
    values = made.values.clone().requires_grad_()
    model.readout.requires_grad_(False)  # a gradient that comes in without one of its own
    outputs = model(oc.SeriesBatch.from_padded(made.times, values))
    with pytest.raises(RuntimeError, match=r"second derivatives \(create_graph=True\)"):
        torch.autograd.grad(outputs.sum(), values, create_graph=True)
    outputs = model(oc.SeriesBatch.from_padded(made.times, values))
    assert torch.autograd.grad(outputs.sum(), values)[0].any()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_was_never_fitted_says_so_of_unix_times(name):
    model = maker(name)(channels=1, hidden=4).eval()
    made = oc.SeriesBatch.from_arrays([[1.7e9, 1.7e9 + 60]], [[[1.0], [2.0]]])
    with pytest.warns(UserWarning, match="the encoding was never fitted, and times reach"):
        model(made)
    model.fit_scales(made)
    model(made)
