"""Files as they come from other programs are read, or refused with a remedy."""

import polars as pl
import pytest
import torch

from onlinecde.data import DataError, RowLabels, StreamLabels, task_from_table

COLUMNS = {"stream": "bed", "time": "hours"}
DEATHS = pl.DataFrame({"bed": range(10), "died": [0, 1] * 5})
GOOD = "bed,hours,pulse\n" + "".join(f"{b},{t},{b + t}\n" for b in range(10) for t in (0, 1))


DIED = StreamLabels("died", DEATHS)


def read(path, labels=DIED):
    return task_from_table(path, labels=labels, **COLUMNS)


@pytest.mark.parametrize("ending", ["\r", "\r\n"])
def test_lines_may_end_as_other_systems_end_them(ending, tmp_path):
    (tmp_path / "t.csv").write_text(GOOD)
    (tmp_path / "other.csv").write_bytes(GOOD.replace("\n", ending).encode())
    ours, other = read(tmp_path / "t.csv"), read(tmp_path / "other.csv")
    assert torch.equal(ours.series.values, other.series.values)
    (tmp_path / "other.csv").write_bytes(GOOD.replace("\n", ending).encode() + b"9,2,high")
    with pytest.raises(DataError, match=r"other.csv, line 22, column 'pulse'"):
        read(tmp_path / "other.csv")


BAD_FILES = {
    "semicolons": (GOOD.replace(",", ";"), r"line 1: one column.*separated by ';', not ','.*comma"),
    "tabs": (GOOD.replace(",", "\t"), r"separated by '\\t', not ','.*tabs as .tsv"),
    "empty": ("", r"t.csv: the file is empty"),
    "blank": ("\n \n", r"t.csv: the file is empty"),
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_a_file_of_another_form_says_what_to_do(fault, tmp_path):
    text, message = BAD_FILES[fault]
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "t.csv")


@pytest.mark.parametrize("name", ["folder", "folder.csv"])
def test_a_folder_is_no_table(name, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=rf"{name} is a folder: give one file"):
        read(tmp_path / name)


def test_categories_are_read_as_text_in_every_role(tmp_path):
    frame = pl.DataFrame(
        {
            "bed": [f"b{n // 2}" for n in range(20)],
            "hours": [0.0, 1.0] * 10,
            "pulse": range(20),
            "state": ["ill", "well"] * 10,
        }
    )
    words = frame.with_columns(
        pl.col("bed").cast(pl.Categorical), pl.col("state").cast(pl.Enum(["well", "ill"]))
    )
    words.write_parquet(tmp_path / "t.parquet")
    task = read(tmp_path / "t.parquet", RowLabels("state"))
    assert (task.kind, task.classes) == ("multiclass", ("ill", "well"))
    assert torch.equal(task.labels, read(frame, RowLabels("state")).labels)


def test_ids_may_be_larger_than_any_signed_number():
    large = pl.col("bed").cast(pl.UInt64) + 2**63
    events = pl.DataFrame({"bed": range(10), "hours": [0.0] * 10, "pulse": range(10)})
    deaths = StreamLabels("died", DEATHS.with_columns(large))
    task = read(events.with_columns(large), deaths)
    assert task.series.streams[0] == str(2**63)
    assert task.labels.tolist() == DEATHS["died"].to_list()
