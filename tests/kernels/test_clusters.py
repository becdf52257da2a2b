"""The cluster kernels: emulated on a CPU, compiled by NVRTC where it is, chosen with a reason, and on a real GPU."""

import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from in_own_process import interpreted

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="GPU kernels are for Linux")

from onlinecde.kernels.gpu.hopper import clusters, compiling  # noqa: E402
from onlinecde.kernels.gpu.packing import Legs, pack_table  # noqa: E402
from onlinecde.solvers.fields import MLPField  # noqa: E402
from onlinecde.solvers.runge_kutta import tableau  # noqa: E402

HERE = Path(__file__).parent
EMULATED = ["one_step", "dense", "nine_streams", "driven", "through_autograd"]
on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9,
    reason="there is no CUDA device of compute capability 9",
)


@pytest.mark.emulated
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize("name", EMULATED)
def test_the_kernels_are_right_in_an_emulator(name):
    seed = random.randrange(10**6)
    print("seed", seed)
    for what, error in interpreted("cluster_emulator.py", str(seed), name)[name].items():
        assert 0 < error < (1e-2 if what.startswith("g ") else 1e-3), (name, what, error)


def problem(
    values=40, parts=2, hidden=64, width=64, depth=2, streams=1024, steps=1, sees_path=False
):
    """A field and a path of zeros: only their sizes matter here."""
    field = MLPField(hidden, 1 + values * parts, width, depth, activation="silu")
    legs = Legs(
        lengths=torch.full((streams,), 4, dtype=torch.int32),
        pieces=4,
        time=torch.zeros(2, streams),
        slopes=torch.zeros(2, streams, 1, values * parts),
        observed=None,
        parts=parts,
        steps=steps,
        time_steps=None,
        drive=torch.zeros(5, streams, width) if sees_path else None,
    )
    table = tableau("rk4")
    return field, legs, pack_table(table.a, table.b, table.c, torch.device("cpu"))


@pytest.fixture
def hopper(monkeypatch):
    """As if there were such a GPU, with room for 16 clusters."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(compiling, "clusters_at_once", lambda *_: 16)
    monkeypatch.setattr(clusters, "_kernel", lambda *_: None)
    for cached in (clusters._broken, clusters._said_once):
        cached.cache_clear()
    yield torch.device("cuda", 0)
    for cached in (clusters._broken, clusters._said_once):
        cached.cache_clear()


def planned(problem, device, split=False):
    return clusters.plan(*problem, split=split, save=True, device=device)


def test_clusters_take_the_reference_shape(hopper):
    how = planned(problem(), hopper)
    assert isinstance(how, clusters.Clusters)
    assert (how.block_streams, how.blocks(1024)) == (8, 128)


def test_clusters_take_a_field_that_sees_the_path(hopper):
    how = planned(problem(hidden=32, depth=1, sees_path=True), hopper)
    assert isinstance(how, clusters.Clusters)
    assert dict(how.defines)["DRIVE"] == "1"


def test_so_many_streams_a_block_that_all_run_at_once(hopper, monkeypatch):
    found = []
    for at_once in (16, 15, 14, 13, 1):
        monkeypatch.setattr(compiling, "clusters_at_once", lambda *_, n=at_once: n)
        found.append(planned(problem(), hopper).block_streams)
    assert found == [8, 9, 9, 9, 9]


def test_a_step_is_part_of_the_coefficients():
    field, legs, table = problem(steps=2)
    defines = dict(clusters.clusters_for(field, legs, table, 16).defines)
    b = [float(number.rstrip("f")) for number in defines["TABLE_B"].strip("{}").split(",")]
    np.testing.assert_allclose(b, np.asarray(tableau("rk4").b) / 2, rtol=1e-7)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"hidden": 65}, "hidden is 65"),
        ({"width": 65}, "width 65"),
        ({"depth": 3}, "depth 3"),
        ({"values": 64}, "128 channels do not fit"),
    ],
)
def test_a_field_that_does_not_fit_is_left_to_the_others(hopper, given, words):
    assert words in planned(problem(**given), hopper)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"time": None}, "not rectilinear"),
        ({"time_steps": torch.ones(1)}, "steps of their own"),
    ],
)
def test_a_path_that_is_not_covered_is_left_to_the_others(hopper, changed, words):
    field, legs, table = problem()
    assert words in planned((field, replace(legs, **changed), table), hopper)


def test_highest_other_devices_and_the_switch_leave_clusters_out(hopper, monkeypatch):
    assert "split" in planned(problem(), hopper, split=True)
    assert "capability" in planned(problem(), torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert "capability" in planned(problem(), hopper)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert isinstance(planned(problem(), hopper), clusters.Clusters)
    monkeypatch.setenv(clusters.SWITCH, "0")
    assert clusters.SWITCH in planned(problem(), hopper)


@pytest.mark.parametrize("broken", ["probe", "kernel"])
def test_what_does_not_compile_is_said_once_and_left_to_the_others(hopper, monkeypatch, broken):
    def fails(*_):
        raise compiling.CompileError("there is no libnvrtc.so.13")

    where = (compiling, "clusters_at_once") if broken == "probe" else (clusters, "_kernel")
    monkeypatch.setattr(*where, fails)
    with pytest.warns(UserWarning, match="without thread-block clusters: there is no libnvrtc"):
        assert "libnvrtc" in planned(problem(), hopper)
    assert "libnvrtc" in planned(problem(), hopper)


def compiles(name, how, shared):
    """Machine code for compute capability 9; needs NVRTC but no GPU."""
    sources = (*clusters.SHARED_FILES, f"cluster_{name}.cu")
    given = (*how.defines, ("SAVE", "1"), ("SHARED_BYTES", str(shared)))
    return compiling.compiled(compiling.source_of(sources, given), "sm_90")


def nvrtc_is_there():
    try:
        compiling._nvrtc()
    except compiling.CompileError:
        return False
    return True


@pytest.mark.skipif(not nvrtc_is_there(), reason="there is no NVRTC")
@pytest.mark.parametrize(
    ("name", "sees_path"),
    [("forward", False), ("forward", True), ("reverse", False), ("columns", False)],
)
def test_the_sources_compile_without_headers_and_fit_the_memory_reckoned(name, sees_path):
    given = problem(37, 2, 48, 33, sees_path=sees_path)
    for at_once in (16, 14):
        how = clusters.clusters_for(*given, at_once)
        room = clusters.shared_bytes(37, 2, how.block_streams)
        assert len(compiles(name, how, room)) > 1000
        with pytest.raises(compiling.CompileError, match="more shared memory"):
            compiles(name, how, 1000)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(
    "name",
    [
        "reference",
        "relu",
        "dense",
        "few_channels",
        "no_counts",
        "two_steps",
        "two_waves",
        "one_stream",
        "driven",
        "driven_deep",
    ],
)
def test_clusters_are_right_on_a_gpu(name):
    from gpu_cases import ON_A_GPU, Case, errors, plain_errors

    reference = replace(ON_A_GPU["reference_high"])
    case = {
        "reference": reference,
        "relu": replace(reference, activation="relu"),
        "dense": Case(tuple(range(1, 9)) * 40, 37, 0.9, hidden=33, width=50, activation="tanh"),
        "few_channels": Case((7, 5, 5, 2) * 30, 5, 0.5, hidden=16, width=64, depth=1),
        "no_counts": Case((6, 4, 3) * 20, 70, 0.3, False, hidden=50, width=20, method="heun"),
        "two_steps": Case((4, 3) * 9, 12, 0.4, hidden=64, width=64, steps=2, method="midpoint"),
        "two_waves": Case((3,) * 3000, 40, 0.2, hidden=64, width=64, final="identity"),
        "one_stream": Case((5,), 9, 0.5, hidden=33, width=31, activation="softplus"),
        "driven": replace(ON_A_GPU["driven"]),
        "driven_deep": Case(
            (4, 3) * 90, 40, 0.4, hidden=50, width=64, steps=2, sees_path=True, every=2
        ),
    }[name]
    case = replace(case, precision="high", shape={})
    seed = random.randrange(10**6)
    print("seed", seed)
    # Rounding turns units on and off near relu's kink, in plain torch as here: at most twice what it costs there.
    plain = plain_errors(case, "cuda", seed) if name == "relu" else {}
    for what, error in errors(case, "cuda", seed).items():
        most = 2 * plain[what] if what in plain else 2e-2 if what.startswith("g ") else 2e-3
        assert error < most, (name, what, error, most)


def solved(seed=1, edit=None, sees_path=False, precision="high"):
    """z at the knots, the gradients and the reason of a solve."""
    import onlinecde as oc

    numbers = np.random.default_rng(seed)
    times = numbers.uniform(0.2, 1.2, (100, 12)).cumsum(1)
    values = numbers.normal(size=(100, 12, 20)) * 0.5
    values[numbers.random(values.shape) >= 0.3] = np.nan
    if edit is not None:
        values[:, edit:] = numbers.normal(size=values[:, edit:].shape)
    batch = oc.SeriesBatch.from_padded(
        torch.tensor(times), torch.tensor(values, dtype=torch.float32)
    ).to("cuda")
    path = oc.controls.rectilinear(batch, True)
    torch.manual_seed(seed)
    field = oc.MLPField(64, path.channels, 64, sees_path=sees_path).cuda()
    z0 = torch.randn(100, 64, device="cuda")
    done = oc.solve(path, field, z0, "rk4", precision=precision, outputs="knots")
    done.z.square().mean().backward()
    return done, [parameter.grad for parameter in field.parameters()]


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("sees_path", [False, True])
def test_clusters_say_so_repeat_bit_for_bit_and_agree_with_triton(monkeypatch, sees_path):
    first, first_g = solved(sees_path=sees_path)
    again, again_g = solved(sees_path=sees_path)
    assert "by thread-block clusters" in first.reason
    assert torch.equal(first.z, again.z)
    assert all(torch.equal(a, b) for a, b in zip(first_g, again_g, strict=True))
    monkeypatch.setenv(clusters.SWITCH, "0")
    other, other_g = solved(sees_path=sees_path)
    assert "clusters" not in other.reason
    if sees_path:
        # X makes states larger, and their rounding: it is judged by what it costs in Triton's kernels.
        exact = solved(sees_path=True, precision="highest")[0].z
        assert (first.z - exact).abs().max() < 2 * (other.z - exact).abs().max()
    else:
        torch.testing.assert_close(first.z, other.z, rtol=0, atol=3e-3)
    for a, b in zip(first_g, other_g, strict=True):
        assert (a - b).norm() < 2e-2 * b.norm()


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("sees_path", [False, True])
def test_an_edit_of_the_future_leaves_the_past_unchanged_bit_for_bit(sees_path):
    whole, _ = solved(sees_path=sees_path)
    edited, _ = solved(edit=7, sees_path=sees_path)
    # Knot 2 r is row r; row 7 is the first that differs.
    assert torch.equal(whole.z[:, : 2 * 7], edited.z[:, : 2 * 7])
    assert not torch.equal(whole.z[:, 2 * 7 :], edited.z[:, 2 * 7 :])
