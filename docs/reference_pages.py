"""Writes the reference pages from the code: Python names, commands, HTTP routes, error codes, settings.

`pages()` gives each page as Markdown; the site writes them beside `examples/`, whose blocks tests run.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REFERENCE = HERE / "reference"
EXAMPLES = REFERENCE / "examples"
SOURCE = HERE.parent / "src" / "onlinecde"

ROOMS = {
    "series": "what was observed",
    "controls": "series to paths",
    "solvers": "solving dz = f(z) dX",
    "models": "the Neural CDE and the baselines",
    "artifacts": "models as folders",
    "audit": "measured properties of any path or model",
    "data": "tables, tasks and data sets",
    "training": "fit",
    "evaluation": "how good a model is",
    "scoring": "scores of new streams",
    "tuning": "search for settings",
    "sklearn": "scikit-learn estimators",
    "plots": "figures",
    "streaming": "live streams",
    "serving": "the live server",
    "scale": "Spark and Ray",
    "experiments": "the paper's tables",
    "kernels": "which compiled code is there",
}
SECTIONS = ("Args", "Returns", "Raises", "Yields", "Attributes", "Note")
ENVIRONMENT = {
    "ONLINECDE_CACHE": "folder of prepared data and of compiled kernels of a GPU; default `~/.cache/onlinecde`",
    "ONLINECDE_DATA": "folder of the data sets that cannot be downloaded, or were already",
    "ONLINECDE_CLUSTERS": "`0` leaves out CUDA kernels on thread-block clusters (compute capability 9)",
    "ONLINECDE_NAME": "a limit of `onlinecde serve` by name, as in `ONLINECDE_RESIDENT=20000` (`--show-settings`)",
    "ONLINECDE_TOKEN": "access token that `onlinecde replay` sends",
}
"""Environment variables that a user may set; others are of tests and workers."""


def pages() -> dict[str, str]:
    """Every reference page, by file name."""
    result = {f"{room}.md": room_page(room) for room in ROOMS}
    return {
        "index.md": index_page(),
        **result,
        "command_line.md": command_page(),
        "http_api.md": http_page(),
        "errors.md": errors_page(),
        "settings.md": settings_page(),
    }


def write() -> None:
    """Write all pages, leaving those that have not changed alone."""
    for name, text in pages().items():
        file = REFERENCE / name
        if not file.exists() or file.read_text() != text:
            file.write_text(text)


# Python names ---------------------------------------------------------------------------------


def public_names() -> dict[str, tuple[str, ...]]:
    """Public names by room: what its `__all__` lists."""
    return {room: tuple(importlib.import_module(f"onlinecde.{room}").__all__) for room in ROOMS}


def index_page() -> str:
    """The list of rooms, and of what is reached from `onlinecde` itself."""
    import onlinecde

    lines = ["# Python", "", "`import onlinecde as oc`. Names that are reached directly:", ""]
    lines += ["| name | |", "|---|---|"]
    for name in onlinecde.__all__:
        if name in ROOMS or name.startswith("__"):
            continue
        room = onlinecde._HOMES[name]
        summary = first_line(getattr(onlinecde, name))
        lines.append(f"| [`oc.{name}`]({room}.md#{anchor(room, name)}) | {cell(summary)} |")
    lines += ["", "All public names, by package:", "", "| package | |", "|---|---|"]
    lines += [f"| [`onlinecde.{room}`]({room}.md) | {about} |" for room, about in ROOMS.items()]
    lines += ["", "```{toctree}", ":hidden:", "", *ROOMS, "```", ""]
    return "\n".join(lines)


def room_page(room: str) -> str:
    """One package: its docstring, its examples, every public name."""
    module = importlib.import_module(f"onlinecde.{room}")
    lines = [f"# onlinecde.{room}", "", markdown(inspect.getdoc(module) or ""), ""]
    lines += ["| name | |", "|---|---|"]
    names = public_names()[room]
    for name in names:
        lines.append(
            f"| [`{name}`](#{anchor(room, name)}) | {cell(first_line(getattr(module, name)))} |"
        )
    examples = EXAMPLES / f"{room}.md"
    if examples.exists():
        lines += ["", "## Examples", "", examples.read_text().partition("\n")[2].strip()]
    for name in names:
        lines += ["", f"({anchor(room, name)})=", f"## {name}", "", entry(room, name)]
    return "\n".join(lines) + "\n"


def anchor(room: str, name: str) -> str:
    """The anchor of a name on the page of its room."""
    kind = "-constant" if name.isupper() else ""
    return f"{room}-{name}{kind}".lower().replace("_", "-")


def entry(room: str, name: str) -> str:
    """The signature and the words of one name."""
    value = getattr(importlib.import_module(f"onlinecde.{room}"), name)
    if inspect.ismodule(value):
        return markdown(inspect.getdoc(value) or "")
    if not callable(value) or not (inspect.isclass(value) or inspect.isfunction(value)):
        return f"```python\n{name}: {type(value).__name__}\n```\n\n" + attribute_text(room, name)
    parts = [signature(name, value), markdown(inspect.getdoc(value) or "")]
    if inspect.isclass(value):
        parts += list(members(value))
    return "\n\n".join(part for part in parts if part)


def signature(name: str, value: Any) -> str:
    """A signature as a block of code, one argument a line where it is long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return f"```python\n{name}\n```"
    text = re.sub(r"<factory>", "...", re.sub(r"<([\w.]+)( object)? at 0x\w+>", r"\1", str(found)))
    text = re.sub(r"\b(?:onlinecde|collections|typing|torch)(?:\.\w+)*\.(\w+)", r"\1", text)
    text = text.replace("'", "") if found.return_annotation is not found.empty else text
    if len(name) + len(text) > 88 and "(" in text:
        inner, _, after = text[1:].rpartition(")")
        text = "(\n    " + ",\n    ".join(split_arguments(inner)) + f"\n){after}"
    return f"```python\n{name}{text}\n```"


def split_arguments(text: str) -> list[str]:
    """Arguments of a signature, cut at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def members(cls: type) -> Iterator[str]:
    """Fields with their docstrings, then public methods and properties that the class itself has."""
    docs = attribute_docs(cls)
    shown = {name: text for name, text in docs.items() if not name.startswith("_")}
    if shown:
        yield "\n".join(
            ["| field | |", "|---|---|", *(f"| `{n}` | {cell(t)} |" for n, t in shown.items())]
        )
    for name, raw in vars(cls).items():
        value = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
        text = inspect.getdoc(getattr(cls, name, None)) if not name.startswith("_") else None
        if text is None:
            continue
        if isinstance(value, property):
            yield f"**`.{name}`** (property)\n\n{markdown(text)}"
        elif inspect.isfunction(value):
            yield signature(f".{name}", getattr(cls, name)) + "\n\n" + markdown(text)


def attribute_docs(cls: type) -> dict[str, str]:
    """Strings below the fields of a class, by field."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = next((node.body for node in tree.body if isinstance(node, ast.ClassDef)), [])
    return strings_below(body)


def attribute_text(room: str, name: str) -> str:
    """The string below a module's constant, wherever in the package it is defined."""
    folder = SOURCE / room
    for file in folder.rglob("*.py"):
        found = strings_below(ast.parse(file.read_text()).body)
        if name in found:
            return markdown(found[name])
    return ""


def strings_below(body: list[ast.stmt]) -> dict[str, str]:
    """Strings that stand below assignments, by the name assigned."""
    result = {}
    for first, second in pairwise(body):
        target = first.target if isinstance(first, ast.AnnAssign) else None
        if isinstance(first, ast.Assign) and len(first.targets) == 1:
            target = first.targets[0]
        is_text = isinstance(second, ast.Expr) and isinstance(second.value, ast.Constant)
        if isinstance(target, ast.Name) and is_text and isinstance(second.value.value, str):
            result[target.id] = inspect.cleandoc(second.value.value)
    return result


def first_line(value: Any) -> str:
    """The first sentence of a docstring."""
    if not callable(value) and not inspect.ismodule(value):
        return ""
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")


def cell(text: str) -> str:
    """Text within a table."""
    return escape(text.replace("\n", " ").replace("|", "\\|"))


def escape(text: str) -> str:
    """Text in which signs of Markdown outside of code are only signs."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*_\[\]<{$~])", r"\\\1", p) for p in parts)


def markdown(text: str) -> str:
    """A docstring in Google's style as Markdown."""
    lines, result, place = text.splitlines(), [], 0
    while place < len(lines):
        line = lines[place]
        if line.rstrip(":") in SECTIONS and line.endswith(":"):
            block, place = indented(lines, place + 1)
            result += ["", f"**{line.rstrip(':')}**", "", *section(block), ""]
        elif line.lstrip().startswith(">>>"):
            start = place
            while place < len(lines) and lines[place].strip():
                place += 1
            code = textwrap.dedent("\n".join(lines[start:place]))
            result += ["", "```pycon", code, "```", ""]
        elif line.startswith("    ") and (not result or not result[-1].strip()):
            block, place = indented(lines, place)
            result += ["```text", *block, "```"]
        else:
            result.append(escape(line))
            place += 1
    return "\n".join(result).strip()


def indented(lines: list[str], place: int) -> tuple[list[str], int]:
    """The indented lines from a place on, and where they end."""
    start = place
    while place < len(lines) and (not lines[place].strip() or lines[place].startswith("    ")):
        place += 1
    return textwrap.dedent("\n".join(lines[start:place])).strip("\n").splitlines(), place


def section(block: list[str]) -> list[str]:
    """Entries `name: text` as a list."""
    result: list[str] = []
    for line in block:
        name, colon, text = line.partition(": ")
        if colon and not line.startswith(" ") and re.fullmatch(r"[\w*, .]+", name):
            result.append(f"- `{name}`: {escape(text)}")
        elif result and line.strip():
            result.append("  " + escape(line.strip()))
        elif line.strip():
            result.append(escape(line))
    return result


# The command line -----------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """Every command by what is typed, groups left out."""
    from typer.main import get_command

    from onlinecde.cli.app import app

    def walk(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        below = getattr(command, "commands", None)
        if below is None:
            yield words, command
        else:
            for name, one in below.items():
                yield from walk(one, f"{words} {name}")

    return dict(walk(get_command(app), "onlinecde"))


def command_page() -> str:
    """Every command with its arguments and options."""
    lines = [
        "# Command line",
        "",
        "Generated from the commands themselves: `onlinecde COMMAND --help` says the same.",
    ]
    lines += [
        "A mistake that you can correct ends with status 2 and one line that says what to do.",
        "",
    ]
    lines += ["| command | |", "|---|---|"]
    found = commands()
    for words, command in found.items():
        about = re.split(r"(?<=\.)\s", " ".join((command.help or "").split()))[0]
        lines.append(f"| [`{words}`](#{words.replace(' ', '-')}) | {cell(about)} |")
    examples = example_sections("command_line")
    for words, command in found.items():
        lines += [
            "",
            f"({words.replace(' ', '-')})=",
            f"## {words}",
            "",
            escape(inspect.cleandoc(command.help or "")),
        ]
        lines += ["", examples.get(words, "")]
        own = [p for p in command.params if p.name != "help"]
        arguments = [p for p in own if p.param_type_name == "argument"]
        options = [p for p in own if p.param_type_name == "option" and not p.hidden]
        usage = " ".join(
            p.make_metavar_text() if hasattr(p, "make_metavar_text") else (p.name or "").upper()
            for p in arguments
        )
        lines += ["", f"```text\n{words} {usage} [OPTIONS]\n```".replace("  ", " "), ""]
        for title, entries in (("argument", arguments), ("option", options)):
            if entries:
                lines += [f"| {title} | default | |", "|---|---|---|"]
                for one in entries:
                    names = (
                        ", ".join(f"`{n}`" for n in (*one.opts, *one.secondary_opts))
                        if title == "option"
                        else f"`{(one.name or '').upper()}`"
                    )
                    default = (
                        ""
                        if one.default in (None, (), [], False, ...)
                        else f"`{plain(one.default)}`"
                    )
                    lines.append(
                        f"| {names} | {default} | {cell(getattr(one, 'help', '') or '')} |"
                    )
                lines.append("")
    return "\n".join(lines) + "\n"


def plain(value: Any) -> str:
    """A default as it would be typed."""
    return str(getattr(value, "value", value))


def example_sections(name: str) -> dict[str, str]:
    """The texts of an examples file by their headings."""
    text = (EXAMPLES / f"{name}.md").read_text()
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {
        title.strip("` "): body.strip()
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


# The HTTP API ---------------------------------------------------------------------------------


def api() -> dict[str, Any]:
    """The OpenAPI document of a server."""
    import onlinecde as oc
    from onlinecde.serving import create_app
    from onlinecde.streaming import Engine

    model = oc.NeuralCDE(channels=1, hidden=2, field={"width": 2}, readout={"kind": "binary"})
    engine = Engine(model, channels=["pulse"])
    try:
        return create_app(engine).app.openapi()
    finally:
        engine.close()


def routes(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of every route."""
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            yield method.upper(), path, one


def http_page() -> str:
    """Every route: what it takes, what it answers."""
    document = api()
    found = list(routes(document))
    lines = [
        "# HTTP API",
        "",
        "Generated from the server's own OpenAPI document, which a running server has at `/openapi.json`.",
    ]
    lines += [
        "How to start a server, and who may ask it: [Serve live streams](../live.md).",
        "What a `code` means: [error codes](errors.md).",
        "",
    ]
    lines += [example_sections("http_api")["Every route"], "", "| route | |", "|---|---|"]
    for method, path, one in found:
        lines.append(
            f"| [`{method} {path}`](#{route_anchor(method, path)}) | {cell(one.get('summary', ''))} |"
        )
    lines += [
        f"| [`{title}`](#{route_anchor(*title.split(' ', 1))}) | {cell(about)} |"
        for title, about in UNLISTED.items()
    ]
    for method, path, one in found:
        lines += [
            "",
            f"({route_anchor(method, path)})=",
            f"## {method} {path}",
            "",
            escape(inspect.cleandoc(one.get("description", one.get("summary", "")))),
        ]
        if one.get("parameters"):
            lines += ["", "| parameter | in | |", "|---|---|---|"]
            for each in one["parameters"]:
                about = cell(each.get("description", "")) + limits_of(each["schema"])
                lines.append(f"| `{each['name']}` | {each['in']} | {about} |")
        lines += ["", "| status | answer |", "|---|---|"]
        for status, answer in one["responses"].items():
            reference = next(iter(answer.get("content", {}).values()), {}).get("schema", {})
            name = reference.get("$ref", "").rpartition("/")[2]
            shown = (
                f"[`{name}`](#schema-{name.lower()})"
                if name
                else cell(answer.get("description", ""))
            )
            lines.append(f"| {status} | {shown} |")
    for title, about in UNLISTED.items():
        lines += ["", f"({route_anchor(*title.split(' ', 1))})=", f"## {title}", "", about]
    lines += ["", "## Answers"]
    for name, schema in document["components"]["schemas"].items():
        lines += [
            "",
            f"(schema-{name.lower()})=",
            f"### {name}",
            "",
            escape(schema.get("description", "")),
            "",
        ]
        if "properties" in schema:
            lines += ["| field | type | |", "|---|---|---|"]
            for field, one in schema["properties"].items():
                lines.append(f"| `{field}` | {kind_of(one)} | {cell(one.get('description', ''))} |")
    return "\n".join(lines) + "\n"


UNLISTED = {
    "GET /v1/live": "A WebSocket for events in and changes out: [Serve live streams](../live.md).",
    "GET /openapi.json": "The OpenAPI document this page is made from.",
    "GET /": "The monitor page; `/docs` is the API as a page, `/login` the form for a token.",
}
"""Routes that the OpenAPI document does not have; those it has are left out of this list."""


def route_anchor(method: str, path: str) -> str:
    """The anchor of a route."""
    return (
        f"route-{method}{path}".lower()
        .replace("/", "-")
        .replace("{", "")
        .replace("}", "")
        .rstrip("-")
    )


def limits_of(schema: dict[str, Any]) -> str:
    """Default and bounds of a parameter."""
    told = [f"default `{schema['default']}`"] if schema.get("default") is not None else []
    told += [
        f"{word} {schema[key]}"
        for key, word in (("minimum", "from"), ("maximum", "to"))
        if key in schema
    ]
    return f" ({', '.join(told)})" if told else ""


def kind_of(schema: dict[str, Any]) -> str:
    """The type of a field."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#schema-{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(kind_of(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {kind_of(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


# Error codes and settings ---------------------------------------------------------------------


def error_codes() -> dict[str, dict[str, str]]:
    """Every stable code: status, message as written (`...` where a value stands), and where it is raised."""
    result: dict[str, dict[str, str]] = {}
    for file in sorted(
        [*(SOURCE / "serving").rglob("*.py"), *(SOURCE / "streaming").rglob("*.py")]
    ):
        place = file.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                for line in node.body:
                    if (
                        isinstance(line, ast.Assign)
                        and getattr(line.targets[0], "id", "") == "code"
                        and isinstance(line.value, ast.Constant)
                    ):
                        text = (ast.get_docstring(node) or "").partition("\n")[0]
                        result.setdefault(
                            line.value.value, {"status": "", "message": text, "place": place}
                        )
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called not in ("Problem", "Refusal", "refuse", "_refuse"):
                continue
            texts = [template(one) for one in node.args]
            status = next(
                (
                    str(one.value)
                    for one in node.args
                    if isinstance(one, ast.Constant) and isinstance(one.value, int)
                ),
                "",
            )
            for one in node.args[:2]:
                for constant in ast.walk(one):
                    code = getattr(constant, "value", None)
                    if isinstance(code, str) and re.fullmatch(
                        r"[a-z0-9]+(_[a-z0-9]+)+|failed|closing|overloaded|starting|rebuilding",
                        code,
                    ):
                        message = max((t for t in texts if t and t != code), key=len, default="")
                        message = message if " " in message else ""
                        result.setdefault(
                            code, {"status": status, "message": message, "place": place}
                        )
    return dict(sorted(result.items()))


def template(node: ast.expr) -> str:
    """The text of a string or an f-string, `...` where a value stands; of a function, that which it returns."""
    if isinstance(node, ast.Lambda):
        return template(node.body)
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values
        )
    return ""


def errors_page() -> str:
    """The codes of answers, receipts and refusals."""
    lines = [
        "# Error codes",
        "",
        'An answer that is not the one asked for has `{"error": {"code", "message", "field"}}`. The code is stable;',
    ]
    lines += [
        "the message is for people and says what is wrong and what to do.",
        "An event that is refused has a code of the same list in its receipt.",
        "",
    ]
    lines += ["| code | status | message |", "|---|---|---|"]
    for code, one in error_codes().items():
        lines.append(f"| `{code}` | {one['status']} | {cell(one['message'])} |")
    lines += [
        "",
        "Which field is at fault: [what is promised](../streaming.md#what-becomes-of-an-event).",
        "",
    ]
    return "\n".join(lines)


def settings_page() -> str:
    """The dataclasses of settings, and environment variables."""
    lines = [
        "# Settings",
        "",
        "Each can be given by name in Python. Most have an option of their own on the [command line](command_line.md).",
    ]
    for path in SETTINGS:
        module, _, name = path.rpartition(".")
        cls = getattr(importlib.import_module(f"onlinecde.{module}"), name)
        docs = attribute_docs(cls)
        lines += [
            "",
            f"## {name}",
            "",
            f"`onlinecde.{path}`. {escape((inspect.getdoc(cls) or '').partition(chr(10))[0])}",
            "",
        ]
        lines += ["| field | default | |", "|---|---|---|"]
        for one in dataclasses.fields(cls):
            default = one.default if one.default is not dataclasses.MISSING else "..."
            default = (
                one.default_factory() if one.default_factory is not dataclasses.MISSING else default
            )
            shown = "" if dataclasses.is_dataclass(default) else f"`{default}`"
            lines.append(f"| `{one.name}` | {shown} | {cell(docs.get(one.name, ''))} |")
    lines += ["", "## Environment variables", "", "| variable | |", "|---|---|"]
    lines += [f"| `{name}` | {about} |" for name, about in ENVIRONMENT.items()]
    return "\n".join(lines) + "\n"


SETTINGS = (
    "training.FitSettings",
    "models.AlarmPolicy",
    "streaming.EngineSettings",
    "streaming.StreamClock",
    "serving.ServeSettings",
    "serving.Limits",
    "solvers.Solver",
)
