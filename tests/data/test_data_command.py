"""`onlinecde data ...` from the command line."""

import pytest

from onlinecde.cli import main


@pytest.fixture
def run(capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["data", *arguments])
        out = capsys.readouterr()
        return end.value.code or 0, out.out, out.err

    return call


def test_list_shows_every_data_set_and_whether_it_is_here(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = run("list", "--data-dir", str(tmp_path))
    assert code == 0
    for name in ("simulated-ward", "character-trajectories", "physionet-2019", "mimic-iv", "meds"):
        assert name in out


def test_info_gives_licence_address_settings_and_files(run, tmp_path):
    _, out, _ = run("info", "character-trajectories", "--data-dir", str(tmp_path))
    assert "CC BY 4.0" in out
    assert "setting   protocol (default 'clean')" in out
    assert "CharacterTrajectories.zip from https://" in out
    assert f"no, looked in {tmp_path}" in out


def test_prepare_describes_the_task_and_caches_it(run, packed, tmp_path):
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    packed("character-trajectories", "zip").rename(data / "CharacterTrajectories.zip")
    where = ("--data-dir", str(data), "--cache-dir", str(cache))
    code, out, _ = run("prepare", "character-trajectories", "--protocol", "paper", *where)
    assert code == 0
    assert "protocol=paper" in out
    assert len(list(cache.iterdir())) == 1
    _, again, _ = run("prepare", "character-trajectories", "--set", "protocol=paper", *where)
    assert again == out
    assert len(list(cache.iterdir())) == 1


def test_what_a_user_can_mend_is_one_message_and_exit_code_2(run, tmp_path):
    code, _, err = run(
        "prepare", "simulated-ward", "--set", "streams", "--cache-dir", str(tmp_path)
    )
    assert (code, "is not NAME=VALUE" in err) == (2, True)
    code, _, err = run("fetch", "mimic-iv", "--data-dir", str(tmp_path))
    assert code == 2
    assert "hosp/" in err
    assert f"{tmp_path}/mimic-iv/icu" in err.replace("\n", "")
    code, _, err = run("fetch", "simulated-ward")
    assert (code, "nothing to fetch" in err) == (2, True)
    code, _, err = run("prepare", "simulated-ward", "--report")
    assert (code, "leaves nothing out" in err) == (2, True)


def test_fetch_brings_the_files_to_a_folder_where_prepare_finds_them(
    run, packed, tmp_path, monkeypatch
):
    from dataclasses import replace

    from onlinecde.data import registry

    zipped = packed("character-trajectories", "zip")
    entry = registry.DATA_SETS["character-trajectories"]
    local = tuple(replace(d, url=zipped.as_uri()) for d in entry.downloads)
    monkeypatch.setitem(registry.DATA_SETS, entry.name, replace(entry, downloads=local))
    data = tmp_path / "data"
    code, _, _ = run("fetch", entry.name, "--data-dir", str(data))
    assert code == 0
    assert (data / entry.name / "CharacterTrajectories.zip").read_bytes() == zipped.read_bytes()
    where = ("--data-dir", str(data), "--cache-dir", str(tmp_path / "cache"))
    code, out, _ = run("prepare", entry.name, *where)
    assert (code, "40 of 40 subjects" in out) == (0, True)
