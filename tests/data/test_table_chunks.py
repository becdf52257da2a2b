"""A table read in chunks is the table, from wherever one begins; what is wrong is named by its line."""

import gzip

import numpy as np
import polars as pl
import pytest

from onlinecde.data import DataError
from onlinecde.data.table_chunks import Place, table_source
from onlinecde.data.table_files import LINE, read_table

BEDS = pl.DataFrame(
    {"bed": np.repeat(np.arange(50), 4), "hours": [0.0, 1.0, 2.0, 3.0] * 50, "hr": np.arange(200)}
)


@pytest.fixture
def files(tmp_path):
    """The same table in every form."""
    BEDS.write_csv(tmp_path / "t.csv")
    text = (tmp_path / "t.csv").read_bytes()
    (tmp_path / "mac.csv").write_bytes(text.replace(b"\n", b"\r"))
    (tmp_path / "windows.csv").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text))
    BEDS.write_csv(tmp_path / "t.tsv", separator="\t")
    BEDS.write_parquet(tmp_path / "t.parquet", row_group_size=30)
    BEDS.write_ipc(tmp_path / "t.arrow")
    return sorted(tmp_path.iterdir())


def read(source, size, place=None):
    """The chunks of a table and the places behind them."""
    return [*source.chunks(["bed", "hr"], size, place or Place())]


def test_chunks_are_the_table_whatever_the_form_and_the_size(files):
    for file in files:
        whole = read_table(file).frame.select("bed", "hr", LINE)
        for size in (1, 500, 1 << 20):
            chunks = read(table_source(file), size)
            assert pl.concat([chunk.frame for chunk, _ in chunks]).equals(whole), (file, size)
    assert pl.concat([chunk.frame for chunk, _ in read(table_source(BEDS), 100)])["hr"].equals(
        BEDS["hr"]
    )


def test_reading_goes_on_from_any_place(files):
    for file in files:
        source = table_source(file)
        chunks = read(source, 400)
        whole = pl.concat([chunk.frame for chunk, _ in chunks])
        for _, place in chunks[:-1:3]:
            rest = pl.concat([chunk.frame for chunk, _ in read(source, 700, place)])
            assert rest.equals(whole[place.lines :])
            assert 0 < source.done(place) < 1


def test_a_folder_of_parquet_files_is_one_table(tmp_path):
    folder = tmp_path / "t.parquet"
    folder.mkdir()
    BEDS[:70].write_parquet(folder / "part-0.parquet")
    BEDS[70:].write_parquet(folder / "part-1.parquet")
    chunks = read(table_source(folder), 400)
    assert pl.concat([chunk.frame for chunk, _ in chunks])["hr"].equals(BEDS["hr"])


def test_a_damaged_line_is_named_in_whatever_chunk_it_is(tmp_path):
    lines = ["bed,hr", *(f"{number},1" for number in range(100)), "7,1,2", "8,1"]
    file = tmp_path / "t.csv"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match="line 102: 3 cells for 2 columns"):
        read(table_source(file), 64)
    file.write_bytes("\n".join(lines[:101]).encode() + b"\n\xff,1\n")
    with pytest.raises(DataError, match="line 102: not UTF-8"):
        read(table_source(file), 64)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.csv.gz"])
def test_an_empty_or_damaged_file_is_refused(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(b"bed,hr\n" if name == "t.csv" else b"no such thing")
    with pytest.raises(DataError, match=name):
        read(table_source(file), 64)


def test_a_file_that_changed_has_another_fingerprint(tmp_path):
    file = tmp_path / "t.csv"
    BEDS.write_csv(file)
    before = table_source(file).fingerprint()
    assert table_source(file).fingerprint() == before
    BEDS.with_columns(hr=pl.col("hr") + 1).write_csv(file)
    assert table_source(file).fingerprint() != before
