"""Every setting of a server by its name, and what set it: a flag, the environment, a file, or nothing (its default)."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from onlinecde.serving.problems import ServingError
from onlinecde.serving.settings import Limits, ServeSettings
from onlinecde.streaming import EngineSettings

PREFIX = "ONLINECDE_"
HOMES = (EngineSettings, ServeSettings, Limits)
NOT_HERE = ("policy", "limits", "alarms", "threshold", "output", "features", "classes", "units")
"""What comes from the model or from options of its own"""


class Setting(NamedTuple):
    """The value of a setting, and what set it."""

    value: Any
    source: str


def settings_given(
    flags: Mapping[str, str], file: Path | None, environment: Mapping[str, str] = os.environ
) -> dict[str, Setting]:
    """The settings that were given by name: `flags` before the environment (`ONLINECDE_RESIDENT`) before the file.

    >>> settings_given({"resident": "20000"}, None, {"ONLINECDE_BURST": "9"})["burst"]
    Setting(value=9, source='environment')
    """
    kinds = _kinds()
    content: dict[str, Any] = {}
    if file is not None:
        try:
            content = tomllib.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise ServingError(f"the settings in {file} cannot be read: {error}") from error
    known = {PREFIX + name.upper(): name for name in kinds}
    named = {known[key]: value for key, value in environment.items() if key in known}
    result: dict[str, Setting] = {}
    for source, given in ((f"file {file}", content), ("environment", named), ("flag", flags)):
        for name, value in given.items():
            if name not in kinds:
                raise ServingError(
                    f"there is no setting {name!r} ({source}): `onlinecde serve --show-settings` has them all."
                )
            result[name] = Setting(_parsed(name, value, kinds[name]), source)
    return result


def with_settings(
    settings: ServeSettings, given: Mapping[str, Setting]
) -> tuple[ServeSettings, dict[str, Any]]:
    """A server's settings with those given, and those of the engine."""
    values = {name: one.value for name, one in given.items()}
    engine, server, limits = (
        {f.name: values[f.name] for f in fields(home) if f.name in values} for home in HOMES
    )
    return replace(settings, **server, limits=replace(settings.limits, **limits)), engine


def shown_settings(
    settings: ServeSettings, engine: Mapping[str, Any], given: Mapping[str, Setting]
) -> str:
    """All settings as they hold, one a line: name, value, what set it."""
    lines = []
    for home, current in zip(HOMES, (engine, vars(settings), vars(settings.limits)), strict=True):
        for one in fields(home):
            if one.name in NOT_HERE:
                continue
            default = one.default if one.default is not MISSING else None
            value = current.get(one.name, default)
            source = "option" if value != default else "default"
            source = given[one.name].source if one.name in given else source
            lines.append(f"{one.name:<22} {value!s:<24} {source}")
    return "\n".join(sorted(lines))


def _kinds() -> dict[str, str]:
    """What each setting is, by name, as its class says it."""
    return {
        one.name: str(one.type)
        for home in HOMES
        for one in fields(home)
        if one.name not in NOT_HERE and _options(str(one.type)) <= READ.keys()
    }


def _options(kind: str) -> set[str]:
    return {option.strip() for option in kind.split("|")} - {"None"}


def _flag(value: Any) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]


READ: dict[str, Callable[[Any], Any]] = {
    "bool": _flag,
    "int": int,
    "float": float,
    "Path": Path,
    "str": str,
    "tuple[str, ...]": lambda value: tuple(value.split(",") if isinstance(value, str) else value),
}
"""How values are read, by what they are"""


def _parsed(name: str, value: Any, kind: str) -> Any:
    """A value as the setting takes it."""
    if "None" in kind and isinstance(value, str) and value.lower() in ("none", ""):
        return None
    for option in _options(kind):
        try:
            return READ[option](value)
        except (KeyError, TypeError, ValueError):
            continue
    raise ServingError(f"the setting {name} is {value!r}: give a value that is {kind}.")
