"""Building control paths, beside torchcde in one run.

    python -m benchmarks.paths
    python -m benchmarks.paths --out benchmarks/results/paths.json

Both start from rows in memory and end with a path that can be evaluated anywhere: ours from a
`SeriesBatch`, torchcde from the same rows with time already joined as a channel. Before anything is
timed, both must give the same path.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torchcde

import onlinecde as oc
from benchmarks.timing import (
    Comparison,
    describe,
    machine,
    print_ratios,
    side_by_side,
    versions,
    write_results,
)

SCHEMES = ("natural_cubic", "linear", "hermite", "rectilinear")
SLOW_WITH_MISSING = ("natural_cubic", "linear", "hermite")


def made_batch(streams: int, rows: int, channels: int, missing: float) -> oc.SeriesBatch:
    """Random series; row 0 is observed, where torchcde would fill from the future."""
    numbers = torch.Generator().manual_seed(0)
    times = torch.rand(streams, rows, generator=numbers, dtype=torch.float64).add(0.1).cumsum(1)
    values = torch.randn(streams, rows, channels, generator=numbers)
    gone = torch.rand(values.shape, generator=numbers) < missing
    gone[:, 0] = False
    return oc.SeriesBatch.from_padded(times, values.masked_fill(gone, torch.nan))


def ours(scheme: str, batch: oc.SeriesBatch) -> Callable[[], oc.controls.Path]:
    build = getattr(oc.controls, scheme)
    return lambda: build(batch)


def theirs(scheme: str, x: torch.Tensor) -> Callable[[], torch.nn.Module]:
    """The path of torchcde through x (stream, row, channel), channel 0 being time."""
    if scheme == "natural_cubic":
        return lambda: torchcde.CubicSpline(torchcde.natural_cubic_coeffs(x))
    if scheme == "hermite":
        coefficients = torchcde.hermite_cubic_coefficients_with_backward_differences
        return lambda: torchcde.CubicSpline(coefficients(x))
    time_channel = 0 if scheme == "rectilinear" else None
    return lambda: torchcde.LinearInterpolation(
        torchcde.linear_interpolation_coeffs(x, rectilinear=time_channel)
    )


def check_same_path(scheme: str, missing: float) -> None:
    """Raise if the two paths differ: a ratio between different answers says nothing."""
    batch = made_batch(4, 16, 3, missing)
    x = torch.cat([batch.times[:, :, None].to(batch.dtype), batch.values], 2)
    mine, other = ours(scheme, batch)(), theirs(scheme, x)()
    s = torch.rand(64, generator=torch.Generator().manual_seed(1)) * mine.pieces
    torch.testing.assert_close(mine.evaluate(s), other.evaluate(s), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.derivative(s), other.derivative(s), rtol=1e-4, atol=1e-4)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Building control paths, beside torchcde.")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--channels", type=int, default=30)
    parser.add_argument("--missing", type=float, default=0.3, help="share of values missing")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each case")
    parser.add_argument("--threads", type=int, default=1, help="for both")
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    asked = parser.parse_args(arguments)

    # One thread by default: small operations spread over cores that others use wait for them.
    torch.set_num_threads(asked.threads)
    comparisons = []
    for missing in (asked.missing, 0.0):
        batch = made_batch(asked.streams, asked.rows, asked.channels, missing)
        x = torch.cat([batch.times[:, :, None].to(batch.dtype), batch.values], 2)
        for scheme in SCHEMES:
            check_same_path(scheme, missing)
            comparisons.append(
                Comparison(
                    f"{scheme}, {missing:.0%} missing",
                    *side_by_side(ours(scheme, batch), theirs(scheme, x), seconds=asked.seconds),
                    at_least=100 if missing and scheme in SLOW_WITH_MISSING else 1,
                )
            )
    hardware, installed = machine(), versions("onlinecde", "torch", "torchcde")
    shape = f"{asked.streams} streams x {asked.rows} rows x {asked.channels} channels, float32"
    print_ratios(
        "Building a control path",
        "torchcde",
        comparisons,
        [f"{shape}; best of several runs in turn", *describe(hardware, installed)],
    )
    if asked.out:
        write_results(
            asked.out,
            command=["python", "-m", "benchmarks.paths", *(arguments or sys.argv[1:])],
            settings={key: value for key, value in vars(asked).items() if key != "out"},
            hardware=hardware,
            installed=installed,
            results=[comparison.as_json() for comparison in comparisons],
        )
    return 0 if all(comparison.holds for comparison in comparisons) else 1


if __name__ == "__main__":
    raise SystemExit(main())
