"""Archives are read without unpacking and without trust."""

import gzip
import io
import random
import tarfile
import zipfile

import pytest
from made_data import write_packed

from onlinecde.data import DataError
from onlinecde.data.archives import by_pattern, read_members, read_one

FILES = {"top/a/one.txt": b"1", "top/b/two.txt": b"22", "top/b/three.csv": b"333"}
ANY = by_pattern("*.txt")


def contents(paths, wanted=ANY):
    return {m.name.removeprefix("data."): m.data for m in read_members(paths, wanted)}


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz"])
def test_a_zip_and_a_tar_give_the_same_members(form, tmp_path):
    path = write_packed(FILES, tmp_path / f"data.{form}", form)
    assert contents([path]) == {"top/a/one.txt": b"1", "top/b/two.txt": b"22"}


def test_a_folder_is_read_with_its_subfolders_and_the_archives_in_it(tmp_path):
    folder = write_packed(FILES, tmp_path / "folder", "folder")
    write_packed({"inner/four.txt": b"4"}, folder / "more.zip", "zip")
    (folder / "five.txt.gz").write_bytes(gzip.compress(b"5"))
    found = contents([folder], by_pattern("*.txt", "*.gz"))
    assert sorted(found.values()) == [b"1", b"22", b"4", b"5"]


def test_there_must_be_exactly_one_of_what_is_asked_for(tmp_path):
    path = write_packed(FILES, tmp_path / "data.zip", "zip")
    assert read_one([path], "one.txt").data == b"1"
    with pytest.raises(DataError, match=r"data.zip: 2 files .* called \*.txt"):
        read_one([path], "*.txt")
    with pytest.raises(DataError, match=r"data.zip: no file called x"):
        read_one([path], "x")
    with pytest.raises(DataError, match=r"gone.zip does not exist"):
        read_one([tmp_path / "gone.zip"], "x")


@pytest.mark.parametrize("name", ["../escape.txt", "/etc/escape.txt", "a/../../escape.txt"])
@pytest.mark.parametrize("form", ["zip", "tar"])
def test_a_member_that_climbs_out_is_refused_and_writes_nothing(name, form, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    path = inside / f"bad.{form}"
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"x")
    else:
        with tarfile.open(path, "w") as archive:
            entry = tarfile.TarInfo(name)
            entry.size = 1
            archive.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(DataError, match=r"points outside the archive"):
        contents([path])
    assert list(tmp_path.rglob("*")) == [inside, path]


def test_links_in_a_tar_are_not_followed(tmp_path):
    (tmp_path / "secret.txt").write_bytes(b"secret")
    with tarfile.open(tmp_path / "links.tar", "w") as archive:
        entry = tarfile.TarInfo("link.txt")
        entry.type, entry.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.txt")
        archive.addfile(entry)
    assert contents([tmp_path / "links.tar"]) == {}


@pytest.mark.parametrize("form", ["zip", "tar.gz"])
def test_a_bomb_is_refused_before_it_fills_the_memory(form, tmp_path):
    path = write_packed({"a/bomb.txt": bytes(64 << 20)}, tmp_path / f"bomb.{form}", form)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match=r"would unpack to .*made to fill the memory"):
        contents([path])


def test_a_bomb_in_a_single_gz_is_refused(tmp_path):
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(bytes(64 << 20)))
    with pytest.raises(DataError, match=r"made to fill the memory"):
        contents([tmp_path / "bomb.txt.gz"], by_pattern("*.gz"))


def test_more_bytes_than_any_data_set_are_refused(tmp_path):
    path = write_packed({"a/big.txt": random.randbytes(3000)}, tmp_path / "big.zip", "zip")
    with pytest.raises(DataError, match=r"holds more than"):
        list(read_members([path], ANY, largest_total=2000))
    (tmp_path / "big.txt.gz").write_bytes(gzip.compress(bytes(100_000)))
    with pytest.raises(DataError, match=r"holds more than"):
        list(read_members([tmp_path / "big.txt.gz"], by_pattern("*.gz"), largest_total=2000))


@pytest.mark.parametrize("form", ["zip", "tar.gz", "tar", "txt.gz"])
@pytest.mark.parametrize("keep", [0.3, 0.7, 0.97])
def test_an_archive_cut_short_is_refused(form, keep, tmp_path):
    path = tmp_path / f"cut.{form}"
    if form == "txt.gz":
        path.write_bytes(gzip.compress(random.randbytes(5000)))
    else:
        write_packed(
            {"a/x.txt": random.randbytes(20_000), "a/y.txt": random.randbytes(20_000)}, path, form
        )
    whole = path.read_bytes()
    if form == "tar" and keep > 0.9:
        pytest.skip("a tar ends in 10 kB of zeros: cutting those loses nothing")
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(DataError, match=r"damaged or was cut short"):
        contents([path], by_pattern("*.txt", "*.gz"))


def test_a_damaged_member_is_refused(tmp_path):
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", b"A" * 1000)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"A" * 1000, b"A" * 999 + b"B"))
    with pytest.raises(DataError, match=r"damaged or was cut short \(Bad CRC-32"):
        contents([path])
