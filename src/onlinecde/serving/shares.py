"""Shares: how much of something bounded each client may hold, so that no one client can hold all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Shares:
    """Divides `most` of something among clients: a client may hold as much as it leaves free for others.

    One client alone gets half, two a third each, and whoever holds nothing yet always finds some left. While `fair`
    says no, all clients are one, and may hold everything.

    >>> shares = Shares(10, fair=lambda: True)
    >>> [shares.take("flooding", 4), shares.take("flooding", 4), shares.take("quiet", 1)]
    [True, False, True]
    """

    def __init__(self, most: int, *, fair: Callable[[], bool] = lambda: False) -> None:
        self.most, self.fair = most, fair
        self.total = 0
        self.by_client: dict[str, int] = {}
        """What each client holds, of those that hold something"""

    def take(self, client: str, amount: int) -> bool:
        """Take some; False where it would be too much. Where nobody holds anything, any amount will do."""
        kept = self.by_client.get(client, 0) + self.total if self.fair() else self.total
        if self.total and kept + amount > self.most:
            return False
        self.by_client[client] = self.by_client.get(client, 0) + amount
        self.total += amount
        return True

    def give_back(self, client: str, amount: int) -> None:
        """Let go of some that was taken."""
        self.total -= amount
        self.by_client[client] -= amount
        if not self.by_client[client]:
            del self.by_client[client]

    @contextmanager
    def growing(self, client: str) -> Iterator[Growing]:
        """What a client takes piece by piece, given back at the end of the block."""
        growing = Growing(self, client)
        try:
            yield growing
        finally:
            if growing.amount:
                self.give_back(client, growing.amount)


class Growing:
    """What one client has taken so far."""

    def __init__(self, shares: Shares, client: str) -> None:
        self._shares, self._client, self.amount = shares, client, 0

    def take(self, amount: int) -> bool:
        """Take more; False where it would be too much, and then it is not taken."""
        if not self._shares.take(self._client, amount):
            return False
        self.amount += amount
        return True
