"""Every loader, on made files in every packing, and on the real ones where they are."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from onlinecde.data import DATA_SETS, DataError, fold_task, load, registry
from onlinecde.data.ragged import pad_rows
from onlinecde.data.sets import (
    beijing,
    character_trajectories,
    physionet_2012,
    physionet_2019,
    speech_commands,
)

LOADERS = {
    "character-trajectories": character_trajectories.load,
    "beijing-pm25": beijing.load,
    "speech-commands": speech_commands.load,
    "physionet-2019": physionet_2019.load,
    "physionet-2012": physionet_2012.load,
}


@pytest.mark.parametrize("name", LOADERS)
def test_folder_zip_and_tar_give_the_same_task(name, packed):
    tasks = [LOADERS[name]([packed(name, form)]) for form in ("folder", "zip", "tar", "tar.gz")]
    for other in tasks[1:]:
        assert other.series.streams == tasks[0].series.streams
        assert other.series.features == tasks[0].series.features
        for what in ("times", "values", "static"):
            ours, theirs = getattr(other.series, what), getattr(tasks[0].series, what)
            # Sound is transformed in chunks, and the archive's order decides which.
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)
        torch.testing.assert_close(other.labels, tasks[0].labels, equal_nan=True)


def test_the_paper_reads_the_test_file_of_character_trajectories_twice(packed):
    path = packed("character-trajectories", "zip")
    clean = character_trajectories.load([path])
    paper = character_trajectories.load([path], protocol="paper")
    assert len(clean.series) == len(paper.series) == 40
    assert torch.equal(paper.labels[:20], paper.labels[20:])
    twins = paper.series.values[:20], paper.series.values[20:]
    torch.testing.assert_close(*twins, equal_nan=True)
    assert clean.classes == ("1", "2", "3", "4")


def test_the_official_split_keeps_the_test_file_apart(packed):
    task = beijing.load([packed("beijing-pm25", "zip")], split="official")
    names = task.split("test")[0].streams
    assert len(names) == 12
    assert all(name.startswith("TEST/") for name in names)


def test_speech_keeps_clips_of_one_second_of_the_ten_words_and_speakers_together(packed):
    path = packed("speech-commands", "zip")
    task = speech_commands.load([path])
    assert task.series.values.shape == (36, 89, 10)
    assert len(set(task.subjects)) == 6
    owners = [{task.subjects[i] for i in at.tolist()} for at in task.splits.values()]
    assert owners[0].isdisjoint(owners[1] | owners[2])
    assert len(set(speech_commands.load([path], protocol="paper").subjects)) == 36


def test_sepsis_rows_carry_hours_labels_and_static_features(packed):
    task = physionet_2019.load([packed("physionet-2019", "zip")])
    assert task.series.times[0, :3].tolist() == [1, 2, 3]
    assert int((task.labels == 1).any(1).sum()) == 4
    assert task.label_lead == 6
    assert float(task.utility.best.max()) == 1
    assert task.utility.alarm.shape == task.labels.shape
    assert "Unit1_missing" in task.series.features
    assert "Age" in task.series.features


def test_a_thinned_set_keeps_splits_and_what_is_true_of_every_hour(packed):
    path = [packed("physionet-2019", "zip")]
    whole, thin = physionet_2019.load(path), physionet_2019.load(path, thin=0.25)
    assert thin.settings["thin"] == 0.25
    assert thin.series.streams == whole.series.streams
    assert torch.equal(thin.series.times[:, 0], whole.series.times[:, 0])
    assert int(thin.series.rows.sum()) < 0.5 * int(whole.series.rows.sum())
    assert thin.series.features == whole.series.features
    for name, at in whole.splits.items():
        assert torch.equal(thin.splits[name], at)
    for number, some in ((1, thin), (2, fold_task(thin, 2, 3))):
        other = whole if number == 1 else fold_task(whole, 2, 3)
        assert torch.equal(some.splits["test"], other.splits["test"])
    hours, all_hours = thin.asked("every=1h"), whole.asked("every=1h")
    assert torch.equal(hours.labels.nan_to_num(9), whole.labels.nan_to_num(9))
    assert torch.equal(hours.queries.nan_to_num(9), all_hours.queries.nan_to_num(9))
    np.testing.assert_array_equal(hours.utility.alarm, whole.utility.alarm)
    np.testing.assert_array_equal(hours.utility.silence, whole.utility.silence)
    for stream in range(len(thin.series)):
        rows = int(thin.series.rows[stream])
        place = (
            (thin.series.times[stream, :rows, None] == whole.series.times[stream]).int().argmax(1)
        )
        assert torch.equal(thin.labels[stream, :rows], whole.labels[stream, place])
        np.testing.assert_array_equal(
            thin.utility.alarm[stream, :rows], whole.utility.alarm[stream, place]
        )
    again = physionet_2019.load(path, thin=0.25)
    other = physionet_2019.load(path, thin=0.25, thin_seed=1)
    assert torch.equal(again.series.rows, thin.series.rows)
    assert not torch.equal(other.series.rows, thin.series.rows)
    for share in (0.0, -0.1, 1.5):
        with pytest.raises(DataError, match="thin is"):
            physionet_2019.load(path, thin=share)


def test_some_patients_keep_the_utility_of_every_hour(packed):
    task = physionet_2019.load([packed("physionet-2019", "zip")], thin=0.5)
    chosen = torch.tensor([5, 1])
    some, clock = task.select(chosen, {"test": torch.arange(2)}), task.asked("every=1h")
    np.testing.assert_array_equal(
        some.utility.alarm, task.utility.alarm[[5, 1], : some.labels.shape[1]]
    )
    asked = some.asked("every=1h")
    np.testing.assert_array_equal(
        asked.utility.silence, clock.utility.silence[[5, 1], : asked.labels.shape[1]]
    )
    assert not clock.utility.alarm[~clock.labelled.numpy()].any()


def test_between_hours_a_label_stands_and_an_alarm_is_worth_what_lies_between(packed):
    task = physionet_2019.load([packed("physionet-2019", "zip")])
    half = task.asked("every=30min")
    assert torch.equal(half.labels[:, ::2].nan_to_num(9), task.labels.nan_to_num(9))
    known = half.labelled[:, 1::2]
    assert torch.equal(half.labels[:, 1::2][known], half.labels[:, :-1:2][known])
    septic = (task.labels == 1).any(1).numpy()
    alarm = half.utility.alarm[~septic]
    assert set(np.unique(alarm)) == {-0.05, 0.0}
    assert (alarm == 0).sum() == (~half.labelled[~septic]).sum()


def test_mortality_keeps_irregular_times_the_later_of_two_values_and_empty_patients(packed):
    task = physionet_2012.load([packed("physionet-2012", "zip")])
    batch = task.series
    assert batch.streams[0] == 132539
    assert batch.times[0, :3].tolist() == pytest.approx([7 / 60, 1.5, 47 + 59 / 60])
    at = {name: i for i, name in enumerate(batch.channels)}
    assert float(batch.values[0, 0, at["MAP"]]) == 92
    assert float(batch.values[0, 1, at["Weight"]]) == 81
    assert int(batch.rows[-1]) == 1
    assert not batch.observed[-1].any()
    assert {"Height", "Height_missing", "ICUType=3", "Weight"} <= set(batch.features)
    assert float(batch.static[0, batch.features.index("Weight")]) == 80


def test_mortality_is_found_as_fetched_tar_and_outcomes_side_by_side(made_files, packed, tmp_path):
    files = made_files["physionet-2012"]
    home = tmp_path / "data" / "physionet-2012"
    home.mkdir(parents=True)
    (home / "Outcomes-a.txt").write_bytes(files["Outcomes-a.txt"])
    (home / "set-a.tar.gz.sha256").write_text("no data")
    records = {name: data for name, data in files.items() if name.startswith("set-a/")}
    packed("physionet-2012", "tar.gz", records).rename(home / "set-a.tar.gz")
    task = load("physionet-2012", data_dir=tmp_path / "data", cached=False)
    assert len(task.series) == len(records)


def test_mortality_has_the_splits_of_published_comparisons(made_files, packed, tmp_path):
    home = tmp_path / "data" / "physionet-2012"
    home.mkdir(parents=True)
    packed("physionet-2012", "zip").rename(home / "set-a.zip")
    ids = sorted(int(Path(name).stem) for name in made_files["physionet-2012"] if "set-a" in name)
    parts = {"train": ids[8:1:-1], "validation": ids[:2], "test": ids[9:-1]}
    splits = {"splits": {"1": parts, "2": {**parts, "test": [*ids[9:-1], 7]}}}
    (home / physionet_2012.FIELD_SPLITS).write_text(json.dumps(splits))
    task = load(
        "physionet-2012", data_dir=tmp_path / "data", cached=False, splits="field-1", sets="A"
    )
    streams = {name: [task.series.streams[i] for i in at] for name, at in task.splits.items()}
    assert streams == {name: sorted(known) for name, known in parts.items()}
    assert task.flow == (("patients", 13), ("in the field's splits", 12))
    for name, message in {
        "field-2": r"divides 13 patients, of whom 1 are not .*patient 7.*give sets='abc'",
        "field-3": "choose seeded, field-1, field-2",
    }.items():
        with pytest.raises(DataError, match=message):
            load("physionet-2012", data_dir=tmp_path / "data", cached=False, splits=name)


def test_streams_without_rows_are_refused():
    with pytest.raises(ValueError, match="stream 'b' has no row"):
        pad_rows(np.array([1, 0]), np.zeros(1), np.ones((1, 1)), channels=["x"], streams=["a", "b"])


BAD_FILES = {
    "text cell": ("physionet-2019", "training_setA/p000003.psv", b"61.5|1", b"old|1"),
    "missing column": ("physionet-2019", "training_setA/p000003.psv", b"|ICULOS", b""),
    "line cut short": ("physionet-2019", "training_setA/p000003.psv", b"|-0.03|11|1\n", b"|-0.0\n"),
    "hour twice": ("physionet-2019", "training_setA/p000003.psv", b"|-0.03|5|", b"|-0.03|4|"),
    "label 2": ("physionet-2019", "training_setA/p000003.psv", b"|-0.03|5|0", b"|-0.03|5|2"),
    "too few dimensions": (
        "beijing-pm25",
        "BeijingPM25Quality_TEST.ts",
        b"@data\n",
        b"@data\n1,2:5\n",
    ),
    "unknown parameter": ("physionet-2012", "set-a/132540.txt", b"Temp", b"Tomp"),
    "bad clock": ("physionet-2012", "set-a/132540.txt", b"01:30", b"01h30"),
    "no outcome": ("physionet-2012", "Outcomes-a.txt", b"132540,", b"999999,"),
}
MESSAGES = {
    "text cell": r"p000003.psv, line 2, column 'Age': 'old' is not a number",
    "missing column": r"p000003.psv, line 1: column 'ICULOS' is missing",
    "line cut short": r"p000003.psv, line 12: 39 cells for 41 columns",
    "hour twice": r"stream 'p000003', row 4: time 4.0 does not come after",
    "label 2": r"p000003.psv, line 6, column 'SepsisLabel': '2' is not 0 or 1",
    "too few dimensions": r"BeijingPM25Quality_TEST.ts, line 11: 1 dimensions, but the file has 9",
    "unknown parameter": r"132540.txt, line 11: .* unknown parameter 'Tomp' in column 'Parameter'",
    "bad clock": r"132540.txt, line 11: '01h30,Temp,37.5' is not TIME,PARAMETER,VALUE",
    "no outcome": r"132540.txt: patient 132540 has no line in Outcomes-a.txt",
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_a_bad_file_is_named_and_leaves_no_cache(fault, made_files, packed, tmp_path):
    name, file, right, wrong = BAD_FILES[fault]
    files = dict(made_files[name])
    assert right in files[file]
    files[file] = files[file].replace(right, wrong, 1)
    data = tmp_path / "data"
    packed(name, "folder", files).rename(tmp_path / "raw")
    data.mkdir()
    (tmp_path / "raw").rename(data / name)
    with pytest.raises(ValueError, match=MESSAGES[fault]):
        load(name, data_dir=data, cache_dir=tmp_path / "cache")
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


def test_unknown_names_tasks_and_settings_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"no data set 'mnist': choose one of simulated-ward, "):
        load("mnist")
    with pytest.raises(
        DataError, match=r"'simulated-ward' has no task 'x': choose one of deterioration"
    ):
        load("simulated-ward", "x")
    with pytest.raises(DataError, match=r"'simulated-ward' has no setting 'beds': it has streams"):
        load("simulated-ward", beds=3)
    with pytest.raises(
        DataError, match=r"'streams' of 'simulated-ward' is 'abc': give a whole num"
    ):
        load("simulated-ward", streams="abc")
    with pytest.raises(
        DataError, match=r"'hours' of 'simulated-ward' is True: give a number, such"
    ):
        load("simulated-ward", hours=True)
    with pytest.raises(DataError, match=r"not in the data folder .*data fetch physionet-2012"):
        load("physionet-2012", data_dir=tmp_path)
    with pytest.raises(DataError, match=r"account.*put them into .*mimic-iv/hosp"):
        load("mimic-iv", data_dir=tmp_path)


def test_every_entry_names_its_source_licence_and_loader():
    for entry in DATA_SETS.values():
        assert entry.licence
        assert entry.address
        assert callable(entry.function())
        assert entry.downloads or entry.by_hand or entry.name == "simulated-ward"
        assert all(d.url.startswith("https://") for d in entry.downloads)


def test_real_character_trajectories_have_1422_and_1436_series(real_data):
    path = real_data("CharacterTrajectories.zip")
    clean = character_trajectories.load([path])
    assert len(clean.series) == 2858
    assert sum(s.startswith("TRAIN") for s in clean.series.streams) == 1422
    assert len(clean.classes) == 20
    assert (int(clean.series.rows.min()), int(clean.series.rows.max())) == (60, 182)
    assert len(character_trajectories.load([path], protocol="paper").series) == 2872


def test_real_beijing_has_the_published_days(real_data):
    task = beijing.load([real_data("BeijingPM25Quality.zip")], split="official")
    assert len(task.series) == 12376 + 5091
    assert len(task.splits["test"]) == 5091
    assert task.series.values.shape[1:] == (24, 9)


def test_real_speech_commands(real_data):
    path = real_data("speech_commands_v0.02_ten_words_small.zip")
    task = speech_commands.load([path])
    assert task.series.values.shape == (1500, 89, 10)
    assert torch.bincount(task.labels).tolist() == [150] * 10


def test_real_physionet_2019_set_a_in_under_30_seconds(real_data):
    path = real_data("physionet2019_training_setA.zip")
    start = time.process_time()
    task = physionet_2019.load([path])
    # Processor seconds of both cores: wall time would measure the neighbours.
    assert time.process_time() - start < 60
    assert len(task.series) == 20336
    assert int(task.series.rows.sum()) == 790215
    assert int((task.labels == 1).any(1).sum()) == 1790
    never = task.series.channels.index("EtCO2")
    assert not task.series.values[:100, :, never].isfinite().any()


def test_real_physionet_2012_set_a(real_data):
    task = physionet_2012.load([real_data("physionet2012_set-a.zip")])
    assert len(task.series) == 4000
    assert int(task.labels.sum()) == 554
    assert len(task.series.channels) == 37


def test_real_physionet_2012_has_the_fields_five_splits(real_data):
    files = [real_data(f"physionet2012_set-{part}.zip") for part in "abc"]
    files.append(real_data(physionet_2012.FIELD_SPLITS))
    task = physionet_2012.load(files, sets="abc", splits="field-5")
    sizes = {name: len(at) for name, at in task.splits.items()}
    assert sizes == {"train": 9590, "validation": 1199, "test": 1199}
    assert int(task.labels.sum()) == 1707


def test_names_are_found_however_they_are_written():
    for written in ("CharacterTrajectories", "character_trajectories", "character-trajectories"):
        assert registry.data_set(written).name == "character-trajectories"
