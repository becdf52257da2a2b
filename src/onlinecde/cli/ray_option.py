"""`--ray [ADDRESS]`: an option whose value may be left out, and what it stands for."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand

HERE = "here"
"""What stands for `--ray` without an address: `RAY_ADDRESS`, or the cores of this machine."""
_ADDRESS = re.compile(r"local|auto|\S+://\S*|\S+:\d+")


class RayCommand(TyperCommand):
    """A command that takes `--ray` with an address or without one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_addresses(args))


def ray_option(**more: Any) -> Any:
    """The option itself."""
    text = "Work on a Ray cluster: HOST:PORT, auto, or, without an address, this machine's cores."
    return typer.Option("--ray", metavar="[ADDRESS]", help=text, **more)


def with_addresses(words: list[str]) -> list[str]:
    """A command line in which every `--ray` has a value.

    >>> with_addresses(["--ray", "ward.toml"]), with_addresses(["--ray", "10.0.0.7:6379"])
    (['--ray', 'here', 'ward.toml'], ['--ray', '10.0.0.7:6379'])
    """
    told = []
    for word, after in zip(words, [*words[1:], ""], strict=True):
        told.append(word)
        if word == "--ray" and not _ADDRESS.fullmatch(after):
            told.append(HERE)
    return told


def address_of(ray: str) -> str:
    """The address as `onlinecde.scale.ray` takes it."""
    return "" if ray == HERE else ray
