"""Folders of MIMIC-IV: releases, formats, what may be absent, and what is refused."""

import gzip
import tempfile
from pathlib import Path

import pytest
import torch
from made_mimic import ENDINGS, MadeMimic

from onlinecde.data.errors import DataError
from onlinecde.data.mimic import MimicSettings, open_mimic
from onlinecde.data.mimic.folder import MimicFolder


def prepared(folder, task="sepsis"):
    with open_mimic(folder) as mimic:
        return mimic.task(task), mimic.report()


@pytest.fixture(scope="module")
def reference(made_folder):
    return prepared(made_folder)


@pytest.mark.parametrize("release", ["1.0", "3.1"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_release_and_format_gives_the_same_task(tmp_path, reference, release, ending):
    folder = MadeMimic().write(tmp_path, release, ending)
    task, report = prepared(folder)
    expected, flow = reference
    assert report.layout == ("1.0" if release == "1.0" else "2.0 to 3.1")
    assert report.cohort == flow.cohort
    assert task.series.streams == expected.series.streams
    assert torch.equal(task.series.times, expected.series.times)
    assert torch.equal(task.series.values.nan_to_num(-9), expected.series.values.nan_to_num(-9))
    assert torch.equal(task.labels.nan_to_num(-9), expected.labels.nan_to_num(-9))


def test_the_release_may_lie_deeper_but_only_once(tmp_path):
    files = tmp_path / "physionet.org" / "files" / "mimiciv"
    MadeMimic().write(files / "3.1")
    assert MimicFolder.find(tmp_path).path == files / "3.1"
    MadeMimic().write(files / "2.2")
    with pytest.raises(DataError, match=r"holds 2 releases: name one of .*2\.2"):
        MimicFolder.find(tmp_path)


def test_times_written_by_a_spreadsheet_are_read(tmp_path, reference):
    made = MadeMimic()
    for table in ("outputevents", "procedureevents"):
        for row in made.tables[table]:
            for name in ("charttime", "starttime", "endtime"):
                if name in row:
                    t = row[name]
                    row[name] = f"{t.month}/{t.day}/{t.year} {t.hour}:{t.minute:02d}"
    folder = made.write(tmp_path)
    with open_mimic(folder) as mimic:
        urine = mimic.connection.execute("select count(ml_24h) from urine_output").fetchall()
    assert urine == [(9,)]


def test_what_may_be_absent_is_absent_with_a_note(tmp_path):
    folder = MadeMimic().write(
        tmp_path,
        without=(
            "d_items",
            "procedureevents",
            "chartevents.value",
            "labevents.value",
            "labevents.specimen_id",
            "inputevents.rateuom",
            "inputevents.patientweight",
            "inputevents.statusdescription",
            "prescriptions.route",
        ),
    )
    with open_mimic(folder) as mimic:
        notes = "\n".join(mimic.report().notes)
        gases = mimic.connection.execute("select count(*) from blood_gas").fetchall()
        coma = mimic.connection.execute("select min(gcs) from coma_scale").fetchall()
        text = mimic.report().text()
    for words in (
        "there is no d_items: antibiotics given in the ICU are known by the item numbers",
        "there is no procedureevents: ventilation is taken from charted texts alone",
        "inputevents has no column 'rateuom': rates of vasopressors are taken as mcg/kg/min",
        "labevents holds no texts: every blood gas is taken for arterial",
        "chartevents holds no texts",
    ):
        assert words in notes
        assert words in text
    # Venous gas too, and the tube is not known to be one.
    assert gases == [(3,)]
    assert coma == [(3,)]


def test_without_texts_procedures_stand_in_for_charted_ventilation(tmp_path):
    made = MadeMimic()
    made.tables["procedureevents"][0]["starttime"] = made.tables["icustays"][1]["intime"]
    folder = made.write(tmp_path, without=("chartevents.value",))
    with open_mimic(folder, MimicSettings.paper()) as mimic:
        spells = mimic.connection.execute("select source, status from ventilation").fetchall()
        coma = mimic.connection.execute("select gcs from coma_scale order by time").fetchall()
    assert spells == [("procedures", "invasive")]
    # A verbal response of 1 under ventilation is taken for a tube.
    assert coma[0] == (15,)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The place of all temporary files: to see that none stays."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def refuse(tmp_path, scratch):
    """Spoil a made folder, expect an error in these words, and nothing left behind."""

    def run(spoil, words):
        folder = MadeMimic().write(tmp_path / "mimic")
        before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
        spoil(folder)
        with pytest.raises(DataError, match=words), open_mimic(folder):
            pass
        assert list(scratch.iterdir()) == []
        assert set(folder.rglob("*")) <= set(before)

    return run


def rewrite(path: Path, change):
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


def test_a_truncated_file_is_named(refuse):
    def spoil(folder):
        path = folder / "icu" / "chartevents.csv.gz"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(EOFError):
            gzip.decompress(path.read_bytes())

    refuse(spoil, r"chartevents\.csv\.gz.*(GZIP|gzip).*download it again")


def test_a_file_that_is_no_gzip_is_named(refuse):
    refuse(
        lambda folder: (folder / "hosp" / "labevents.csv.gz").write_bytes(b"not a gzip at all"),
        r"labevents\.csv\.gz cannot be read",
    )


def test_an_empty_file_is_named(refuse):
    refuse(
        lambda folder: (folder / "hosp" / "patients.csv.gz").write_bytes(gzip.compress(b"")),
        r"patients\.csv\.gz is empty",
    )


def test_a_missing_table_is_named_with_where_to_get_it(refuse):
    refuse(
        lambda folder: (folder / "hosp" / "labevents.csv.gz").unlink(),
        r"has no table labevents .*physionet\.org/content/mimiciv",
    )


def test_a_missing_column_is_named_with_those_there(refuse):
    def spoil(folder):
        rewrite(folder / "icu" / "icustays.csv.gz", lambda b: b.replace(b"outtime", b"left_at"))

    refuse(spoil, r"icustays\.csv\.gz has no column 'outtime': it has \['subject_id'.*'left_at'")


def test_both_names_of_a_renamed_column_are_given(refuse):
    def spoil(folder):
        rewrite(folder / "hosp" / "admissions.csv.gz", lambda b: b.replace(b"race", b"descent"))

    refuse(spoil, "has no column 'race' or 'ethnicity'")


def test_a_number_that_is_none_is_named_with_its_line_and_column(refuse):
    def spoil(folder):
        rewrite(
            folder / "hosp" / "labevents.csv.gz",
            lambda b: b.replace(b",200,200,", b",200,lots,", 1),
        )

    refuse(spoil, r'labevents\.csv\.gz.*Line.*column "valuenum".*"lots"')


def test_a_time_that_is_none_is_named_with_its_column(refuse):
    def spoil(folder):
        rewrite(
            folder / "icu" / "icustays.csv.gz",
            lambda b: b.replace(b"2150-01-11 00", b"someday 00", 1),
        )

    refuse(spoil, r"icustays\.csv\.gz: column intime is not a time: someday")


def test_a_line_with_too_few_cells_is_named(refuse):
    def spoil(folder):
        rewrite(folder / "icu" / "outputevents.csv.gz", lambda b: b + b"1,2\r\n")

    refuse(spoil, r"outputevents\.csv\.gz.*Expected Number of Columns")


def test_a_broken_parquet_is_named(tmp_path, scratch):
    folder = MadeMimic().write(tmp_path / "mimic", ending="parquet")
    (folder / "icu" / "chartevents.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match=r"chartevents\.parquet cannot be read"), open_mimic(folder):
        pass
    assert list(scratch.iterdir()) == []


def test_no_folder_and_bad_limits_are_refused(tmp_path, made_folder, scratch):
    with pytest.raises(DataError, match="is not a folder"), open_mimic(tmp_path / "nowhere"):
        pass
    with pytest.raises(DataError, match="memory is"), open_mimic(made_folder, memory="plenty"):
        pass
    with pytest.raises(DataError, match="threads is 0"), open_mimic(made_folder, threads=0):
        pass
    assert list(scratch.iterdir()) == []


def test_an_error_while_open_leaves_nothing(made_folder, scratch):
    with pytest.raises(KeyboardInterrupt), open_mimic(made_folder):
        assert list(scratch.iterdir())
        raise KeyboardInterrupt
    assert list(scratch.iterdir()) == []
