"""Numbers for people to read, the same way on a terminal and on a page."""

from __future__ import annotations


def shown(value: float, *, size: float | None = None, digits: int = 4) -> str:
    """`digits` after the point, one of hundreds; four figures of what is smaller than 0.01 or as large as 100,000.

    `size`: that of what the number stands beside. A difference of two metrics, or an end of an interval, is
    shown as they are, however small.

    >>> [shown(value) for value in (0.81234, 1.06e-06, 1234.5, 3.2e8, 0.0)]
    ['0.8123', '1.06e-06', '1,234.5', '3.2e+08', '0.0000']
    >>> shown(-0.00031, size=0.8, digits=3), shown(2e-7, size=1e-6)
    ('-0.000', '2e-07')
    """
    size = abs(value) if size is None else size
    if size and not 0.01 <= size < 1e5:
        return f"{value:.4g}"
    return f"{value:.{digits}f}" if size < 100 else f"{value:,.1f}"
