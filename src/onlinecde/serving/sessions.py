"""Sessions of browsers: a random name in a cookie for a token that stays on the server."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from onlinecde.serving.tokens import Token, TokenBook, digest_of

MOST_SESSIONS = 1_000
"""Sessions at the same time; beyond it the oldest ends"""


class Sessions:
    """Who has signed in, for how long; kept in memory as hashes, and gone with the token or the process.

    >>> book = TokenBook()
    >>> token = book.whose(book.add("ward", ["read"]))
    >>> sessions = Sessions(book, seconds=60.0)
    >>> name = sessions.open(token)
    >>> sessions.whose(name) == token, sessions.whose("another") is None
    (True, True)
    >>> book.remove("ward")
    >>> sessions.whose(name) is None
    True
    """

    def __init__(
        self,
        book: TokenBook | None,
        *,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._book, self._clock = book, clock
        self._open: OrderedDict[str, tuple[Token, float]] = OrderedDict()
        """(token, end) by the hash of the name, in order of opening"""

    def __len__(self) -> int:
        return len(self._open)

    def open(self, token: Token) -> str:
        """A new session's name, of 256 random bits."""
        now = self._clock()
        while self._open:
            first, (_, end) = next(iter(self._open.items()))
            if now < end and len(self._open) < MOST_SESSIONS:
                break
            del self._open[first]
        name = secrets.token_urlsafe(32)
        self._open[digest_of(name)] = token, now + self.seconds
        return name

    def whose(self, name: str) -> Token | None:
        """The token of a session; None where there is none (any more), or the token was taken back or has expired."""
        key = digest_of(name)
        token, end = self._open.get(key, (None, 0.0))
        if token is not None and (self._clock() >= end or token not in (self._book or ())):
            del self._open[key]
            token = None
        return token

    def close(self, name: str) -> None:
        """End a session."""
        self._open.pop(digest_of(name), None)
