"""A model in ONNX graphs says what the model says, run by onnxruntime alone; too old a one is refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import onlinecde as oc
from onlinecde.artifacts import ArtifactError
from onlinecde.artifacts import onnx_folder as home
from onlinecde.artifacts.onnx_folder import save_onnx
from onlinecde.cli.app import main
from onlinecde.series.static_columns import StaticColumn

STATIC = (StaticColumn("age", fill=61.0, indicator=True), StaticColumn("sex", ("f", "m")))
CLIENT = Path(__file__).parents[1] / "examples" / "onnx_client.py"
RECIPE = {
    "static": 4,
    "encoding": {"bounded": True, "static_in_path": True, "gain": 0.5, "count_scale": "log"},
    "field": {"width": 16, "restoring": 0.1, "sees_path": True},
    "readout": {"kind": "binary", "sees_path": True, "ramps": 3, "steps": 4, "width": 8, "members": 4},
}  # fmt: skip


def series(streams, rows, static=0, gaps=True):
    values = torch.randn(streams, rows, 3) * 5 + 40
    if gaps:
        values[torch.rand(values.shape) < 0.4] = torch.nan
    times = torch.rand(streams, rows, dtype=torch.float64).cumsum(1) + 1e-3
    features = torch.randn(streams, static) if static else None
    return oc.SeriesBatch.from_padded(times, values, static=features)


def ramped(settings):
    """A model with fitted scales, ramps at quantiles, and steps."""
    model = oc.NeuralCDE(3, 6, **settings).fit_scales(series(30, 8, settings.get("static", 0)))
    if model.readout.steps is not None:
        model.readout.steps.put(
            -1.0, [0, 2, 7], [0.0, -0.5, 0.1], [1.0, 0.5, 0.4], [1.0, -2.0, 3.0]
        )
    return model.eval()


MODELS = {
    "fit's recipe": lambda: ramped(RECIPE),
    "hermite": lambda: ramped({"control": "hermite", "solver": {"steps": 2}}),
    "gru": lambda: oc.GRUdtIntensity(3, 4, 2, layers=2).eval(),
    "gru-d": lambda: oc.GRUD(3, 4, 3, static=4, kind="multiclass").eval(),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Models and the folders they were exported to by the command, each once: tracing takes seconds."""
    known = {}

    def export(name):
        if name not in known:
            home, model = tmp_path_factory.mktemp("onnx"), MODELS[name]()
            model.schema = oc.Schema(("hr", "bp", "temp"), STATIC if model.static else (), "hours")
            oc.save(model, home / "model", extra={"classes": ["0", "1"]})
            with pytest.raises(SystemExit) as ended:
                main(["export", str(home / "model"), "--onnx", str(home / "onnx")])
            assert not ended.value.code
            known[name] = model, home / "onnx"
        return known[name]

    return export


def functions(folder):
    """init, observe and predict, each of arrays in the order of `model.json`."""
    about = json.loads((folder / "model.json").read_text())

    def function(graph):
        session = onnxruntime.InferenceSession(str(folder / graph["file"]))
        names = [one["name"] for one in graph["inputs"]]
        return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))

    return [function(about["graphs"][name]) for name in ("init", "observe", "predict")]


@pytest.mark.parametrize("name", MODELS)
def test_graphs_follow_a_whole_series_for_any_number_of_streams(name, exported):
    model, folder = exported(name)
    about = json.loads((folder / "model.json").read_text())
    assert about["onnxruntime"]["checked"]["difference"] <= 1e-5
    assert about["channels"] == ["hr", "bp", "temp"]
    init, observe, predict = functions(folder)
    for streams in (1, 4):
        batch = series(streams, 30, model.static, gaps=name != "hermite")
        with torch.no_grad():
            wanted = model(batch).numpy()
        state = init(batch.static.numpy() if model.static else np.zeros(streams))
        for row in range(30):
            t, x = batch.times[:, row].numpy(), batch.values[:, row].numpy()
            state = observe(*state, t, x)
            outputs, shares = predict(*state, t)
            scale = max(1.0, np.abs(wanted).max())
            assert np.abs(outputs - wanted[:, row]).max() / scale <= 1e-5
            likely = model.readout.probabilities(torch.from_numpy(outputs))
            np.testing.assert_allclose(shares, likely, atol=1e-6)


def test_between_rows_and_within_an_instant_a_graph_does_as_the_model(exported):
    model, folder = exported("fit's recipe")
    init, observe, predict = functions(folder)
    static, nan = np.array([[71.0, 0.0, 1.0, 0.0]], np.float32), float("nan")
    state, own = init(static), model.init_state(1, static)
    for t, x in ((0.0, [40.0, nan, nan]), (1.0, [nan, 42.0, nan]), (1.0, [41.0, nan, nan])):
        own = model.observe(own, t, [x])
        state = observe(*state, np.array([t]), np.array([x], np.float32))
        outputs, _ = predict(*state, np.array([2.5]))
        np.testing.assert_allclose(outputs, model.predict(own, 2.5).detach(), atol=1e-5)


def test_the_example_follows_streams_without_torch_or_this_package(exported):
    model, folder = exported("fit's recipe")
    lines = "stream,time,hr,bp,age,sex\na,0,40,,71,f\nb,0.5,,41,,m\na,1.5,,39,,\na,1.5,44,,,\n"
    program = (
        "import sys, runpy\n"
        "for name in ('torch', 'onlinecde', 'polars'): sys.modules[name] = None\n"
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(CLIENT), str(folder)],
        input=lines, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = [line.split() for line in done.stdout.splitlines()]
    assert [line[:2] for line in said] == [["a", "0.0"], ["b", "0.5"], ["a", "1.5"], ["a", "1.5"]]
    with torch.no_grad():
        state = model.observe(model.init_state(static={"age": 71, "sex": "f"}), 0.0, {"hr": 40.0})
        state = model.observe(state, 1.5, {"hr": 44.0, "bp": 39.0})
        assert float(said[3][2]) == pytest.approx(float(model.predict(state).sigmoid()), abs=1e-5)
        state = model.observe(model.init_state(static={"sex": "m"}), 0.5, {"bp": 41.0})
        assert float(said[1][2]) == pytest.approx(float(model.predict(state).sigmoid()), abs=1e-5)


def test_the_example_refuses_an_onnxruntime_that_is_too_old(exported, tmp_path):
    about = json.loads((exported("fit's recipe")[1] / "model.json").read_text())
    about["onnxruntime"]["at_least"] = "999.1"
    (tmp_path / "model.json").write_text(json.dumps(about))
    words = [sys.executable, str(CLIENT), str(tmp_path)]
    done = subprocess.run(words, input="", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is too old: install 999.1 or newer" in done.stderr


def test_what_cannot_be_exported_says_why_and_writes_nothing(tmp_path, monkeypatch):
    plain, target = oc.GRU(1, 2, 1).eval(), tmp_path / "onnx"
    for model, why in (
        (oc.NeuralCDE(2, solver={"max_step": 0.5}), "fixed number of steps"),
        (oc.NeuralCDE(2, control="natural_cubic"), "needs the whole series"),
        (oc.ODERNN(2), "ODERNN has no exported step"),
    ):
        with pytest.raises(ArtifactError, match=why):
            save_onnx(model, target)
    monkeypatch.setattr(onnxruntime, "__version__", "1.16.3")
    with pytest.raises(ArtifactError, match=r"1\.16\.3 is too old: the graphs need 1\.19"):
        save_onnx(plain, target)
    monkeypatch.undo()
    monkeypatch.setattr(home, "TOLERANCE", -1.0)
    with pytest.raises(ArtifactError, match="the graphs differ from the model"):
        save_onnx(plain, target)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ArtifactError, match=r"pip install 'onlinecde\[onnx\]'"):
        save_onnx(plain, target)
    assert not list(tmp_path.iterdir())
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match="is there already"):
        save_onnx(plain, target)
