"""A task: what it refuses, how it splits, what it says of itself."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onlinecde.data import DataError, Task, simulate_ward, split_streams, with_static
from onlinecde.series import SeriesBatch


def series_of(streams: int, rows: int = 3) -> SeriesBatch:
    values = torch.randn(streams, rows, 2, generator=torch.Generator().manual_seed(0))
    return SeriesBatch.from_padded(torch.arange(rows).double().repeat(streams, 1), values)


def test_splits_are_70_15_15_and_cover_everything_once():
    splits = split_streams(range(1000))
    assert {name: len(at) for name, at in splits.items()} == {
        "train": 700,
        "validation": 150,
        "test": 150,
    }
    assert sorted(torch.cat(list(splits.values())).tolist()) == list(range(1000))


@given(st.lists(st.integers(0, 12), min_size=30, max_size=120), st.integers(0, 5))
def test_no_subject_is_in_two_splits(subjects, seed):
    subjects = [*subjects, *range(100, 110)]
    splits = split_streams(subjects, seed=seed)
    owners = [{subjects[i] for i in at.tolist()} for at in splits.values()]
    assert sum(map(len, owners)) == len(set().union(*owners))
    assert sum(len(at) for at in splits.values()) == len(subjects)


def test_every_class_keeps_its_share_in_every_split():
    classes = torch.tensor([0] * 400 + [1] * 80 + [2] * 20)
    for name, share in (("train", 0.7), ("validation", 0.15), ("test", 0.15)):
        at = split_streams(range(500), classes)[name]
        for kind, many in enumerate((400, 80, 20)):
            assert abs(int((classes[at] == kind).sum()) - share * many) <= 1


def test_the_same_seed_gives_the_same_splits_and_another_gives_others():
    first, again, other = (split_streams(range(200), seed=s) for s in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["test"], other["test"])


def test_too_few_subjects_to_fill_the_splits_are_refused():
    with pytest.raises(DataError, match=r"2 subjects cannot fill.*'validation' stays empty"):
        split_streams(["a", "b"])


@pytest.mark.parametrize("subjects", [3, 4, 5, 6, 7, 8])
def test_a_few_subjects_fill_every_split(subjects):
    for seed in range(5):
        classes = torch.arange(subjects) % 2
        for strata in (None, classes):
            splits = split_streams(range(subjects), strata, seed=seed)
            assert min(len(at) for at in splits.values()) >= 1
            assert len(splits["train"]) >= subjects - 2 - subjects // 3
            assert sorted(torch.cat(list(splits.values())).tolist()) == list(range(subjects))


def test_row_labels_stratify_by_any_positive_row():
    labels = torch.zeros(100, 3)
    labels[:20, 1] = 1
    task = Task.build("t", series_of(100), labels, kind="binary", per="row")
    assert [int((task.split(n)[1] == 1).any(1).sum()) for n in task.splits] == [14, 3, 3]


def test_row_labels_are_cut_to_the_rows_of_their_split():
    series = SeriesBatch.from_arrays(
        [list(range(2 + i)) for i in range(8)], [[[1.0]] * (2 + i) for i in range(8)]
    )
    task = Task.build(
        "t",
        series,
        torch.zeros(series.times.shape),
        kind="binary",
        per="row",
        splits={"train": [0, 1], "test": [7]},
    )
    batch, labels = task.split("train")
    assert labels.shape == batch.times.shape == (2, 3)
    assert labels[0].isnan().tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([0, 1, 2] + [0] * 7, {"kind": "binary"}, r"stream 2: the label is 2.0: it must be 0 or 1"),
        ([0.0] * 9 + [float("nan")], {"kind": "regression"}, r"stream 9: the label is nan"),
        ([0] * 9, {"kind": "binary"}, r"shape \(9,\): they must be \(stream,\), \(10,\)"),
        ([0] * 10, {"kind": "multiclass"}, r"needs the names of its classes"),
        ([0] * 9 + [3], {"kind": "multiclass", "classes": "ab"}, r"label is 3: it must be 0 to 1"),
        ([0] * 10, {"kind": "ordinal"}, r"choose one of"),
        (["x"] * 10, {"kind": "binary"}, r"cannot be read as numbers"),
        (torch.full((10, 3), torch.nan), {"kind": "binary", "per": "row"}, r"no label at all"),
        ([0] * 10, {"kind": "binary", "subjects": [1]}, r"1 subjects for 10 streams"),
        ([0] * 10, {"kind": "binary", "splits": {"train": [0, 10]}}, r"holds position 10"),
        (
            [0] * 10,
            {"kind": "binary", "seed": -1},
            r"seed of the splits is -1: give a whole number",
        ),
        (
            [0] * 10,
            {"kind": "binary", "splits": {"a": [0], "b": [1]}, "subjects": [5] * 10},
            r"subject 5 is in split 'a' and in 'b'",
        ),
    ],
)
def test_bad_labels_and_splits_are_refused(labels, options, message):
    with pytest.raises(DataError, match=message):
        Task.build("t", series_of(10), labels, **options)


def test_a_task_describes_itself():
    task = Task.build("beds", series_of(20), [0, 1] * 10, kind="binary", settings={"seed": 0})
    text = task.describe()
    assert "beds: binary" in text
    assert "train 14, validation 3, test 3" in text
    assert "10 positive (50.00 %)" in text


def test_static_gaps_are_filled_from_the_training_split_only_and_marked():
    splits = {"train": [0, 1, 2], "validation": [3], "test": [4]}
    task = Task.build("t", series_of(5), [0, 1, 0, 1, 0], kind="binary", splits=splits)
    age = [40.0, None, 60.0, 1000.0, float("nan")]
    task = with_static(task, {"age": age, "ward": ["A", "B", None, "A", "B"]})
    assert task.series.features == ("age", "age_missing", "ward=A", "ward=B")
    assert task.series.static[:, 0].tolist() == [40, 50, 60, 1000, 50]
    assert task.series.static[:, 1].tolist() == [0, 1, 0, 0, 1]
    assert task.series.static[2, 2:].tolist() == [0, 0]


def test_some_streams_of_a_task_keep_their_labels_queries_truth_and_risk():
    task = simulate_ward(40, seed=1, hours=12).task
    for whole in (task, task.asked("every=1h")):
        chosen = torch.tensor([30, 2, 17])
        some = whole.select(chosen, {"test": torch.arange(3)})
        assert some.series.streams == (30, 2, 17)
        assert some.subjects == tuple(whole.subjects[i] for i in (30, 2, 17))
        width = some.labels.shape[1]
        same = {"rtol": 0, "atol": 0, "equal_nan": True}
        torch.testing.assert_close(some.labels, whole.labels[chosen, :width], **same)
        torch.testing.assert_close(
            some.known_risk.risk, whole.known_risk.risk[chosen, :width], **same
        )
        times = torch.rand(3, 5, dtype=torch.float64) * 12
        everyone = torch.zeros(40, 5, dtype=torch.float64)
        everyone[chosen] = times
        torch.testing.assert_close(some.truth.at(times), whole.truth.at(everyone)[chosen], **same)
        torch.testing.assert_close(
            some.asked("every=2h").known_risk.risk,
            whole.asked("every=2h").known_risk.risk[chosen][
                :, : some.asked("every=2h").labels.shape[1]
            ],
            **same,
        )


def test_with_its_first_rows_alone_a_task_is_asked_no_further():
    task = simulate_ward(40, seed=1).task
    short = task.first_rows(5)
    last = short.series.times[:, -1:]
    assert short.labels.shape == (40, 5)
    assert bool((short.truth.until <= last[:, 0]).all())
    known = short.asked("every=1h")
    assert bool((known.queries <= last)[~known.queries.isnan()].all())
    # What is known of the event is not cut: a patient is followed beyond the last row.
    at = torch.minimum(task.truth.until[:, None], last)
    assert torch.equal(short.truth.at(at), task.truth.at(at))
    cut = task.asked("every=1h").first_rows(5)
    assert torch.equal(
        cut.labels.nan_to_num(9), known.labels.nan_to_num(9)[:, : cut.labels.shape[1]]
    )
    assert task.first_rows(10_000) is task


def test_a_task_says_what_is_known_of_it_when():
    task = simulate_ward(40, seed=1).task
    assert "known     event within 12 hours, which " in task.describe()
    assert "one label per query time" in task.asked("every=6h").describe()
