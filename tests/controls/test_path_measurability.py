"""A path says what it may depend on, for the data at hand."""

import pytest
import torch
from hypothesis import given
from made_series import SCHEMES, batches, build

from onlinecde import Encoding, Measurability, SeriesBatch

CONTINUOUS, DISCRETE, OFFLINE = Measurability
NAN = float("nan")


def column(*values, longer=()):
    tables = [[[x] for x in values], *([[[x] for x in longer]] if longer else [])]
    return SeriesBatch.from_arrays([range(len(table)) for table in tables], tables)


@pytest.mark.parametrize(
    ("batch", "declared"),
    [
        (column(1.0, 2.0, 3.0), DISCRETE),
        (column(1.0), DISCRETE),
        (column(NAN, NAN, 3.0), DISCRETE),
        (column(NAN, NAN, NAN), DISCRETE),
        (column(1.0, NAN, 3.0), OFFLINE),
        (column(NAN, 2.0, NAN), OFFLINE),
        (column(1.0, 2.0, longer=(1.0, 2.0, 3.0, 4.0)), DISCRETE),
        (column(1.0, 2.0, longer=(1.0, NAN, 3.0, 4.0)), OFFLINE),
        (column(NAN, 2.0, longer=(NAN, NAN, NAN, 4.0)), DISCRETE),
    ],
    ids=[
        "complete",
        "one row",
        "missing at the start",
        "never observed",
        "a gap",
        "missing at the end",
        "padding",
        "a gap in another stream",
        "padding and missing at the start",
    ],
)
def test_gaps_make_linear_and_hermite_offline(batch, declared):
    for scheme in ("linear", "hermite"):
        assert build(scheme, batch).measurability is declared
        assert build(scheme, batch, True).measurability is declared
        assert build(scheme, batch, encoding=Encoding(1).fit(batch)).measurability is declared
    assert build("rectilinear", batch).measurability is CONTINUOUS
    assert build("natural_cubic", batch).measurability is OFFLINE


@given(batch=batches())
def test_a_gap_is_found_wherever_it_is(batch):
    gap = False
    for stream, rows in enumerate(batch.rows.tolist()):
        for x in batch.values[stream, :rows].T:
            seen = (~x.isnan()).nonzero()
            gap |= len(seen) > 0 and bool(x[int(seen[0]) :].isnan().any())
    assert build("linear", batch).measurability is (OFFLINE if gap else DISCRETE)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_infinitely_large_sums_are_not_taken_for_missing_values(scheme):
    """Finite values whose sum overflows, both ways, are complete all the same."""
    values = torch.tensor([[3e38], [3e38], [-3e38], [-3e38]])
    batch = SeriesBatch.from_arrays([[0.0, 1.0, 2.0, 3.0]], [values])
    path = build(scheme, batch)
    assert torch.equal(path.rows[0, :, 1:], values)
