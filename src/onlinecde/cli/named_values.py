"""Options of the form NAME=VALUE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
