"""Every Python block of README and docs runs as it stands, in the order of its page.

So do the commands of blocks marked `sh run`.
"""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|sh run)\n(.*?)^```", re.MULTILINE | re.DOTALL)


WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run_in_order(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, match in enumerate(BLOCK.finditer(page.read_text())):
        if match.group(1) == "sh run":
            for line in match.group(2).replace("\\\n", " ").splitlines():
                run_command(line)
        else:
            exec(compile(match.group(2), f"{page.name}, block {number}", "exec"), names)


def run_command(line):
    from onlinecde.cli.app import main

    program, *arguments = shlex.split(line, comments=True) or ["onlinecde", "--help"]
    assert program == "onlinecde", f"a test cannot run {line!r}"
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_readme_shows_the_committed_results():
    from benchmarks.tables import README, with_tables

    assert README.read_text() == with_tables(README.read_text())


def test_the_page_on_predicting_shows_the_committed_results():
    from benchmarks.tables import PREDICT_PAGE, with_predict_tables

    assert PREDICT_PAGE.read_text() == with_predict_tables(PREDICT_PAGE.read_text())
