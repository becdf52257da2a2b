"""Names say what they hold: words that say nothing are no names, and a file name has one job."""

import ast
from collections import defaultdict
from pathlib import Path

import onlinecde

SOURCE = Path(onlinecde.__file__).parent
VAGUE = {"told", "found", "held", "how", "many"}
ALLOWED = {
    "experiments": {"found"},  # `reproduce --found FOLDER`, and a key of table files
    "files.py": {"held"},  # `with held(file):`
}
UNFINISHED = {
    "evaluation",
    "training",
    "cli",
    "data",
    "serving",
    "streaming",
    "kernels/cpu",
    "models",
    "series",
}
"""Rooms whose names are still to be changed; this list only becomes shorter."""
# fmt: off
SHARED = {
    "alarms", "answers", "app", "asking", "base", "columns", "demo", "errors", "events", "export",
    "files", "forecasting", "intervals", "jobs", "live", "metrics", "packing", "parts", "past", "plan", "properties",
    "protocols", "replay", "report", "running", "settings", "solve", "state", "tables", "tokens",
}
# fmt: on
"""File names that several rooms use; a new file gets a name of its own, so this list only becomes shorter."""


def vague_names(file):
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.attr]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
        yield from (name for name in names if name in VAGUE)


def test_no_name_says_nothing():
    vague = defaultdict(set)
    for file in SOURCE.rglob("*.py"):
        place = file.relative_to(SOURCE).as_posix()
        room = next(
            (one for one in UNFINISHED if place.startswith(f"{one}/")), place.partition("/")[0]
        )
        vague[room] |= set(vague_names(file)) - ALLOWED.get(room, set())
    wrong = {room: names for room, names in vague.items() if names and room not in UNFINISHED}
    assert not wrong, "say what they hold: payload, result, settings, count"
    assert all(vague[room] for room in UNFINISHED), "finished: take it from the list"


def test_no_file_name_is_used_twice():
    places = defaultdict(set)
    for file in SOURCE.rglob("*.py"):
        places[file.stem].add(file.parent)
    several = {name for name, folders in places.items() if len(folders) > 1}
    assert several - {"__init__"} == SHARED
