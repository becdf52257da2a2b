"""`oc.predict`: the scores are the model's own, whoever else is in the table, and stand where they were asked for."""

import warnings
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from made_ward import CHANNELS, LONG, WIDE, named

import onlinecde as oc
from onlinecde.data import DataError

pytestmark = pytest.mark.filterwarnings("ignore::onlinecde.SchemaWarning")


def series_of(cde, vitals, stays, stay):
    """One stay by hand: its series, as the model takes it."""
    own = vitals.filter(pl.col("stay") == stay)
    batch = oc.SeriesBatch.from_long(own, **LONG, channels=CHANNELS)
    facts = stays.row(by_predicate=pl.col("stay") == stay, named=True)
    static, _ = cde.schema.encode({"age": facts["age"], "sex": facts["sex"]}, [stay])
    features = torch.from_numpy(static).float()
    return oc.SeriesBatch.from_padded(
        batch.times, batch.values, channels=CHANNELS, static=features, features=cde.schema.features
    )


def test_scores_are_the_models_own_at_rows_at_the_end_and_between(cde, vitals, stays):
    tables = {"static": stays, **LONG}
    rows, end, grid = (
        oc.predict(cde, vitals, at=at, **tables) for at in ("rows", "end", "every=30min")
    )
    for stay in ("bed 3", "bed 17", "bed 40"):
        batch = series_of(cde, vitals, stays, stay)
        with torch.no_grad():
            wanted = cde(batch).sigmoid()[0, :, 0].numpy()
            steps = int((batch.times[0, -1] - batch.times[0, 0]) / 0.5 * (1 + 1e-12))
            asked = batch.times[0, 0] + 0.5 * torch.arange(steps + 1, dtype=torch.float64)
            between = cde(batch, at=asked).sigmoid()[0, :, 0].numpy()
        own = [frame.filter(pl.col("stream") == stay) for frame in (rows, end, grid)]
        np.testing.assert_allclose(own[0]["probability"], wanted, atol=1e-6)
        np.testing.assert_array_equal(own[0]["time"], batch.times[0])
        np.testing.assert_allclose(own[1]["probability"], wanted[-1:], atol=1e-6)
        np.testing.assert_allclose(own[2]["probability"], between, atol=1e-6)
        np.testing.assert_allclose(own[2]["time"], asked, atol=1e-12)


def test_streams_stand_in_the_order_of_the_table(cde, vitals, stays):
    rows = oc.predict(cde, vitals, at="rows", static=stays, **LONG)
    assert rows.columns == ["stream", "time", "probability"]
    order = rows["stream"].unique(maintain_order=True)
    assert order.equals(vitals["stay"].unique(maintain_order=True).alias("stream"))
    assert rows.group_by("stream").agg(pl.col("time").is_sorted())["time"].all()


@pytest.mark.parametrize("at", ["rows", "end", "every=20min"])
def test_a_streams_scores_do_not_depend_on_who_else_is_in_the_table(cde, vitals, stays, at):
    whole = oc.predict(cde, vitals, at=at, static=stays, **LONG)
    for stay in ("bed 3", "bed 17"):
        mine = pl.col("stay") == stay
        alone = oc.predict(cde, vitals.filter(mine), at=at, static=stays.filter(mine), **LONG)
        among = whole.filter(pl.col("stream") == stay)
        assert alone.select("stream", "time").equals(among.select("stream", "time"))
        np.testing.assert_allclose(alone["probability"], among["probability"], atol=1e-6, rtol=0)


def test_a_lone_stream_near_one_value_is_scored_as_among_others(cde, vitals, stays):
    # float32 tells its values apart by a part of what they vary: a training split like that is refused.
    odd = pl.DataFrame({"stay": "a", "hours": [0.0, 1.0], "name": "hr", "value": [1e8, 1e8 + 1]})
    alone = oc.predict(cde, odd, at="rows", **LONG)
    among = oc.predict(cde, pl.concat([odd, vitals]), at="rows", **LONG)
    np.testing.assert_allclose(alone["probability"], among["probability"][:2], atol=1e-6)


def test_lines_of_a_table_keep_their_place_and_are_empty_before_anything_was_observed(
    cde, vitals, stays
):
    asked = pl.DataFrame(
        {"stay": ["bed 9", "nobody", "bed 3", "bed 9", "bed 9"], "hours": [50.0, 1.0, 7.0, -1.0, 50.0]}
    )  # fmt: skip
    with pytest.warns(oc.SchemaWarning, match="2 lines of the table of query times ask before"):
        scores = oc.predict(cde, vitals, at=asked, static=stays, **LONG)
    assert scores["stream"].to_list() == asked["stay"].to_list()
    assert scores["time"].to_list() == asked["hours"].to_list()
    assert scores["probability"].is_null().to_list() == [False, True, False, True, False]
    assert scores["probability"][0] == scores["probability"][4]
    with torch.no_grad():
        wanted = cde(series_of(cde, vitals, stays, "bed 3"), at=[7.0]).sigmoid()
    assert scores["probability"][2] == pytest.approx(float(wanted), abs=1e-6)


def test_a_grid_goes_on_behind_the_last_row_or_to_a_time(cde):
    one = pl.DataFrame({"stay": [1, 1], "hours": [1.0, 2.5], "hr": [0.0, 1.0]})
    times = [
        oc.predict(cde, one, at="every=1h", until=until, **WIDE)["time"].to_list()
        for until in (None, "+2h", "3h", "90min")
    ]
    assert times == [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0], [1.0]]
    both = oc.predict(cde, one, at="every=1h+rows", **WIDE)["time"].to_list()
    assert both == [1.0, 2.0, 2.5]
    with pytest.raises(DataError, match="--until is the end of a grid"):
        oc.predict(cde, one, at="rows", until="3h", **WIDE)


def test_a_discretely_online_model_says_that_its_last_answer_stands():
    torch.manual_seed(1)
    gru = named(oc.GRU(3, 4, 1, kind="binary"), static=())
    one = pl.DataFrame({"stay": [1, 1], "hours": [0.0, 3.0], "hr": [0.0, 1.0]})
    with pytest.warns(oc.SchemaWarning, match="its last answer stands"):
        scores = oc.predict(gru, one, at="every=1h", **WIDE)
    assert scores["probability"][:3].n_unique() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        oc.predict(gru, one.with_columns(bp=0.0, temp=0.0), at="rows", **WIDE)


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_come_back_as_they_were_given(cde, zone):
    begin = datetime(2031, 3, 4, 23, 59, 59, 123457, tzinfo=UTC if zone else None)
    stamps = [begin + timedelta(hours=1.5 * k, microseconds=k) for k in range(5)]
    frame = pl.DataFrame({"stay": ["a"] * 5, "hours": stamps, "hr": range(5)})
    numbers = frame.with_columns(
        hours=(pl.col("hours") - stamps[0]).dt.total_microseconds() / 3.6e9
    )
    rows = oc.predict(cde, frame, at="rows", **WIDE)
    assert rows["time"].to_list() == stamps
    plain = oc.predict(cde, numbers, at="rows", **WIDE)
    np.testing.assert_allclose(rows["probability"], plain["probability"], atol=1e-6)
    grid = oc.predict(cde, frame, at="every=1h", **WIDE)["time"].to_list()
    assert grid == [begin + timedelta(hours=k) for k in range(7)]
    asked = oc.predict(cde, frame, at=frame.select("stay", "hours")[::-1], **WIDE)
    np.testing.assert_allclose(asked["probability"], rows["probability"][::-1], atol=1e-6)


def test_each_kind_of_table_gives_its_own_kind(cde, vitals, stays):
    polars = oc.predict(cde, vitals, at="rows", static=stays, **LONG)
    pandas = oc.predict(cde, vitals.to_pandas(), at="rows", static=stays.to_pandas(), **LONG)
    arrow = oc.predict(cde, vitals.to_arrow(), at="rows", static=stays.to_arrow(), **LONG)
    assert isinstance(pandas, pd.DataFrame)
    assert pl.from_pandas(pandas).equals(polars)
    assert pl.DataFrame(arrow).equals(polars)
    wide = vitals.pivot("name", index=["stay", "hours"], values="value")
    other = oc.predict(cde, wide, at="rows", static=stays, **WIDE)
    assert other.sort("stream", "time").equals(polars.sort("stream", "time"))


def test_columns_are_called_by_what_the_outputs_are(vitals):
    torch.manual_seed(2)
    wanted = {
        ("binary", 1): ["probability"],
        ("multiclass", 3): ["probability_0", "probability_1", "probability_2"],
        ("regression", 1): ["prediction"],
        ("regression", 2): ["prediction_0", "prediction_1"],
    }
    for (kind, outputs), columns in wanted.items():
        model = named(oc.GRU(3, 4, outputs, kind=kind), static=())
        scores = oc.predict(model, vitals, at="end", **LONG)
        assert scores.columns == ["stream", "time", *columns]
        if kind == "multiclass":
            np.testing.assert_allclose(scores.select(columns).sum_horizontal(), 1.0)


def test_what_differs_from_training_is_said_and_what_is_needed_is_asked_for(cde, vitals, stays):
    fewer = vitals.filter(pl.col("name") != "bp")
    more = pl.concat([fewer, fewer.with_columns(name=pl.lit("lactate"))])
    with pytest.warns(oc.SchemaWarning) as said:
        oc.predict(cde, more, at="end", static=stays.drop("age"), **LONG)
    texts = " ".join(str(one.message) for one in said)
    for part in (
        "channel 'bp' is absent: taken as never observed",
        "the model does not know lactate: not read",
        "static feature 'age' is absent: taken as missing",
        "static feature 'sex' is 'x' in 1 stream, and the model knows f, m",
    ):
        assert part in texts
    with pytest.warns(oc.SchemaWarning, match="59 of 60 streams have no line in"):
        oc.predict(cde, vitals, at="end", static=stays[:1], **LONG)
    refused = {
        "has none of the model's channels, hr, bp, temp: it has x": {"events": vitals.with_columns(name=pl.lit("x"))},
        "no line of any stream of the table of events: ids look like '1' there, like 'bed": {
            "static": pl.DataFrame({"stay": [1], "age": [50.0]})
        },
        "there is no column 'bed' for the stream": {"stream": "bed"},
        "two values of channel": {"events": pl.concat([vitals, vitals.with_columns(value=pl.col("value") + 1)])},
        "random times are for training": {"at": "random=3"},
        "line 0, column 'hours': the time is missing": {"events": vitals.with_columns(hours=None)},
        "identifiers must be whole numbers": {"events": vitals.with_columns(stay=0.5)},
        "holds timestamps without a time zone, the times of the series are numbers": {
            "at": pl.DataFrame({"stay": ["bed 3"], "hours": [datetime(2030, 1, 1)]})
        },
    }  # fmt: skip
    for message, changes in refused.items():
        given = {"events": vitals, "static": stays, "at": "end", **LONG} | changes
        with pytest.raises(DataError, match=message.replace("(", r"\(")):
            oc.predict(cde, given.pop("events"), **given)
    with pytest.raises(
        DataError, match=r"say which column of the table of events holds the stream"
    ):
        oc.predict(cde, vitals)


def test_a_regression_with_intervals_has_their_ends_beside_its_numbers(vitals):
    from onlinecde.models.intervals import Intervals

    torch.manual_seed(3)
    model = named(oc.GRU(3, 4, 2), static=())
    model.intervals = Intervals(
        (0.9,), ((2.0, 1.0),), ((0.0,), (0.0,)), ((1.0,), (0.5,)), subjects=40
    )
    scores = oc.predict(model, vitals, at="end", **LONG)
    assert scores.columns[2:] == [
        f"{name}_{place}" for name in ("prediction", "lower", "upper") for place in (0, 1)
    ]
    for place, half in ((0, 2.0), (1, 0.5)):
        middle = scores[f"prediction_{place}"]
        np.testing.assert_allclose(scores[f"lower_{place}"], middle - half, atol=1e-6)
        np.testing.assert_allclose(scores[f"upper_{place}"], middle + half, atol=1e-6)


def test_time_to_an_event_is_asked_for_a_horizon(cde, vitals, stays):
    torch.manual_seed(4)
    model = named(oc.GRU(3, 4, 3, kind="time-to-event"), static=())
    model.readout.bins.put([6.0, 12.0, 48.0], 12.0)
    usual, near, far = (
        oc.predict(model, vitals, at="end", horizon=horizon, **LONG)["probability"]
        for horizon in (None, 3.0, "2d")
    )
    assert oc.predict(model, vitals, at="end", horizon="12h", **LONG)["probability"].equals(usual)
    assert (near < usual).all()
    assert (usual < far).all()
    with pytest.raises(ValueError, match="up to 48"):
        oc.predict(model, vitals, at="end", horizon="3d", **LONG)
    with pytest.raises(DataError, match="a horizon is for models of the time to an event"):
        oc.predict(cde, vitals, at="end", horizon="3h", static=stays, **LONG)
