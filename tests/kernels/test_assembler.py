"""The reverse sweep of eight warps is left to a ptxas that makes it right, or is not taken."""

import os
from types import SimpleNamespace

import pytest
import torch

knobs = pytest.importorskip("triton.knobs")

from onlinecde.kernels import gpu  # noqa: E402
from onlinecde.kernels.gpu import assembler  # noqa: E402


@pytest.fixture
def wheel(monkeypatch):
    """A wheel of Triton with two assemblers of given versions."""

    def make(plain, newer, asked=None):
        assembler._right.cache_clear()
        found = {"plain": plain, "newer": newer, "asked": asked}

        def tool(path):
            if found.get(path) is None:
                return None
            return SimpleNamespace(path=path, version=found[path])

        monkeypatch.setattr(knobs.NvidiaTool, "from_path", tool)
        descriptors = type(knobs.nvidia).__dict__
        monkeypatch.setattr(descriptors["ptxas"], "default_path", "plain")
        monkeypatch.setattr(descriptors["ptxas_blackwell"], "default_path", "newer")
        for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
            monkeypatch.delenv(name, raising=False)
        if asked is not None:
            monkeypatch.setenv("TRITON_PTXAS_PATH", "asked")

    yield make
    assembler._right.cache_clear()


@pytest.mark.parametrize(
    ("plain", "newer", "asked", "path"),
    [
        ("12.8", "12.9", None, "newer"),
        ("12.8", "13.0", None, "newer"),
        ("13.1", "12.9", None, "plain"),
        ("12.8", "12.8", None, None),
        ("12.8", None, None, None),
        ("12.8", "12.9", "12.8", None),
        ("12.8", "12.9", "12.10", "asked"),
    ],
)
def test_warps_by_what_there_is_to_assemble_them(monkeypatch, wheel, plain, newer, asked, path):
    wheel(plain, newer, asked)
    assert assembler.ptxas() == path
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132)
    )
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    field = SimpleNamespace(hidden=249, width=170, depth=1)
    legs = gpu.Legs(
        lengths=torch.ones(1024, dtype=torch.int32), pieces=1, time=None,
        slopes=torch.zeros(1, 1024, 1, 14), observed=None, parts=1, steps=1, time_steps=None, drive=None,
    )  # fmt: skip
    shape = gpu.shape_for(field, legs)
    assert (shape.columns_back, shape.warps_back) == ((64, 4) if path is None else (128, 8))
    before = knobs.nvidia.ptxas.path
    with assembler.right_ptxas():
        assert knobs.nvidia.ptxas.path == (path or before)
    assert knobs.nvidia.ptxas.path == before
    assert os.environ.get("TRITON_PTXAS_PATH") == (asked and "asked")


def test_a_fault_in_the_kernel_leaves_the_settings_as_they_were(wheel):
    wheel("12.8", "12.9")
    with pytest.raises(ValueError, match="of a kernel"), assembler.right_ptxas():
        raise ValueError("of a kernel")
    assert knobs.nvidia.ptxas.path == "plain"
