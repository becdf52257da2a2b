"""Every activation of the one table is known to every language of kernels; none takes one it does not know."""

import ctypes
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
from in_own_process import interpreted

from onlinecde import MLPField
from onlinecde.kernels import activations
from onlinecde.kernels.activations import ACTIVATIONS

X = torch.linspace(-25, 25, 64)


def wanted(name):
    """Value and derivative by autograd, in float64."""
    x = X.double().requires_grad_()
    y = ACTIVATIONS[name].value(x)
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


def test_codes_and_names_are_each_ones_own():
    assert {name: one.name for name, one in ACTIVATIONS.items()} == {n: n for n in ACTIVATIONS}
    assert sorted(one.code for one in ACTIVATIONS.values()) == list(range(len(ACTIVATIONS)))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_in_plain_torch(name):
    one, (value, slope) = ACTIVATIONS[name], wanted(name)
    taken = value if one.from_output else X.double()
    torch.testing.assert_close(one.derivative(torch.ones_like(value), taken), slope)
    assert MLPField(2, 3, 4, activation=name).activation == name


def test_an_unknown_one_is_refused_by_name():
    with pytest.raises(ValueError, match="activation 'cube' is not one of"):
        MLPField(2, 3, 4, activation="cube")


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_in_numba(name, dtype):
    cpu = pytest.importorskip("onlinecde.kernels.cpu")
    # One time leg by Euler from z = 0, whose only layer takes in x: z' = act(x).
    x, one = X.numpy().astype(dtype), np.eye(64, dtype=dtype)
    none = np.zeros((64, 64), dtype)
    field = cpu.pack_field(
        [(none, x)], one[None].repeat(2, 0), np.zeros((2, 64), dtype), activation=name,
        final="identity", gradient=True,
    )  # fmt: skip
    path = cpu.rectilinear([1], np.ones((1, 1), dtype), np.zeros((1, 1, 1), dtype))
    table = cpu.tableau([[0.0]], [1.0], [0.0], dtype)
    z = cpu.forward(field, path, np.zeros((1, 64), dtype), table)
    _, g, _ = cpu.backward(np.ones_like(z), z, field, path, table)
    # Beyond 20 torch takes softplus for a straight line, and the kernels do not.
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-8, "atol": 1e-12}
    value, slope = wanted(name)
    np.testing.assert_allclose(z[1, 0], value, **close)
    np.testing.assert_allclose(g.layers[0][1], slope, **close)


def test_numba_refuses_one_it_does_not_know(monkeypatch):
    cpu = pytest.importorskip("onlinecde.kernels.cpu")
    monkeypatch.setitem(
        activations.ACTIVATIONS, "cube", replace(ACTIVATIONS["silu"], name="cube", code=4)
    )
    layer = np.zeros((3, 2), np.float32), np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="CPU kernels do not know the activation 'cube'"):
        cpu.pack_field([layer], np.zeros((2, 2, 3), np.float32), np.zeros((2, 2), np.float32),
                       activation="cube")  # fmt: skip


def test_in_triton():
    pytest.importorskip("triton")
    found = interpreted("activation_cases.py")
    assert "AssertionError" in found.pop("cube")
    assert set(found) == set(ACTIVATIONS)
    for name, got in found.items():
        for mine, true in zip(got, wanted(name), strict=True):
            np.testing.assert_allclose(mine, true, rtol=1e-5, atol=1e-6)


@pytest.mark.emulated
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_in_cuda(tmp_path):
    from cuda_emulator import HEADER

    from onlinecde.kernels.gpu.hopper.compiling import source_of

    def built(code):
        text = source_of(("numbers.cuh",), (("ACT", str(code)),))
        text += """extern "C" void both(const float* x, float* value, float* slope) {
          for (int i = 0; i < 64; i++) {
            value[i] = activate(x[i]);
            slope[i] = through_activation(1.f, x[i]);
          }
        }"""
        source = tmp_path / f"{code}.cpp"
        source.write_text(f'#include "{HEADER}"\n{text}')
        library = source.with_suffix(".so")
        line = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-w", "-o", library, source]
        return library, subprocess.run(line, capture_output=True, text=True)

    for name, one in ACTIVATIONS.items():
        library, done = built(one.code)
        assert done.returncode == 0, done.stderr
        value, slope = torch.empty(64), torch.empty(64)
        places = [ctypes.c_void_p(t.data_ptr()) for t in (X, value, slope)]
        ctypes.CDLL(str(library)).both(*places)
        for got, true in zip((value, slope), wanted(name), strict=True):
            np.testing.assert_allclose(got, true, rtol=1e-4, atol=1e-6)
    assert "an activation that these kernels do not know" in built(len(ACTIVATIONS))[1].stderr
