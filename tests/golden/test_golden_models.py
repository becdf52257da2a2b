"""Models that 0.1.0 saved say what they said then, offline and live, and their stored states go on."""

import json

import pytest
import torch
from golden_answers import (
    CHANNELS,
    GOLDEN,
    HOURS,
    agree,
    model_answers,
    read_arrays,
    same_machine,
    series,
    stored_states,
    tolerance,
)

import onlinecde as oc
from onlinecde.artifacts import read_manifest
from onlinecde.models.flat_settings import flat_of

NAMES = sorted(folder.name for folder in (GOLDEN / "models").iterdir() if folder.is_dir())


@pytest.fixture(autouse=True)
def one_thread():
    """As they were made; more threads would only be slower on such small models."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_class_of_0_1_is_among_them():
    kinds = {read_manifest(GOLDEN / "models" / name).model for name in NAMES}
    assert kinds == {"NeuralCDE", "GRU", "GRUdt", "GRUdtIntensity", "GRUD", "ODERNN"}


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_says_what_it_said(name):
    folder = GOLDEN / "models" / name
    model, exact = oc.load(folder), same_machine()
    wanted = read_arrays(folder.with_suffix(".safetensors"))
    found = model_answers(model, folder)
    assert found.keys() == wanted.keys()
    for answer in sorted(wanted.keys() - {"states"}):
        # Attributions are parts of outputs, and as exact as those.
        largest = float(wanted["rows"].abs().max()) if "explain" in answer else 0.0
        agree(found[answer], wanted[answer], answer, exact=exact, largest=largest)
    if "states" in wanted:
        # By their numbers: their bytes may be written in another form, but must be read in this one.
        now, then = (stored_states(model, folder, of["states"]) for of in (found, wanted))
        for field, one in vars(then).items():
            if one is not None:
                agree(getattr(now, field), one, field, exact=exact)


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_state_goes_on(name):
    folder = GOLDEN / "models" / name
    wanted = read_arrays(folder.with_suffix(".safetensors"))
    if "states" not in wanted:
        pytest.skip("the model runs offline alone, or in half precision, which is not stored")
    model = oc.load(folder)
    batch = series("rows with gaps" in wanted, model.static > 0)
    state = stored_states(model, folder, wanted["states"])
    last = batch.rows.cumsum(0) - 1
    with torch.no_grad():
        for ahead, answer in ((0.0, "live"), (HOURS, "live later")):
            found = model.predict(state, state.time + ahead)
            # One call for all streams, and one each then: the same but for rounding.
            within = 10 * tolerance(found.dtype)
            agree(found, wanted[answer][last], answer, exact=False, within=within)
        after = model.observe(state, state.time + 1.0, torch.ones(5, 3))
        assert bool(model.predict(after).isfinite().all())


def test_a_manifest_of_0_1_is_read_as_it_stands():
    manifest = read_manifest(GOLDEN / "models" / "binary")
    assert manifest.channels == CHANNELS
    assert manifest.units == ("1/min", "mmol/l", "%")
    assert manifest.extra["static"] == ["age", "sex"]
    assert manifest.versions["onlinecde"] == "0.1.0"
    written = json.loads((GOLDEN / "models" / "binary" / "manifest.json").read_text())
    config = flat_of(oc.load(GOLDEN / "models" / "binary").config)
    assert config.items() >= written["config"].items()
