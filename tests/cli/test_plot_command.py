"""`onlinecde plot` from end to end, and the weight of importing the command line."""

import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

import onlinecde
from onlinecde.cli.app import app


def test_controls_writes_both_pictures_in_both_formats(tmp_path):
    ran = CliRunner().invoke(app, ["plot", "controls", "--out", str(tmp_path / "new")])
    assert ran.exit_code == 0, ran.output
    names = ["controls.png", "controls.svg", "measurability.png", "measurability.svg"]
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == names
    assert all(name in ran.output.replace("\n", "") for name in names)


def test_importing_the_command_line_is_light():
    """The command files on their own: the package around them is a stand-in with nothing in it."""
    folder = Path(onlinecde.__file__).parent
    code = f"""
import sys, types
package = types.ModuleType("onlinecde")
package.__path__ = [{str(folder)!r}]
sys.modules["onlinecde"] = package
import onlinecde.cli
heavy = {{"torch", "numpy", "matplotlib", "polars", "numba", "duckdb", "rich.table"}}
print(sorted(heavy & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_help_names_the_commands():
    ran = CliRunner().invoke(app, ["--help"])
    assert "properties" in ran.output
    assert "plot" in ran.output
