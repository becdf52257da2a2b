"""A batch cut over processes gives the losses and the weights of one process, whoever has the labels."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ray_shared_fits import all_fits

PROGRAM = Path(__file__).with_name("ray_shared_fits.py")


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """What each case came to in one process, and in two that share its batches."""
    home = tmp_path_factory.mktemp("shared")
    seed = str(home.stat().st_ino)

    def start(rank, processes):
        words = [str(PROGRAM), str(rank), str(processes), str(home), seed]
        return subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    crew = [start(rank, 2) for rank in range(2)]
    alone = all_fits(int(seed))
    told = [process.communicate(timeout=200) for process in crew]
    for process, (_, errors) in zip(crew, told, strict=True):
        assert process.returncode == 0, errors
    return json.loads(json.dumps(alone)), json.loads(told[0][0])


CASES = ["rows", "classes", "numbers", "ahead", "rounded"]


@pytest.mark.parametrize("case", CASES)
def test_losses_and_weights_are_those_of_one_process(fits, case):
    alone, shared = (found[case] for found in fits)
    close = {"rel": 2e-4, "abs": 2e-5} if case == "rounded" else {"rel": 1e-9, "abs": 1e-12}
    assert len(alone["history"]) == len(shared["history"]) > 1
    for one, other in zip(alone["history"], shared["history"], strict=True):
        assert one["nfe"] == other["nfe"]
        for name in ("train_loss", "validation_loss"):
            assert one[name] == pytest.approx(other[name], **close), (case, name)
    assert alone["weights"] == pytest.approx(shared["weights"], **close)
    losses = [entry["train_loss"] for entry in alone["history"]]
    assert losses[-1] != pytest.approx(losses[0], rel=1e-3), "nothing was learned"


@pytest.mark.parametrize("case", CASES)
def test_labels_were_spread_unevenly(fits, case):
    """What makes the mean of means another number: the claim above would be empty without it."""
    shares = fits[1][case]["shares"]
    assert any(max(share) > 2 * min(share) for share in shares)
    if case != "numbers":
        assert any(0 in share for share in shares), "no process was ever without a label"
