"""The site's reference and notebooks follow the code: every public name, command, route and setting is there."""

import re
import sys
from pathlib import Path

import pytest

import onlinecde

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs"))

import notebook_files  # noqa: E402
import reference_pages  # noqa: E402

NAMES = [(room, name) for room, names in reference_pages.public_names().items() for name in names]


def examples_of(room):
    """Blocks that tests run, of the examples page of a room."""
    file = reference_pages.EXAMPLES / f"{room}.md"
    text = file.read_text() if file.exists() else ""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def pages():
    return reference_pages.pages()


@pytest.mark.parametrize("room", reference_pages.ROOMS)
def test_every_public_name_has_an_entry_and_an_example_that_runs(room, pages):
    shown = examples_of(room)
    for name in reference_pages.public_names()[room]:
        assert f"\n## {name}\n" in pages[f"{room}.md"]
        entry = reference_pages.entry(room, name)
        assert ">>>" in entry or re.search(rf"\b{name}\b", shown), (
            f"onlinecde.{room}.{name}: no example in its docstring or in docs/reference/examples/{room}.md"
        )


def test_every_package_is_a_room_or_not_for_users():
    packages = {file.parent.name for file in Path(onlinecde.__file__).parent.glob("*/__init__.py")}
    assert packages - set(reference_pages.ROOMS) == {"cli"}


def test_every_command_has_its_options_and_an_example(pages):
    examples = reference_pages.example_sections("command_line")
    found = reference_pages.commands()
    assert set(examples) == set(found), "docs/reference/examples/command_line.md"
    for words, command in found.items():
        assert f"onlinecde {words.removeprefix('onlinecde ')}" in examples[words]
        part = pages["command_line.md"].partition(f"\n## {words}\n")[2].partition("\n## ")[0]
        for option in command.params:
            if option.param_type_name == "option" and option.name != "help" and not option.hidden:
                assert f"`{option.opts[0]}`" in part, f"{words} {option.opts[0]}"


def test_every_route_is_described_and_used(pages):
    used = examples_of("http_api")
    for method, path, _ in reference_pages.routes(reference_pages.api()):
        assert f"\n## {method} {path}\n" in pages["http_api.md"]
        address = re.sub(r"\\\{\w+\\\}", r"[\\w {}]+", re.escape(path))
        assert re.search(rf'\.{method.lower()}\(f?"{address}"', used), (
            f"{method} {path} is not used in docs/reference/examples/http_api.md"
        )


def test_every_error_code_has_a_line(pages):
    codes = reference_pages.error_codes()
    assert {"too_late", "stream_unknown", "token_wrong", "body_too_large"} <= set(codes)
    assert all(f"| `{code}` |" in pages["errors.md"] for code in codes)


def test_every_environment_variable_is_described():
    found = set()
    for file in (ROOT / "src").rglob("*.py"):
        found |= set(re.findall(r"ONLINECDE_[A-Z]+(?:_[A-Z]+)*", file.read_text()))
    of_workers = {"ONLINECDE_SIDE_BY_SIDE", "ONLINECDE_OVERLOAD_SECONDS"}
    of_limits = {"ONLINECDE_RESIDENT", "ONLINECDE_BURST"}  # examples of ONLINECDE_NAME
    assert found - of_workers - of_limits == set(reference_pages.ENVIRONMENT)


def test_the_notebooks_are_those_of_the_site():
    for name, content in notebook_files.notebooks().items():
        assert (notebook_files.EXAMPLES / name).read_text() == content, (
            "run: python docs/notebook_files.py"
        )
