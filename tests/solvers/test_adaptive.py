"""Adaptive steps: each stream for itself, knots respected, costs told, failures named."""

import pytest
import torch
from solver_problems import SCHEMES, D, build, mlp, random_batch, scipy_rows, start

from onlinecde import SeriesBatch, SolverError, solve
from onlinecde.solvers import TABLEAUS, Solver

EMBEDDED = ("heun", "bosh3", "dopri5", "tsit5")
LOOSE = {"method": "dopri5", "rtol": 1e-3, "atol": 1e-3}


def far_apart(factor=20):
    """A quiet stream, and one that moves many times as far."""
    numbers = torch.Generator().manual_seed(2)
    values = torch.randn(2, 6, 2, dtype=D, generator=numbers)
    values[1] *= factor
    times = torch.arange(6.0, dtype=D).expand(2, -1)
    return SeriesBatch.from_padded(times, values)


def first_stream(batch, scheme, field, z0, **settings):
    """The first stream's solution among the others, and alone."""
    alone = build(scheme, batch[:1])
    together = build(scheme, batch)
    with torch.no_grad():
        return solve(together, field, z0, **settings), solve(alone, field, z0[:1], **settings)


@pytest.mark.parametrize("method", EMBEDDED)
@pytest.mark.parametrize("outputs", ["rows", "end"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_stream_does_not_depend_on_its_neighbours(scheme, outputs, method):
    batch = far_apart()
    path = build(scheme, batch)
    field, z0 = mlp(path), start(path)
    settings = {**LOOSE, "method": method, "outputs": outputs}
    among, alone = first_stream(batch, scheme, field, z0, **settings)
    # Products of more rows round otherwise, and the steps chosen pass that on.
    torch.testing.assert_close(among.z[:1], alone.z, rtol=1e-10, atol=1e-10)
    for name in ("nfe", "steps", "rejected"):
        assert getattr(among, name)[0] == getattr(alone, name)[0]
    assert among.steps[1] > among.steps[0]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_steps_chosen_jointly_do_depend_on_neighbours(scheme):
    """What torchdiffeq does, on request: the quiet stream steps as the wild one must."""
    batch = far_apart()
    path = build(scheme, batch)
    field, z0 = mlp(path), start(path)
    among, alone = first_stream(batch, scheme, field, z0, **LOOSE, step_control="batch")
    assert (among.z[:1] - alone.z).abs().max() > 1e-8
    assert among.steps[0] > alone.readout.steps[0]
    assert among.steps[0] == among.steps[1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_joint_steps_are_those_of_one_stream_where_there_is_one(scheme):
    path = build(scheme, far_apart()[1:])
    field, z0 = mlp(path), start(path)
    own = solve(path, field, z0, **LOOSE)
    joint = solve(path, field, z0, **LOOSE, step_control="batch")
    assert (own.z == joint.z).all()
    assert own.nfe.tolist() == joint.nfe.tolist()


class Counted(torch.nn.Module):
    """A field that counts its calls."""

    def __init__(self, field):
        super().__init__()
        self.field, self.calls = field, 0

    def forward(self, z):
        self.calls += 1
        return self.field.matrix(z)


@pytest.mark.parametrize("method", sorted(TABLEAUS))
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nfe_is_how_often_the_field_was_called(scheme, method):
    path = build(scheme, far_apart()[1:])
    field, z0 = Counted(mlp(path)), start(path)
    with torch.no_grad():
        fixed = solve(path, field, z0, method, steps=3)
        assert fixed.nfe.tolist() == [field.calls]
        assert fixed.steps.tolist() == [3 * path.pieces]
        assert fixed.nfe.tolist() == [TABLEAUS[method].stages * 3 * path.pieces]
        assert fixed.rejected.tolist() == [0]
        if method in EMBEDDED:
            field.calls = 0
            chosen = solve(path, field, z0, method, rtol=1e-4, atol=1e-4)
            assert chosen.nfe.tolist() == [field.calls]
            tried = int(chosen.steps + chosen.rejected)
            assert chosen.rejected > 0
            # A refused step keeps its first stage; FSAL methods keep the last one on a piece too.
            most = TABLEAUS[method].stages * int(chosen.steps) + (
                TABLEAUS[method].stages - 1
            ) * int(chosen.rejected)
            assert (TABLEAUS[method].stages - 1) * tried < chosen.nfe <= most


def test_costs_are_told_per_stream_in_the_order_given():
    """Streams are sorted by length inside; what comes back is in the caller's order."""
    lengths = (2, 6, 1, 4)
    path = build("linear", random_batch(lengths))
    field, z0 = mlp(path), start(path)
    fixed = solve(path, field, z0, "rk4", steps=2)
    assert fixed.steps.tolist() == [2 * (n - 1) for n in lengths]
    assert fixed.nfe.tolist() == [8 * (n - 1) for n in lengths]
    adaptive = solve(path, field, z0, **LOOSE)
    assert (adaptive.steps >= torch.tensor(lengths) - 1).all()
    assert adaptive.nfe[2] == adaptive.steps[2] == 0
    for stream, n in enumerate(lengths):
        short = build("linear", random_batch(lengths)[stream : stream + 1])
        alone = solve(short, field, z0[stream : stream + 1], **LOOSE)
        assert int(alone.nfe) == int(adaptive.nfe[stream])
        torch.testing.assert_close(alone.z[0, n - 1], adaptive.z[stream, -1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", EMBEDDED)
def test_tighter_tolerances_cost_more_and_err_less(method):
    batch = far_apart(4)
    path = build("rectilinear", batch, True)
    field, z0 = mlp(path), start(path)
    right = scipy_rows("rectilinear", batch, True, field, z0)
    errors, costs = [], []
    with torch.no_grad():
        for tolerance in (1e-2, 1e-3, 1e-4) if method == "heun" else (1e-3, 1e-5, 1e-7):
            found = solve(path, field, z0, method, rtol=tolerance, atol=tolerance)
            errors.append(float((found.z - right).abs().max()))
            costs.append(int(found.nfe.sum()))
            assert errors[-1] < 1000 * tolerance
    assert errors[0] > errors[1] > errors[2]
    assert costs[0] < costs[1] < costs[2]


@pytest.mark.parametrize("scheme", ["natural_cubic", "hermite"])
def test_steps_pass_the_knots_of_a_smooth_path_when_only_the_end_is_wanted(scheme):
    """Many rows on a slow curve: fewer evaluations, and the same end within the tolerance."""
    times = torch.linspace(0, 2, 41, dtype=D).expand(3, -1)
    values = torch.stack([(times + k).sin() for k in range(2)], 2)
    batch = SeriesBatch.from_padded(times, values, [41, 20, 33])
    path = build(scheme, batch)
    field, z0 = mlp(path), start(path)
    right = scipy_rows(scheme, batch, False, field, z0)[:, -1]
    with torch.no_grad():
        rows = solve(path, field, z0, **LOOSE)
        end = solve(path, field, z0, outputs="end", **LOOSE)
        tight = solve(path, field, z0, "dopri5", rtol=1e-8, atol=1e-8, outputs="end")
    assert (rows.steps >= path.lengths - 1).all()
    assert (end.nfe < rows.nfe / 3).all()
    assert (end.steps < path.lengths - 1).all()
    # A spline has kinks in its higher derivatives, which an error estimate sees only in part.
    assert (end.z - right).abs().max() < 0.05
    assert (tight.z - right).abs().max() < 1e-5


@pytest.mark.parametrize("scheme", ["linear", "rectilinear"])
def test_kinks_are_step_boundaries_whatever_is_asked_for(scheme):
    """On a zigzag, where stepping across would err, the error is that of a smooth problem."""
    times = torch.arange(12.0, dtype=D)[None]
    values = torch.tensor([2.0, -2.0] * 6, dtype=D)[None, :, None]
    batch = SeriesBatch.from_padded(times, values)
    path = build(scheme, batch)
    field, z0 = mlp(path), start(path)
    right = scipy_rows(scheme, batch, False, field, z0)[:, -1]
    tight = {"rtol": 1e-9, "atol": 1e-9}
    with torch.no_grad():
        end = solve(path, field, z0, "dopri5", outputs="end", **tight)
        rows = solve(path, field, z0, "dopri5", **tight)
    assert (end.z == rows.z[:, -1]).all()
    assert end.steps.tolist() == rows.steps.tolist()
    assert end.steps >= path.pieces
    assert (end.z - right).abs().max() < 1e-7


def test_a_leg_of_no_length_costs_one_step_and_changes_nothing():
    values = torch.ones(1, 3, 1, dtype=D)
    path = build("rectilinear", SeriesBatch.from_padded(torch.tensor([[0.0, 1.0, 2.0]]), values))
    field, z0 = mlp(path), start(path)
    knots = solve(path, field, z0, outputs="knots", method="dopri5", rtol=1e-3, atol=1e-3)
    assert (knots.z[:, 1] == knots.z[:, 2]).all()


def explosive(scheme, backend="auto", **settings):
    """dz = z^2 dt from z = 1 blows up at t = 1; stream "b" starts from -1 and never does."""
    times = torch.tensor([[0.0, 0.5, 3.0], [0.0, 0.5, 3.0]], dtype=D)
    batch = SeriesBatch.from_padded(times, torch.zeros(2, 3, 1, dtype=D), streams=["b", "boom"])
    path = build(scheme, batch)
    z0 = torch.tensor([[-1.0], [1.0]], dtype=D)

    def field(z):
        return torch.stack([z * z, torch.zeros_like(z)], 2)

    return solve(path, field, z0, backend=backend, **settings)


@pytest.mark.parametrize("step_control", ["stream", "batch"])
@pytest.mark.parametrize("method", EMBEDDED)
@pytest.mark.parametrize("scheme", ["linear", "rectilinear", "hermite"])
def test_a_blow_up_ends_in_an_error_that_names_stream_and_time(scheme, method, step_control):
    loose = {"heun": 1e-2, "bosh3": 1e-3}.get(method, 1e-5)
    named = (
        r"stream 'boom' at time (0\.9|1\b|1\.0)"
        if step_control == "stream"
        else r"stream '.*' at time "
    )
    with pytest.raises(SolverError, match=named):
        explosive(
            scheme, method=method, rtol=loose, atol=loose, step_control=step_control, max_steps=5000
        )


def test_the_step_limit_names_the_stream_the_time_and_the_way_out():
    with pytest.raises(
        SolverError, match=r"stream '(b|boom)' at time .*20 steps.*raise.*max_steps"
    ):
        explosive("linear", method="dopri5", rtol=1e-8, atol=1e-8, max_steps=20)


def test_the_step_limit_allows_as_many_steps_as_it_says():
    path = build("linear", random_batch((5,)))
    field, z0 = mlp(path), start(path)
    free = solve(path, field, z0, **LOOSE)
    needed = int(free.steps + free.rejected)
    assert (solve(path, field, z0, **LOOSE, max_steps=needed).z == free.z).all()
    with pytest.raises(SolverError, match=f"{needed - 1} steps"):
        solve(path, field, z0, **LOOSE, max_steps=needed - 1)


def test_tolerances_below_rounding_are_not_called_an_infinite_state():
    path = build("linear", random_batch((3,)))
    with pytest.raises(SolverError, match=r"stream 0 at time .*no step is within rtol 1e-30"):
        solve(path, mlp(path), start(path), "dopri5", rtol=1e-30, atol=1e-30)


@pytest.mark.parametrize("gradient", ["exact", "backprop", "adjoint"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_fixed_steps_to_a_non_finite_state_name_stream_and_time(scheme, gradient):
    """Stream "boom" overflows on its way to its second row, at 0.5; "b" stays where it is."""
    times = torch.tensor([[0.0, 0.5, 3.0], [0.0, 0.5, 3.0]], dtype=D)
    values = torch.tensor([[[0.0], [0.0], [0.0]], [[0.0], [1e200], [0.0]]], dtype=D)
    batch = SeriesBatch.from_padded(times, values, streams=["b", "boom"])
    path = build(scheme, batch)
    z0 = torch.ones(2, 1, dtype=D)
    with pytest.raises(SolverError, match=r"stream 'boom' at time 0\.5.*no longer finite.*Scale"):
        solve(path, lambda z: (z**3)[:, :, None].expand(-1, -1, 2), z0, gradient=gradient)


@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_the_kernels_too_end_in_an_error_that_names_stream_and_time(dtype):
    times = torch.tensor([[0.0, 0.5, 3.0], [0.0, 0.5, 3.0]], dtype=D)
    values = torch.zeros(2, 3, 1, dtype=dtype)
    values[1, 1] = torch.finfo(dtype).max
    batch = SeriesBatch.from_padded(times, values, streams=["b", "boom"])
    path = build("rectilinear", batch)
    field = mlp(path, final="identity", activation="softplus")
    with torch.no_grad():
        field.weight.fill_(10.0)
    with pytest.raises(SolverError, match=r"stream 'boom' at time 0\.5"):
        solve(path, field, start(path))


def test_a_large_but_finite_state_is_no_error():
    """The quick check adds z up, which overflows where z itself does not."""
    path = build("linear", random_batch((3, 3)))
    z0 = torch.full((2, 3), torch.finfo(D).max / 2, dtype=D)
    found = solve(path, lambda z: torch.zeros(z.shape[0], 3, 3, dtype=D), z0)
    assert (found.z == z0[:, None]).all()


REFUSED = [
    ({"rtol": 1e-3}, r"both rtol and atol"),
    ({"atol": 1e-3}, r"both rtol and atol"),
    ({"rtol": 0.0, "atol": 0.0}, r"positive tolerances"),
    ({"rtol": -1e-3, "atol": 1e-3}, r"positive tolerances"),
    ({"rtol": float("nan"), "atol": 1e-3}, r"positive tolerances"),
    ({"rtol": 1e-3, "atol": 1e-3, "steps": 2}, r"steps and max_step are for fixed steps"),
    ({"rtol": 1e-3, "atol": 1e-3, "max_step": 2.0}, r"steps and max_step are for fixed steps"),
    ({"rtol": 1e-3, "atol": 1e-3, "backend": "cpu"}, r"fixed steps only"),
    ({"steps": 0}, r"at least 1 step"),
    ({"steps": 1.5}, r"steps is 1\.5: give a whole number"),
    ({"steps": 2.0}, r"steps is 2\.0: give a whole number"),
    ({"steps": "2"}, r"steps is '2': give a whole number"),
    ({"max_steps": 99.5}, r"max_steps is 99\.5: give a whole number"),
    ({"max_steps": 0}, r"max_steps is 0"),
    ({"max_step": 0.0}, r"positive time"),
    ({"max_step": float("nan")}, r"positive time"),
    ({"gradient": "magic"}, r"'exact', 'backprop' or 'adjoint'"),
    ({"backend": "tpu"}, r"'auto', 'torch', 'cpu' or 'gpu'"),
    ({"step_control": "all"}, r"'stream' or 'batch'"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Solver("dopri5", **settings)


@pytest.mark.parametrize("method", sorted(set(TABLEAUS) - set(EMBEDDED)))
def test_methods_without_an_error_estimate_refuse_tolerances(method):
    with pytest.raises(
        ValueError, match=rf"{method} has no error estimate.*heun, bosh3, dopri5 or tsit5"
    ):
        Solver(method, rtol=1e-3, atol=1e-3)
