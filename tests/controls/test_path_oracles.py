"""The four controls agree with scipy and with torchcde to 1e-10 in float64."""

import numpy as np
import pytest
import torch
import torchcde
from hypothesis import given
from hypothesis import strategies as st
from made_series import SCHEMES, build, inside_pieces, random_batch
from scipy.interpolate import CubicHermiteSpline, CubicSpline

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SHAPES = st.tuples(st.integers(1, 4), st.integers(2, 12), st.integers(1, 4), st.integers(0, 2**32))


def torchcde_path(scheme, batch, counts):
    """Torchcde's path for the same rows, on its default parameter 0, 1, 2, ..."""
    parts = [batch.times[:, :, None], batch.values]
    if counts:
        parts.append(batch.observed.cumsum(1).double())
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


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("missing", ["none", "any"])
@pytest.mark.parametrize("scheme", SCHEMES)
@given(shape=SHAPES)
def test_agrees_with_torchcde(scheme, missing, counts, shape):
    """Row 0 is observed, where torchcde would fill from the future; gaps and the end are free."""
    streams, rows, channels, seed = shape
    batch = random_batch([rows] * streams, channels, seed, missing, row_0="observed")
    ours, theirs = build(scheme, batch, counts), torchcde_path(scheme, batch, counts)
    s = inside_pieces(ours)
    torch.testing.assert_close(ours.evaluate(s), theirs.evaluate(s), **EXACT)
    torch.testing.assert_close(ours.derivative(s), theirs.derivative(s), **EXACT)
    torch.testing.assert_close(ours.evaluate(ours.knots), theirs.evaluate(ours.knots), **EXACT)


def test_the_comparison_meets_missing_values_at_the_end_and_in_between():
    batch = random_batch([12] * 4, 4, 0, "any", row_0="observed")
    missing = batch.values.isnan()
    assert missing[:, -1].any()
    assert (missing[:, 1:-1] & ~missing[:, -1:]).any()


def known_rows(column):
    """Rows and values a spline goes through: what was observed, 0 before that, held at the end."""
    seen = np.flatnonzero(~np.isnan(column))
    row = np.arange(len(column))
    if not len(seen):
        return row, np.zeros(len(column))
    filled = np.where(row < seen[0], 0.0, np.where(row > seen[-1], column[seen[-1]], column))
    keep = ~np.isnan(filled)
    return row[keep], filled[keep]


@given(
    lengths=st.lists(st.integers(2, 12), min_size=1, max_size=4),
    channels=st.integers(1, 3),
    missing=st.sampled_from(["none", "leading", "any"]),
    seed=st.integers(0, 2**32),
)
def test_cubics_agree_with_scipy_on_every_stream(lengths, channels, missing, seed):
    """Any lengths in one batch, any missing pattern, the first row's too."""
    batch = random_batch(lengths, channels, seed, missing)
    cubic, hermite = build("natural_cubic", batch), build("hermite", batch)
    for stream, rows in enumerate(lengths):
        s = torch.linspace(0, rows - 1, 37, dtype=torch.float64)
        inner = s[s < rows - 1]
        x = torch.cat([batch.times[stream, :, None], batch.values[stream]], 1)[:rows].numpy()
        for channel in range(channels + 1):
            knots, known = known_rows(x[:, channel])
            spline = CubicSpline(knots, known, bc_type="natural")
            line = np.interp(np.arange(rows), knots, known)
            slopes = np.diff(line, prepend=2 * line[0] - line[1])
            for path, oracle in (
                (cubic, spline),
                (hermite, CubicHermiteSpline(np.arange(rows), line, slopes)),
            ):
                np.testing.assert_allclose(
                    path.evaluate(s)[stream, :, channel], oracle(s), rtol=1e-10, atol=1e-10
                )
                # C1 paths: the slope at knots is no question of side, save at the end.
                np.testing.assert_allclose(
                    path.derivative(inner)[stream, :, channel],
                    oracle(inner, 1),
                    rtol=1e-10,
                    atol=1e-10,
                )


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    channels=st.integers(1, 3),
    counts=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_rectilinear_knots_are_those_of_the_paper(lengths, channels, counts, seed):
    """X(2i) = (t_i, x_i, c_i) and X(2i+1) = (t_{i+1}, x_i, c_i), written out row by row."""
    batch = random_batch(lengths, channels, seed)
    path = build("rectilinear", batch, counts)
    at = path.evaluate(path.knots)
    for stream, rows in enumerate(lengths):
        last, count = [0.0] * channels, [0.0] * channels
        for row in range(rows):
            for channel, x in enumerate(batch.values[stream, row].tolist()):
                if x == x:
                    last[channel], count[channel] = x, count[channel] + 1
            known = [*last, *(count if counts else [])]
            time = float(batch.times[stream, row])
            assert at[stream, 2 * row].tolist() == [time, *known]
            if row + 1 < rows:
                coming = float(batch.times[stream, row + 1])
                assert at[stream, 2 * row + 1].tolist() == [coming, *known]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_float32_is_float64_rounded(scheme):
    double = random_batch([9, 4, 7], 3, 5)
    single = double.to(dtype=torch.float32)
    fine, coarse = build(scheme, double, True), build(scheme, single, True)
    assert coarse.rows.dtype == torch.float32
    s = inside_pieces(fine)
    size = fine.rows.abs().max()
    for name in ("evaluate", "derivative"):
        error = getattr(fine, name)(s) - getattr(coarse, name)(s.float())
        assert error.abs().max() < 2e-6 * size
