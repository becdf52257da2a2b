"""The notebooks as `.ipynb`, without outputs: `python docs/notebook_files.py` writes them to examples/."""

from __future__ import annotations

import json
from pathlib import Path

from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"


def notebooks() -> dict[str, str]:
    """Every notebook as JSON, by file name."""
    result = {}
    for file in sorted((HERE / "notebooks").glob("*.md")):
        if file.name == "index.md":
            continue
        text = file.read_text()
        book = read_myst_markdown_notebook(text, MdParserConfig(), "{code-cell}")
        for number, cell in enumerate(book.cells):
            cell["id"] = f"cell-{number}"
            cell["metadata"] = {}
            cell["source"] = cell["source"].replace("](../", "](../docs/")
        book.metadata = {"kernelspec": dict(book.metadata["kernelspec"])}
        book.nbformat, book.nbformat_minor = 4, 5
        result[f"{file.stem}.ipynb"] = json.dumps(book, indent=1, sort_keys=True) + "\n"
    return result


if __name__ == "__main__":
    for name, content in notebooks().items():
        (EXAMPLES / name).write_text(content)
