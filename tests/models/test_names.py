"""Contract 10: a model judges any series that has its channels by name, whatever their order and company."""

from dataclasses import replace

import pytest
import torch

import onlinecde as oc
from onlinecde.evaluation import evaluate
from onlinecde.evaluation.explaining import explain_streams
from onlinecde.models import MODELS, StateError
from onlinecde.models.flat_settings import maker
from onlinecde.series import RawStatic, Schema, SchemaWarning, SeriesError
from onlinecde.series.static_columns import as_column

NAMES = ("hr", "bp", "lactate")


def series(seed=0, channels=NAMES, streams=4):
    """Series with gaps, named."""
    print("seed", seed)
    numbers = torch.Generator().manual_seed(seed)
    values = torch.randn(streams, 5, len(channels), generator=numbers)
    values[torch.rand(values.shape, generator=numbers) < 0.3] = torch.nan
    times = torch.rand(streams, 5, generator=numbers, dtype=torch.float64).cumsum(1)
    return oc.SeriesBatch.from_padded(times, values, channels=channels)


def with_facts(batch, **facts):
    """The batch with raw static features, encoded by what it has itself."""
    return batch.with_raw_static(RawStatic({n: as_column(c) for n, c in facts.items()}))


def chosen(batch, names):
    """The batch with its channels in another order, or without some."""
    at = [batch.channels.index(name) for name in names]
    parts = {"rows": batch.rows, "channels": names, "streams": batch.streams}
    return oc.SeriesBatch.from_padded(batch.times, batch.values[..., at], **parts)


def other_way_round(task):
    """The task with its channels in the opposite order."""
    series = task.series
    turned = replace(series, values=series.values.flip(2), channels=series.channels[::-1])
    return replace(task, series=turned)


def model_of(name, batch, **settings):
    torch.manual_seed(1)
    given = {"channels": len(batch.channels), "hidden": 4, "static": len(batch.features)}
    model = maker(name)(**given, **settings).eval()
    model.schema = Schema.of(batch)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_channels_in_another_order_give_the_same_outputs_bit_for_bit(name):
    batch = series()
    model, other = model_of(name, batch), chosen(batch, NAMES[::-1])
    assert other.channels == NAMES[::-1]
    with torch.no_grad():
        assert torch.equal(model(other), model(batch))
        assert torch.equal(model(other, final=True), model(batch, final=True))


@pytest.mark.parametrize("name", MODELS)
def test_an_observation_by_name_is_the_one_by_position(name):
    model = model_of(name, series())
    with torch.no_grad():
        plain = model.observe(
            model.init_state(2), 0.5, [[1.0, float("nan"), 3.0], [2.0, float("nan"), 4.0]]
        )
        named = model.observe(model.init_state(2), 0.5, {"lactate": [3.0, 4.0], "hr": [1.0, 2.0]})
        assert torch.equal(model.predict(named), model.predict(plain))
    with pytest.raises(StateError, match=r"no channel 'pulse': it has hr, bp, lactate"):
        model.observe(model.init_state(), 0.5, {"pulse": 1.0})
    with pytest.raises(StateError, match=r"channel 'hr' has shape \(3,\)"):
        model.observe(model.init_state(2), 0.5, {"hr": [1.0, 2.0, 3.0]})
    model.schema = None
    with pytest.raises(StateError, match="no names"):
        model.observe(model.init_state(), 0.5, {"hr": 1.0})


def test_an_absent_channel_was_never_observed_and_an_unknown_one_is_left_out_and_both_are_said():
    batch = series()
    model = model_of("NeuralCDE", batch)
    renamed = oc.SeriesBatch.from_padded(
        batch.times, batch.values, batch.rows, channels=("hr", "pressure", "lactate")
    )
    blind = batch.values.clone()
    blind[..., 1] = torch.nan
    with pytest.warns(SchemaWarning) as said, torch.no_grad():
        found = model(renamed)
    told = [str(one.message) for one in said]
    assert told == [
        "channel 'bp' is absent: taken as never observed",
        "the model does not know channel pressure: left out",
    ]
    unseen = oc.SeriesBatch.from_padded(batch.times, blind, batch.rows, channels=NAMES)
    with torch.no_grad():
        assert torch.equal(found, model(unseen))


def test_a_series_without_any_channel_of_the_model_is_refused():
    model = model_of("GRU", series())
    with pytest.raises(
        SeriesError, match=r"none of the model's channels: it has a, b, c.*hr, bp, lactate"
    ):
        model(series(channels=("a", "b", "c")))


def test_series_and_models_that_were_never_named_go_by_position():
    batch = series()
    bare = oc.SeriesBatch.from_padded(batch.times, batch.values, batch.rows)
    model = model_of("GRU", batch)
    with torch.no_grad():
        assert torch.equal(model(bare), model(batch))
        unnamed = model_of("GRU", bare)
        assert torch.equal(unnamed(batch), unnamed(bare))
        # Called x0, x1, x2, but not in that order: somebody named them.
        turned = chosen(bare, ("x2", "x1", "x0"))
        assert torch.equal(unnamed(turned), unnamed(bare))
    with pytest.raises(SeriesError, match=r"the series has 2 channels \(x0, x1\).*made for 3"):
        model(series(channels=("x0", "x1")))
    with pytest.raises(SeriesError, match=r"the series has 2 channels \(x0, x1\).*made for 3"):
        unnamed(series(channels=("x0", "x1")))


def test_a_series_that_is_as_the_model_takes_it_is_not_touched():
    batch = with_facts(series(), age=[40.0, None, 60.0, 50.0], sex=["f", "m", None, "f"])
    model = model_of("GRU", batch)
    assert model.prepare(batch) is batch
    assert model.prepare(batch[1:3]).static.tolist() == batch.static[1:3].tolist()


def test_missing_numbers_are_filled_as_in_training_whoever_else_is_in_the_series():
    training = with_facts(series(), age=[40.0, None, 60.0, 50.0], sex=["f", "m", None, "f"])
    model = model_of("GRU", training)
    assert [column.fill for column in model.schema.static] == [50.0, None]
    crowd = with_facts(series(1), age=[None, 90.0, 95.0, 80.0], sex=["m", "m", "f", "f"])
    alone = with_facts(series(1)[:1], age=[None], sex=["m"])
    assert crowd.static[0, 0] > 80
    with torch.no_grad():
        assert model.prepare(crowd).static[0].tolist() == [50.0, 1.0, 0.0, 1.0]
        torch.testing.assert_close(model(crowd)[:1], model(alone), atol=1e-6, rtol=0)


def test_categories_and_marks_of_gaps_are_those_of_training():
    training = with_facts(series(), age=[40.0, None, 60.0, 50.0], sex=["f", "m", None, "f"])
    model = model_of("GRU", training)
    other = with_facts(
        series(1), sex=["x", "m", "f", "x"], age=[41.0, 42.0, 43.0, 44.0], size=[1, 2, 3, 4]
    )
    assert other.features == ("sex=f", "sex=m", "sex=x", "age", "size")
    with pytest.warns(SchemaWarning) as said:
        found = model.prepare(other)
    assert found.features == ("age", "age_missing", "sex=f", "sex=m")
    assert found.static.tolist() == [
        [41, 0, 0, 0], [42, 0, 0, 1], [43, 0, 1, 0], [44, 0, 0, 0]
    ]  # fmt: skip
    assert [str(one.message) for one in said] == [
        "the model does not know static feature size: left out",
        "static feature 'sex' is 'x' in 2 streams, first 0, and the model knows f, m: taken as missing",
    ]
    # The same, encoded elsewhere: all that is known are numbers and their names.
    encoded = oc.SeriesBatch.from_padded(
        other.times, other.values, other.rows, other.static, channels=NAMES, features=other.features
    )
    with pytest.warns(SchemaWarning) as said:
        assert torch.equal(model.prepare(encoded).static, found.static)
    assert "'sex' is 'x' in 2 streams" in str(said[1].message)


def test_static_features_that_are_absent_altogether_are_missing():
    model = model_of(
        "GRU", with_facts(series(), age=[40.0, None, 60.0, 50.0], sex=["f", "m", None, "f"])
    )
    with pytest.warns(SchemaWarning) as said:
        found = model.prepare(series(1))
    assert [str(one.message)[:30] for one in said] == [
        "static feature 'age' is absent",
        "static feature 'sex' is absent",
    ]
    assert found.static.tolist() == [[50.0, 1.0, 0.0, 0.0]] * 4


def test_states_begin_from_raw_values():
    model = model_of(
        "NeuralCDE", with_facts(series(), age=[40.0, None, 60.0, 50.0], sex=["f", "m", None, "f"])
    )
    assert model.prepare_static(1, {"sex": "m", "age": 71}).tolist() == [[71, 0, 0, 1]]
    assert model.prepare_static(2, {"sex": ["m", None]}).tolist() == [[50, 1, 0, 1], [50, 1, 0, 0]]
    assert model.prepare_static(1, {"sex=f": 1, "age": 71}).tolist() == [[71, 0, 1, 0]]
    with pytest.warns(SchemaWarning, match="'sex' is 'x' in stream 0"):
        assert model.prepare_static(1, {"sex": "x"}).tolist() == [[50, 1, 0, 0]]
    for wrong, words in (
        ({"shoe": 44}, "no static feature 'shoe': it has age, sex"),
        ({"age": "old"}, "'age' is 'old': the model takes a number"),
        ({"age": [1.0, 2.0]}, "2 entries for 1 streams"),
        ({"sex": "m", "sex=m": 1}, "given twice"),
        ({"sex": {"a": 1}}, "is a dict"),
        ({"age": float("inf")}, "infinite"),
    ):
        with pytest.raises(StateError, match=words):
            model.init_state(1, wrong)


def test_a_saved_model_has_its_names_and_fills(tmp_path):
    batch = with_facts(series(), age=[40.0, None, 60.0, 50.0], sex=["f", "m", None, "f"])
    model = model_of("NeuralCDE", batch)
    loaded = oc.load(oc.save(model, tmp_path / "model"))
    assert loaded.schema == model.schema
    with torch.no_grad():
        assert torch.equal(loaded(chosen_with_facts(batch)), model(batch))


def chosen_with_facts(batch):
    """The batch the other way round, its raw static features too."""
    raw = dict(reversed(batch.raw_static.columns.items()))
    return chosen(batch, batch.channels[::-1]).with_raw_static(RawStatic(raw))


def test_an_evaluation_goes_by_name():
    task = oc.data.simulate_ward(60, seed=3).task
    done = oc.fit(task, "gru", epochs=1, model_settings={"hidden": 4}, device="cpu")
    turned = other_way_round(task)
    mine, other = (evaluate(done.model, one, bootstrap=0) for one in (task, turned))
    assert torch.equal(mine.probabilities, other.probabilities)
    minutes = replace(task, time_unit="minutes")
    with pytest.raises(ValueError, match="is in minutes, the model counts hours"):
        evaluate(done.model, minutes, bootstrap=0)


def test_an_explanation_names_the_channels_it_is_of():
    task = oc.data.simulate_ward(60, seed=3).task
    done = oc.fit(task, epochs=1, model_settings={"hidden": 4, "width": 4}, device="cpu")
    turned = other_way_round(task)
    mine, other = (explain_streams(done.model, one, streams=1) for one in (task, turned))
    assert mine[0].added == other[0].added


def test_a_model_goes_on_from_where_it_stands_under_its_own_names():
    task = oc.data.simulate_ward(60, seed=3).task
    first = oc.fit(task, "gru", epochs=1, model_settings={"hidden": 4}, device="cpu").model
    schema = first.schema
    turned = other_way_round(task)
    again = oc.fit(turned, first, epochs=1, device="cpu").model
    assert again.schema == schema
