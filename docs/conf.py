"""The site: Sphinx with MyST and furo. `make docs` builds it, `make docs-serve` shows it."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference_pages  # noqa: E402

from onlinecde.version import __version__  # noqa: E402

project = "onlinecde"
author = "The onlinecde authors"
version = release = __version__
extensions = ["myst_nb"]
exclude_patterns = ["_build", "reference/examples"]
html_theme = "furo"
html_title = f"onlinecde {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
templates_path = []
language = "en"
nitpicky = True
pygments_style, pygments_dark_style = "friendly", "monokai"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 240
nb_merge_streams = True

FROM_ROOT = {
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
"""Pages that are files of the repository's root"""
FLOW = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def plain_flow(match: re.Match[str]) -> str:
    """A flowchart as lines of text: the site loads no scripts from elsewhere, which drawing it would take."""
    names: dict[str, str] = {}

    def label(node: str) -> str:
        name, _, text = node.strip().partition("[")
        if text:
            names[name] = text.rstrip("]").strip('"').replace("<br>", ": ")
        return names.get(name, name)

    chains = []
    for line in match.group(1).splitlines():
        for chain in line.split(" & "):
            nodes = re.split(r"\s*(?:-->(?:\|[^|]*\|)?|-\..*?\.->)\s*", chain.strip())
            if len(nodes) > 1:
                chains.append(" \N{RIGHTWARDS ARROW} ".join(label(node) for node in nodes))
    return "```text\n" + "\n".join(chains) + "\n```\n"


def from_root(name: str) -> str:
    """A file of the root as a page of the site: links lead from docs/ now."""
    text = (HERE.parent / name).read_text()
    text = re.sub(r"\]\(docs/([^)]*)\)", r"](\1)", text)
    text = re.sub(r"\]\((benchmarks|results|src|examples|deploy)/", r"](../\1/", text)
    for page, file in FROM_ROOT.items():
        text = text.replace(f"]({file})", f"]({page})")
    return text.replace("](README.md)", "](index.md)").replace(
        "](design)", "](design/decisions.md)"
    )


def prepare(app, docname: str, source: list[str]) -> None:
    """Make of a page that reads well in the repository one that Sphinx can check."""
    text = FLOW.sub(plain_flow, source[0])
    text = re.sub(r'^<a id="([\w-]+)"></a>$', r"(\1)=", text, flags=re.MULTILINE)
    for page, file in FROM_ROOT.items():
        up = "../" * (docname.count("/") + 1)
        text = text.replace(f"]({up}{file}", f"]({'../' * docname.count('/')}{page}")
    source[0] = re.sub(r"\[([^\]]*)\]\((\.\.[^)#]*)\)", without_folders(docname), text)


def without_folders(docname: str):
    """Links to folders of the repository become the folder's name: a page cannot show a folder."""

    def replace(match: re.Match[str]) -> str:
        target = (HERE / docname).parent / match.group(2)
        if not target.is_dir():
            return match.group(0)
        folder = target.resolve().relative_to(HERE.parent)
        shown = match.group(1)
        return f"`{folder}/`" if shown.strip("/") == str(folder) else f"{shown} (`{folder}/`)"

    return replace


def setup(app) -> None:
    """Write what is generated, before Sphinx looks for pages."""
    reference_pages.write()
    for page, file in FROM_ROOT.items():
        text = from_root(file)
        if not (HERE / page).exists() or (HERE / page).read_text() != text:
            (HERE / page).write_text(text)
    app.connect("source-read", prepare)
