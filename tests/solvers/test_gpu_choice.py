"""Which code solves: the GPU kernels where they apply, plain torch with a reason where not."""

import pytest
import torch
from solver_problems import build, mlp, random_batch, start

import onlinecde as oc
from onlinecde.kernels import gpu_unavailable
from onlinecde.solvers.backends import Problem, choose
from onlinecde.solvers.backends import gpu as gpu_backend
from onlinecde.solvers.backends.gpu import GPU
from onlinecde.solvers.runge_kutta import tableau
from onlinecde.solvers.segments import segments_of

NO_GPU = not torch.cuda.is_available()


def problem(dtype=torch.float32):
    path = build("rectilinear", random_batch(dtype=dtype), counts=True)
    return path, mlp(path), start(path)


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_without_a_gpu_asking_for_it_is_an_error_that_says_why():
    path, field, z0 = problem()
    with pytest.raises(
        ValueError, match=r"backend='gpu' cannot solve this: the tensors are on cpu"
    ):
        oc.solve(path, field, z0, backend="gpu")
    assert gpu_unavailable() is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"field": lambda z: z}, "has no kernel"),
        ({"gradient": "adjoint"}, "found in plain torch"),
        ({"backend": "torch"}, "was asked for"),
        ({"dtype": torch.float64}, "take float32"),
        ({"hidden": 300}, "up to 256"),
        ({"method": "dopri5"}, "7 stages"),
    ],
)
def test_what_the_kernels_do_not_cover_has_a_reason(change, reason, monkeypatch):
    monkeypatch.setattr(gpu_backend, "_devices", lambda alone: ("cpu",))
    monkeypatch.setattr(gpu_backend, "gpu_unavailable", lambda device: None)
    hidden, dtype = change.get("hidden", 3), change.get("dtype", torch.float32)
    field = change.get("field") or oc.MLPField(hidden, 5, 8, 2).to(dtype)
    method = tableau(change.get("method", "rk4"))
    z0 = torch.zeros(2, hidden, dtype=dtype)
    gradient, backend = change.get("gradient", "exact"), change.get("backend", "auto")
    assert reason in gpu_backend.unsupported_settings(field, method, z0, gradient, backend)
    assert (
        gpu_backend.unsupported_settings(
            oc.MLPField(3, 5), tableau("rk4"), torch.zeros(2, 3), "exact", "auto"
        )
        is None
    )


def test_precision_and_backend_are_checked():
    path, field, z0 = problem()
    with pytest.raises(ValueError, match="precision is 'half': choose 'highest' or 'high'"):
        oc.solve(path, field, z0, precision="half")
    with pytest.raises(ValueError, match="'torch', 'cpu' or 'gpu'"):
        oc.solve(path, field, z0, backend="cuda")
    with pytest.raises(ValueError, match="backend='gpu' takes fixed steps only"):
        oc.solve(path, field, z0, "dopri5", rtol=1e-3, atol=1e-5, backend="gpu")
    model = oc.NeuralCDE(2, 4, field={"width": 4}, solver={"precision": "high"})
    assert model.config["solver"]["precision"] == "high"


@pytest.mark.parametrize("backend", ["gpu", "auto"])
def test_what_has_no_room_is_an_error_only_where_the_gpu_was_asked_for_by_name(
    backend, monkeypatch
):
    pytest.importorskip("triton")
    from onlinecde.kernels import gpu

    monkeypatch.setattr(gpu, "room_for_step", lambda *args: 9 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2**30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**32))
    path, field, _ = problem()

    class OnGPU:
        is_cuda, shape, device = True, (3, 3), "cuda"

    monkeypatch.setattr(gpu_backend, "unsupported_settings", lambda *asked: None)
    asked = Problem(
        segments_of(path), field, OnGPU(), tableau("rk4"), lambda *_: "", backend=backend
    )
    reason = "a step takes 9.0 GiB and 2.0 are free: take fewer streams"
    if backend == "gpu":
        with pytest.raises(ValueError, match=f"cannot solve this: {reason}"):
            choose(asked)
    else:
        assert GPU().unsupported(asked) == reason


def on_gpu(path_batch, **keywords):
    path = build("rectilinear", path_batch.to("cuda"), counts=True)
    return path, mlp(path, **keywords).to("cuda"), start(path).to("cuda")


@pytest.mark.skipif(NO_GPU, reason="there is no CUDA device")
@pytest.mark.gpu
@pytest.mark.parametrize("outputs", ["rows", "end", "knots", "queries"])
def test_solve_takes_the_gpu_and_agrees_with_plain_torch(outputs):
    path, field, z0 = on_gpu(
        random_batch((7, 3, 1, 5), 4, seed=3, observed=0.5, dtype=torch.float32)
    )
    asked = {"at": [1.5, 3.0, 9.0]} if outputs == "queries" else {"outputs": outputs}
    mine = oc.solve(path, field, z0, **asked)
    assert mine.backend == "gpu"
    assert "precision 'highest'" in mine.reason
    plain = oc.solve(path, field, z0, backend="torch", **asked)
    assert plain.backend == "torch"
    torch.testing.assert_close(mine.z, plain.z, rtol=1e-5, atol=1e-5)
    assert torch.equal(mine.nfe, plain.nfe)
    weights = list(field.parameters())
    found = [torch.autograd.grad(done.z.square().mean(), weights) for done in (mine, plain)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.skipif(NO_GPU, reason="there is no CUDA device")
@pytest.mark.gpu
def test_states_out_of_the_range_of_halves_are_done_anew_in_highest():
    batch = random_batch((4, 3), 2, seed=3, dtype=torch.float32)
    path, field, z0 = on_gpu(batch, activation="relu")
    found = oc.solve(path, field, z0 * 1e5, precision="high")
    assert "left the range of 'high'" in found.reason
    plain = oc.solve(path, field, z0 * 1e5, backend="torch")
    torch.testing.assert_close(found.z, plain.z, rtol=1e-5, atol=1.0)


@pytest.mark.skipif(NO_GPU, reason="there is no CUDA device")
@pytest.mark.gpu
def test_a_state_that_is_no_longer_finite_is_an_error():
    path, field, z0 = on_gpu(random_batch((4, 3), 2, seed=3, dtype=torch.float32))
    z0[1, 0] = torch.inf
    with pytest.raises(oc.SolverError, match="no longer finite"):
        oc.solve(path, field, z0)


@pytest.mark.skipif(NO_GPU, reason="there is no CUDA device")
@pytest.mark.gpu
def test_more_stages_than_registers_go_to_plain_torch():
    path, field, z0 = on_gpu(random_batch((4, 3), 2, seed=3, dtype=torch.float32))
    found = oc.solve(path, field, z0, "dopri5")
    assert (found.backend, "7 stages" in found.reason) == ("torch", True)


@pytest.mark.skipif(NO_GPU, reason="there is no CUDA device")
@pytest.mark.gpu
def test_a_step_that_does_not_fit_goes_to_plain_torch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    path, field, z0 = on_gpu(random_batch((4, 3), 2, seed=3, dtype=torch.float32))
    found = oc.solve(path, field, z0)
    assert (found.backend, "take fewer streams" in found.reason) == ("torch", True)
    with torch.no_grad():
        assert oc.solve(path, field, z0).backend == "gpu"
