"""The fused CPU kernels against a plain float64 solver and torch's autograd, and what they promise bit for bit."""

import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from cpu_reference import (
    as_tensors,
    make_path,
    method_for,
    pack,
    random_dense,
    random_field,
    random_rectilinear,
    reference,
)

from onlinecde.kernels import cpu, cpu_unavailable


def relative(got, want):
    """The largest error over the largest number; no gradient in torch (nothing moved) means zeros."""
    want = np.zeros_like(got) if want is None else want
    want = want.detach().numpy() if isinstance(want, torch.Tensor) else want
    assert got.shape == want.shape
    return np.abs(got - want).max() / max(np.abs(want).max(), 1e-6)


CASES = {
    # name: kind, pieces, channels, hidden, width, depth, activation, method, steps, most_steps, drive, final
    "one_layer_euler": ("rectilinear", [5, 4, 1], 3, 4, 5, 1, "tanh", "euler", 1, 1, False, "tanh"),
    "two_layers_rk4": (
        "rectilinear",
        [7, 6, 6, 3, 0],
        5,
        6,
        7,
        2,
        "relu",
        "rk4",
        1,
        1,
        False,
        "tanh",
    ),
    "odd_sizes": ("rectilinear", [4] * 11, 4, 37, 19, 2, "silu", "rk4", 1, 1, False, "tanh"),
    "several_panels": (
        "rectilinear",
        [4, 3],
        3,
        148,
        89,
        2,
        "relu",
        "midpoint",
        1,
        1,
        False,
        "tanh",
    ),
    "several_steps": (
        "rectilinear",
        [6, 5, 5, 2],
        4,
        5,
        6,
        3,
        "softplus",
        "heun",
        2,
        3,
        False,
        "tanh",
    ),
    "seven_stages": (
        "rectilinear",
        [4, 4, 2],
        3,
        5,
        6,
        4,
        "silu",
        "dopri5",
        2,
        2,
        False,
        "identity",
    ),
    "driven": ("rectilinear", [6, 5, 3], 4, 5, 6, 2, "silu", "rk4", 2, 3, True, "tanh"),
    "linear": ("dense0", [5, 4, 4, 2], 4, 6, 7, 2, "relu", "rk4", 1, 1, False, "tanh"),
    "cubic": ("dense2", [5, 4, 4, 2], 4, 6, 7, 2, "tanh", "rk4", 2, 1, False, "tanh"),
    "cubic_driven": ("dense2", [3, 3, 2], 3, 5, 6, 2, "silu", "heun", 2, 1, True, "tanh"),
    "linear_driven": ("dense0", [3, 3, 2], 3, 5, 6, 1, "silu", "heun", 2, 1, True, "tanh"),
}


@pytest.fixture(params=CASES)
def case(request, rng):
    kind, pieces, channels, hidden, width, depth, activation, method, steps, most, driven, final = (
        CASES[request.param]
    )
    drive_width = width if driven else None
    if kind == "rectilinear":
        path = random_rectilinear(rng, pieces, channels, width=drive_width, most_steps=most)
    else:
        degree = int(kind[-1])
        path = random_dense(
            rng, pieces, channels, degree, width=drive_width, drive_degree=3 if degree else 0
        )
    weights = random_field(rng, channels, hidden, width, depth)
    z0 = rng.normal(size=(len(pieces), hidden))
    return weights, path, z0, method, steps, activation, final


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-10), (np.float32, 2e-4)])
def test_states_and_gradients_are_those_of_plain_torch(case, dtype, tolerance, rng):
    weights, path, z0, method, steps, activation, final = case
    tensors, t_path, t_z0 = as_tensors(weights), as_tensors(path), as_tensors(z0)
    want = reference(tensors, t_path, t_z0, method, steps, activation, final)
    field = pack(weights, dtype, activation=activation, final=final)
    fused = make_path(path, dtype)
    z = cpu.forward(
        field, fused, z0.astype(dtype), method_for(method, dtype), steps=steps, threads=2
    )
    assert z.dtype == dtype
    assert relative(z, want) < tolerance / 10

    gz = rng.normal(size=z.shape)
    (want * torch.tensor(gz)).sum().backward()
    got_z0, got, got_path = cpu.backward(
        gz,
        z,
        field,
        fused,
        method_for(method, dtype),
        steps=steps,
        threads=2,
        path_gradient=True,
        drive_gradient=True,
    )
    if activation == "relu" and dtype == np.float32:
        tolerance = 2e-2  # a unit near its kink may be on in one precision and off in the other
    assert relative(got_z0, t_z0.grad) < tolerance
    for (weight, bias), (t_weight, t_bias) in zip(got.layers, tensors[0], strict=True):
        assert relative(weight, t_weight.grad) < tolerance
        assert relative(bias, t_bias.grad) < tolerance
    assert relative(got.columns, tensors[1].grad) < tolerance
    assert relative(got.column_biases, tensors[2].grad) < tolerance
    if "dt" in path:
        assert relative(got_path.dt, t_path["dt"].grad) < tolerance
        assert relative(got_path.slopes, t_path["dx"].grad) < tolerance
    else:
        assert got_path.dt is None
        assert relative(got_path.slopes, t_path["slopes"].grad) < tolerance
    if path["drive"] is not None:
        assert relative(got_path.drive, t_path["drive"].grad) < tolerance


def test_contributions_are_those_of_the_stages_and_add_up(case, rng):
    weights, path, z0, method, steps, activation, final = case
    record = {}
    reference(
        as_tensors(weights),
        as_tensors(path),
        as_tensors(z0),
        method,
        steps,
        activation,
        final,
        record,
    )
    projection = rng.normal(size=(2, z0.shape[1]))
    field, fused = (
        pack(weights, np.float64, activation=activation, final=final),
        make_path(path, np.float64),
    )
    z, parts = cpu.contributions(
        field, fused, z0, method_for(method, np.float64), projection, steps=steps, threads=2
    )
    np.testing.assert_array_equal(
        z, cpu.forward(field, fused, z0, method_for(method, np.float64), steps=steps)
    )
    want = np.zeros_like(parts)
    for (piece, stream, channel), value in record.items():
        want[piece, stream, channel] = projection @ value.detach().numpy()
    assert relative(parts, want) < 1e-10
    np.testing.assert_allclose(parts.sum(2), np.diff(z, axis=0) @ projection.T, atol=1e-10)


@pytest.fixture(scope="module")
def batch():
    """70 ragged streams in float32 with steps that differ, hidden and width away from any vector's length."""
    rng = np.random.default_rng(np.random.randint(2**31))
    pieces = np.sort(rng.integers(0, 12, 70))[::-1]
    pieces[:3] = 12
    path = random_rectilinear(rng, list(pieces), 6, width=13, rate=0.4, most_steps=3)
    weights = random_field(rng, 6, 21, 13, 2)
    field = pack(weights, np.float32, activation="silu")
    return field, path, rng.normal(size=(70, 21)).astype(np.float32), method_for("rk4", np.float32)


def some(path, streams):
    """The path of some of the streams."""
    axes = {"pieces": 0, "dt": 1, "dx": 2, "moved": 2, "time_steps": 1, "drive": 1}
    return {
        key: None if value is None else np.take(value, streams, axes[key])
        for key, value in path.items()
    }


def test_a_stream_is_the_same_bits_alone_and_in_any_company(batch):
    field, path, z0, method = batch
    whole = cpu.forward(field, make_path(path, np.float32), z0, method, steps=2)
    for threads in (1, 2, 3, 7):
        z = cpu.forward(field, make_path(path, np.float32), z0, method, steps=2, threads=threads)
        np.testing.assert_array_equal(z, whole)
    for streams in ([0], [5], [69], [1, 2, 40], list(range(0, 70, 3)), list(range(7, 64))):
        alone = cpu.forward(
            field,
            make_path(some(path, streams), np.float32),
            z0[streams],
            method,
            steps=2,
            threads=2,
        )
        np.testing.assert_array_equal(alone, whole[: len(alone), streams])


def test_gradients_of_a_stream_do_not_depend_on_its_company(batch, rng):
    field, path, z0, method = batch
    fused = make_path(path, np.float32)
    z = cpu.forward(field, fused, z0, method, steps=2)
    gz = rng.normal(size=z.shape).astype(np.float32)
    options = {"steps": 2, "path_gradient": True, "drive_gradient": True}
    g_z0, g_field, g_path = cpu.backward(gz, z, field, fused, method, threads=2, **options)
    again = cpu.backward(gz, z, field, fused, method, threads=2, **options)
    np.testing.assert_array_equal(again[1].columns, g_field.columns)
    streams = [3, 30, 31, 66]
    few = make_path(some(path, streams), np.float32)
    knots = int(few.pieces.max()) + 1
    later = gz[knots:, streams].sum(
        0
    )  # the last knot of a shorter batch stands for all that follow
    gz_few = gz[:knots, streams].copy()
    gz_few[-1] += later
    alone = cpu.backward(gz_few, z[:knots, streams], field, few, method, threads=1, **options)
    np.testing.assert_allclose(alone[0], g_z0[streams], rtol=1e-4, atol=1e-4)
    assert relative(alone[2].slopes, g_path.slopes[:, :, streams]) < 1e-5


def test_the_future_changes_nothing_before_it(batch):
    field, path, z0, method = batch
    whole = cpu.forward(field, make_path(path, np.float32), z0, method, threads=2)
    edited = {key: None if value is None else value.copy() for key, value in path.items()}
    edited["dt"][3:] *= 2
    edited["dx"][3:] = 1.5
    edited["moved"][3:] = True
    edited["drive"][7:] = 0
    z = cpu.forward(field, make_path(edited, np.float32), z0, method, threads=2)
    np.testing.assert_array_equal(z[:7], whole[:7])
    assert (z[8] != whole[8]).any()


def entries_of(path, row, rng):
    """The moved entries of one row, grouped by stream, in a random order within it."""
    pointer, channel, dx = [0], [], []
    for stream in range(len(path["pieces"])):
        moved = rng.permutation(np.flatnonzero(path["moved"][row, :, stream]))
        channel += list(moved + 1)
        dx += list(path["dx"][row, moved, stream])
        pointer.append(len(channel))
    return np.array(pointer), np.array(channel, np.int64), np.array(dx, np.float32)


@pytest.mark.parametrize("driven", [False, True])
def test_advancing_row_by_row_is_bitwise_the_whole_history(batch, driven, rng):
    field, path, z0, method = batch
    path = dict(path, pieces=np.full(70, 12), drive=path["drive"] if driven else None)
    whole = cpu.forward(field, make_path(path, np.float32), z0, method, steps=2, threads=2)
    z = z0
    for row in range(6):
        drive = path["drive"][2 * row : 2 * row + 3].astype(np.float32) if driven else None
        options = {"time_steps": path["time_steps"][row], "drive": drive}
        dt, entries = path["dt"][row].astype(np.float32), entries_of(path, row, rng)
        middle, new = cpu.advance(field, method, z, dt, *entries, steps=2, threads=2, **options)
        np.testing.assert_array_equal(middle, whole[2 * row + 1])
        np.testing.assert_array_equal(new, whole[2 * row + 2])
        options["drive"] = drive[:2] if driven else None
        np.testing.assert_array_equal(cpu.advance_time(field, method, z, dt, **options), middle)

        pointer, channel, dx = entries
        own = slice(pointer[4], pointer[5])
        options = {
            "time_steps": path["time_steps"][row, 4:5],
            "drive": drive[:, 4:5] if driven else None,
        }
        entries = [0, own.stop - own.start], channel[own], dx[own]
        alone = cpu.advance(field, method, z[4:5], dt[4:5], *entries, steps=2, **options)
        np.testing.assert_array_equal(alone[1][0], new[4])
        z = new


def test_a_channel_that_does_not_exist_is_refused(batch):
    field, _, z0, method = batch
    for channel in (0, 6):
        with pytest.raises(ValueError, match="between 1 and 5"):
            cpu.advance(field, method, z0[:1], [0.1], [0, 1], [channel], [1.0])


def test_nan_and_infinity_reach_the_state_of_their_stream_only(batch):
    _, path, z0, method = batch
    for bad in (np.nan, np.inf):
        for activation in ("relu", "silu", "tanh", "softplus"):
            layers = [(np.eye(21)[:13], np.zeros(13)), (np.eye(13), np.zeros(13))]
            plain = pack(
                (layers, np.ones((6, 21, 13)), np.zeros((6, 21))), np.float32, activation=activation
            )
            wrong = dict(path, dt=path["dt"].copy(), time_steps=None)
            wrong["dt"][1, 2] = bad
            z = cpu.forward(plain, make_path(wrong, np.float32), z0, method)
            assert not np.isfinite(z[3:, 2]).any()
            right = cpu.forward(
                plain, make_path(dict(path, time_steps=None), np.float32), z0, method
            )
            np.testing.assert_array_equal(np.delete(z, 2, 1), np.delete(right, 2, 1))


def test_two_threads_may_solve_at_once(batch):
    field, path, z0, method = batch
    fused = make_path(path, np.float32)
    want = cpu.forward(field, fused, z0, method)
    wrong = []

    def work():
        for _ in range(20):
            z = cpu.forward(field, fused, z0, method, threads=2)
            cpu.backward(z, z, field, fused, method, threads=2)
            if not np.array_equal(z, want):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_tanh_in_float32_errs_by_less_than_5e_7():
    x = np.concatenate([np.linspace(-12, 12, 400_001), np.geomspace(1e-30, 1, 100_000)]).astype(
        np.float32
    )
    width = x.size
    one = [(np.zeros((1, width), np.float32), np.ones(1, np.float32))]
    field = cpu.pack_field(
        one, x.reshape(1, width, 1), np.zeros((1, width), np.float32), gradient=False
    )
    path = cpu.dense([1], np.ones((1, 1, 1, 1), np.float32))
    z = cpu.forward(field, path, np.zeros((1, width), np.float32), method_for("euler", np.float32))
    exact = np.tanh(x.astype(np.float64))
    assert np.abs(z[1, 0] - exact).max() < 5e-7
    small = np.abs(x) < 1
    assert np.abs(z[1, 0] / np.where(x == 0, 1, exact) - 1)[small & (x != 0)].max() < 4e-7
    assert np.abs(z).max() <= 1


def test_a_forked_child_can_solve():
    code = """
import os, numpy as np
from onlinecde.kernels import cpu
layers = [(np.eye(4, dtype='f4'), np.zeros(4, 'f4'))]
field = cpu.pack_field(layers, np.ones((2, 4, 4), 'f4'), np.zeros((2, 4), 'f4'), gradient=False)
path = cpu.rectilinear([4] * 8, np.ones((2, 8), 'f4'), np.ones((2, 1, 8), 'f4'))
method = cpu.tableau([[0]], [1], [0], 'f4')
solve = lambda: cpu.forward(field, path, np.zeros((8, 4), 'f4'), method, threads=3)
want = solve()
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(solve(), want) else 3)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_package_does_not_import_numba():
    assert cpu_unavailable() is None
    code = "import sys, onlinecde.kernels as k; assert k.cpu_unavailable() is None; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_would_read_beyond_an_array_is_refused(batch, rng):
    field, path, z0, method = batch
    with pytest.raises(ValueError, match="longest stream first"):
        cpu.rectilinear([1, 2], np.ones((1, 2)), np.ones((1, 1, 2)))
    with pytest.raises(ValueError, match="channels"):
        cpu.forward(
            field,
            make_path(random_rectilinear(rng, [2], 4), np.float32),
            z0[:1],
            method,
        )
    with pytest.raises(TypeError, match="one dtype"):
        cpu.forward(field, make_path(path, np.float64), z0, method)
