"""Contributions of a stream's events add up to the risk that is drawn of it."""

import copy
import json
import math
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import onlinecde as oc
from onlinecde.cli.app import app
from onlinecde.data import simulate_ward
from onlinecde.evaluation.explaining import explain_streams
from onlinecde.evaluation.following import follow
from onlinecde.plots import save_figure
from onlinecde.plots.contributions import ExplainedStream, contributions_figure
from onlinecde.plots.look import BLUE, VERMILLION


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(120, seed=5).task


@pytest.fixture(scope="module")
def model(ward):
    torch.manual_seed(2)
    series = ward.series
    made = oc.NeuralCDE(
        channels=len(series.channels),
        static=len(series.features),
        hidden=6,
        field={"width": 6},
        readout={"kind": "binary", "sees_path": True},
    )
    made.encoding.fit(series)
    return made.eval()


def log_odds(risk):
    return math.log(risk / (1 - risk))


@pytest.mark.parametrize("channels", [2, 50])
def test_the_parts_add_up_to_the_last_risk(ward, model, channels):
    drawn = explain_streams(model, ward, streams=3, channels=channels)
    assert len(drawn) == 3
    for one in drawn:
        added = sum(value for line in one.added.values() for _, value in line)
        # Each part is rounded to four digits.
        assert one.start + added == pytest.approx(log_odds(one.risk[-1]), abs=0.02)
        assert len(one.added) <= channels + 2
        assert "time" in one.added
        assert ("others" in one.added) == (channels == 2)


def test_channels_called_time_and_others_count_as_channels(ward, model):
    names = ("time", "others", "[time]", *ward.series.channels[3:])
    renamed = replace(ward, series=replace(ward.series, channels=names))
    other = copy.deepcopy(model)
    other.schema = replace(model.schema, channels=names)
    for plain, one in zip(
        explain_streams(model, ward, channels=4),
        explain_streams(other, renamed, channels=4),
        strict=True,
    ):
        assert list(one.added.values()) == list(plain.added.values())
        added = sum(value for line in one.added.values() for _, value in line)
        assert one.start + added == pytest.approx(log_odds(one.risk[-1]), abs=0.02)
        assert list(one.added)[-2:] == ["[others]", "[[time]]"]


def test_streams_are_found_by_name_or_refused(ward, model):
    names = [str(ward.series.streams[i]) for i in ward.splits["test"][:2].tolist()]
    drawn = explain_streams(model, ward, streams=names[::-1])
    assert [one.stream for one in drawn] == names[::-1]
    assert [one.stream for one in follow({"a": model}, ward, streams=names)] == names
    with pytest.raises(ValueError, match="stream 'nobody' is not in the test split"):
        explain_streams(model, ward, streams=["nobody"])


def test_what_has_no_exact_contributions_is_refused(ward):
    series = ward.series
    gru = oc.GRU(channels=len(series.channels), static=len(series.features), kind="binary")
    with pytest.raises(ValueError, match="GRU has no exact contributions"):
        explain_streams(gru, ward)


def test_every_contribution_is_drawn_up_and_down_in_its_colour(ward, model):
    drawn = explain_streams(model, ward, streams=2)
    figure = contributions_figure([ExplainedStream(**one.as_json()) for one in drawn])
    most = max(abs(v) for one in drawn for line in one.added.values() for _, v in line)
    for one, axis in zip(drawn, figure.axes[2:], strict=True):
        circles = [line for line in axis.lines if line.get_marker() == "o"]
        seen = {
            (int(y), x): (circle.get_color(), circle.get_markersize())
            for circle in circles
            for x, y in zip(*circle.get_data(), strict=True)
        }
        sizes = {}
        for place, line in enumerate(one.added.values()):
            for time, value in line:
                if abs(value) > 0.01 * most:
                    colour, sizes[abs(value)] = seen.pop((place, time))
                    assert colour == (VERMILLION if value > 0 else BLUE)
        order = [sizes[value] for value in sorted(sizes)]
        assert order == sorted(order), "what added more is drawn larger"
        assert all(size < 0.1 * max(order) + 1 for _, size in seen.values())
    with pytest.raises(ValueError, match="no stream to draw"):
        contributions_figure([])


def test_names_with_dollars_are_text(tmp_path):
    one = ExplainedStream(
        "$a", "Stream $a_{$", "h", [0, 1], [0.1, 0.2], -2.2, {"$x_{": [(1.0, 0.8)]}, []
    )
    save_figure(contributions_figure([one]), tmp_path, "streams")
    assert (tmp_path / "streams.png").stat().st_size > 1000


def test_the_command_draws_and_writes_what_it_drew(ward, model, tmp_path):
    told = {"source": "registry", "name": "simulated-ward"}
    told["arguments"] = {"streams": 120, "simulation_seed": 5}
    oc.save(model, tmp_path / "model", extra={"task": told}, channels=ward.series.channels)
    words = ["plot", "streams", str(tmp_path / "model"), "--out", str(tmp_path), "--count", "1"]
    done = CliRunner().invoke(app, [*words, "--json", str(tmp_path / "streams.json")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "streams.png").stat().st_size > 1000
    found = json.loads((tmp_path / "streams.json").read_text())
    assert found["command"].startswith("onlinecde plot streams ")
    assert "--count 1" in found["command"]
    (one,) = found["streams"]
    assert one == json.loads(json.dumps(explain_streams(model, ward, streams=1)[0].as_json())) | {
        "event": one["event"],
        "title": one["title"],
    }
