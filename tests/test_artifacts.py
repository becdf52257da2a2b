"""A model as a folder: the same bits come back, and nothing damaged or hostile is taken."""

import hashlib
import json
import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

import onlinecde as oc
from onlinecde.artifacts import MANIFEST, WEIGHTS, ArtifactError, pack, read_manifest, unpack
from onlinecde.models import MODELS

SETTINGS = {"channels": 2, "hidden": 4, "outputs": 1, "static": 1}


def made(name="NeuralCDE", dtype=torch.float32):
    torch.manual_seed(1)
    model = MODELS[name](**SETTINGS).to(dtype)
    series = oc.audit.trial_batch(channels=2, missing=0.3)
    clock = 1.7e9 + 1e-3 * series.times
    model.fit_scales(oc.SeriesBatch.from_padded(clock, series.values).to(dtype=dtype))
    return model


@pytest.fixture
def folder(tmp_path):
    return oc.save(made(), tmp_path / "model")


def edit_manifest(folder, **changes):
    told = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**told, **changes}))


def put_weights(folder, data):
    """Other weights with a manifest that fits them: what a forger would do."""
    (folder / WEIGHTS).write_bytes(data)
    edit_manifest(folder, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def edit_tensors(folder, change):
    tensors = load((folder / WEIGHTS).read_bytes())
    change(tensors)
    put_weights(folder, save(tensors))


def refused(folder, match):
    with pytest.raises(ArtifactError, match=match):
        oc.load(folder)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_tensor_comes_back_bit_for_bit(tmp_path, name, dtype):
    model = made(name, dtype)
    again = oc.load(oc.save(model, tmp_path / "model"))
    assert type(again) is type(model)
    assert again.config == model.config
    assert not again.training
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert value.dtype == after[key].dtype
        assert value.numpy().tobytes() == after[key].numpy().tobytes()
    assert again.encoding.time_shift.dtype == torch.float64
    assert all(parameter.requires_grad for parameter in again.parameters())


def test_what_is_packed_is_what_a_folder_has(folder):
    model = oc.load(folder)
    files = pack(model)
    assert files == {name: (folder / name).read_bytes() for name in (MANIFEST, WEIGHTS)}
    again = unpack(files).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again[name], tensor)
    with pytest.raises(ArtifactError, match="damaged, cut short or exchanged"):
        unpack({**files, WEIGHTS: files[WEIGHTS][:-1]})
    with pytest.raises(ArtifactError, match="is not JSON"):
        unpack({WEIGHTS: files[WEIGHTS]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_default_dtype_of_who_loads_is_of_no_account(tmp_path, dtype):
    folder = oc.save(made(dtype=dtype), tmp_path / "model")
    torch.set_default_dtype(torch.float64)
    try:
        again = oc.load(folder)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert again.dtype == dtype
    assert again.encoding.time_shift.dtype == torch.float64


def test_numbers_of_numpy_are_numbers(tmp_path):
    model = oc.NeuralCDE(
        channels=np.int64(2), hidden=np.int32(3), encoding={"gain": np.float32(0.5)}
    )
    extra = {"seed": np.int64(7), "better": np.bool_(True)}
    folder = oc.save(model, tmp_path / "model", extra=extra)
    assert read_manifest(folder).extra == {"seed": 7, "better": True}
    assert oc.load(folder).config["channels"] == 2


def test_the_manifest_says_what_the_model_is(tmp_path):
    extra = {"task": "sepsis", "metrics": {"auroc": 0.83}}
    folder = oc.save(
        made(), tmp_path / "model", extra=extra, channels=["hr", "bp"], units=["/min", "mmHg"]
    )
    manifest = read_manifest(folder)
    assert (manifest.model, manifest.channels, manifest.units) == (
        "NeuralCDE", ("hr", "bp"), ("/min", "mmHg"),
    )  # fmt: skip
    assert manifest.extra == extra
    assert manifest.config["static"] == 1
    assert manifest.versions["onlinecde"] == oc.__version__
    assert manifest.sha256 == hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    assert sorted(file.name for file in folder.iterdir()) == [MANIFEST, WEIGHTS]


def test_a_card_is_written_beside(tmp_path):
    folder = oc.save(made(), tmp_path / "model", card="# Sepsis\n")
    assert (folder / "README.md").read_text() == "# Sepsis\n"
    oc.load(folder)


def test_loading_leaves_the_random_numbers_alone(folder):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    oc.load(folder)
    assert torch.equal(torch.rand(3), expected)


def test_a_model_that_is_there_is_kept_unless_told_otherwise(folder):
    with pytest.raises(ArtifactError, match="there already: give another folder, or overwrite"):
        oc.save(made(), folder)
    oc.save(made("GRU"), folder, overwrite=True)
    assert isinstance(oc.load(folder), oc.GRU)
    assert [path.name for path in folder.parent.iterdir()] == ["model"], "nothing is left behind"


def test_something_else_is_never_overwritten(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary")
    with pytest.raises(ArtifactError, match="holds something else"):
        oc.save(made(), tmp_path / "notes", overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / "notes")
    with pytest.raises(ArtifactError, match="a file or a link"):
        oc.save(made(), tmp_path / "link", overwrite=True)
    assert (tmp_path / "notes" / "diary.txt").read_text() == "dear diary"


def test_a_reader_finds_a_whole_model_at_every_moment_of_overwriting(folder):
    stop, faults, reads = threading.Event(), [], []

    def read():
        while not stop.is_set():
            try:
                reads.append(type(oc.load(folder)).__name__)
            except ArtifactError as error:
                faults.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(50):
        oc.save(made(("GRU", "NeuralCDE")[turn % 2]), folder, overwrite=True)
    stop.set()
    reader.join()
    assert not faults
    assert set(reads) == {"GRU", "NeuralCDE"}


def test_a_write_that_breaks_off_leaves_nothing(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match=r"cannot be written.*No space left"):
        oc.save(made(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path):
    with pytest.raises(ArtifactError, match="extra cannot be written as JSON"):
        oc.save(made(), tmp_path / "model", extra={"model": torch.zeros(1)})
    with pytest.raises(ArtifactError, match="3 channels for 2 channels: give one for each"):
        oc.save(made(), tmp_path / "model", channels=["a", "b", "c"])
    model = made()
    del model.config
    with pytest.raises(ArtifactError, match="config is a NoneType"):
        oc.save(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_class_of_ones_own_is_given_by_name(tmp_path):
    class Mine(oc.GRU):
        pass

    folder = oc.save(Mine(**SETTINGS), tmp_path / "model")
    refused(folder, "the model is a 'Mine', which is none of")
    assert type(oc.artifacts.load(folder, classes=[Mine])) is Mine


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
@pytest.mark.parametrize("name", [MANIFEST, WEIGHTS])
def test_a_truncated_file_is_refused(folder, name, keep):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:keep] if keep >= 0 else data[: len(data) - 3])
    refused(folder, "not JSON" if name == MANIFEST else "damaged, cut short or exchanged")


def test_a_single_flipped_bit_is_refused(folder):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-5] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    refused(folder, "damaged, cut short or exchanged")


def test_a_missing_file_or_folder_is_refused(folder, tmp_path):
    refused(tmp_path / "nowhere", "is not a folder")
    (folder / WEIGHTS).unlink()
    refused(folder, "model.safetensors is missing")
    (folder / MANIFEST).unlink()
    refused(folder, "manifest.json is missing: this is not a saved model")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": "a picture"}, "does not describe an onlinecde model"),
        ({"version": 99}, "has version 99"),
        ({"model": "os.system"}, "the model is a 'os.system', which is none of"),
        ({"model": ["GRU"]}, "`model` in manifest.json is missing or of a wrong type"),
        ({"config": None}, "`config` in manifest.json"),
        ({"bytes": True}, "`bytes` in manifest.json"),
        ({"bytes": 3}, "more than 3"),
        ({"bytes": 10**30}, "damaged, cut short or exchanged"),
        ({"sha256": "0" * 64}, "damaged, cut short or exchanged"),
        ({"channels": [1, 2]}, "`channels` in manifest.json is not a list of names"),
        ({"pickle": "gASV"}, "'pickle' of no known meaning"),
        ({"config": {"channels": 2, "code": "exit()"}}, "takes no argument 'code'"),
        ({"config": {"channels": 2, "hidden": 10**18}}, "no model of this size has"),
        ({"config": {"channels": 2, "depth": 10**8}}, "no model of this size has"),
        ({"config": {"channels": 2, "hidden": 2**30, "width": 2**30}}, "has shape|cannot be built"),
        ({"config": {"channels": 2, "hidden": -4}}, "cannot be built"),
        ({"config": {"channels": "two"}}, "cannot be built"),
        ({"config": {"channels": 2, "hidden": 5}}, "has shape"),
        ({"config": {"channels": 2, "method": "magic"}}, "cannot be built.*magic"),
    ],
)
def test_a_manifest_that_lies_is_refused(folder, changes, match):
    edit_manifest(folder, **changes)
    refused(folder, match)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"format": NaN', "[" * 100_000])
def test_a_manifest_that_is_no_object_is_refused(folder, text):
    (folder / MANIFEST).write_text(text)
    refused(folder, "is not JSON|does not describe")


def test_an_absurdly_large_manifest_is_refused_unread(folder):
    with (folder / MANIFEST).open("r+b") as file:
        file.truncate(2**40)
    refused(folder, "more than 4194304")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.pop("readout.layers.bias"), "lack the tensor 'readout.layers.bias'"),
        (lambda t: t.update(extra=torch.zeros(2)), "a tensor 'extra' the model does not have"),
        (lambda t: t.update({"readout.layers.bias": torch.zeros(9)}), r"has shape \(9,\)"),
        (lambda t: t.update({"readout.layers.bias": torch.zeros(1).int()}), "dtype of its own"),
        (lambda t: t.update({"readout.layers.bias": torch.zeros(1).double()}), "dtype of its own"),
        (
            lambda t: t.update({"encoding.time_shift": torch.zeros(())}),
            "'encoding.time_shift' has a dtype of its own",
        ),
    ],
)
def test_weights_of_another_model_are_refused(folder, change, match):
    edit_tensors(folder, change)
    refused(folder, match)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 a zip, as torch.save writes",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 60)
        + b'{"a":{"dtype":"F32","shape":[9999999999],"data_offsets":[0,4]}}'[:60],
    ],
    ids=["empty", "zip", "huge header", "no tensors", "huge tensor"],
)
def test_weights_that_are_no_safetensors_file_are_refused(folder, data):
    put_weights(folder, data)
    refused(folder, "is not a safetensors file|lack the tensor|no model of this size")


@pytest.mark.parametrize("name", [MANIFEST, WEIGHTS])
def test_links_pipes_and_folders_in_place_of_files_are_refused(folder, name, tmp_path):
    real = tmp_path / "real"
    (folder / name).rename(real)
    (folder / name).symlink_to(real)
    refused(folder, f"{name} is a link")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, f"{name} is not a plain file")
    (folder / name).unlink()
    (folder / name).mkdir()
    refused(folder, f"{name} (is not a plain file|cannot be read)")


def test_there_is_no_pickle_in_the_way():
    files = Path(oc.artifacts.__file__).parent.glob("*.py")
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert "torch.load" not in text
    assert "import pickle" not in text


def test_an_alarm_policy_travels_with_the_model(tmp_path):
    model = made()
    model.alarm_policy = oc.models.AlarmPolicy(
        1.5, 1.0, quiet=4, every=0.25, chosen={"budget": 0.5}
    )
    folder = oc.save(model, tmp_path / "model")
    assert oc.load(folder).alarm_policy == model.alarm_policy
    assert oc.load(folder).frozen() is not None


def test_a_folder_without_an_alarm_policy_is_as_it_was(folder):
    assert "alarm_policy" not in json.loads((folder / MANIFEST).read_text())
    assert oc.load(folder).alarm_policy is None


def test_a_saved_model_is_given_another_alarm_policy_and_nothing_else_changes(folder):
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    policy = oc.models.AlarmPolicy(2.0, quiet=1)
    oc.artifacts.save_alarm_policy(folder, policy)
    assert oc.load(folder).alarm_policy == policy
    assert (folder / WEIGHTS).read_bytes() == before[WEIGHTS]
    with pytest.raises(ArtifactError, match="output is 3: the model has no such output"):
        oc.artifacts.save_alarm_policy(folder, oc.models.AlarmPolicy(2.0, output=3))
    assert oc.load(folder).alarm_policy == policy
    oc.artifacts.save_alarm_policy(folder, None)
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ([], "`alarm_policy` in manifest.json is of a wrong type"),
        ({"threshold": "high"}, "`alarm_policy` in manifest.json: threshold is 'high'"),
        ({"threshold": 1.0, "output": 7}, "no such output"),
    ],
)
def test_a_damaged_alarm_policy_is_refused(folder, content, match):
    edit_manifest(folder, alarm_policy=content)
    refused(folder, match)
