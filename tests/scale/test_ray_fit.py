"""`fit --ray`: two workers give what one process gives, through the death of one of them."""

import random
import threading

import pytest
import torch
from ray_here import kill, need_ray, two_processors, until, workers

from onlinecde.artifacts import load
from onlinecde.cli.app import main
from onlinecde.data import simulate_ward
from onlinecde.training import FitError, fit, read_log

need_ray()
# Ray Train imports Ray Data, which warns of settings of its own.
pytestmark = pytest.mark.filterwarnings("ignore:`use_\\w+` is deprecated:DeprecationWarning")
cluster = pytest.fixture(scope="module", autouse=True)(two_processors)


def close(folder, other):
    """Logs and weights of two runs are the same to rounding."""
    ours, theirs = read_log(folder), read_log(other)
    assert len(ours) == len(theirs)
    for one, two in zip(ours, theirs, strict=True):
        assert (one["epoch"], one["nfe"], one["lr"]) == (two["epoch"], two["nfe"], two["lr"])
        for name in ("train_loss", "validation_loss"):
            assert one[name] == pytest.approx(two[name], rel=1e-9)
    weights = load(other / "model").state_dict()
    for name, weight in load(folder / "model").state_dict().items():
        torch.testing.assert_close(weight, weights[name], rtol=1e-8, atol=1e-10)


def kill_one_at_work(out, said):
    """Kill a worker, whichever, when two epochs are done."""
    until(lambda: len(read_log(out)) >= 2)
    at_work = workers("RayTrainWorker")
    assert len(at_work) == 2
    said.append(len(read_log(out)))
    kill(random.choice(at_work))


def test_one_of_two_workers_killed_it_ends_with_the_folder_of_one_process(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("ONLINECDE_CACHE", str(tmp_path / "cache"))
    epochs, seed = 50, random.randrange(1000)
    words = [
        *("fit", "--task", "simulated-ward", "--task-setting", "streams=50", "--device", "cpu"),
        *("--hidden", "5", "--width", "5", "--epochs", str(epochs), "--seed", str(seed)),
        *("--setting", "dtype=float64", "--setting", "stop=1000", "--batch-size", "8"),
        *("--model-setting", "channel_dropout=0.2", "--model-setting", "readout_dropout=0"),
    ]
    killed = []
    killer = threading.Thread(target=kill_one_at_work, args=(tmp_path / "two", killed))
    killer.start()
    for out, more in (("two", ["--ray", "--workers", "2"]), ("alone", [])):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--out", str(tmp_path / out), *more])
        assert ended.value.code == 0
    killer.join()
    assert killed
    assert killed[0] < epochs, "all was done before the kill"
    said = capsys.readouterr().out
    assert said.count("a worker died: all begin again at the last checkpoint") == 1
    assert said.count("going on in") == 1
    assert said.count(f"all {epochs} epochs are done") == 2
    close(tmp_path / "two", tmp_path / "alone")

    def files(name):
        home = tmp_path / name
        found = {str(file.relative_to(home)) for file in home.rglob("*")}
        return {"events" if "events" in file else file for file in found}

    assert files("two") == files("alone")
    assert (tmp_path / "two/run.json").read_text() == (tmp_path / "alone/run.json").read_text()


def test_what_goes_wrong_in_a_worker_is_said_as_by_one_process(tmp_path, capsys):
    words = ["fit", "--task", "simulated-ward", "--task-setting", "streams=40", "--device", "cpu"]
    words += ["--hidden", "4", "--width", "4", "--epochs", "9", "--lr", "1e30"]
    told = []
    for out, more in (("alone", []), ("two", ["--ray", "--workers", "2"])):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--out", str(tmp_path / out), *more])
        assert ended.value.code == 2
        told.append(capsys.readouterr().err)
    assert "try a smaller learning rate" in told[0]
    assert told[1] == told[0]
    assert len(told[1].splitlines()) < 4


def test_what_one_process_refuses_is_refused_before_workers_are_asked(tmp_path):
    from onlinecde.scale.ray import ClusterError
    from onlinecde.scale.ray import fit as fit_on_ray

    task = simulate_ward(40, seed=1, hours=10).task
    fit(task, "gru", tmp_path / "a", epochs=1, model_settings={"hidden": 4}, device="cpu")
    with pytest.raises(FitError, match="holds a run with other settings"):
        fit_on_ray(task, "gru", tmp_path / "a", epochs=1, lr=0.01, model_settings={"hidden": 4})
    with pytest.raises(FitError, match="step_control is 'batch'"):
        sizes = {"method": "dopri5", "rtol": 1e-3, "atol": 1e-3, "step_control": "batch"}
        fit_on_ray(task, out=tmp_path / "b", model_settings=sizes)
    with pytest.raises(ClusterError, match=r"3 workers need 3 processors .* has 2: give fewer"):
        fit_on_ray(task, "gru", tmp_path / "c", workers=3)
    with pytest.raises(ClusterError, match="the cluster has no GPU"):
        fit_on_ray(task, "gru", tmp_path / "d", device="cuda")
