"""The audit of models: leaks are found and named, and nothing is made up."""

import numpy as np
import pytest
import torch
from random_callables import causal_callable, fading_memory, leaky_callable, random_batch
from torch import nn

import onlinecde as oc
from onlinecde.audit import measurability, trial_batch
from onlinecde.controls import Measurability

CONTINUOUS, DISCRETE, OFFLINE = Measurability
GAPS = trial_batch(0, channels=3, missing=0.3)
WHOLE = trial_batch(0, channels=3)


def test_no_false_alarm_over_200_causal_models_and_data_sets():
    for seed in range(200):
        numbers = np.random.default_rng(seed)
        batch = random_batch(numbers)
        call = causal_callable(batch, numbers)
        found = measurability(call, batch, seed=seed)
        continuous = call.__qualname__.startswith("fading_memory")
        assert found.measurability is (CONTINUOUS if continuous else DISCRETE), (
            f"seed {seed}, {call.__qualname__}: {found}"
        )
        assert found.leak is None


def test_no_miss_over_200_leaks_of_one_future_event():
    for seed in range(200):
        numbers = np.random.default_rng(1000 + seed)
        batch = random_batch(numbers)
        leaky, row, event, channel, what = leaky_callable(batch, numbers)
        found = measurability(leaky, batch, seed=seed)
        assert found.measurability is OFFLINE, f"seed {seed}, {what}, {event} -> {row}: {found}"
        leak = found.leak
        stream = batch.streams.index(leak.stream)
        assert leak.time == float(batch.times[stream, row])
        assert leak.output == 0
        if leak.edit == "changed":
            assert leak.events == 1
            assert leak.channel == batch.channels[channel]
            assert leak.event_time == float(batch.times[stream, event])


def test_a_leak_in_the_last_bits_is_found():
    def call(batch):
        x = batch.values.nan_to_num()
        out = x.cumsum(1)
        out[:, 0] += 1e-14 * x[:, 2]
        return out

    found = measurability(call, WHOLE)
    assert found.measurability is OFFLINE
    assert found.leak.relative < 1e-12
    assert "That is rounding: allow it with tolerance=" in found.reason
    assert measurability(call, WHOLE, tolerance=1e-10).measurability is DISCRETE


def test_a_bidirectional_gru_is_caught():
    cells = nn.GRU(3, 4, bidirectional=True, batch_first=True).double()
    found = measurability(lambda batch: cells(batch.values.nan_to_num())[0], GAPS)
    assert found.measurability is OFFLINE
    assert found.leak.output >= 4, "the backward half of the outputs leaks"
    assert found.leak.event_time > found.leak.time


def test_linear_control_on_data_with_gaps_is_caught():
    torch.manual_seed(0)
    model = oc.NeuralCDE(channels=3, hidden=4, control="linear", field={"width": 8}).double()
    found = measurability(model, GAPS, streams=2)
    assert found.measurability is OFFLINE
    assert found.declared is DISCRETE
    assert not found.as_declared
    assert "WORSE than declared: DISCRETE" in str(found)
    assert measurability(model, WHOLE, streams=2).as_declared


def test_scaling_with_future_statistics_is_caught():
    def scaled(batch):
        values = batch.values
        return (values - values.nanmean(1, keepdim=True)).nan_to_num().cumsum(1)

    found = measurability(scaled, GAPS)
    assert found.measurability is OFFLINE
    assert found.leak.edit == "changed"
    assert not found.leak.through_batch


def test_scaling_with_statistics_of_the_batch_is_told_as_such():
    def scaled(batch):
        first = batch.values[:, :1]
        return (batch.values - first.nanmean(0, keepdim=True)).nan_to_num().cumsum(1)

    found = measurability(scaled, WHOLE)
    assert found.measurability is OFFLINE
    assert found.leak.through_batch
    assert found.leak.event_stream != found.leak.stream
    assert "the other streams in the batch" in found.reason


def alone(batch):
    return batch.values.nan_to_num().cumsum(1) + (len(batch) == 1)


def shared_out(batch):
    return batch.values.nan_to_num().cumsum(1) / len(batch)


@pytest.mark.parametrize("counting", [shared_out, alone])
def test_a_model_that_counts_the_streams_is_told_as_such(counting):
    found = measurability(counting, WHOLE)
    assert found.measurability is OFFLINE
    assert found.leak.edit == "left out"
    assert found.leak.through_batch
    assert "leaving stream" in str(found.leak)
    assert "out of the batch" in str(found.leak)


def test_a_model_that_reads_the_length_of_the_array_is_caught():
    def position(batch):
        share = torch.arange(batch.times.shape[1]) / batch.times.shape[1]
        return share.expand(len(batch), -1)[:, :, None]

    found = measurability(position, WHOLE)
    assert found.measurability is OFFLINE
    assert found.leak.edit in ("deleted", "added")


def test_interpolating_between_rows_is_discrete():
    def interpolated(batch, at=None):
        x = batch.values
        if at is None:
            return x
        row = (torch.searchsorted(batch.times, at.contiguous(), right=True) - 1).clamp(min=0)
        after = (row + 1).minimum(batch.rows[:, None] - 1)
        start, stop = batch.times.gather(1, row), batch.times.gather(1, after)
        share = ((at - start) / (stop - start).clamp(min=1e-9)).clamp(0, 1)[:, :, None]
        index = [i[:, :, None].expand(-1, -1, x.shape[2]) for i in (row, after)]
        left, right = x.gather(1, index[0]), x.gather(1, index[1])
        return torch.where(share > 0, torch.lerp(left, right, share), left)

    found = measurability(interpolated, WHOLE)
    assert found.measurability is DISCRETE
    assert found.leak.between_rows
    assert "between rows," in str(found.leak)


def test_without_query_times_a_model_is_discrete_at_most():
    found = measurability(lambda batch: batch.values.nan_to_num().cumsum(1), GAPS)
    assert found.measurability is DISCRETE
    assert "takes no query times" in found.reason


def test_query_times_of_ones_own_are_asked():
    asked = []
    call = fading_memory(7, torch.float64)

    def noted(batch, at=None):
        if at is not None:
            asked.append(at)
        return call(batch, at)

    times = WHOLE.times[:, 2:4] + 0.1
    assert measurability(noted, WHOLE, at=times).measurability is CONTINUOUS
    seen = torch.cat([at.flatten() for at in asked]).unique()
    assert torch.isin(times.flatten(), seen).all()
    with pytest.raises(ValueError, match="takes no `at`"):
        measurability(lambda batch: batch.values, WHOLE, at=times)


def test_the_first_leak_is_told_in_full():
    def peek(batch):
        out = batch.values.clone()
        out[:, 3, 1] += 0.5 * batch.values[:, 5, 2]
        return out

    named = oc.SeriesBatch.from_padded(
        WHOLE.times, WHOLE.values, channels=["heart", "blood", "breath"], streams=list("abcdef")
    )
    leak = measurability(peek, named).leak
    assert (leak.event_stream, leak.stream, leak.channel, leak.output) == ("a", "a", "breath", 1)
    assert leak.event_time == float(named.times[0, 5])
    assert leak.time == float(named.times[0, 3])
    assert leak.old == float(named.values[0, 5, 2])
    assert leak.size == pytest.approx(0.5 * abs(leak.new - leak.old))
    assert f"changing {leak.old:.6g} to {leak.new:.6g} changed output 1 of it" in str(leak)


def test_a_module_is_audited_in_eval_mode_and_left_as_it_was():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, batch):
            return self.drop(batch.values.cumsum(1))

    model = Dropping()
    assert measurability(model, WHOLE).measurability is DISCRETE
    assert model.training
    assert model.drop.training
    with pytest.raises(ValueError, match="two ways: switch off what is random"):
        measurability(lambda batch: batch.values + torch.rand(()), WHOLE)


def test_answers_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(6, 3\).*answer with \(stream, row, output\)"):
        measurability(lambda batch: batch.values[:, -1], WHOLE)
    with pytest.raises(ValueError, match="answered with a list"):
        measurability(lambda batch: [], WHOLE)
    with pytest.raises(ValueError, match="every stream has one row"):
        measurability(lambda batch: batch.values, WHOLE.first_rows(1))
