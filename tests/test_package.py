"""What `import onlinecde` costs and needs."""

import subprocess
import sys
from pathlib import Path

import onlinecde as oc

BARE = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            return None
        return self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
{code}
"""
OPTIONAL = ["duckdb", "matplotlib", "numba", "pandas", "polars", "pyarrow", "rich", "typer"]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_core_runs_with_torch_numpy_and_safetensors_alone():
    code = """
import torch, onlinecde as oc
import onlinecde.artifacts, onlinecde.audit
batch = oc.SeriesBatch.from_arrays([[0.0, 1.0, 2.5]], [[[1.0, float("nan")], [float("nan"), 2.0], [3.0, 4.0]]])
model = oc.NeuralCDE(channels=2, hidden=4, field={"width": 4})
model(batch).sum().backward()
with torch.no_grad():
    state = model.observe(model.init_state(), 0.0, [[1.0, float("nan")]])
    model.predict(state, 1.0)
path = oc.controls.rectilinear(batch, counts=True)
print(oc.solve(path, model.field, torch.zeros(1, 4)).reason)
"""
    said = run(BARE.format(blocked=OPTIONAL, code=code))
    assert "numba is not installed" in said


def test_importing_the_package_or_the_command_line_loads_no_torch():
    loaded = run("import sys, onlinecde, onlinecde.cli.app; print('torch' in sys.modules)")
    assert loaded.strip() == "False"


def test_every_public_name_is_there():
    for name in oc.__all__:
        assert getattr(oc, name) is not None
    assert set(oc.__all__) <= set(dir(oc))


def test_type_checkers_find_its_types():
    assert Path(oc.__file__).with_name("py.typed").is_file()
