"""z where it is asked for: rows, knots, the end, any time; and what came back with it."""

import numpy as np
import pytest
import torch
from solver_problems import SCHEMES, D, build, mlp, random_batch, start

from onlinecde import Encoding, SeriesBatch, SeriesError, SolverError, solve
from onlinecde.kernels import cpu_unavailable
from onlinecde.solvers.segments import leg_steps, steps_for

EXACT = {"rtol": 1e-12, "atol": 1e-12}
MANY = {"method": "dopri5", "steps": 12}
SETTINGS = [
    pytest.param({}, id="auto"),
    pytest.param({"backend": "torch"}, id="torch"),
    pytest.param({"gradient": "backprop", "steps": 2}, id="backprop"),
    pytest.param({"method": "dopri5", "rtol": 1e-6, "atol": 1e-6}, id="adaptive"),
]


def case(scheme, lengths=(5, 3, 1, 4), counts=True, **keywords):
    path = build(scheme, random_batch(lengths, observed=0.7), counts)
    return path, mlp(path, **keywords), start(path)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_end_knots_and_queries_tell_the_same(scheme, settings):
    path, field, z0 = case(scheme)
    rows = solve(path, field, z0, **settings).z
    knots = solve(path, field, z0, outputs="knots", **settings).z
    assert rows.shape == (4, 5, 3)
    assert knots.shape == (4, path.pieces + 1, 3)
    assert (rows[:, 0] == z0).all()
    assert (knots[:, :: path.pieces_per_row] == rows).all()
    end = solve(path, field, z0, outputs="end", **settings).z
    assert end.shape == (4, 3)
    across = 1e-2 if path.smooth and "rtol" in settings else 1e-12
    torch.testing.assert_close(end, rows[:, -1], rtol=across, atol=across)
    at_rows = solve(path, field, z0, at=path.times, **settings).z
    torch.testing.assert_close(at_rows, rows, **EXACT)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_after_its_last_row_a_stream_stands_still_at_the_rows(scheme):
    path, field, z0 = case(scheme)
    rows = solve(path, field, z0).z
    for stream, length in enumerate(path.lengths.tolist()):
        assert (rows[stream, length:] == rows[stream, length - 1]).all()
        assert length == 1 or (rows[stream, length - 1] != rows[stream, length - 2]).any()


@pytest.mark.parametrize("sees_path", [False, True], ids=["", "sees"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_between_rows_the_path_up_to_there_counts(scheme, sees_path):
    """The midpoint rule along the path from the row before, cut off at the query."""
    path, field, z0 = case(scheme, (4, 3), counts=False, sees_path=sees_path)
    query = path.times[:, :3] + 0.4 * path.times.diff(dim=1)
    with torch.no_grad():
        found = solve(path, field, z0, at=query, **MANY).z
        rows = solve(path, field, z0, **MANY).z
        stops = path.s_of_time(query)
        for row in range(3):
            share = torch.linspace(0, 1, 101, dtype=D)
            start_ = path.pieces_per_row * row
            x = path.evaluate(start_ + share * (stops[:, row : row + 1] - start_))
            z = rows[:, row]
            for before, after in zip(x.unbind(1)[:-1], x.unbind(1)[1:], strict=True):
                seen = [
                    field.drive(at) if sees_path else None for at in (before, (before + after) / 2)
                ]
                rise = (after - before)[:, :, None]
                half = z + (field.matrix(z, seen[0]) @ rise)[:, :, 0] / 2
                z = z + (field.matrix(half, seen[1]) @ rise)[:, :, 0]
            torch.testing.assert_close(found[:, row], z, rtol=1e-4, atol=1e-4)
    still = found[1, 2] == rows[1, 2]
    assert still.all()
    assert (found[0] != rows[0, :3]).any()


@pytest.mark.parametrize("sees_path", [False, True], ids=["", "sees"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_rectilinear_queries_are_rows_with_nothing_observed(settings, sees_path):
    """Between rows, and after the last one, time goes on and values stand still."""
    nan = torch.full((2,), torch.nan, dtype=D)
    batch = random_batch((3,), observed=0.6)
    times, values = batch.times[0], batch.values[0]
    query = torch.stack([times[0] + 0.1, times[1] + 0.05, times[2] + 2.0])
    path = build("rectilinear", batch, True)
    field, z0 = mlp(path, sees_path=sees_path), start(path)
    found = solve(path, field, z0, at=query, **settings).z[0]
    for row in range(3):
        longer = SeriesBatch.from_arrays(
            [torch.cat([times[: row + 1], query[row : row + 1]])],
            [torch.cat([values[: row + 1], nan[None]])],
        )
        wanted = solve(build("rectilinear", longer, True), field, z0, **settings).z[0, -1]
        torch.testing.assert_close(found[row], wanted, **EXACT)
    assert (found[2] != solve(path, field, z0, **settings).z[0, -1]).any()


@pytest.mark.parametrize("scheme", ["linear", "hermite", "natural_cubic"])
def test_after_the_last_row_other_paths_stand_still(scheme):
    """Alone or beside longer streams, one row or many, at the last row or long after it."""
    path, field, z0 = case(scheme)
    rows = solve(path, field, z0).z
    last = path.times[:, -1:]
    found = solve(path, field, z0, at=torch.cat([last, last + 1e-9, last + 100.0], 1)).z
    for query in range(3):
        torch.testing.assert_close(found[:, query], rows[:, -1], **EXACT)
    lone = build(scheme, random_batch((1, 1)), True)
    z1 = start(lone)
    later = solve(lone, mlp(lone, sees_path=True), z1, at=lone.times + 3.0).z
    assert (later[:, 0] == z1).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_queries_are_the_same_for_all_streams_or_one_list_for_each(scheme):
    path, field, z0 = case(scheme)
    late = float(path.times[:, 0].max())
    shared = torch.tensor([late, late + 0.3, late + 0.9], dtype=D)
    found = solve(path, field, z0, at=shared)
    each = solve(path, field, z0, at=shared.expand(4, -1))
    assert found.z.shape == (4, 3, 3)
    assert (found.z == each.z).all()
    assert (solve(path, field, z0, at=shared.tolist()).z == found.z).all()
    backwards = solve(path, field, z0, at=shared.flip(0))
    torch.testing.assert_close(backwards.z.flip(1), found.z, **EXACT)
    assert found.nfe.tolist() == [n + 3 * 4 for n in solve(path, field, z0).nfe.tolist()]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_dense_trajectory_is_continuous_between_its_rows(scheme):
    path, field, z0 = case(scheme, lengths=(5, 5))
    steps = 4000
    share = torch.linspace(0, 1, steps, dtype=D)
    first, last = path.times[:, :1], path.times[:, -1:]
    dense = solve(path, field, z0, at=first + share * (last - first), **MANY).z
    jumps = dense.diff(dim=1).norm(dim=2)
    if scheme == "rectilinear":
        # Values arrive at once: as many jumps as rows, and nothing else.
        assert (jumps > 0.02).sum(1).tolist() == [4, 4]
        jumps = jumps.sort(1).values[:, :-4]
    assert jumps.max() < 0.02


def test_queries_before_the_first_row_name_the_stream():
    times = torch.tensor([[0.0, 1.0], [5.0, 6.0]], dtype=D)
    batch = SeriesBatch.from_padded(times, torch.zeros(2, 2, 1, dtype=D), streams=["a", "late"])
    for scheme in SCHEMES:
        path = build(scheme, batch)
        with pytest.raises(SeriesError, match=r"stream 'late' is asked for at time 4\.0.*at 5\.0"):
            solve(path, mlp(path), start(path), at=[4.0, 7.0])
        with pytest.raises(SeriesError, match="nan"):
            solve(path, mlp(path), start(path), at=[float("nan")])


@pytest.mark.parametrize("at", [3.0, torch.zeros(3, 2), torch.zeros(2, 2, 1)])
def test_queries_of_other_shapes_are_refused(at):
    path = build("linear", random_batch((3, 3)))
    with pytest.raises(ValueError, match=r"at has shape .* for 2 streams: give \(query,\) or"):
        solve(path, mlp(path), start(path), at=at)


@pytest.mark.parametrize(
    "settings",
    [
        *SETTINGS,
        pytest.param({"max_step": 0.2}, id="max_step"),
        pytest.param({"max_step": 0.2, "backend": "torch"}, id="max_step-torch"),
    ],
)
@pytest.mark.parametrize("observed", [1.0, 0.3])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_padding_behind_the_longest_stream_changes_nothing(scheme, settings, observed):
    if "max_step" in settings and scheme != "rectilinear":
        with pytest.raises(ValueError, match="time legs of a rectilinear path"):
            solve(*case(scheme), **settings)
        return
    batch = random_batch((3, 2, 1), observed=observed)
    padded = SeriesBatch.from_padded(
        torch.nn.functional.pad(batch.times, (0, 2)),
        torch.nn.functional.pad(batch.values, (0, 0, 0, 2)),
        batch.rows,
    )
    short, long = build(scheme, batch, True), build(scheme, padded, True)
    field, z0 = mlp(short), start(short)
    a, b = solve(short, field, z0, **settings), solve(long, field, z0, **settings)
    assert b.z.shape == (3, 5, 3)
    assert (b.z[:, :3] == a.z).all()
    assert (b.z[:, 3:] == a.z[:, -1:]).all()
    assert a.nfe.tolist() == b.nfe.tolist()
    knots = solve(long, field, z0, outputs="knots", **settings).z
    assert knots.shape[1] == long.pieces + 1
    query = batch.times[:, -1:] + 1.0
    after = [solve(p, field, z0, at=query, **settings).z for p in (short, long)]
    torch.testing.assert_close(*after, **EXACT)


def test_the_solution_says_which_code_did_the_work_and_why():
    path = build("rectilinear", random_batch())
    field, z0 = mlp(path), start(path)
    fast = solve(path, field, z0)
    if (missing := cpu_unavailable()) is None:
        assert (fast.backend, fast.reason) == (
            "cpu",
            "an MLPField on the CPU with fixed steps",
        )
    else:
        assert (fast.backend, fast.reason) == ("torch", missing)
    for settings, why in (
        ({"backend": "torch"}, "was asked for"),
        ({"gradient": "backprop"}, "backprop"),
        ({"method": "dopri5", "rtol": 1e-3, "atol": 1e-3}, "adaptive"),
    ):
        found = solve(path, field, z0, **settings)
        assert found.backend == "torch"
        assert why in found.reason
    own = solve(path, lambda z: z[:, :, None].expand(-1, -1, 3), z0)
    assert own.backend == "torch"
    assert "MatrixField" in own.reason
    with pytest.raises(
        ValueError, match=r"backend='cpu' cannot solve this: a field of type MatrixField"
    ):
        solve(path, lambda z: z[:, :, None].expand(-1, -1, 3), z0, backend="cpu")
    with pytest.raises(ValueError, match=r"backend='cpu' cannot solve this: gradient='backprop'"):
        solve(path, field, z0, backend="cpu", gradient="backprop")


def test_inputs_that_do_not_fit_are_refused():
    path = build("linear", random_batch((3, 3)))
    field = mlp(path)
    with pytest.raises(ValueError, match=r"z0 has shape \(3, 3\).*for 2 streams"):
        solve(path, field, torch.zeros(3, 3, dtype=D))
    with pytest.raises(ValueError, match=r"z0 has shape \(3,\)"):
        solve(path, field, torch.zeros(3, dtype=D))
    with pytest.raises(ValueError, match=r"z0 is torch.float32 and the path torch.float64"):
        solve(path, field, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"outputs is 'all': choose 'rows', 'end' or 'knots'"):
        solve(path, field, start(path), outputs="all")
    with pytest.raises(TypeError, match=r"a Tensor is no control path.*controls\.rectilinear"):
        solve(path.rows, field, start(path))
    with pytest.raises(TypeError, match=r"a SeriesBatch is no control path"):
        solve(random_batch((3, 3)), field, start(path))
    with pytest.raises(TypeError, match=r"z0 is a list: give a tensor"):
        solve(path, field, start(path).tolist())


def test_a_solve_leaves_its_inputs_as_they_were():
    path, field, z0 = case("rectilinear")
    held = [z0.clone(), path.rows.clone(), *(p.detach().clone() for p in field.parameters())]
    for settings in ({}, {"backend": "torch"}, {"method": "dopri5", "rtol": 1e-3, "atol": 1e-3}):
        z = solve(path, field, z0, **settings).z
        with torch.no_grad():
            z.fill_(0.0)
    now = [z0, path.rows, *field.parameters()]
    assert all(bool((a == b).all()) for a, b in zip(held, now, strict=True))


def test_times_far_from_0_lose_nothing_in_float32():
    """A Unix clock: time legs come from differences in float64, so shifting the clock changes nothing."""
    batch = random_batch((6, 4), observed=0.6, dtype=torch.float32)
    shift = 1.7e9
    moved = SeriesBatch.from_padded(batch.times + shift, batch.values, batch.rows)
    near, far = build("rectilinear", batch), build("rectilinear", moved)
    field, z0 = mlp(near), start(near)
    torch.testing.assert_close(
        solve(far, field, z0).z, solve(near, field, z0).z, rtol=1e-4, atol=1e-5
    )
    query = batch.times[:, -1:] + 0.25
    torch.testing.assert_close(
        solve(far, field, z0, at=query + shift).z, solve(near, field, z0, at=query).z,
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
def test_queries_follow_the_clock_of_the_series_under_an_encoding(scheme):
    batch = random_batch((5, 3, 4))
    encoding = Encoding(2, True).double().fit(batch)
    path = build(scheme, batch, encoding=encoding)
    field, z0 = mlp(path), start(path)
    at_rows = solve(path, field, z0, at=batch.times).z
    torch.testing.assert_close(at_rows, solve(path, field, z0).z, **EXACT)


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_max_step_in_other_units_than_the_times_is_an_error_that_says_so(backend):
    """An hour in nanoseconds in steps of a thousandth: no 32-bit number holds how many they are."""
    times = [[0.0, 1.0], [0.0, 3.6e12]]
    batch = SeriesBatch.from_arrays(times, [[[1.0], [2.0]]] * 2, streams=["short", "long"])
    path = build("rectilinear", batch)
    field, z0 = mlp(path).float(), start(path).float()
    message = r"stream 'long': a gap of 3\.6e\+12 in steps of at most 0\.001 .* larger max_step"
    with pytest.raises(SolverError, match=message):
        solve(path, field, z0, max_step=1e-3, backend=backend)
    with pytest.raises(SolverError, match=r"stream 'short': a gap of 3\.6e\+12"):
        short = build("rectilinear", batch[:1])
        solve(short, field, z0[:1], max_step=1e-3, at=[0.5, 1.0 + 3.6e12], backend=backend)


def test_single_observations_count_their_steps_alike():
    gaps = torch.rand(1000, dtype=D).cumsum(0)
    for max_step in (0.1, 0.25, 1.0, 7.0):
        wanted = steps_for(gaps, max_step, range(1000))
        assert leg_steps(gaps.numpy(), max_step).tolist() == wanted.tolist()
    multiples = 0.1 * torch.arange(100, dtype=D)
    wanted = [1, *range(1, 100)]
    assert steps_for(multiples, 0.1, range(100)).tolist() == wanted
    assert leg_steps(multiples.numpy(), 0.1).tolist() == wanted
    assert leg_steps(np.array([1.0, 1e30]), 1.0) is None
