"""Bearer tokens: made here, shown once, kept as hashes, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from onlinecde.files import replace_file
from onlinecde.serving.problems import ServingError
from onlinecde.streaming.pipeline.validate import is_name

SCOPES = ("ingest", "read", "acknowledge", "delete", "admin")
EARLIER = {"write": frozenset(("ingest", "acknowledge", "delete"))}
"""Scopes of 0.1, and what they are now"""
PREFIX = "ocde_"
_VERSIONS = (1, 2)


@dataclass(frozen=True)
class Token:
    """What is kept of a token: never the token."""

    name: str
    sha256: str
    scopes: frozenset[str]
    """As they were given: with names of 0.1"""
    streams: tuple[str, ...] = ()
    """What the names of streams begin with that it may write and see; none: all streams"""
    expires: float | None = None
    """Wall clock, seconds since 1970"""

    @cached_property
    def rights(self) -> frozenset[str]:
        """Its scopes as they are now."""
        return frozenset().union(*(EARLIER.get(one, (one,)) for one in self.scopes))

    @property
    def expired(self) -> bool:
        """Whether its time is over."""
        return self.expires is not None and time.time() >= self.expires


class TokenBook:
    """The tokens a server knows.

    >>> book = TokenBook()
    >>> text = book.add("gateway", ["write"])
    >>> sorted(book.whose(text).scopes), book.whose("another") is None
    (['write'], True)
    """

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.tokens = list(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        streams: Iterable[str] = (),
        expires: float | None = None,
    ) -> str:
        """A new token of 256 random bits; its text is given out here and nowhere again."""
        wanted, prefixes = frozenset(scopes), tuple(streams)
        if not wanted or not wanted <= {*SCOPES, *EARLIER}:
            raise ServingError(f"scopes are {sorted(wanted)}: give some of {', '.join(SCOPES)}.")
        if "admin" in wanted and prefixes:
            raise ServingError("admin is for all streams: give it to a token of its own.")
        for prefix in prefixes:
            if not is_name(prefix.rstrip() or prefix):
                raise ServingError(
                    f"the names of streams cannot begin with {prefix!r}: give what they begin with."
                )
        if expires is not None and expires <= time.time():
            raise ServingError("the token would have expired already: give a later time.")
        if not name or not name.isprintable() or len(name) > 80:
            raise ServingError("a token needs a name of 1 to 80 printable characters.")
        if any(one.name == name for one in self.tokens):
            raise ServingError(f"there is a token {name!r} already: give another name.")
        text = PREFIX + secrets.token_urlsafe(32)
        self.tokens.append(Token(name, digest_of(text), wanted, prefixes, expires))
        return text

    def remove(self, name: str) -> None:
        """Take a token back."""
        left = [one for one in self.tokens if one.name != name]
        if len(left) == len(self.tokens):
            raise ServingError(f"there is no token {name!r}.")
        self.tokens = left

    def __contains__(self, token: object) -> bool:
        return isinstance(token, Token) and not token.expired and token in self.tokens

    def reload(self, file: str | os.PathLike[str]) -> None:
        """Know the tokens in a file and no others; where it cannot be read or is empty, nothing changes."""
        self.tokens = TokenBook.read(file).filled().tokens

    def filled(self) -> TokenBook:
        """These tokens; raises where there are none, for then nobody could come in."""
        if not self.tokens:
            raise ServingError("the file of tokens is empty: `onlinecde tokens new` adds one.")
        return self

    def whose(self, text: str) -> Token | None:
        """The token a text is; all are looked at, so that time tells nothing of them."""
        # A token has 256 random bits: one round of SHA-256 is not to be guessed back.
        digest, result = digest_of(text), None
        for one in self.tokens:
            if hmac.compare_digest(digest, one.sha256):
                result = one
        return result

    @classmethod
    def read(cls, file: str | os.PathLike[str]) -> TokenBook:
        """The tokens in a file that `write` made."""
        try:
            content = json.loads(Path(file).read_text())
            if content["version"] not in _VERSIONS:
                raise ServingError(
                    f"{file}: version {content['version']!r} is not known, only 1 and 2."
                )
            return cls(_token(file, one) for one in content["tokens"])
        except FileNotFoundError as error:
            raise ServingError(
                f"{file} is not there: make it with `onlinecde tokens new`."
            ) from error
        except OSError as error:
            raise ServingError(f"{file} cannot be read ({error.strerror}).") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ServingError):
                raise
            raise ServingError(f"{file} is not a file of tokens ({error!r}).") from error

    def write(self, file: str | os.PathLike[str]) -> None:
        """Replace the file, readable by its owner alone."""
        content = {
            "version": 2,
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "tokens": [
                {
                    "name": one.name,
                    "sha256": one.sha256,
                    "scopes": sorted(one.scopes),
                    **({"streams": list(one.streams)} if one.streams else {}),
                    **({} if one.expires is None else {"expires": one.expires}),
                }
                for one in self.tokens
            ],
        }
        replace_file(Path(file), json.dumps(content, indent=2) + "\n", mode=0o600)


def digest_of(text: str) -> str:
    """What is kept of a secret text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _token(file: str | os.PathLike[str], entry: dict[str, Any]) -> Token:
    scopes, expires = frozenset(entry["scopes"]), entry.get("expires")
    if strange := scopes - {*SCOPES, *EARLIER}:
        raise ServingError(f"{file}: there is no scope {min(strange)!r}, only {', '.join(SCOPES)}.")
    return Token(
        str(entry["name"]),
        _checked(entry["sha256"]),
        scopes,
        tuple(map(str, entry.get("streams", ()))),
        None if expires is None else float(expires),
    )


def _checked(digest: str) -> str:
    if len(bytes.fromhex(digest)) != 32:
        raise ServingError("a token's sha256 has not 64 hexadecimal digits.")
    return digest.lower()
