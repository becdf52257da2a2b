"""Builds the sdist and the wheel, installs the wheel into empty environments, and uses it there: `make package`.

An environment holds the wheel, unpacked by pip, and exactly the distributions that its metadata asks for (with the
extras of the case, and what those need in turn), linked from the environment that runs this. So a file that the wheel
lacks, a package that is imported and not declared, and a command that does not start all fail; nothing is downloaded.
What this does not show is that an index has those distributions: that is `pip install` on a machine with a network.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "package"

CORE = """
import sys, time
import torch, onlinecde as oc
series = oc.SeriesBatch.from_arrays([[0.0, 1.0, 2.5]], [[[1.0, float("nan")], [float("nan"), 2.0], [3.0, 4.0]]])
model = oc.NeuralCDE(channels=2, hidden=4, field={"width": 4})
model(series).sum().backward()
path = oc.controls.rectilinear(series, counts=True)
solution = oc.solve(path, model.field, torch.zeros(1, 4))
assert solution.backend == "cpu", solution.reason
oc.save(model, "model", channels=["a", "b"])
with torch.no_grad():
    assert torch.equal(oc.load("model")(series), model(series))
    from onlinecde.streaming import Engine, Event, SQLiteStore
    engine = Engine("model", SQLiteStore("live.db"))
    assert engine.apply([Event("bed", 0.0, "a", 1.0)]).counts["applied"] == 1
    engine.close()
from onlinecde.data import simulate_ward
task = simulate_ward(20, seed=0, hours=6).task
oc.fit(task, "gru", epochs=1, model_settings={"hidden": 4})
try:
    frame = {"s": [1], "t": [0.0], "c": ["a"], "v": [1.0]}
    oc.SeriesBatch.from_long(frame, stream="s", time="t", channel="c", value="v")
except ModuleNotFoundError as error:
    assert "pip install 'onlinecde[data]'" in str(error), error
else:
    raise SystemExit("polars came with the core")
"""

DATA = """
import polars as pl, onlinecde as oc
frame = pl.DataFrame({"s": [1, 1], "t": [0.0, 1.0], "c": ["a", "b"], "v": [1.0, 2.0]})
assert oc.SeriesBatch.from_long(frame, stream="s", time="t", channel="c", value="v").channels == ("a", "b")
import onlinecde.data.meds, onlinecde.data.mimic.prepare
"""

SERVE = """
import torch, onlinecde as oc
model = oc.NeuralCDE(channels=2, hidden=4, field={"width": 4}, readout={"kind": "binary"})
oc.save(model, "served", channels=["a", "b"])
import onlinecde.serving.app, onlinecde.serving.running, onlinecde.serving.replay, onlinecde.serving.demo
from importlib.resources import files
assert (files("onlinecde.serving") / "page").is_dir()
"""

CASES: dict[str, tuple[tuple[str, ...], list[list[str]]]] = {
    "core": ((), [["python", "-c", CORE]]),
    "data": (("data",), [["python", "-c", DATA]]),
    "cli": (
        ("cli",),
        [
            ["onlinecde", "--help"],
            ["onlinecde", "fit", "--task", "simulated-ward", "--task-setting", "streams=40", "--model", "gru",
             "--hidden", "4", "--epochs", "1", "--out", "run"],
            ["onlinecde", "evaluate", "run", "--report", "report.html"],
            ["onlinecde", "plot", "controls", "--out", "controls.png"],
        ],
    ),
    "serve": (("serve",), [["python", "-c", SERVE], ["onlinecde", "serve", "--help"]]),
    "tune": (("tune",), [["onlinecde", "tune", "--help"], ["python", "-c", "import onlinecde.tuning, optuna, scipy"]]),
}  # fmt: skip
"""By name: the extras of an environment, and what is run in it."""


def main() -> None:
    """Build, then try every case."""
    shutil.rmtree(BUILD, ignore_errors=True)
    wheel = build()
    check_contents(wheel)
    for name, (extras, commands) in CASES.items():
        folder = environment(BUILD / name, wheel, extras)
        work = BUILD / f"{name}-work"
        work.mkdir()
        if "cli" not in extras:
            refuse_politely(folder, work, has_typer="serve" in extras or "tune" in extras)
        for command in commands:
            run([str(folder / "bin" / command[0]), *command[1:]], work)
        print(f"{name}: {len(commands)} commands ran", flush=True)


def build() -> Path:
    """The sdist from the tree, and the wheel from the sdist; returns the wheel."""
    out = BUILD / "dist"
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)], ROOT)
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    for file in (wheel, sdist):
        print(f"{file.name}: {file.stat().st_size / 2**20:.1f} MiB")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "SECURITY.md",
        "tests/conftest.py",
    ):
        assert needed in names, f"{sdist.name} lacks {needed}"
    return wheel


def check_contents(wheel: Path) -> None:
    """Every tracked file of the package is in the wheel, and nothing else but its metadata."""
    listed = subprocess.run(
        ["git", "ls-files", "src/onlinecde"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tracked = {line.removeprefix("src/") for line in listed.stdout.splitlines()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert "onlinecde/py.typed" in packed
    assert tracked <= packed, f"not in the wheel: {sorted(tracked - packed)}"
    assert packed <= tracked, f"in the wheel, not in git: {sorted(packed - tracked)}"


def environment(folder: Path, wheel: Path, extras: tuple[str, ...]) -> Path:
    """An empty environment with the wheel and what it declares."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run([*pip, "--no-deps", "--no-index", str(wheel)], ROOT)
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        own = Distribution.at(site / Path(metadata).parent)
    for found in closure(own, extras):
        link(found, site)
    return folder


def closure(start: Distribution, extras: tuple[str, ...]) -> list[Distribution]:
    """The distributions that one asks for, and those that they ask for."""
    wanted, seen, result = [(start, ("", *extras))], set(), {}
    while wanted:
        current, names = wanted.pop()
        for text in current.requires or ():
            requirement = Requirement(text)
            if requirement.marker and not any(
                requirement.marker.evaluate({"extra": name}) for name in names
            ):
                continue
            if requirement.name.lower() == "onlinecde":
                wanted.append((start, tuple(requirement.extras)))
                continue
            key = (requirement.name.lower(), tuple(sorted(requirement.extras)))
            if key in seen:
                continue
            seen.add(key)
            try:
                needed = distribution(requirement.name)
            except PackageNotFoundError:
                raise SystemExit(
                    f"{current.name} asks for {text}, which is not installed here"
                ) from None
            assert requirement.specifier.contains(needed.version, prereleases=True), (
                f"{text}: {needed.version}"
            )
            result[needed.name] = needed
            wanted.append((needed, ("", *requirement.extras)))
    return list(result.values())


def link(installed: Distribution, site: Path) -> None:
    """The files of a distribution, by links to the top of each folder."""
    source = Path(str(installed.locate_file("")))
    for top in {Path(file).parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
        target = site / top
        if not target.exists():
            target.symlink_to(source / top)


def refuse_politely(folder: Path, work: Path, *, has_typer: bool) -> None:
    """Without its extra the command says which one it needs."""
    if has_typer:
        return
    ended = subprocess.run(
        [str(folder / "bin" / "onlinecde"), "--help"],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended
    assert "pip install 'onlinecde[cli]'" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr


def run(command: list[str], where: Path) -> None:
    """A command, shown whole where it fails."""
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(where), "ONLINECDE_CACHE": str(BUILD / "cache")}
    ended = subprocess.run(
        command, cwd=where, capture_output=True, text=True, check=False, env=clean
    )
    if ended.returncode:
        print(ended.stdout[-4000:], ended.stderr[-4000:], sep="\n")
        raise SystemExit(f"{' '.join(command)[:200]} ended with {ended.returncode}")


if __name__ == "__main__":
    main()
