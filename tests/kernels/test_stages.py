"""Solves stage by stage: emulated on a CPU, compiled by NVRTC where it is, chosen with a reason, and on a real GPU."""

import random
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from in_own_process import interpreted
from test_clusters import nvrtc_is_there, on_hopper

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="GPU kernels are for Linux")

from onlinecde import SeriesBatch, controls  # noqa: E402
from onlinecde.kernels.gpu.hopper import compiling, stage_by_stage, stage_plan  # noqa: E402
from onlinecde.kernels.gpu.packing import Legs, pack_table  # noqa: E402
from onlinecde.solvers import Solver  # noqa: E402
from onlinecde.solvers.backends.gpu import GPU  # noqa: E402
from onlinecde.solvers.fields import MLPField  # noqa: E402
from onlinecde.solvers.runge_kutta import tableau  # noqa: E402
from onlinecde.solvers.segments import segments_of  # noqa: E402


@pytest.mark.emulated
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize("names", [("linear", "many_streams", "high"), ("cubic", "wide")])
def test_the_kernels_are_right_in_an_emulator(names):
    found = interpreted("stage_emulator.py", str(random.randrange(10**6)), *names)
    assert set(found) == set(names)
    for name in names:
        z, g = (2e-3, 2e-2) if name == "high" else (3e-6, 3e-5)
        for what, error in found[name].items():
            assert 0 < error < (g if what.startswith("g ") else z), (name, what, error)


def problem(hidden=82, width=65, depth=2, channels=75, streams=1024, degree=1, final="tanh"):
    """A field and a path of zeros: only their sizes matter here."""
    field = MLPField(hidden, channels, width, depth, final=final)
    legs = Legs(
        lengths=torch.full((streams,), 3, dtype=torch.int32),
        pieces=3,
        time=None,
        slopes=torch.zeros(3, 1, degree, channels).expand(-1, streams, -1, -1),
        observed=None,
        parts=1,
        steps=1,
        time_steps=None,
        drive=None,
    )
    table = tableau("rk4")
    return field, legs, pack_table(table.a, table.b, table.c, torch.device("cpu"))


@pytest.fixture
def hopper(monkeypatch):
    """As if there were such a GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    properties = type("Properties", (), {"multi_processor_count": 132})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(stage_plan, "kernel", lambda *_: None)
    stage_plan._broken.cache_clear()
    yield torch.device("cuda", 0)
    stage_plan._broken.cache_clear()


def planned(given, device, split=True):
    return stage_plan.plan(*given, split=split, save=True, device=device)


def test_a_linear_path_is_taken_stage_by_stage(hopper):
    how = planned(problem(), hopper)
    assert isinstance(how, stage_plan.Stages)
    # All multiprocessors have work, once.
    assert 0.9 * 264 < how.there.works(1024) <= 264


@pytest.mark.parametrize(
    ("given", "changed", "words"),
    [
        ({"final": "identity"}, {}, "end with tanh"),
        ({"hidden": 256, "width": 256}, {}, "do not fit"),
        ({"hidden": 20, "width": 20}, {}, "fewer than 65,536 numbers"),
        ({}, {"observed": torch.ones(1, dtype=torch.bool)}, "not every channel moves"),
        ({}, {"drive": torch.zeros(1)}, "sees the path"),
    ],
)
def test_what_is_not_covered_is_left_to_the_sweeps(hopper, given, changed, words):
    field, legs, table = problem(**given)
    assert words in planned((field, replace(legs, **changed), table), hopper)


def test_other_devices_and_the_switch_leave_stages_out(hopper, monkeypatch):
    assert "capability" in planned(problem(), torch.device("cpu"))
    assert isinstance(planned(problem(), hopper), stage_plan.Stages)
    monkeypatch.setenv(stage_plan.SWITCH, "0")
    assert stage_plan.SWITCH in planned(problem(), hopper)
    monkeypatch.delenv(stage_plan.SWITCH)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert "capability" in planned(problem(), hopper)


def test_what_does_not_compile_is_said_once_and_left_to_the_sweeps(hopper, monkeypatch):
    def fails(*_):
        raise compiling.CompileError("there is no libnvrtc.so.13")

    monkeypatch.setattr(stage_plan, "kernel", fails)
    with pytest.warns(UserWarning, match="not done stage by stage: there is no libnvrtc"):
        assert "libnvrtc" in planned(problem(), hopper)
    assert "libnvrtc" in planned(problem(), hopper)


def test_launches_are_free_for_a_graph_alone():
    """What there is room for in a graph is a problem to capture; what is solved once is not."""
    from made_problems import made_problem

    path = controls.linear(SeriesBatch.from_arrays([[0.0, 1.0]], [[[1.0], [2.0]]]))
    segments, field = segments_of(path), MLPField(3, 2, 4)
    for some, captured in ((segments, False), (segments.room_for(2, 8), True)):
        z0 = torch.zeros(some.streams, 3)
        assert Solver().problem(some, field, z0, str).capture is captured
        asked = []

        def forward(*_, capture, asked=asked, z0=z0, **keywords):
            asked.append(capture)
            return z0[None], []

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("onlinecde.kernels.gpu.forward", forward)
            patch.setattr("onlinecde.solvers.backends.gpu.pack", lambda *_: None)
            GPU().forward(made_problem(some, field, tableau("rk4"), z0, capture=captured), ())
        assert asked == [captured]


@pytest.mark.parametrize("hidden", [1, 16, 17, 33, 41, 56, 65, 82, 108, 180, 238, 249, 256])
@pytest.mark.parametrize("width", [1, 32, 55, 65, 91, 119, 129, 170, 196])
@pytest.mark.parametrize("split", [True, False])
def test_every_size_is_cut_into_tiles_that_fit(hidden, width, split):
    field, legs, table = problem(hidden, width, 1, channels=11)
    how = stage_plan.stages_for(field, legs, table, 132, split=split)
    for tiles in (how.there, how.back):
        assert how.size("HP") % tiles.units == 0
        assert tiles.blocks * tiles.units >= hidden > (tiles.blocks - 1) * tiles.units
        assert tiles.warps % 4 == 0
    for name in stage_plan.SOURCES:
        assert stage_plan.shared_bytes(name, how) <= compiling.LARGEST_SHARED, name


@pytest.mark.skipif(not nvrtc_is_there(), reason="there is no NVRTC")
@pytest.mark.parametrize("name", stage_plan.SOURCES)
def test_the_sources_compile_without_headers_and_fit_the_memory_reckoned(name):
    for sizes in ((82, 65, 2, 75), (256, 196, 1, 10), (41, 55, 4, 75), (5, 7, 1, 3)):
        for split in (True, False):
            how = stage_plan.stages_for(*problem(*sizes), 132, split=split)
            defines, _ = stage_plan.compiled_for(name, how, True)
            files = (*stage_plan.PRIMITIVES, *stage_plan.SOURCES[name])
            room = ("SHARED_BYTES", str(stage_plan.shared_bytes(name, how)))
            image = compiling.compiled(compiling.source_of(files, (*defines, room)), "sm_90a")
            assert len(image) > 1000


class FakeNVRTC:
    """Counts what it compiles, and is of a version."""

    version = 13

    def nvrtcVersion(self, major, minor):  # noqa: N802, its name
        major._obj.value, minor._obj.value = self.version, 0
        return 0


def test_machine_code_is_kept_for_the_next_process_by_source_architecture_and_compiler(
    tmp_path, monkeypatch
):
    asked, nvrtc = [], FakeNVRTC()

    def compiled(source, architecture):
        asked.append((source, architecture))
        return f"{nvrtc.version} {architecture} {source}".encode()

    monkeypatch.setenv("ONLINECDE_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "_nvrtc", lambda: nvrtc)
    monkeypatch.setattr(compiling, "compiled", compiled)
    for _ in range(2):
        assert compiling.kept("a", "sm_90a") == b"13 sm_90a a"
        assert compiling.kept("b", "sm_90a") == b"13 sm_90a b"
        assert compiling.kept("a", "sm_90") == b"13 sm_90 a"
    assert len(asked) == 3
    nvrtc.version = 12
    assert compiling.kept("a", "sm_90a") == b"12 sm_90a a"
    # Where nothing can be kept, everything is compiled.
    monkeypatch.setenv("ONLINECDE_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    for _ in range(2):
        assert compiling.kept("a", "sm_90a") == b"12 sm_90a a"
    assert len(asked) == 6


ON_A_GPU = {
    "linear": ((9, 5) * 100, 37, 1.0, True, "linear", 82, 65, 2),
    "narrow": ((20, 11) * 40, 37, 1.0, True, "linear", 33, 91, 2),
    "fine": ((7, 5) * 70, 37, 1.0, True, "linear", 65, 119, 2),
    "cubic": ((7, 5) * 70, 20, 1.0, False, "natural_cubic", 90, 82, 1),
    "deep": ((6, 4, 2) * 40, 20, 1.0, False, "hermite", 108, 40, 4),
    "wide": ((9, 5) * 70, 9, 1.0, False, "linear", 256, 196, 1),
    "wide_cubic": ((6, 3) * 600, 9, 1.0, False, "natural_cubic", 249, 170, 1),
    "few": ((9, 5) * 70, 3, 1.0, False, "linear", 238, 194, 1),
    "one_stream": ((5,), 9, 1.0, False, "linear", 33, 31, 2),
    "odd": ((4, 3) * 31, 12, 1.0, False, "natural_cubic", 17, 50, 3),
}


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("name", ON_A_GPU)
def test_stages_are_right_on_a_gpu(name, precision, monkeypatch):
    from gpu_cases import Case, errors, float32_errors

    monkeypatch.setattr(stage_plan, "WORTH", 0)
    launched, first = [], stage_by_stage.launch
    monkeypatch.setattr(
        stage_by_stage, "launch", lambda *a, **k: (launched.append(a[0]), first(*a, **k))
    )
    activation = random.choice(["silu", "tanh", "softplus"])
    case = Case(*ON_A_GPU[name], activation, method="rk4", precision=precision, shape={})
    if name == "odd":
        case = replace(case, steps=2, method="heun", every=2)
    seed = random.randrange(10**6)
    found = errors(case, "cuda", seed, capture=True)
    assert set(launched) == set(stage_plan.SOURCES)
    plain = float32_errors(case, "cuda", seed)
    z, g = (2e-3, 2e-2) if precision == "high" else (3e-6, 3e-5)
    for what, error in found.items():
        # Products of 22 bits: where a path is long, four times what the 24 of float32 lose along it.
        most = max(g if what.startswith("g ") else z, 4 * plain.get(what, 0.0))
        assert error < most, (name, activation, what, error, most)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("name", ["linear", "wide"])
def test_a_captured_solve_repeats_bit_for_bit(name):
    from gpu_cases import Case, made
    from made_problems import by_gpu

    laid, field, z0 = made(Case(*ON_A_GPU[name], shape={}), "cuda", 1)
    found = []

    def step():
        z = by_gpu(laid, field, tableau("rk4"), z0, capture=True)
        return [z.detach(), *torch.autograd.grad(z.square().mean(), list(field.parameters()))]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        found.append([x.clone() for x in step()])
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = step()
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        found.append([x.clone() for x in held])
    for again in found[1:]:
        for a, b in zip(found[0], again, strict=True):
            assert torch.equal(a, b)
