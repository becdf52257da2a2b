"""What is true at any time: every kind of label, against a plain function of one stream and one time."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onlinecde.data import (
    DataError,
    EndLabels,
    EventTruth,
    IntervalTruth,
    ListedLabels,
    Task,
    simulate_ward,
)
from onlinecde.data.parts import part_arrays, part_of
from onlinecde.series import SeriesBatch

STREAMS = 4
# Quarters are exact in float64, and close together, so that times often coincide.
TIMES = st.integers(0, 40).map(lambda n: n / 4)
UNTIL = st.lists(TIMES, min_size=STREAMS, max_size=STREAMS)
QUERIES = st.lists(
    st.lists(TIMES | st.just(math.nan), min_size=6, max_size=6), min_size=STREAMS, max_size=STREAMS
)


def table(lists, fill=math.inf):
    """Lists of different lengths, padded: (stream, entry) float64."""
    most = max(1, *map(len, lists))
    return torch.tensor([[*one, *[fill] * (most - len(one))] for one in lists], dtype=torch.float64)


def agree(truth, queries, slow):
    """At all times, by one call and for some streams alone, what a plain function says of each stream."""
    times = torch.tensor(queries, dtype=torch.float64)
    fast = truth.at(times)
    unknown = torch.as_tensor(truth.unknown)
    for stream, asked in enumerate(queries):
        for query, time in enumerate(asked):
            late = not time <= float(truth.until[stream])
            expected = None if late else slow(stream, time)
            got = fast[stream, query]
            if expected is None:
                assert bool(torch.isclose(got.double(), unknown.double(), equal_nan=True).all())
            else:
                torch.testing.assert_close(
                    got.double(), torch.as_tensor(expected).double(), equal_nan=True
                )
    some = torch.tensor([2, 0])
    torch.testing.assert_close(
        truth.select(some).at(times[some]), fast[some], rtol=0, atol=0, equal_nan=True
    )
    arrays = {}
    again = part_of(part_arrays(truth, "t", arrays), arrays)
    torch.testing.assert_close(again.at(times), fast, rtol=0, atol=0, equal_nan=True)
    assert again.at(times).dtype == fast.dtype


@given(UNTIL, QUERIES, st.sampled_from(["binary", "several", "classes"]))
def test_a_label_at_the_end_holds_at_all_times_until_then(until, queries, form):
    label = {
        "binary": torch.tensor([0.0, 1.0, torch.nan, 1.0]),
        "several": torch.arange(8.0).reshape(4, 2),
        "classes": torch.tensor([2, 0, -1, 1]),
    }[form]
    truth = EndLabels(torch.tensor(until, dtype=torch.float64), label)
    agree(truth, queries, lambda stream, time: label[stream])


@st.composite
def listed(draw):
    return [sorted(draw(st.sets(TIMES, max_size=6))) for _ in range(STREAMS)]


@given(
    UNTIL,
    QUERIES,
    listed(),
    st.sampled_from([0.0, 0.25, 1.0, math.inf]),
    st.sampled_from(["binary", "several", "classes"]),
)
def test_a_listed_label_stands_until_the_next_or_as_long_as_it_may(
    until, queries, times, stands, form
):
    starts = table(times)
    shape = (*starts.shape, 2) if form == "several" else starts.shape
    labels = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(1))
    labels = labels if form == "classes" else labels.float()
    truth = ListedLabels(torch.tensor(until, dtype=torch.float64), starts, labels, stands)

    def slow(stream, time):
        before = [n for n, at in enumerate(times[stream]) if at <= time]
        if not before or time - times[stream][before[-1]] > stands:
            return None
        return labels[stream, before[-1]]

    agree(truth, queries, slow)
    assert truth.continuous == (stands > 0)


@given(UNTIL, QUERIES, listed(), st.sampled_from([0.0, math.nan]), st.booleans(), st.booleans())
def test_a_label_over_an_interval_holds_from_its_start_to_its_end(
    until, queries, times, outside, own, classes
):
    pairs = [list(zip(one[::2], one[1::2], strict=False)) for one in times]
    starts = table([[a for a, _ in one] for one in pairs])
    ends = table([[b for _, b in one] for one in pairs])
    inside = torch.arange(starts.numel()).reshape(starts.shape) % 3 if own or classes else None
    if inside is not None and not classes:
        inside = inside.float()
    outside = -1 if classes else outside
    truth = IntervalTruth(torch.tensor(until, dtype=torch.float64), starts, ends, outside, inside)

    def slow(stream, time):
        for number, (start, end) in enumerate(pairs[stream]):
            if start <= time <= end:
                return 1.0 if inside is None else inside[stream, number]
        return outside

    agree(truth, queries, slow)


@given(
    UNTIL,
    QUERIES,
    st.lists(TIMES | st.just(math.inf), min_size=STREAMS, max_size=STREAMS),
    st.lists(TIMES, min_size=STREAMS, max_size=STREAMS) | st.none(),
    st.sampled_from([0.25, 2.0, math.inf]),
)
def test_an_event_is_known_to_come_or_not_to_as_far_as_the_stream_is_followed(
    until, queries, event, followed, horizon
):
    def tensor(numbers):
        return torch.tensor(numbers, dtype=torch.float64)

    truth = EventTruth(
        tensor(until), tensor(event), horizon, None if followed is None else tensor(followed)
    )
    lost = until if followed is None else followed

    def slow(stream, time):
        came = event[stream] < math.inf
        if came and time >= event[stream]:
            return None
        if came and event[stream] - time <= horizon:
            return 1.0
        # That none comes must have been watched, but where it is known when one came.
        return 0.0 if came or time + horizon <= lost[stream] else None

    agree(truth, queries, slow)
    left, is_event = truth.remaining(tensor(queries))
    for stream, asked in enumerate(queries):
        for query, time in enumerate(asked):
            end = event[stream] if event[stream] < math.inf else lost[stream]
            known = time <= until[stream] and (
                time < end or (time == end and event[stream] == math.inf)
            )
            assert bool(left[stream, query].isnan()) == (not known)
            if known:
                assert float(left[stream, query]) == end - time
                assert bool(is_event[stream, query]) == (event[stream] < math.inf)


def test_a_cut_truth_says_the_same_until_then_and_knows_no_less_of_the_event():
    truth = simulate_ward(30, seed=0).task.truth
    times = torch.rand(30, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 48
    cut = truth.cut(torch.full((30,), 10.0))
    expected = truth.at(times).masked_fill(times > 10, torch.nan)
    torch.testing.assert_close(cut.at(times), expected, rtol=0, atol=0, equal_nan=True)


def test_times_are_one_row_a_stream():
    truth = EndLabels(torch.tensor([2.0, 5.0]), torch.tensor([1.0, 0.0]))
    for wrong in (torch.zeros(2), torch.zeros(3, 1)):
        with pytest.raises(DataError, match=r"give \(stream, query\)"):
            truth.at(wrong)


UNTIL_9 = torch.tensor([9.0, 9.0], dtype=torch.float64)
BAD = {
    "is about 1 streams": EndLabels(UNTIL_9[:1], torch.zeros(1)),
    "stream 'b' is followed until no finite": EndLabels(
        UNTIL_9 / torch.tensor([1, 0]), torch.zeros(2)
    ),
    "stream 'b' is followed until a time before": EndLabels(
        UNTIL_9 - torch.tensor([0, 8.5]), torch.zeros(2)
    ),
    "stream 'b' has listed labels out of order": ListedLabels(
        UNTIL_9, torch.tensor([[1.0, 2.0], [2.0, 2.0]]), torch.zeros(2, 2)
    ),
    "stream 'a' has intervals out of order": IntervalTruth(
        UNTIL_9, torch.tensor([[3.0, 2.0], [2.0, torch.inf]]), torch.full((2, 2), 9.0)
    ),
    "stream 'b' has an interval that ends before": IntervalTruth(
        UNTIL_9, torch.tensor([[3.0], [4.0]]), torch.tensor([[3.0], [3.5]])
    ),
    "stream 'a' has intervals that overlap": IntervalTruth(
        UNTIL_9, torch.tensor([[3.0, 4.0]] * 2), torch.tensor([[4.5, 5.0], [4.0, 5.0]])
    ),
    "stream 'a' has its event no later than its first row": EventTruth(
        UNTIL_9, torch.tensor([1.0, 4.0]), 2.0
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_a_truth_that_makes_no_sense_is_refused_by_stream(message):
    series = SeriesBatch.from_arrays([[1.0], [1.0]], [[[0.0]]] * 2, streams=["a", "b"])
    splits = {"train": [0], "test": [1]}
    with pytest.raises(DataError, match=message):
        Task.build("t", series, [0, 1], kind="binary", splits=splits, truth=BAD[message])


def test_a_task_without_a_truth_knows_its_labels_where_they_are():
    series = SeriesBatch.from_arrays([[0.0, 2.0], [1.0]], [[[0.0], [1.0]], [[3.0]]])
    splits = {"train": [0], "test": [1]}
    options = {"kind": "binary", "splits": splits}
    rows = Task.build("t", series, [[0, 1], [1, 9]], per="row", **options)
    at = torch.tensor([[0.0, 1.0, 2.0], [1.0, 2.0, torch.nan]], dtype=torch.float64)
    assert rows.label_truth.at(at).nan_to_num(-1).tolist() == [[0, -1, 1], [1, -1, -1]]
    whole = Task.build("t", series, [0, 1], **options)
    assert whole.label_truth.at(at).nan_to_num(-1).tolist() == [[0, 0, 0], [1, -1, -1]]
    asked = rows.asked(at[:, :2])
    assert asked.labels.nan_to_num(-1).tolist() == [[0, -1], [1, -1]]
    with pytest.raises(DataError, match="no label is known at any of the times"):
        rows.asked(at[:, :1] + 0.5)
    times = replace(asked, truth=None)
    assert times.label_truth.at(at).nan_to_num(-1).tolist() == [[0, -1, -1], [1, -1, -1]]
