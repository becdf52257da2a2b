"""The same z as torchcde, torchdiffeq and scipy, on all four controls; and where the peers go wrong."""

import pytest
import torch
import torchcde
from solver_problems import SCHEMES, D, build, mlp, random_batch, scipy_rows, start

from onlinecde import solve

CASES = [
    pytest.param(scheme, observed, counts, id=f"{scheme}-{name}{'-counts' if counts else ''}")
    for scheme in SCHEMES
    for observed, name in ((1.0, "full"), (0.5, "gaps"))
    for counts in (False, True)
]
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def peer_path(scheme, batch, counts):
    """Torchcde's own path for the same rows."""
    parts = [batch.times[:, :, None].to(batch.dtype), batch.values]
    if counts:
        parts.append(batch.observed.cumsum(1).to(batch.dtype))
    x = torch.cat(parts, 2)
    if scheme == "natural_cubic":
        return torchcde.CubicSpline(torchcde.natural_cubic_coeffs(x))
    if scheme == "hermite":
        return torchcde.CubicSpline(
            torchcde.hermite_cubic_coefficients_with_backward_differences(x)
        )
    return torchcde.LinearInterpolation(
        torchcde.linear_interpolation_coeffs(x, rectilinear=0 if scheme == "rectilinear" else None)
    )


def peer(scheme, batch, counts, field, z0, **keywords):
    """What torchcde.cdeint gives at the rows."""
    path = peer_path(scheme, batch, counts)
    rows = path.grid_points[:: 2 if scheme == "rectilinear" else 1]
    with torch.no_grad():
        return torchcde.cdeint(
            path, lambda t, z: field.matrix(z), z0, rows, adjoint=False, **keywords
        )


def rk4(perturb):
    return {"method": "rk4", "options": {"step_size": 1.0, "perturb": perturb}}


def settled(scheme, observed, counts, lengths=(6, 6, 6), dtype=D, **keywords):
    batch = random_batch(lengths, observed=observed, dtype=dtype)
    path = build(scheme, batch, counts)
    return batch, path, mlp(path, **keywords), start(path)


def error(found, wanted):
    found, wanted = found.detach(), wanted.detach()
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize(("scheme", "observed", "counts"), CASES)
def test_one_step_a_piece_is_torchcde_with_perturb(scheme, observed, counts):
    """The peer looks 1e-16 to the right of a knot; what is left is what that shifts."""
    batch, path, field, z0 = settled(scheme, observed, counts)
    found = solve(path, field, z0, "rk4").z
    assert error(found, peer(scheme, batch, counts, field, z0, **rk4(True))) < 1e-12


@pytest.mark.parametrize(("scheme", "observed", "counts"), CASES)
def test_tight_tolerances_meet_torchdiffeq(scheme, observed, counts):
    batch, path, field, z0 = settled(scheme, observed, counts)
    # Landing on the rows, it need not interpolate between its steps, which is less exact.
    options = {"step_t" if path.smooth else "jump_t": path.knots[1:-1]}
    theirs = peer(scheme, batch, counts, field, z0, method="dopri5", options=options, **TIGHT)
    for keywords in (
        {"method": "dopri5", **TIGHT},
        {"method": "tsit5", **TIGHT},
        {"method": "rk4", "steps": 100},
    ):
        assert error(solve(path, field, z0, **keywords).z, theirs) < 1e-8, keywords


@pytest.mark.parametrize(("scheme", "observed", "counts"), CASES)
def test_ragged_series_agree_with_scipy_piece_by_piece(scheme, observed, counts):
    """Any lengths, first rows with nothing observed, paths and fields written out in numpy."""
    batch = random_batch((5, 2, 1, 4), observed=observed, row_0=False, seed=4)
    path = build(scheme, batch, counts)
    field, z0 = mlp(path, activation="silu"), start(path)
    theirs = scipy_rows(scheme, batch, counts, field, z0)
    assert error(solve(path, field, z0, "dopri5", **TIGHT).z, theirs) < 1e-8
    assert error(solve(path, field, z0, "dopri5", steps=16).z, theirs) < 1e-8


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("final", ["tanh", "identity"])
def test_a_field_that_sees_the_path_agrees_with_scipy(scheme, final):
    batch = random_batch((4, 3, 1), observed=0.6, row_0=False, seed=5)
    path = build(scheme, batch, True)
    field, z0 = mlp(path, activation="softplus", sees_path=True, final=final), start(path)
    theirs = scipy_rows(scheme, batch, True, field, z0)
    assert error(solve(path, field, z0, "dopri5", **TIGHT).z, theirs) < 1e-8
    assert error(solve(path, field, z0, "dopri5", steps=32, backend="torch").z, theirs) < 1e-8
    assert error(solve(path, field, z0, "dopri5", steps=32).z, theirs) < 1e-8


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize(("scheme", "observed", "counts"), CASES)
def test_float32_is_within_1e_4_of_float64(scheme, observed, counts, backend):
    batch, path, field, z0 = settled(scheme, observed, counts, (6, 3, 5), activation="relu")
    exact = solve(path, field, z0).z
    single = build(scheme, batch.to(dtype=torch.float32), counts)
    found = solve(single, field.float(), z0.float(), backend=backend).z
    assert found.dtype == torch.float32
    assert error(found.double(), exact) < 1e-4


@pytest.mark.parametrize("scheme", ["linear", "rectilinear"])
def test_the_peers_default_takes_the_slope_behind_the_knot(scheme):
    """Torchcde's rk4 without perturb errs 1000 times more at the same steps; with it, it is right."""
    batch, path, field, z0 = settled(scheme, 1.0, False, (12, 12, 12))
    right = scipy_rows(scheme, batch, False, field, z0)
    fine = {"step_size": 0.125}
    ours = error(solve(path, field, z0, "rk4", steps=8).z, right)
    faulty = error(peer(scheme, batch, False, field, z0, method="rk4", options=fine), right)
    fine["perturb"] = True
    mended = error(peer(scheme, batch, False, field, z0, method="rk4", options=fine), right)
    assert ours < 1e-6
    assert mended < 1e-6
    assert faulty > 1e-3
    coarse = solve(path, field, z0, "rk4").z
    assert error(peer(scheme, batch, False, field, z0, **rk4(False)), coarse) > 1e-2


@pytest.mark.parametrize("scheme", ["natural_cubic", "hermite"])
def test_smooth_paths_have_no_such_fault(scheme):
    batch, path, field, z0 = settled(scheme, 1.0, False)
    found = solve(path, field, z0).z
    assert error(peer(scheme, batch, False, field, z0, **rk4(False)), found) < 1e-12
