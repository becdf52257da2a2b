"""Random tests can be repeated: every generator has a seed, and nothing is drawn before a test begins."""

import ast
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).parent.rglob("*.py"))
DRAWS = ("rand", "randn", "randint", "randperm", "random", "normal", "choice", "shuffle", "uniform")


def name_of(node):
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def unseeded(tree):
    """Lines of generators without a seed."""
    seeded = {
        id(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node).endswith(".manual_seed")
        if isinstance(node.func, ast.Attribute)
    }
    for node in ast.walk(tree):
        name = name_of(node)
        if name.endswith(("default_rng", "Random", "RandomState")) and not (
            node.args or node.keywords
        ):
            yield node.lineno
        if name.endswith("torch.Generator") and id(node) not in seeded:
            yield node.lineno


def drawn_on_import(tree):
    """Lines at which a module draws from a global generator while it is imported."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += node.decorator_list if not isinstance(node, ast.Lambda) else []
            continue
        name = name_of(node)
        of, _, drawn = name.rpartition(".")
        own = any(keyword.arg == "generator" for keyword in getattr(node, "keywords", ()))
        if not own and drawn in DRAWS and of in ("torch", "np.random", "numpy.random", "random"):
            yield node.lineno
        waiting += ast.iter_child_nodes(node)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_generator_has_a_seed_and_nothing_is_drawn_on_import(file):
    tree = ast.parse(file.read_text())
    assert list(unseeded(tree)) == []
    assert list(drawn_on_import(tree)) == []


def test_what_it_looks_for_is_found():
    tree = ast.parse(
        "x = torch.randn(3)\ndef f():\n    g = np.random.default_rng()\n    h = torch.Generator()"
    )
    assert list(unseeded(tree)) == [3, 4]
    assert list(drawn_on_import(tree)) == [1]
