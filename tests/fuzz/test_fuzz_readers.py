"""Whatever bytes a reader is given, it returns data or a `DataError`; nothing else."""

import polars as pl
import torch
from hypothesis import given
from hypothesis import strategies as st

from onlinecde.data import DataError, StreamLabels, task_from_table
from onlinecde.data.archives import Member
from onlinecde.data.sets.physionet_2012 import read_records
from onlinecde.data.sets.physionet_2019 import COLUMNS, read_psv
from onlinecde.data.table_files import parse_csv
from onlinecde.data.ts_format import read_ts

TS = b"@problemname x\n@dimension 2\n@classlabel true a b\n@data\n1,2:3,?:a\n4:5:b\n"
STAMPED = b"@timestamps true\n@targetlabel true\n@data\n(0,1),(2,3):(1,?):4.5\n"
PSV = ("|".join(COLUMNS) + "\n" + "|".join(["1.5"] * 39 + ["1", "0"]) + "\n").encode()
RECORD = b"Time,Parameter,Value\n00:00,RecordID,1\n00:00,Age,-1\n01:30,HR,70\n"
CSV = b"bed,hours,what,x\n1,0.5,pulse,70\n1,1.5,pulse,\n2,0,pulse,71\n"

SNIPPETS = st.sampled_from(
    [
        *b"? : , | - @ ( ) # NaN nan inf 1e999 1_0 0x1 24:00 @data \x00 \xff".split(),
        *(b"", b" ", b"\n", b"\r\n", b'"', b"\t"),
    ]
)


def outcome(read, *arguments, **options):
    """What the reader returns and None, or None and what its `DataError` says."""
    try:
        return read(*arguments, **options), None
    except DataError as error:
        return None, str(error)


@st.composite
def damaged(draw, original: bytes) -> bytes:
    """The original with a few pieces cut out, put in or doubled."""
    data = original
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 12)))
        data = data[:at] + draw(st.one_of(SNIPPETS, st.binary(max_size=6))) + data[end:]
    return data


@given(st.one_of(damaged(TS), damaged(STAMPED), st.binary(max_size=200), st.text().map(str.encode)))
def test_ts(data):
    found, error = outcome(read_ts, data, "x.ts")
    if found is None:
        assert error is not None
        assert "x.ts" in error
        return
    file = found
    assert len(file.values) == len(file.times) > 0
    for clock, table in zip(file.times, file.values, strict=True):
        assert table.shape[0] == len(clock) > 0


@given(
    st.lists(st.one_of(damaged(PSV), st.just(PSV), st.binary(max_size=60)), min_size=1, max_size=3)
)
def test_psv(files):
    members = [Member(f"p{i}.psv", data, f"p{i}.psv") for i, data in enumerate(files)]
    found, error = outcome(read_psv, members)
    if found is None:
        assert error is not None
        assert ".psv" in error
        return
    lines, table = found
    assert lines.sum() == len(table)
    assert table.shape[1] == len(COLUMNS)


@given(st.lists(st.one_of(damaged(RECORD), st.just(RECORD)), min_size=1, max_size=3))
def test_records_of_2012(files):
    members = [Member(f"{i}.txt", data, f"{i}.txt") for i, data in enumerate(files)]
    found, error = outcome(read_records, members)
    if found is None:
        assert error is not None
        assert ".txt" in error
        return
    events = found
    assert events["value"].is_finite().all()


@given(st.one_of(damaged(CSV), st.binary(max_size=200)))
def test_csv(data):
    found, error = outcome(parse_csv, data, "t.csv")
    if found is None:
        assert error is not None
        assert "t.csv" in error
        return
    frame = found
    assert frame.height > 0
    assert all(dtype == pl.String for dtype in frame.dtypes)


CELL = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.floats(),
    st.sampled_from(["", "x", "2030-01-01", "1e3", "nan"]),
)


@given(
    st.lists(
        st.tuples(st.integers(0, 6), CELL, st.sampled_from("pqr"), CELL), min_size=1, max_size=25
    ),
    st.booleans(),
)
def test_tables(lines, strict):
    schema = ["bed", "hours", "what", "x"]
    frame = pl.DataFrame(
        {
            name: [None if line[i] is None else str(line[i]) for line in lines]
            for i, name in enumerate(schema)
        },
        schema=dict.fromkeys(schema, pl.String),
    )
    labels = StreamLabels("y", pl.DataFrame({"bed": range(7), "y": [0, 1, 0, 1, 0, 1, 0]}))
    task, error = outcome(
        task_from_table, frame, stream="bed", time="hours", channel="what", value="x",
        labels=labels, duplicates="refuse" if strict else "mean",
    )  # fmt: skip
    if task is None:
        assert error
        return
    assert task.series.times[task.series.real].isfinite().all()
    assert not torch.isinf(task.series.values).any()
