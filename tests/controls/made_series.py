"""Random series for the tests of control paths: any length, any gaps, any missing pattern."""

import numpy as np
import torch
from hypothesis import strategies as st

from onlinecde import SeriesBatch, controls

SCHEMES = ("natural_cubic", "linear", "hermite", "rectilinear")
MISSING = ("none", "leading", "any")


def build(scheme, batch, counts=False, **keywords):
    return getattr(controls, scheme)(batch, counts, **keywords)


def random_batch(lengths, channels, seed, missing="any", dtype=torch.float64, row_0=None):
    """A batch with gaps between rows of 1e-3 to 1e3; `row_0` is what is missing there, if given."""
    numbers = np.random.default_rng(seed)
    times, values = [], []
    for rows in lengths:
        times.append(numbers.uniform(-5, 5) + (10 ** numbers.uniform(-3, 3, rows)).cumsum())
        table = numbers.normal(size=(rows, channels))
        if missing == "any":
            table[numbers.random(table.shape) < numbers.choice([0.1, 0.5, 0.9])] = np.nan
        elif missing == "leading":
            first = numbers.integers(0, rows + 1, channels)
            table[np.arange(rows)[:, None] < first] = np.nan
        if row_0 == "observed":
            table[0] = numbers.normal(size=channels)
        values.append(torch.tensor(table, dtype=dtype))
    return SeriesBatch.from_arrays(times, values)


@st.composite
def batches(draw, missing=MISSING, min_rows=1, max_rows=9, max_streams=4, **keywords):
    lengths = draw(st.lists(st.integers(min_rows, max_rows), min_size=1, max_size=max_streams))
    return random_batch(
        lengths,
        draw(st.integers(1, 3)),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.sampled_from(missing)),
        **keywords,
    )


def inside_pieces(path, per_piece=3, seed=0):
    """Parameters (query,) strictly inside every piece."""
    u = 0.05 + 0.9 * torch.rand(
        path.pieces, per_piece, dtype=path.rows.dtype, generator=torch.Generator().manual_seed(seed)
    )
    return (torch.arange(path.pieces)[:, None] + u.sort(1).values).flatten()


def same_bits(left, right):
    """Assert that two tensors are the same to the last bit."""
    torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
