"""Settings that come from outside, as NAME=VALUE, against the types of what they are for."""

from __future__ import annotations

from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

_PLAIN: dict[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool, "true or false"),
    str: (str, "a word"),
    NoneType: (NoneType, "null"),
}


def remedy(value: Any, hint: Any) -> str | None:
    """What to give in place of a value that is not of a type; None where it is.

    Knows numbers, words, choices and unions of them; of other types any value is right.

    >>> remedy("abc", float | None), remedy(3, float)
    ('a number or null', None)
    """
    choices = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if any(_is(value, choice) for choice in choices):
        return None
    return " or ".join(_words(choice) for choice in choices)


def _is(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint not in _PLAIN:
        return True
    # To Python, True is a number; to whoever wrote hidden=true it is a slip.
    return isinstance(value, _PLAIN[hint][0]) and (hint is bool or not isinstance(value, bool))


def _words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    return _PLAIN[hint][1]
