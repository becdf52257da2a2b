"""The `.ts` reader, against aeon's and against files that are wrong."""

import warnings

import numpy as np
import pytest

from onlinecde.data import DataError
from onlinecde.data.archives import read_one
from onlinecde.data.ts_format import read_ts


def as_aeon_reads(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from aeon.datasets import load_from_ts_file

        cases, targets = load_from_ts_file(str(path))
    return [np.asarray(case, float).T for case in cases], targets


def assert_same(ours, path):
    cases, targets = as_aeon_reads(path)
    assert len(ours.values) == len(cases)
    for mine, theirs in zip(ours.values, cases, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    if ours.classes:
        assert [ours.classes[c] for c in ours.targets] == list(targets)
    else:
        np.testing.assert_array_equal(ours.targets, np.asarray(targets, float))


@pytest.mark.parametrize("name", ["character-trajectories", "beijing-pm25"])
def test_made_files_read_as_aeon_reads_them(name, packed):
    folder = packed(name, "folder")
    for path in folder.glob("*.ts"):
        assert_same(read_ts(path.read_bytes(), str(path)), path)


@pytest.mark.parametrize("name", ["CharacterTrajectories", "BeijingPM25Quality"])
def test_real_files_read_as_aeon_reads_them(name, real_data, tmp_path):
    member = read_one([real_data(f"{name}.zip")], f"{name}_TEST.ts")
    path = tmp_path / f"{name}_TEST.ts"
    path.write_bytes(member.data)
    assert_same(read_ts(member.data, member.origin), path)


def test_time_stamps_place_values_of_all_dimensions_on_one_clock():
    head = "@timestamps true\n@univariate false\n@classlabel true a b\n@data\n"
    text = head + "(0,1),(2.5,2):(2.5,?),(4,9):b\n"
    case = read_ts(text, "x.ts")
    np.testing.assert_array_equal(case.times[0], [0, 2.5, 4])
    np.testing.assert_array_equal(case.values[0], [[1, np.nan], [2, np.nan], [np.nan, 9]])
    assert case.targets.tolist() == [1]


HEAD = "@problemname x\n@univariate false\n@dimension 2\n@classlabel true a b\n@data\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "1,2:3,4:a\n1,2:a\n", r"x.ts, line 7: 1 dimensions, but the file has 2"),
        (HEAD + "1,2:3,x:a\n", r"line 6, dimension 2: 'x' is not a number"),
        (HEAD + "1,2:3,4:c\n", r"line 6: the class 'c' is not one of"),
        (HEAD + "1,inf:3,4:a\n", r"line 6, dimension 1: an infinite value"),
        (HEAD + "1,2,3\n", r"line 6: no ':' before the label"),
        (HEAD, r"no case after @data"),
        ("@problemname x\n", r"no @data line"),
        ("1,2:a\n", r"line 1: '1,2:a' stands before @data"),
        ("@dimension two\n@data\n", r"line 1: @dimension must give one whole number"),
        ("@classlabel true\n@data\n1:a\n", r"line 1: @classlabel true must be followed"),
        ("@targetlabel maybe\n@data\n1:1\n", r"line 1: @targetlabel must say true or false"),
        ("@targetlabel true\n@data\n1,2:wet\n", r"line 3: the target 'wet' is not a finite number"),
        ("@serieslength 3\n@targetlabel true\n@data\n1,2:5\n", r"2 values, but @seriesLength is 3"),
        ("@timestamps true\n@data\n(1)\n", r"'1' is no \(time,value\)"),
        ("@timestamps true\n@data\n(1,2),(1,3)\n", r"two values at time 1"),
    ],
)
def test_wrong_files_are_refused_by_line_and_dimension(text, message):
    with pytest.raises(DataError, match=message):
        read_ts(text, "x.ts")
