"""`onlinecde warmup`: compile the solver for this machine now, so that nobody waits for it later."""

from typing import Annotated

import typer


def warmup(
    float64: Annotated[bool, typer.Option(help="For double precision too.")] = False,
) -> None:
    """Compile the solver's CPU kernels for this machine, once, and keep them for every later process."""
    import time

    import numpy as np

    from onlinecde.kernels import cpu_unavailable

    if (why := cpu_unavailable()) is not None:
        typer.echo(f"nothing to compile: {why}. Plain torch does the work.")
        return
    from onlinecde.kernels.cpu.first_use import GROUPS, ready

    began = time.monotonic()
    for dtype in ("float32", "float64") if float64 else ("float32",):
        for group in GROUPS:
            started = time.monotonic()
            ready(group, np.dtype(dtype))
            typer.echo(f"{dtype} {group}: ready after {time.monotonic() - started:.1f} s")
    typer.echo(f"done in {time.monotonic() - began:.1f} s")
