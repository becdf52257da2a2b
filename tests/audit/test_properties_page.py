"""docs/properties.md says what the code measures, and its code runs."""

import ast
import re
from pathlib import Path

import pytest

from onlinecde.cli.properties import as_markdown

PAGE = Path(__file__).parents[2] / "docs" / "properties.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_table_is_what_is_measured(page, measured_table):
    written = re.search(r"<!-- table: .* -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert written is not None
    assert written[1] == as_markdown(measured_table), (
        "paste the output of `onlinecde properties --markdown` into docs/properties.md"
    )


def test_the_code_runs_and_prints_what_it_says(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(block, names)
    promised = "".join(re.findall(r"^# (.*)$", blocks[0], re.MULTILINE))
    printed = capsys.readouterr().out.splitlines()
    assert ast.literal_eval(printed[0]) == ast.literal_eval(promised)
    assert printed[2] == "Measurability.OFFLINE"


def test_its_pictures_are_there(page):
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", page)
    assert len(pictures) == 2
    assert all((PAGE.parent / picture).is_file() for picture in pictures)
