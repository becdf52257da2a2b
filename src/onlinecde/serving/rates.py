"""Token buckets: how often each client may ask, in bounded memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable


class Rates:
    """A bucket for each client: `burst` at once, `per_second` from then on.

    >>> now = [0.0]
    >>> rates = Rates(2.0, 2, clock=lambda: now[0])
    >>> [rates.wait("a") for _ in range(3)]
    [0.0, 0.0, 0.5]
    >>> now[0] = 0.5
    >>> rates.wait("a")
    0.0
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        most_clients: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._burst, self._most = per_second, float(burst), most_clients
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """0 where the client may ask now, and then it has; else the seconds until it may."""
        now = self._clock()
        left, since = self._left.pop(client, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - since) * self._rate)
        wait = 0.0 if left >= 1.0 else (1.0 - left) / self._rate
        self._left[client] = (left - 1.0 if wait == 0.0 else left, now)
        if len(self._left) > self._most:  # whoever asked longest ago has a full bucket anyway
            self._left.popitem(last=False)
        return wait
