"""`NeuralCDE` on a GPU keeps the contract it keeps on the CPU, and its captured step is the plain one."""

import copy

import pytest
import torch

import onlinecde as oc
from onlinecde.models.flat_settings import neural_cde

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def series(streams=40, rows=12, channels=6, observed=0.4, seed=0, static=0):
    g = torch.Generator().manual_seed(seed)
    times = torch.rand(streams, rows, generator=g, dtype=torch.float64).cumsum(1)
    values = torch.randn(streams, rows, channels, generator=g)
    values[torch.rand(values.shape, generator=g) >= observed] = torch.nan
    lengths = torch.randint(1, rows + 1, (streams,), generator=g)
    lengths[0] = rows
    many = [int(n) for n in lengths]
    return oc.SeriesBatch.from_arrays(
        [times[i, :n] for i, n in enumerate(many)],
        [values[i, :n] for i, n in enumerate(many)],
        torch.randn(streams, static, generator=g) if static else None,
    ).to("cuda")


def model(channels=6, **keywords):
    torch.manual_seed(1)
    settings = {"hidden": 33, "width": 40, "outputs": 2, "activation": "silu"} | keywords
    net = neural_cde(channels, **settings).to("cuda").eval()
    if net.readout.ramps is not None:  # before that they are flat
        net.fit_scales(series(seed=99, static=net.static))
    if net.readout.steps is not None:
        g = torch.Generator().manual_seed(2)
        low = torch.randn(30, generator=g)
        place = torch.randint(0, 2 * channels, (30,), generator=g)
        net.readout.steps.put(
            -0.7,
            place.tolist(),
            low.tolist(),
            (low + 0.5).tolist(),
            torch.randn(30, generator=g).tolist(),
        )
    return net


RAMPS = {"readout_sees_path": True, "readout_ramps": 4, "readout_width": 16}
MODELS = [{}, {"precision": "high"}, {"field_sees_path": True, "readout_sees_path": True, "readout_width": 16},
          {"counts": False, "max_step": 0.2}, RAMPS,
          {**RAMPS, "readout_members": 3, "readout_steps": 40, "kind": "binary", "outputs": 1}]  # fmt: skip


@pytest.mark.parametrize("keywords", MODELS)
def test_editing_the_future_leaves_the_past_bit_for_bit(keywords):
    net, batch = model(**keywords), series()
    edited = copy.deepcopy(batch)
    cut = 5
    edited.values[:, cut:] = torch.where(edited.values[:, cut:].isnan(), 3.0, torch.nan)
    with torch.no_grad():
        before, after = net(batch), net(edited)
        short = net(oc.SeriesBatch.from_arrays(
            [t[: min(int(n), cut)].cpu() for t, n in zip(batch.times, batch.rows, strict=True)],
            [v[: min(int(n), cut)].cpu() for v, n in zip(batch.values, batch.rows, strict=True)],
        ).to("cuda"))  # fmt: skip
    assert torch.equal(before[:, :cut], after[:, :cut])
    assert torch.equal(before[:, :cut], short[:, :cut])
    assert not torch.equal(before[:, cut:], after[:, cut:])


@pytest.mark.parametrize("keywords", MODELS)
def test_a_stream_alone_says_what_it_says_among_others(keywords):
    net, batch = model(**keywords), series()
    with torch.no_grad():
        together, alone = net(batch), net(batch[torch.tensor([7])])
    rows = alone.shape[1]
    torch.testing.assert_close(together[7:8, :rows], alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("keywords", MODELS[:1] + MODELS[2:])
def test_row_by_row_and_on_the_cpu_it_says_the_same(keywords):
    net, batch = model(**keywords), series(streams=5)
    with torch.no_grad():
        whole = net(batch)
        cpu = copy.deepcopy(net).cpu()(batch.to("cpu"))
        torch.testing.assert_close(whole.cpu(), cpu, rtol=1e-4, atol=1e-5)
        for stream in range(5):
            state = net.init_state()
            for row in range(int(batch.rows[stream])):
                state = net.observe(
                    state, batch.times[stream, row], batch.values[stream, row][None]
                )
                torch.testing.assert_close(
                    net.predict(state)[0], whole[stream, row], rtol=1e-5, atol=1e-5
                )


def check_step(step, plain, batch, seed, atol):
    """A captured step gives the loss and gradients of a plain model, to `atol` of the largest one."""
    net, final = step.model, step.final
    g = torch.Generator().manual_seed(seed)
    shape = (len(batch),) if final else batch.times.shape
    labels = torch.randint(0, 2, shape, generator=g).float().cuda()
    unknown = -1 if plain.readout.kind == "multiclass" else torch.nan
    labels[torch.rand(shape, generator=g).cuda() < 0.3] = unknown
    loss = step(batch, labels)
    plain.zero_grad()
    wanted = plain.readout.loss(plain(batch, final=final), labels)
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-5, atol=1e-6)
    for (name, mine), other in zip(net.named_parameters(), plain.parameters(), strict=True):
        # A model that goes through no leg, in a batch of single rows, has no gradient of its field.
        expected = torch.zeros_like(other) if other.grad is None else other.grad
        size = float(expected.abs().max()) + 1e-8
        torch.testing.assert_close(
            mine.grad / size, expected / size, rtol=1e-3, atol=atol, msg=name
        )


@pytest.mark.parametrize("kind", ["binary", "regression", "multiclass"])
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"static": 2},
        {"static": 2, "static_in_path": True, "readout_sees_path": True},
        RAMPS,
        {"static": 2, "static_in_path": True, **RAMPS},
    ],
)
def test_a_captured_step_is_the_plain_one(kind, final, keywords):
    from onlinecde.training.graphs import GraphedStep

    outputs = 3 if kind == "multiclass" else 1
    net = model(kind=kind, field_sees_path=True, outputs=outputs, **keywords)
    plain = copy.deepcopy(net)
    step = GraphedStep(net, streams=48, final=final)
    for seed, rows in ((0, 12), (1, 15), (2, 9), (3, 30)):
        batch = series(rows=rows, seed=seed, streams=40 + seed, static=net.static)
        check_step(step, plain, batch, seed, atol=1e-4)
    assert len(step._graphs) == 2


@pytest.mark.parametrize("control", ["linear", "hermite", "natural_cubic"])
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"counts": False, "steps": 2},
        {"hidden": 70, "width": 66},
        {"field_sees_path": True, "readout_sees_path": True},
        {"hidden": 70, "field_sees_path": True, "static": 2, "static_in_path": True, **RAMPS},
    ],
)
def test_a_captured_step_along_smooth_controls_is_the_plain_one(control, final, keywords):
    from onlinecde.training.graphs import GraphedStep, why_not

    net = model(kind="binary", outputs=1, control=control, **({"hidden": 33} | keywords))
    plain = copy.deepcopy(net)
    assert why_not(net) is None
    step = GraphedStep(net, streams=48, final=final)
    # Full, then fewer and shorter streams where those before left their numbers; at last single rows.
    for seed, rows, streams in ((0, 15, 48), (1, 9, 31), (2, 30, 40), (3, 12, 5), (4, 1, 7)):
        batch = series(rows=rows, seed=seed, streams=streams, static=net.static)
        check_step(step, plain, batch, seed, atol=1e-4)
    assert sorted(key[0] for key in step._graphs) == [8, 16, 32]


def test_a_captured_step_draws_its_dropout_from_the_seed():
    """The first time too, when it has been tried out and captured before it counts."""
    from onlinecde.training.graphs import GraphedStep

    net = model(kind="binary", outputs=1, readout_dropout=0.5, readout_members=3, **RAMPS).train()
    step, batch = GraphedStep(net, streams=40), series()
    labels = torch.randint(0, 2, batch.times.shape).float().cuda()
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        loss = float(step(batch, labels))
        found.append((loss, [p.grad.clone() for p in net.parameters()]))
    (first, grads), (again, same), (other, _) = found
    assert torch.isfinite(torch.tensor([first, other])).all()
    assert first == again != other
    assert all(torch.equal(one, two) for one, two in zip(grads, same, strict=True))


def test_ramps_on_a_gpu_are_those_of_the_cpu():
    batch = series()
    found, wanted = (
        neural_cde(6, readout_sees_path=True, readout_ramps=5)
        .to(b.values.device)
        .fit_scales(b)
        .readout.ramps
        for b in (batch, batch.to("cpu"))
    )
    assert found.low.is_cuda
    torch.testing.assert_close(found.low.cpu(), wanted.low, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.steepness.cpu(), wanted.steepness, rtol=1e-3, atol=1e-3)
