"""Numbers stay the numbers they were; text where numbers are wanted is refused with its remedy."""

from datetime import date

import numpy as np
import polars as pl
import pytest

from onlinecde.data import DataError, RowLabels, StreamLabels, task_from_table

COLUMNS = {"stream": "bed", "time": "hours"}
RANDOM = np.random.default_rng(0)
EVENTS = pl.DataFrame(
    {
        "bed": [n // 2 for n in range(40)],
        "hours": [0.0, 1.0] * 20,
        "pulse": RANDOM.normal(70, 10, 40),
    }
)
DEATHS = pl.DataFrame({"bed": range(20), "died": [0, 1] * 10})
DIED = StreamLabels("died", DEATHS)


def read(events=EVENTS, labels=DIED, **more):
    return task_from_table(events, labels=labels, **COLUMNS, **more)


def test_a_channel_that_float32_cannot_hold_is_refused():
    far = EVENTS.with_columns(stamp=1e8 + pl.Series(RANDOM.normal(0, 1, 40)))
    assert far["stamp"].n_unique() == 40
    assert far["stamp"].cast(pl.Float32).n_unique() < 10
    message = r"channel 'stamp': the numbers lie near 1e\+08 and deviate by .* subtract an offset"
    with pytest.raises(DataError, match=message):
        read(far)
    near = far.with_columns(pl.col("stamp") - 1e8)
    assert read(near).series.channels == ("pulse", "stamp")


def test_a_label_that_float32_cannot_hold_is_refused():
    due = DEATHS.with_columns(due=1_700_000_000 + pl.col("bed"))
    with pytest.raises(DataError, match=r"column 'due' \(label\): the numbers lie near 1.7e\+09"):
        read(labels=StreamLabels("due", due))
    with pytest.raises(DataError, match=r"column 'due' \(label\)"):
        read(labels=StreamLabels(["died", "due"], due))
    with pytest.raises(DataError, match=r"column 'due' \(label\)"):
        read(EVENTS.with_columns(due=1_700_000_000 + pl.col("hours")), RowLabels("due"))


def test_a_static_feature_that_float32_cannot_hold_is_refused():
    born = DEATHS.select("bed", born=1_700_000_000 + pl.col("bed"))
    with pytest.raises(DataError, match=r"column 'born' \(static feature\): the numbers lie near"):
        read(static=born)


@pytest.mark.parametrize(
    "numbers",
    [
        16_000_000.0 + np.arange(40),  # whole numbers that float32 holds exactly
        np.full(40, 0.1),
        0.1 + 1e-17 * np.arange(40),  # one number, but for the last bit
        1e9 * RANDOM.random(40),
        np.exp(RANDOM.normal(0, 10, 40)),
    ],
)
def test_large_numbers_constants_and_wide_spans_are_taken(numbers):
    assert read(EVENTS.with_columns(x=pl.Series(numbers))).series.channels == ("pulse", "x")


def test_a_column_of_text_in_a_wide_table_says_how_to_leave_it_out():
    wards = EVENTS.with_columns(ward=pl.lit("A"))
    message = r"column 'ward' holds text, as 'A', .*`channels`, --channel-column.*--static-column"
    with pytest.raises(DataError, match=message):
        read(wards)
    assert read(wards, channels=["pulse"]).series.channels == ("pulse",)
    task = read(wards, static_columns=["ward"])
    assert (task.series.channels, task.series.features) == (("pulse",), ("ward=A",))
    with pytest.raises(DataError, match=r"column 'day' has type Date, and a channel is numbers"):
        read(EVENTS.with_columns(day=pl.lit(date(2030, 1, 1))))


def test_a_label_is_no_channel_even_where_it_is_named_as_one():
    ill = EVENTS.with_columns(ill=pl.Series([0, 1] * 20))
    with pytest.raises(DataError, match=r"'ill' is named as a channel and in another role"):
        read(ill, RowLabels("ill"), channels=["pulse", "ill"])


def test_a_text_among_static_numbers_is_refused_by_line_and_words_are_categories():
    ages = [str(50 + n) for n in range(20)]
    ages[7] = ">89"
    facts = DEATHS.select("bed", age=pl.Series(ages), sex=pl.Series(["f", "m"] * 10))
    message = r"line 7, column 'age' \(static feature\): '>89' is not a number"
    with pytest.raises(DataError, match=message):
        read(static=facts)
    mended = facts.with_columns(age=pl.col("age").replace(">89", "90"))
    assert read(static=mended).series.features == ("age", "sex=f", "sex=m")
    assert read(static=facts, static_columns=["sex"]).series.features == ("sex=f", "sex=m")


@pytest.mark.parametrize("order", [["age", "age_missing"], ["age_missing", "age"]])
def test_a_column_does_not_replace_the_mark_of_what_is_missing(order):
    facts = DEATHS.select("bed", age=pl.Series([None] + [60.0] * 19), age_missing=pl.lit(7))
    with pytest.raises(DataError, match=r"two static features are called 'age_missing'.*rename"):
        read(static=facts.select("bed", *order))
    whole = facts.with_columns(age=pl.col("age").fill_null(61))
    assert read(static=whole).series.features == ("age", "age_missing")
