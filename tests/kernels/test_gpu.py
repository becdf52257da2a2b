"""The GPU kernels against plain torch in float64: in Triton's interpreter anywhere, and on a real GPU."""

import random
from pathlib import Path

import pytest
import torch
from in_own_process import interpreted

pytest.importorskip("triton")

HERE = Path(__file__).parent
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
GROUPS = {
    "moved": ["moved_rk4", "several_blocks", "many_streams", "more_than_fit", "wide_columns"],
    "shared": ["shared_units", "shared_units_and_entries", "shared_units_data"],
    "padded": ["units_first", "row_of_192", "hidden_of_192"],
    "whole": ["whole_rows", "whole_rows_alone", "whole_wide_rows", "whole_rows_driven"],
    "fine": ["fine_rows", "fine_rows_cubic", "fine_rows_not_dense", "fine_rows_alone"],
    "fine_deep": ["fine_rows_deep"],
    "solved": ["solved"],
    "alone": ["alone_deep", "many_alone", "alone_several_blocks", "softplus_midpoint", "high"],
    "driven": ["driven_own_steps", "alone_driven", "own_steps_in_tiles"],
    "dense": ["dense_linear", "dense_cubic", "dense_counts", "dense_high", "dense_by_itself"],
    "dense_or_not": ["dense_alike", "dense_some_legs", "dense_many_streams", "dense_data"],
    "dense_cubic": ["dense_nodes", "dense_wide_cubic", "dense_cubic_data", "dense_linear_data"],
    "dense_lots": ["dense_cubic_lots", "dense_own_steps", "more_groups_than_channels", "ones"],
    "smooth": ["linear", "alone_cubic", "driven_cubic"],
}


def bounds(name, precision="highest"):
    """How far z and gradients may be off: float32's class, or that of half-precision operands."""
    relu = "g" if name in ("moved_rk4", "reference", "los") else ""
    if precision == "high":
        return 2e-3, 2e-2
    # A unit near its kink may be on in one precision and off in the other.
    return 3e-6, 1e-2 if relu else 3e-5


def judge(name, found, precision):
    z, g = bounds(name, precision)
    for what, error in found.items():
        assert error < (g if what.startswith("g ") else z), (name, what, error)


@pytest.mark.emulated
@pytest.mark.parametrize("group", GROUPS)
def test_kernels_are_right_in_the_interpreter(group):
    seed = random.randrange(10**6)
    found = interpreted("gpu_cases.py", str(seed), *GROUPS[group])
    assert set(found) == set(GROUPS[group])
    for name, errors in found.items():
        judge(name, errors, "high" if name.endswith("high") else "highest")
    assert any(error > 0 for errors in found.values() for error in errors.values())


def test_every_interpreted_case_is_in_a_group():
    from gpu_cases import INTERPRETED

    assert sorted([*INTERPRETED, "solved"]) == sorted(
        name for group in GROUPS.values() for name in group
    )


def test_parts_of_sums_are_added_up_where_they_belong():
    found = interpreted("gpu_cases.py", str(random.randrange(10**6)), "sums")
    assert len(found) == 6
    assert max(found.values()) < 1e-5


def test_few_channels_are_taken_alone_unless_their_weights_are_many():
    found = interpreted("gpu_cases.py", "0", "alone")
    assert found == {
        "characters": True,
        "linear characters": False,
        "few and small": True,
        "many": False,
    }


def test_nothing_is_kept_for_a_way_back_that_nobody_will_ask_for():
    found = interpreted("gpu_cases.py", "0", "kept")
    assert found == {"no_grad": False, "inference_mode": False, "enable_grad": True}


def test_the_memory_of_a_step_is_reckoned_as_it_is_taken():
    found = interpreted("gpu_memory.py")
    assert len(found) == 9
    for name, (taken, reckoned) in found.items():
        assert 0.85 < taken / reckoned < 1.25, (name, taken / reckoned)


@pytest.mark.parametrize(
    ("legs", "values", "hidden", "most"),
    [
        (71, 40, 64, 16 * 132),
        (71, 4000, 256, (2**31 - 1) // (2 * 4000 * 256)),  # places of entries, by their rows
        (10**6, 40, 64, (2**31 - 1) // (10**6 * 40)),  # move lists
    ],
)
def test_so_many_streams_are_taken_at_once_that_offsets_fit_into_32_bits(
    legs, values, hidden, most
):
    from types import SimpleNamespace

    from onlinecde.kernels.gpu.room import streams_at_once

    path = SimpleNamespace(
        slopes=torch.empty(legs, 0, 1, values), values=values, streams=10**5, row=lambda size: size
    )
    field = SimpleNamespace(hidden=hidden, width=64)
    shares = 2 if hidden == 256 else 1
    shape = SimpleNamespace(alone=False, rows=16, programs=132, shares=shares, shares_back=shares)
    assert streams_at_once(field, path, shape) == most


def test_an_edit_of_the_future_leaves_the_past_unchanged_also_where_it_makes_legs_dense():
    found = interpreted("gpu_cases.py", str(random.randrange(10**6)), "edited")
    # The first leg is not dense, the second is, with the three streams that still move; the third is edited.
    assert (found["before"][:3], found["after"][:3]) == ([0, 3, 3], [0, 3, 0])
    past = 6  # knots: two rows after the first, and the time leg to the row that was edited
    assert not any(found["off"][:past])
    assert found["off"][past] > 0


@pytest.mark.parametrize(
    ("values", "parts", "tiles", "groups"),
    [(9, 1, 64, 2), (37, 2, 16, 8), (37, 2, 32, 4), (9, 1, 256, 1), (9, 1, 1, 9), (10, 1, 32, 4)],
)
def test_groups_of_channels_keep_all_multiprocessors_at_work(values, parts, tiles, groups):
    from onlinecde.kernels.gpu.launching import groups_for

    assert groups_for(values, parts, tiles, programs=132) == groups


def test_a_leg_is_dense_by_itself_alone():
    from types import SimpleNamespace

    from onlinecde.kernels import gpu

    observed = torch.zeros(3, 4, 5, dtype=torch.bool)
    observed[0, :, :3] = True  # 60 % of all
    observed[1, :, :2] = True
    observed[1, 3] = True  # a stream that has ended
    observed[2, 0] = True  # the only one left
    lengths = torch.tensor([6, 4, 4, 2], dtype=torch.int32)
    legs = SimpleNamespace(
        slopes=torch.zeros(3, 4, 1, 5),
        values=5,
        rectilinear=True,
        lengths=lengths,
        observed=observed,
    )
    assert gpu.plan_moves(legs, 16).leg_crowd.tolist() == [4, 0, 1]
    legs.observed = None
    assert gpu.plan_moves(legs, 16).leg_crowd.tolist() == [4, 3, 1]


def test_increments_at_the_stages_are_the_paths_own_and_those_of_the_method_asked_for():
    from onlinecde import SeriesBatch, controls
    from onlinecde.kernels import gpu
    from onlinecde.solvers.backends.gpu import legs_of
    from onlinecde.solvers.runge_kutta import tableau
    from onlinecde.solvers.segments import segments_of

    values = torch.randn(4, 5, 3)
    path = controls.hermite(
        SeriesBatch.from_padded(torch.rand(4, 5).cumsum(1).double(), values), False
    )
    laid = segments_of(path, steps=2)
    legs = legs_of(laid)
    for name in ("heun", "midpoint"):  # of two stages each, at other nodes
        method = tableau(name)
        table = gpu.pack_table(method.a, method.b, method.c, values.device)
        found = legs.stage_slopes(table)
        at = torch.tensor([(step + c) / 2 for step in range(2) for c in method.c])
        s = (torch.arange(4)[:, None] + at).double().flatten()
        slope = path.derivative(s.clamp(max=3.999999))[laid.order].view(4, 4, len(at), -1)
        # The slope from the left at a piece's end is not that of the next piece; Hermite has both alike.
        assert torch.allclose(found.double(), slope.permute(1, 2, 3, 0).double(), atol=1e-4)
        assert found.is_contiguous()


def cases():
    from gpu_cases import INTERPRETED, ON_A_GPU

    return INTERPRETED | ON_A_GPU


@no_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", cases())
def test_kernels_are_right_on_a_gpu(name):
    from dataclasses import replace

    from gpu_cases import errors

    case = cases()[name]
    judge(name, errors(replace(case), "cuda", random.randrange(10**6)), case.precision)


@no_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["reference", "characters", "los", "linear_many", "dense_and_not"])
def test_the_same_solve_gives_the_same_bits_twice(name):
    from gpu_cases import made
    from made_problems import by_gpu

    from onlinecde.solvers.runge_kutta import tableau

    laid, field, z0 = made(cases()[name], "cuda", 1)
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(2):
            field.zero_grad()
            z = by_gpu(laid, field, tableau("rk4"), z0)
            z.square().mean().backward()
            runs.append([z.detach(), *(p.grad.clone() for p in field.parameters())])
    finally:
        torch.use_deterministic_algorithms(False)
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


def test_the_page_shows_the_committed_results():
    from benchmarks.tables import GPU_PAGE, with_gpu_table

    assert GPU_PAGE.read_text() == with_gpu_table(GPU_PAGE.read_text())
