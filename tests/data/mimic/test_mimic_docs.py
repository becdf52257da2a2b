"""docs/mimic.md: its example runs, and its table of settings is true."""

import re
import textwrap
from dataclasses import fields
from pathlib import Path

from onlinecde.data.mimic import LABORATORY, VITAL_SIGNS, MimicSettings
from onlinecde.data.mimic.database import CONCEPTS, read_concept

PAGE = Path(__file__).parents[3] / "docs" / "mimic.md"


def test_the_example_runs(made_folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "mimic-iv-3.1").symlink_to(made_folder)
    monkeypatch.chdir(tmp_path)
    block = re.search(
        r"\n\n((?:    [^\n]*\n|\n)*? {4}from onlinecde.*?)\n\n\S", PAGE.read_text(), re.S
    )
    assert block is not None
    names: dict = {}
    exec(textwrap.dedent(block[1]), names)
    assert names["task"].name == "mimic-iv/sepsis"
    assert len(names["sofa"]) > 100
    assert "ICU stays" in capsys.readouterr().out


def test_the_table_of_settings_holds_every_setting_with_its_values():
    paper, clean = MimicSettings.paper(), MimicSettings.clean()
    listed = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if len(cells) < 3:
            continue
        names = cells[0].split(", ")
        if names[-1].startswith("_"):
            names[-1] = re.sub("_before_culture$", names[-1], names[0])
        values = zip(cells[1].split(", "), cells[2].split(", "), strict=False)
        listed |= dict(zip(names, values, strict=False))
    for field in fields(MimicSettings):
        held = tuple(getattr(s, field.name) for s in (paper, clean))
        told = tuple(f"{v:g}" if type(v) in (int, float) else str(v) for v in held)
        told = tuple(t.lower() if t in ("True", "False") else t for t in told)
        assert listed[field.name] == told, field.name


def test_every_table_and_channel_is_on_the_page():
    text = PAGE.read_text()
    for name in CONCEPTS:
        for table in re.findall(r"create table (\w+)", read_concept(name)):
            assert f"`{table}`" in text, table
    for channel in (*VITAL_SIGNS, *LABORATORY):
        assert re.search(rf"\b{channel}\b", text), channel
