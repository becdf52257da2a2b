"""Kernels that run beside those of the current stream."""

from __future__ import annotations

from functools import lru_cache

import torch


class Beside:
    """A second stream that starts where the current one is now, for what is launched `with` it.

    What is launched on the current stream meanwhile runs beside it. Memory must come from before and
    live until `join`: nothing may be allocated inside. Without a GPU there is one stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = _stream(device) if device.type == "cuda" else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self._within = torch.cuda.stream(self._stream)

    def __enter__(self) -> None:
        self._within.__enter__()

    def __exit__(self, *error: object) -> None:
        self._within.__exit__(*error)

    def join(self) -> None:
        """From here on the current stream waits for it."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


@lru_cache(maxsize=16)
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
