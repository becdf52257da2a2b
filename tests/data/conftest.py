"""Made files in the layout of each data set, and the way to the real ones where they are."""

import os
from pathlib import Path

import pytest
from made_data import made_psv, made_record, made_ts, made_wav, write_packed


@pytest.fixture
def real_data():
    """Look a real file up in $ONLINECDE_DATA; skip, saying why, where there is none."""

    def find(name: str) -> Path:
        folder = os.environ.get("ONLINECDE_DATA")
        if not folder:
            pytest.skip(f"needs {name}: set ONLINECDE_DATA to the folder that holds it")
        if not (Path(folder) / name).exists():
            pytest.skip(f"needs {name}, which is not in ONLINECDE_DATA={folder}")
        return Path(folder) / name

    return find


@pytest.fixture(scope="session")
def made_files() -> dict[str, dict[str, bytes]]:
    """For each data set, the files of its archive: path -> content."""
    character = {
        f"CharacterTrajectories_{part}.ts": made_ts("CharacterTrajectories", 20, seed, classes=4)
        for seed, part in enumerate(("TRAIN", "TEST"))
    }
    beijing = {
        f"BeijingPM25Quality_{part}.ts": made_ts("BeijingPM25Quality", 12, seed, channels=9)
        for seed, part in enumerate(("TRAIN", "TEST"))
    }
    speech = {
        f"{word}/{speaker:08x}_nohash_{take}.wav": made_wav(16000, 3 * w + take)
        for w, word in enumerate(("yes", "no", "go"))
        for speaker in range(6)
        for take in range(2)
    }
    speech["yes/0000000a_nohash_9.wav"] = made_wav(12000, 1)
    speech["bird/0000000a_nohash_0.wav"] = made_wav(16000, 1)
    sepsis = {
        f"training_setA/p{n:06d}.psv": made_psv(n, 8 + n, septic=n % 3 == 0) for n in range(1, 13)
    }
    records = {f"set-a/{n}.txt": made_record(n) for n in range(132539, 132551)}
    records["set-a/140501.txt"] = made_record(140501).partition("00:07")[0]
    deaths = "".join(
        f"{Path(name).stem},6,1,5,-1,{i % 3 == 0:d}\n" for i, name in enumerate(records)
    )
    outcomes = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death\n" + deaths
    text = {
        "character-trajectories": character,
        "beijing-pm25": beijing,
        "speech-commands": speech,
        "physionet-2019": sepsis,
        "physionet-2012": {**records, "Outcomes-a.txt": outcomes},
    }
    return {
        name: {k: v if isinstance(v, bytes) else v.encode() for k, v in files.items()}
        for name, files in text.items()
    }


@pytest.fixture
def packed(made_files, tmp_path):
    """Write a data set's made files as a folder, a zip, a tar or a tar.gz; return its path."""

    def pack(name: str, form: str, files: dict[str, bytes] | None = None) -> Path:
        return write_packed(files or made_files[name], tmp_path / f"{name}.{form}", form)

    return pack
