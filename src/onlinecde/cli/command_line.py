"""Commands whose options come in groups, declared once, and command lines written from their values."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from typer.core import TyperCommand
from typer.models import ArgumentInfo

HERE = "here"
"""What stands for `--ray` without an address: `RAY_ADDRESS`, or the cores of this machine."""
_ADDRESS = re.compile(r"local|auto|\S+://\S*|\S+:\d+")


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose parameters of a dataclass stand for all its fields, each an option of its own.

    Called from Python it takes the options by name, as from the command line.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: cls for name, cls in hints.items() if is_dataclass(cls)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _parameters(groups[parameter.name])
        else:
            named = parameter.replace(annotation=hints[parameter.name], kind=_NAMED)
            parameters.append(named)

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        bound = signature.bind(**given)
        bound.apply_defaults()
        values = dict(bound.arguments)
        own = {n: {f.name: values.pop(f.name) for f in fields(cls)} for n, cls in groups.items()}
        return command(**values, **{name: groups[name](**one) for name, one in own.items()})

    signature = inspect.Signature(parameters)
    run.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


_NAMED = inspect.Parameter.KEYWORD_ONLY


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(field.name, _NAMED, default=field.default, annotation=hints[field.name])
        for field in fields(group)
    ]


def command_words(
    command: Callable[..., Any], given: Mapping[str, Any], *, without: Sequence[str] = ()
) -> list[str]:
    """The words of a command line that gives a grouped command these values; defaults are left out.

    `given`: values by parameter, groups as they are, such as `locals()` at the start of the command.
    """
    flat: dict[str, Any] = {}
    for name, value in given.items():
        own = {f.name: getattr(value, f.name) for f in fields(value)} if is_dataclass(value) else {}
        flat |= own or {name: value}
    arguments, options = [], []
    for parameter in inspect.signature(command).parameters.values():
        value = flat.get(parameter.name, parameter.default)
        if parameter.name in without or value is None or value == parameter.default:
            continue
        (info,) = parameter.annotation.__metadata__
        if isinstance(info, ArgumentInfo):
            arguments += [str(each) for each in _several(value)]
        elif isinstance(value, bool):
            yes, _, no = _name(parameter.name, info).partition("/")
            options.append(yes if value else no or f"--no-{yes.removeprefix('--')}")
        else:
            for each in _several(value):
                options += [_name(parameter.name, info), str(each)]
    return [*arguments, *options]


def _name(parameter: str, info: Any) -> str:
    declared = [name for name in info.param_decls or () if name.startswith("--")]
    return declared[0] if declared else f"--{parameter.replace('_', '-')}"


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def named_values(pairs: Sequence[str] | None) -> dict[str, Any]:
    """NAME=VALUE -> values: JSON where it is JSON (numbers, true, null, lists), else the text.

    >>> named_values(["streams=80", "sets=ab"])
    {'streams': 80, 'sets': 'ab'}
    """
    import json

    found: dict[str, Any] = {}
    for pair in pairs or ():
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise ValueError(f"{pair!r} is not NAME=VALUE.")
        try:
            found[name.replace("-", "_")] = json.loads(text)
        except ValueError:
            found[name.replace("-", "_")] = text
    return found


class RayCommand(TyperCommand):
    """A command that takes `--ray` with an address or without one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_addresses(args))


def with_addresses(words: list[str]) -> list[str]:
    """A command line in which every `--ray` has a value.

    >>> with_addresses(["--ray", "ward.toml"]), with_addresses(["--ray", "10.0.0.7:6379"])
    (['--ray', 'here', 'ward.toml'], ['--ray', '10.0.0.7:6379'])
    """
    whole = []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        whole.append(word)
        if word == "--ray" and not _ADDRESS.fullmatch(after):
            whole.append(HERE)
    return whole


def address_of(ray: str) -> str:
    """The address as `onlinecde.scale.ray` takes it."""
    return "" if ray == HERE else ray
