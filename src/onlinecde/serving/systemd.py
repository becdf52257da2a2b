"""What systemd is told of a service of type `notify`: ready, at work, reading files again, stopping."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress


def notify(*lines: str, wait: float = 1.0) -> None:
    """Send lines such as READY=1 to the socket that systemd named; nothing where it named none.

    wait: seconds for room in the socket, after which the lines are dropped.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
        sender.settimeout(wait)
        sender.sendto("\n".join(lines).encode(), address.replace("@", "\0", 1))


def reloading() -> None:
    """Say that files are read again; `READY=1` ends it."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


async def watchdog() -> None:
    """Say, twice as often as systemd wants to hear it, that this loop goes on."""
    try:
        seconds = int(os.environ.get("WATCHDOG_USEC", "")) / 2e6
    except ValueError:
        return
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while True:
        notify("WATCHDOG=1", wait=0.0)
        await asyncio.sleep(seconds)
