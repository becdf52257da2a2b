"""From a folder to a server: what the manifest says, another model, an offline one."""

import copy

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.series import TIME_UNITS
from onlinecde.serving import ServeSettings, ServingError
from onlinecde.serving.opening import open_engine
from onlinecde.streaming import Event, ModelMismatch
from onlinecde.streaming.stream_clock import StreamClock

CHANNELS = ("heart_rate", "lactate", "oxygen", "pressure")


def test_the_manifest_completes_the_settings(small_model, tmp_path):
    oc.save(
        small_model, tmp_path / "model", channels=CHANNELS,
        extra={"time_unit": "minutes", "classes": ["well", "ill"], "static": []},
    )  # fmt: skip
    engine, settings = open_engine(tmp_path / "model", None, ServeSettings(clock_speed=2.0))
    assert settings.time_unit == "minutes"
    assert settings.units_per_second == pytest.approx(2 / 60)
    assert settings.classes == ("well", "ill")
    assert len(engine) == 0, "the trial run leaves nothing behind"
    engine.close()
    engine, settings = open_engine(tmp_path / "model", None, ServeSettings(), time_unit="days")
    assert settings.time_unit == "days"
    engine.close()


def test_a_unit_no_one_knows_is_asked_for(small_model, tmp_path):
    oc.save(small_model, tmp_path / "model", channels=CHANNELS, extra={"time_unit": "fortnights"})
    with pytest.raises(ServingError, match="unit of time"):
        open_engine(tmp_path / "model", None, ServeSettings())


@pytest.mark.parametrize("unit", TIME_UNITS)
def test_a_model_is_served_in_any_unit_and_its_answers_move_for_a_day(unit, small_model, tmp_path):
    oc.save(small_model, tmp_path / "model", channels=CHANNELS, extra={"time_unit": unit})
    engine, settings = open_engine(tmp_path / "model", None, ServeSettings())
    engine.close()
    day = 24 * 3600 / TIME_UNITS[unit]
    wall = [0.0]
    clock = StreamClock(settings.units_per_second, settings.silence, wall=lambda: wall[0])
    for hours in (1, 23, 1e9):
        wall[0] = 3600.0 * hours
        now = float(clock.now([0.0], received=[0.0], origins=[float("nan")])[0])
        assert now == pytest.approx(min(day * hours / 24, max(day, 24.0)))


def test_a_model_of_one_hour_in_unix_milliseconds_is_served(small_model, tmp_path):
    times = 1.7e12 + torch.linspace(0, 3.6e6, 20, dtype=torch.float64)
    values = torch.randn(1, 20, 4)
    model = copy.deepcopy(small_model)
    model.encoding.fit(oc.SeriesBatch.from_padded(times[None], values, channels=CHANNELS))
    oc.save(model, tmp_path / "model", extra={"time_unit": "milliseconds"})
    engine, _ = open_engine(tmp_path / "model", None, ServeSettings())
    event = Event("a", 1.7e12 + 60_000, "lactate", 1.0)
    assert engine.apply([event])[0].refusal is None
    assert np.isfinite(engine.predict("a", event.time + 60_000)).all()
    engine.close()


def test_another_model_needs_a_rebuild_and_then_answers_as_itself(small_model, tmp_path):
    oc.save(small_model, tmp_path / "one", channels=CHANNELS)
    torch.manual_seed(9)
    other = oc.NeuralCDE(
        4, 8, outputs=1, field={"width": 8, "depth": 1}, readout={"kind": "binary"}
    ).eval()
    oc.save(other, tmp_path / "two", channels=CHANNELS)
    engine, _ = open_engine(tmp_path / "one", tmp_path / "live.db", ServeSettings())
    times, values = [0.0, 0.5, 2.0], [1.0, -1.0, 0.5]
    for t, v in zip(times, values, strict=True):
        engine.apply([Event("a", t, "lactate", v)])
    engine.close()
    with pytest.raises(ModelMismatch, match="rebuild"):
        open_engine(tmp_path / "two", tmp_path / "live.db", ServeSettings())
    engine, _ = open_engine(tmp_path / "two", tmp_path / "live.db", ServeSettings(), rebuild=True)
    nan = float("nan")
    batch = oc.SeriesBatch.from_arrays([times], [[[nan, v, nan, nan] for v in values]])
    with torch.no_grad():
        true = other(batch, at=torch.tensor([[3.0]]))[0, 0]
    assert engine.predict("a", 3.0).tolist() == pytest.approx(true.tolist(), abs=1e-5)
    engine.close()


def test_an_output_the_model_has_not_is_refused(small_model):
    from onlinecde.streaming import Engine, StreamingError

    with pytest.raises(StreamingError, match="output"):
        Engine(small_model, channels=CHANNELS, output=3)
