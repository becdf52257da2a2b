"""The online step leaves the package: torch.export, and torch.compile of a training step."""

import pytest
import torch

import onlinecde as oc
from onlinecde.models.export import export_online
from onlinecde.models.flat_settings import neural_cde


def rows(model, streams, count):
    torch.manual_seed(streams)
    for row in range(count):
        x = torch.randn(streams, model.channels)
        if model.control == "rectilinear":
            x[torch.rand(x.shape) < 0.4] = torch.nan
        yield torch.rand(streams, dtype=torch.float64) + row, x


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"static": 2, "field_sees_path": True, "readout_sees_path": True, "readout_width": 5},
        {"static": 2, "static_in_path": True, "field_sees_path": True, "readout_sees_path": True},
        {"control": "hermite", "steps": 2},
        {"readout_sees_path": True, "readout_ramps": 3},
        {"static": 2, "readout_sees_path": True, "readout_ramps": 3, "readout_width": 5},
        {"control": "linear", "readout_sees_path": True, "readout_ramps": 2},
        {
            "readout_sees_path": True,
            "readout_ramps": 3,
            "readout_steps": 4,
            "kind": "binary",
            "outputs": 1,
        },
    ],
    ids=str,
)
def test_exported_programs_follow_any_number_of_streams(settings, tmp_path):
    model = neural_cde(**{"channels": 3, "hidden": 6, "width": 5, "outputs": 2, **settings}).eval()
    if model.readout.steps is not None:
        model.readout.steps.put(
            -1.0, [0, 2, 7], [0.0, -0.5, 0.1], [1.0, 0.5, 0.4], [1.0, -2.0, 3.0]
        )
    if model.readout.ramps is not None:
        lines = torch.randn(500, model.readout.ramps.inputs)
        model.readout.ramps.fit(lines)
    programs = export_online(model)
    torch.export.save(programs.observe, tmp_path / "observe.pt2")
    observe = torch.export.load(tmp_path / "observe.pt2").module()
    predict = programs.predict.module()
    for streams in (1, 5):
        static = torch.randn(streams, 2) if "static" in settings else None
        with torch.no_grad():
            state = model.init_state(streams, static)
            held = [getattr(state, name) for name in vars(state)]
            held = [tensor.clone() for tensor in held if tensor is not None]
            for t, x in rows(model, streams, 4):
                state = model.observe(state, t, x)
                held = observe(*held, t, x)
                torch.testing.assert_close(predict(*held, t + 0.5), model.predict(state, t + 0.5))


@pytest.mark.parametrize("settings", [{}, {"readout_sees_path": True, "readout_ramps": 2}], ids=str)
def test_a_merge_inside_an_exported_program(settings):
    model = neural_cde(channels=2, hidden=4, width=4, **settings).eval()
    programs = export_online(model)
    observe, predict = programs.observe.module(), programs.predict.module()
    nan = float("nan")
    with torch.no_grad():
        state = model.init_state(1)
        held = [t.clone() for t in (getattr(state, n) for n in vars(state)) if t is not None]
        for t, x in ((0.0, [1.0, nan]), (1.0, [nan, 2.0]), (1.0, [3.0, nan])):
            held = observe(*held, torch.tensor([t], dtype=torch.float64), torch.tensor([x]))
        together = model.observe(model.observe(state, 0.0, [[1.0, nan]]), 1.0, [[3.0, 2.0]])
        later = torch.tensor([1.5], dtype=torch.float64)
        torch.testing.assert_close(predict(*held, later), model.predict(together, 1.5))
    torch.testing.assert_close(held[0], together.z)


def test_steps_chosen_by_the_data_cannot_be_exported():
    with pytest.raises(ValueError, match="fixed number of steps"):
        export_online(oc.NeuralCDE(channels=2, solver={"max_step": 0.5}))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings", [{}, {"readout_sees_path": True, "readout_ramps": 2, "readout_width": 5}], ids=str
)
def test_a_compiled_training_step_has_the_same_gradients(settings):
    torch.manual_seed(0)
    model = neural_cde(channels=3, hidden=6, width=5, **settings)
    batch = oc.SeriesBatch.from_padded(
        torch.rand(4, 5, dtype=torch.float64).cumsum(1), torch.randn(4, 5, 3), [5, 2, 5, 4]
    )
    model.fit_scales(batch)
    labels = torch.where(batch.real, 1.0, torch.nan)

    def loss():
        return model.readout.loss(model(batch), labels)

    loss().backward()
    eager = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.compile(loss, backend="aot_eager")().backward()
    for parameter, wanted in zip(model.parameters(), eager, strict=True):
        torch.testing.assert_close(parameter.grad, wanted)
