"""Tasks of time to an event: their labels, their bins, and what is refused."""

import math

import numpy as np
import pytest
import torch

import onlinecde as oc
from onlinecde.data import DataError, Task, fold_task, load, simulate_ward
from onlinecde.data.cache import load_task, save_task
from onlinecde.data.time_ahead import BINS, time_bins

NAN = float("nan")


def series(streams=12, rows=3):
    times = [np.arange(rows, dtype=float)] * streams
    return oc.SeriesBatch.from_arrays(times, [np.ones((rows, 1))] * streams)


def labels(streams=12, rows=3):
    """Every other stream has the event at 5 + its number; the others are lost at 20."""
    number = torch.arange(streams, dtype=torch.float64)[:, None]
    event = number % 2 == 0
    ends = torch.where(event, 5 + number, 20.0) - torch.arange(rows)
    return torch.stack([ends, event.expand_as(ends).double()], -1)


@pytest.fixture(scope="module")
def ward():
    return simulate_ward(200, seed=3, kind="time-to-event", horizon=10.0).task


def test_a_task_knows_how_many_bins_a_model_needs():
    task = Task.build("waiting", series(), labels(), kind="time-to-event", per="row", horizon=6.0)
    assert task.metric == "concordance"
    assert task.outputs == len(task.edges)
    assert task.horizon == 6.0
    assert task.horizon in task.edges
    assert task.labelled.shape == (12, 3)
    assert task.labelled.all()
    batch, some = task.split("test")
    assert some.shape == (len(batch), 3, 2)
    assert "18 followed by the event" in task.describe()
    assert "in 6 streams" in task.describe()
    one = Task.build("waiting", series(), labels()[:, 0], kind="time-to-event")
    assert one.labels.shape == (12, 2)
    assert one.edges[-1] == 15


def test_bins_are_finer_where_events_are():
    waited = np.random.default_rng(0).exponential(5.0, 4000)
    labels = torch.tensor(np.stack([waited, np.ones(4000)], 1))
    edges, first = time_bins(labels, {})
    assert len(edges) == BINS
    assert first == float(f"{np.median(waited):.2g}")
    counts, _ = np.histogram(waited, [0, *edges])
    assert counts.min() > 150
    assert counts.max() < 350
    assert edges[-1] == pytest.approx(waited.max(), rel=0.01)
    # Only streams of the training split say where.
    near = {"train": torch.tensor(np.flatnonzero(waited < 5))}
    assert time_bins(labels, near)[0][-1] <= 5
    # Where few times are different there are fewer, and a horizon beyond them is the last edge.
    few = torch.tensor([[1.0, 1.0], [2.0, 1.0], [9.0, 0.0]])
    assert time_bins(few, {}, horizon=12.0) == ((1.0, 2.0, 12.0), 12.0)
    assert time_bins(few, {}, edges=(3, 8)) == ((3.0, 8.0), 1.5)


def test_labels_of_the_ward_agree_with_those_within_a_horizon(ward):
    known = simulate_ward(200, seed=3, horizon=10.0).task
    for one, other in ((ward, known), (ward.asked("every=2h"), known.asked("every=2h"))):
        time, event = one.labels.double().unbind(-1)
        came = (event == 1) & (time <= 10)
        tells = came | (time >= 10)
        within = torch.where(tells, came.double(), NAN)
        assert torch.equal(within.nan_to_num(-1), other.labels.double().nan_to_num(-1))
    assert ward.edges == ward.asked("every=2h").edges
    assert all(torch.equal(ward.splits[name], known.splits[name]) for name in ward.splits)


def test_within_a_horizon_it_is_the_binary_task(ward):
    known = simulate_ward(200, seed=3, horizon=10.0).task
    for one, other in ((ward, known), (ward.asked("every=2h"), known.asked("every=2h"))):
        near = one.within()
        assert (near.kind, near.metric, near.classes) == ("binary", "auc", other.classes)
        assert (near.horizon, near.edges, near.label_lead) == (None, (), 10.0)
        assert torch.equal(near.labels.nan_to_num(-1), other.labels.nan_to_num(-1))
        asked = [task.asked("every=3h").labels.nan_to_num(-1) for task in (near, other)]
        assert torch.equal(*asked)
        assert near.known_risk is one.known_risk
    assert ward.within(4.0).known_risk is None
    with pytest.raises(DataError, match="is binary: it has no horizons"):
        known.within()


def test_the_registry_knows_the_ward_by_time_to_event():
    task = load("simulated-ward", streams=60, kind="time-to-event")
    assert task.kind == "time-to-event"
    assert task.settings["kind"] == "time-to-event"
    assert task.horizon == 12.0
    with pytest.raises(DataError, match="kind is 'hazard': choose 'binary' or 'time-to-event'"):
        load("simulated-ward", kind="hazard")


def test_a_prepared_task_is_read_as_it_was(ward, tmp_path):
    for task in (ward, ward.asked("every=4h")):
        save_task(task, tmp_path / "task.npz")
        again = load_task(tmp_path / "task.npz")
        assert (again.edges, again.horizon, again.per) == (task.edges, task.horizon, task.per)
        assert torch.equal(again.labels.nan_to_num(-1), task.labels.nan_to_num(-1))
        asked = again.asked("every=3h").labels
        assert torch.equal(asked.nan_to_num(-1), task.asked("every=3h").labels.nan_to_num(-1))


def test_each_fold_has_bins_of_its_own_training_streams(ward):
    first, second = (fold_task(ward, number, 3) for number in (1, 2))
    assert first.edges != second.edges
    assert first.horizon == second.horizon == 10.0
    given = Task.build(
        "waiting", series(), labels(), kind="time-to-event", per="row", edges=(6, 16), horizon=6
    )
    assert fold_task(given, 1, 2).edges == (6.0, 16.0)


def changed(place, value):
    given = labels()
    given[place] = torch.tensor(value, dtype=given.dtype)
    return given


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        (
            changed((2, 1), [-1.0, 0.0]),
            {},
            r"stream 2, row 1: the label is \[-1.0, 0.0\].*0 or more",
        ),
        (changed((2, 1), [0.0, 1.0]), {}, r"above 0 to an event"),
        (changed((2, 1), [4.0, 2.0]), {}, r"1 for the event or 0 for censoring"),
        (changed((2, 1), [4.0, NAN]), {}, r"stream 2, row 1: the label is \[4.0, nan\]"),
        (changed((2, 1), [math.inf, 0.0]), {}, r"the label is \[inf, 0.0\]"),
        (labels()[..., 0], {}, r"they must be \(stream, row, 2\)"),
        (labels() * torch.tensor([1.0, 0.0]), {}, r"no event follows .* or `edges`"),
        (labels(), {"edges": (3, 3)}, r"edges are \[3, 3\]: give times above 0"),
        (labels(), {"edges": (3, 8), "horizon": 9}, r"horizon is 9, beyond the last of the edges"),
        (labels(), {"horizon": -1.0}, r"horizon is -1.0: give a time above 0"),
        (labels(), {"kind": "binary"}, r"labels have shape"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, settings, message):
    kind = settings.get("kind", "time-to-event")
    with pytest.raises(DataError, match=message):
        Task.build("waiting", series(), given, **{"kind": kind, "per": "row", **settings})


def test_a_missing_label_is_two_gaps_and_horizons_are_of_this_kind_alone():
    task = Task.build(
        "waiting", series(), changed((2, 1), [NAN, NAN]), kind="time-to-event", per="row"
    )
    assert task.labelled.sum() == 35
    with pytest.raises(DataError, match="edges and horizon are of kind 'time-to-event'"):
        Task.build("seen", series(), [0, 1] * 6, kind="binary", horizon=3.0)
    with pytest.raises(DataError, match=r"stream 2: the label is \[nan, nan\]"):
        Task.build("waiting", series(), task.labels[:, 1], kind="time-to-event")
