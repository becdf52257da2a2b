"""Of a GPU that several processes share through MPS, a solve takes its share of thread blocks and no more."""

from types import SimpleNamespace

import pytest
import torch

from onlinecde import sharing

gpu = pytest.importorskip("onlinecde.kernels.gpu")


def thread_blocks(streams):
    field = SimpleNamespace(hidden=82, width=65, depth=2)
    legs = gpu.Legs(
        lengths=torch.full((streams,), 2, dtype=torch.int32), pieces=2, time=torch.zeros(1, streams),
        slopes=torch.zeros(1, streams, 1, 68), observed=torch.ones(1, streams, 34, dtype=torch.bool),
        parts=2, steps=1, time_steps=None, drive=None,
    )  # fmt: skip
    return gpu.shape_for(field, legs).programs


@pytest.fixture
def pipes(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132)
    )
    return tmp_path


@pytest.mark.parametrize(
    ("beside", "small", "large"), [(None, 68, 132), ("1", 68, 132), ("12", 11, 64), ("100", 4, 64)]
)
def test_processes_side_by_side_divide_the_gpu(pipes, monkeypatch, beside, small, large):
    (pipes / "control").touch()
    monkeypatch.delenv(sharing.SIDE_BY_SIDE, raising=False)
    if beside is not None:
        monkeypatch.setenv(sharing.SIDE_BY_SIDE, beside)
    assert thread_blocks(64) == small
    assert thread_blocks(1024) == large, "every tile of streams has a block of its own"


def test_without_mps_the_gpu_belongs_to_one_process_at_a_time(pipes, monkeypatch):
    monkeypatch.setenv(sharing.SIDE_BY_SIDE, "12")
    assert sharing.side_by_side() == 12
    assert sharing.on_the_gpu() == 1
    assert thread_blocks(64) == 68
