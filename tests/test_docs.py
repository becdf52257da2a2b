"""Every Python block of README and docs runs as it stands, in the order of its page.

So do the commands of blocks marked `sh run`. A block of text after a block of Python is what that prints.
"""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = {DOCS / "architecture.md", DOCS / "changelog.md", DOCS / "contributing.md"}
"""Pages that building the site leaves behind, beside those of docs/reference"""
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted(DOCS.rglob("*.md"))
        if page not in GENERATED
        and page.parent != DOCS / "reference"
        and "_build" not in page.parts
    ),
]
BLOCK = re.compile(
    r"^```(python|sh run)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL
)
NUMBER = re.compile(r"-?\d+\.?\d*")


WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run_in_order(page, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, match in enumerate(BLOCK.finditer(page.read_text())):
        if match.group(1) == "sh run":
            for line in match.group(2).replace("\\\n", " ").splitlines():
                run_command(line)
        else:
            capsys.readouterr()
            exec(compile(match.group(2), f"{page.name}, block {number}", "exec"), names)
            if match.group(3):
                check_printed(capsys.readouterr().out, match.group(3))


def check_printed(out, shown):
    """The same words, and numbers that differ by a training's rounding at most."""
    assert NUMBER.sub("#", out) == NUMBER.sub("#", shown), out
    for printed, expected in zip(NUMBER.findall(out), NUMBER.findall(shown), strict=True):
        assert abs(float(printed) - float(expected)) <= 1, out


def run_command(line):
    from onlinecde.cli.app import main

    program, *arguments = shlex.split(line, comments=True) or ["onlinecde", "--help"]
    assert program == "onlinecde", f"a test cannot run {line!r}"
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    # Examples stand on the pages of docs/reference.
    folder = page.parent.parent if page.parent.name == "examples" else page.parent
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://", "reference/", "../reference/")):
            assert (folder / target).exists(), f"{page.name} links to {target}"


def test_readme_and_the_page_on_speed_show_the_committed_results():
    from benchmarks.tables import FAST_PAGE, README, with_fast_tables, with_tables

    assert README.read_text() == with_tables(README.read_text())
    assert FAST_PAGE.read_text() == with_fast_tables(FAST_PAGE.read_text())


def test_the_page_on_predicting_shows_the_committed_results():
    from benchmarks.tables import PREDICT_PAGE, with_predict_tables

    assert PREDICT_PAGE.read_text() == with_predict_tables(PREDICT_PAGE.read_text())
