"""docs/audit.md: its code runs, and prints what the page says."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


def test_the_code_runs_and_prints_what_it_says(capsys):
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 4
    names: dict = {"__name__": "page"}
    for block in blocks:
        exec(block, names)
    printed = " ".join(capsys.readouterr().out.split())
    shown = re.findall(r"```\n\n((?:    .*\n)+)", page)
    assert len(shown) == 2
    for text in shown:
        # `...` stands for numbers that are nobody's business.
        pattern = ".+?".join(re.escape(part) for part in " ".join(text.split()).split("..."))
        assert re.search(pattern, printed), f"not printed: {text}"
    assert "the model is a 'FadingMean', which is none of" in printed
