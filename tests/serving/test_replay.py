"""Contract 1 through the whole stack, and a replay that finds out where it does not hold."""

import contextlib
import re
import time
from dataclasses import replace

import pytest
import torch

import onlinecde as oc
from onlinecde.cli import main
from onlinecde.data import simulate_ward
from onlinecde.models import AlarmPolicy
from onlinecde.serving import ServeSettings, ServingError, create_app, in_background
from onlinecde.serving.demo import live_demo
from onlinecde.serving.opening import open_engine
from onlinecde.serving.replay import Server, replay
from onlinecde.serving.screenshots import find_browser
from onlinecde.serving.verify import Questions, verify


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(60, seed=4).task


@pytest.fixture(scope="module")
def folder(ward, tmp_path_factory):
    torch.manual_seed(0)
    model = oc.NeuralCDE(
        12, 8, outputs=1, static=2, field={"width": 8, "depth": 1}, readout={"kind": "binary"}
    )
    model.fit_scales(ward.split("train")[0])
    source = {
        "source": "registry",
        "name": "simulated-ward",
        "arguments": {"streams": 60, "simulation_seed": 4},
    }
    return oc.save(
        model, tmp_path_factory.mktemp("ward") / "model", channels=ward.series.channels,
        extra={"time_unit": "hours", "static": ["age", "sex"], "task": source, "kind": "binary"},
    )  # fmt: skip


@pytest.fixture
def served(folder, tmp_path):
    engine, settings = open_engine(folder, tmp_path / "x.db", ServeSettings(port=0), lateness=1.0)
    with in_background(create_app(engine, settings), settings) as url:
        yield url, engine


@pytest.fixture
def talk_to():
    """Clients that are closed whatever the test does."""
    with contextlib.ExitStack() as held:
        yield lambda url: held.enter_context(contextlib.closing(Server(url)))


def test_every_answer_is_the_offline_models(served, folder, capsys):
    url, engine = served
    main_without_exit(
        ["replay", str(folder), "--to", url, "--speed", "1e6", "--spread", "0.5", "--verify"]
    )
    said = capsys.readouterr().out
    assert "holds" in said
    rows = int(re.search(r"(\d+) rows", said)[1])
    assert int(re.search(r"(\d+) stored", said)[1]) == rows == engine.counters["rows"]
    assert int(re.search(r"(\d+) between rows", said)[1]) > 0


@pytest.fixture(scope="module")
def alarming(ward, folder, tmp_path_factory):
    """The folder of a model whose risk swings, with a policy that raises alarms at rows and between them."""
    torch.manual_seed(59)
    model = oc.NeuralCDE(
        12, 8, outputs=1, static=2, field={"width": 8, "depth": 1}, readout={"kind": "binary"}
    )
    model.fit_scales(ward.split("train")[0])
    with torch.no_grad():
        model.field.weight *= 0.7
        model.field.inner[0].weight *= 3
        model.readout.layers.weight *= 0.5
        series = ward.split("test")[0].observed_rows()
        risk = torch.sigmoid(model(model.prepare(series))[..., 0].double())[series.real]
    model.alarm_policy = AlarmPolicy(
        float(risk.quantile(0.5)), float(risk.quantile(0.4)), quiet=0.6, every=0.1
    )
    manifest = oc.artifacts.read_manifest(folder)
    return oc.save(
        model, tmp_path_factory.mktemp("alarming") / "model", channels=manifest.channels, extra=manifest.extra
    )  # fmt: skip


@pytest.mark.parametrize(
    ("replay_speed", "clock_speed"),
    [("1e6", 1.0), ("36000", 36000.0)],
    ids=["clock stands still", "clock runs ahead of the rows"],
)
def test_alarms_between_rows_are_the_offline_models(
    alarming, tmp_path, capsys, replay_speed, clock_speed
):
    settings = ServeSettings(port=0, clock_speed=clock_speed, look_every=0.05)
    engine, settings = open_engine(alarming, tmp_path / "x.db", settings)
    with in_background(create_app(engine, settings), settings) as url:
        main_without_exit(
            ["replay", str(alarming), "--to", url, "--speed", replay_speed, "--spread", "0.9",
             "--seconds", "2", "--verify"]
        )  # fmt: skip
    said = capsys.readouterr().out
    assert "holds" in said
    assert int(re.search(r"(\d+) alarms at rows", said)[1]) > 0
    assert int(re.search(r"(\d+) alarms between rows", said)[1]) > 0


def test_an_alarm_that_is_missing_or_made_up_is_found(alarming, tmp_path, talk_to, ward):
    series = ward.split("test")[0].observed_rows()
    engine, settings = open_engine(alarming, None, ServeSettings(port=0))
    with in_background(create_app(engine, settings), settings) as url:
        server = talk_to(url)
        done = replay(series, server, speed=1e6)
        results = []
        for change in (lambda told: told[1:], lambda told: [{**told[0], "time": 1e3}, *told]):
            server.ask = changed_alarms(server, change)
            results.append(verify(oc.load(alarming), series, server, done, prefix="stream "))
    for result, whose in zip(
        results, ("the model's alarm at", "the server's alarm at"), strict=True
    ):
        assert not result.holds
        assert whose in str(result)


def changed_alarms(server, change):
    """`Server.ask`, but for what it says of alarms."""

    def ask(method, path, **options):
        told = Server.ask(server, method, path, **options)
        return (
            {"alarms": change(told["alarms"])}
            if told.get("alarms") and path == "/v1/alarms"
            else told
        )

    return ask


def main_without_exit(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code in (0, None)


def test_rows_without_an_event_are_neither_sent_nor_missed(
    served, folder, ward, monkeypatch, capsys
):
    url, _ = served
    values = ward.series.values.clone()
    values[:, 1::3] = torch.nan
    gaps = replace(ward, series=replace(ward.series, values=values))
    monkeypatch.setattr("onlinecde.training.task_source.load_task", lambda _: gaps)
    main_without_exit(["replay", str(folder), "--to", url, "--speed", "1e9", "--verify"])
    said = capsys.readouterr().out
    assert said.rstrip().endswith("holds"), said


def test_a_wrong_answer_is_found(served, folder, ward, talk_to):
    url, _ = served
    series = ward.split("test")[0][:3]
    server, model = talk_to(url), oc.load(folder)
    questions = Questions(server, series, "x ")
    done = replay(series, server, speed=1e6, prefix="x ", between=questions)
    right = verify(model, series, server, done, prefix="x ", between=questions.answered)
    assert right.holds
    done.answered.outputs[1] = [done.answered.outputs[1][0] + 1e-3]
    wrong = verify(model, series, server, done, prefix="x ", between=questions.answered)
    assert not wrong.holds
    assert "receipts" in wrong.worst
    with torch.no_grad():
        model.readout.layers.bias += 1e-3
    assert not verify(model, series, server, done, prefix="x ").holds


def test_rows_the_server_does_not_have_are_missed(served, folder, ward, talk_to):
    url, engine = served
    series = ward.split("test")[0][:2]
    server = talk_to(url)
    done = replay(series, server, speed=1e6, prefix="x ")
    engine.forget(f"x {series.streams[0]}")
    engine.open_stream(f"x {series.streams[0]}", static=[1.0, 1.0])
    found = verify(oc.load(folder), series, server, done, prefix="x ")
    assert found.missing == int(series.rows[0])
    assert not found.holds
    assert str(found).endswith(f"FAILS ({found.missing} rows missing)")


def test_another_model_is_not_compared_with(served, folder, tmp_path, ward, capsys):
    url, _ = served
    other = oc.load(folder)
    with torch.no_grad():
        other.readout.layers.bias += 1.0
    oc.save(other, tmp_path / "other", channels=ward.series.channels)
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(folder), "--model", str(tmp_path / "other"), "--to", url, "--verify"])
    assert ended.value.code == 2
    assert "follows model" in capsys.readouterr().err


def test_the_same_streams_twice_and_no_server_are_told(served, ward, talk_to):
    url, _ = served
    series, server = ward.split("test")[0][:1], talk_to(url)
    replay(series, server, speed=1e6)
    with pytest.raises(ServingError, match="--prefix"):
        replay(series, server, speed=1e6)
    nowhere = talk_to("http://127.0.0.1:9")
    with pytest.raises(ServingError, match="does not answer"):
        replay(series, nowhere, speed=1.0)


def test_where_nothing_was_sent_nothing_is_said_to_be_compared(served, folder, capsys):
    url, _ = served
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(folder), "--to", url, "--seconds", "0", "--prefix", "no ", "--verify"])
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "compared with the offline model: nothing, for no row was sent" in said
    assert "FAILS" not in said


def test_the_pace_is_kept(served, ward, talk_to):
    url, _ = served
    series, server = ward.split("test")[0][:4], talk_to(url)
    first = [float(series.times[stream, 0]) for stream in range(len(series))]
    sent, began = [], time.time()

    def note(latest):
        passed = time.time() - began
        sent.append((passed, max(newest - first[stream] for stream, newest in latest.items())))

    done = replay(series, server, speed=3600.0, seconds=1.5, between=note)
    assert done.seconds > 1.5
    # One hour a second: nothing was sent before it was due, and what was due came in its turn.
    assert all(hours <= passed for passed, hours in sent)
    assert 0.5 < sent[-1][1] <= done.seconds
    assert (done.sent_until[~torch.isnan(torch.tensor(done.sent_until))] < 30.0).all()


def test_the_demo_verifies_and_takes_a_picture(folder, ward, tmp_path):
    said = []
    live_demo(folder, task=ward, out=tmp_path, interactive=False, streams=6, say=said.append)
    told = "\n".join(said)
    assert "holds" in told
    if find_browser()[0] is None:
        assert "no picture" in told
    else:
        assert (tmp_path / "monitor.png").read_bytes().startswith(b"\x89PNG")
