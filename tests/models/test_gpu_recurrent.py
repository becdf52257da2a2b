"""The recurrent models on a GPU: their captured step is the plain one, and so is a `fit` that replays it."""

import pytest
import torch
from tests.models.test_gpu_models import check_step, series

import onlinecde as oc

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

MODELS = {
    "GRU": (oc.GRU, {"layers": 2}),
    "GRUdt": (oc.GRUdt, {"readout_width": 16}),
    "GRUdtIntensity": (oc.GRUdtIntensity, {}),
    "GRUD": (oc.GRUD, {"readout_width": 16}),
    "ODERNN": (oc.ODERNN, {"width": 24, "readout_width": 16}),
}


def made_model(name, **keywords):
    kind, settings = MODELS[name]
    torch.manual_seed(1)
    model = kind(channels=6, hidden=33, clip=5.0, **settings, **keywords)
    model.fit_scales(series(seed=99, static=model.static).to("cpu"))
    return model.to("cuda").train()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["binary", "regression", "multiclass"])
@pytest.mark.parametrize("final", [False, True])
def test_a_captured_step_is_the_plain_one(name, kind, final):
    from onlinecde.training.graphs import why_not
    from onlinecde.training.recurrent_graphs import RecurrentStep

    settings = {"kind": kind, "outputs": 3 if kind == "multiclass" else 1, "static": 2}
    # Not by deepcopy: cuDNN warns of weights that do not lie side by side.
    net, plain = made_model(name, **settings), made_model(name, **settings)
    assert why_not(net) is None
    step = RecurrentStep(net, streams=48, final=final)
    for seed, rows in ((0, 12), (1, 15), (2, 9), (3, 40), (4, 10), (5, 35), (6, 1)):
        batch = series(rows=rows, seed=seed, streams=48 - 7 * seed, static=2)
        check_step(step, plain, batch, seed, atol=1e-3)
    assert sorted(key[0] for key in step._graphs) == [8, 16, 40]


@pytest.mark.parametrize("name", MODELS)
def test_a_captured_step_follows_the_weights(name):
    """Weights that an optimiser moves, or that are loaded, are those of the next replay."""
    from onlinecde.training.recurrent_graphs import RecurrentStep

    net = made_model(name, kind="binary")
    step, batch = RecurrentStep(net, streams=40), series()
    labels = torch.randint(0, 2, batch.times.shape).float().cuda()
    descent = torch.optim.AdamW(net.parameters(), lr=1e-2)
    start = {at: tensor.clone() for at, tensor in net.state_dict().items()}
    found = []
    for _ in range(5):
        found.append(step(batch, labels))
        torch.testing.assert_close(
            found[-1], net.readout.loss(net(batch), labels).detach(), rtol=1e-5, atol=1e-6
        )
        descent.step()
    assert found[-1] < found[0]
    net.load_state_dict(start)
    assert torch.equal(step(batch, labels), found[0])


@pytest.mark.parametrize(
    "model",
    ["gru", "gru-dt", "gru-dt-intensity", "gru-d", "ode-rnn", "neural-cde", "neural-cde hermite"],
)
@pytest.mark.parametrize("per", ["row", "stream", "row-with-horizons"])
def test_fit_by_replays_logs_what_the_plain_one_logs(model, per, monkeypatch):
    from onlinecde.data import Task, simulate_ward
    from onlinecde.training import fit, loop
    from onlinecde.training.graphs import CapturedStep

    name, *control = model.split()
    task = simulate_ward(150, seed=3, hours=24).task
    if per == "stream":
        ever = (task.labels == 1).any(1).double()
        task = Task.build("ever", task.series, ever, kind="binary", splits=task.splits)
    steps = []

    class Watched(loop.Training):
        def _captured_step(self):
            steps.append(super()._captured_step())
            return steps[-1]

    def log():
        how = {"horizons": (6.0, float("inf"))} if "horizons" in per else {}
        how |= {"epochs": 2, "batch_size": 32, "seed": 0, "device": "cuda", "loop": Watched}
        # What a readout's dropout draws depends on how many rows it is shown.
        more = {"width": 16, "readout_dropout": 0.0} if name == "neural-cde" else {}
        sizes = {"hidden": 16, **more, **({"control": control[0]} if control else {})}
        return fit(task, name, model_settings=sizes, **how).history

    captured = log()
    monkeypatch.setattr(loop, "why_not", lambda model: "it is to be plain")
    plain = log()
    assert isinstance(steps[0], CapturedStep)
    assert steps[0]._graphs
    assert steps[1] is None
    assert len(captured) == len(plain) == 2
    for mine, other in zip(captured, plain, strict=True):
        for what in ("train_loss", "validation_loss"):
            assert mine[what] == pytest.approx(other[what], rel=1e-4, abs=1e-4), what
